//! What an operator sees: figures, logs, and spans where they are exported.

pub mod exposition;
pub mod logging;
pub mod trace;
