//! rankpin pins LLM conversations to a (worker, DP rank) over NATS.

pub mod cli;
pub mod config;
pub mod core;
pub mod nats;
pub mod router;
pub mod sim;
pub mod telemetry;
pub mod wire;
pub mod worker;
