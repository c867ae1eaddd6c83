//! rankpin pins LLM conversations to a (worker, DP rank) over NATS.

pub mod bench;
pub mod cli;
pub mod client;
pub mod config;
pub mod core;
pub mod demo;
pub mod local;
pub mod nats;
pub mod router;
pub mod sim;
pub mod telemetry;
pub mod wire;
pub mod worker;
