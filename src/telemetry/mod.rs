//! What an operator sees: logs.

pub mod logging;
