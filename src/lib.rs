//! rankpin pins LLM conversations to a (worker, DP rank) over NATS.

pub mod client;
pub mod core;
pub mod local;
pub mod nats;
pub mod wire;
