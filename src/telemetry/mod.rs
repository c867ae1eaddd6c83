//! What an operator sees: logs, and spans where they are exported.

pub mod logging;
pub mod trace;
