//! rankpin pins LLM conversations to a (worker, DP rank) over NATS.

pub mod core;
pub mod nats;
pub mod sim;
pub mod wire;
pub mod worker;
