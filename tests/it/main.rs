//! Integration tests, in one binary: they link once, and run against a real NATS server, never a stand-in.
//!
//! How a server is found: `CONTRIBUTING.md`.

mod body;
mod bridge;
mod chaos;
mod cli;
mod client;
mod compose;
mod demo;
mod deploy;
mod explain;
mod fuzzing;
mod gateway;
mod golden;
mod golden_bodies;
mod jobs;
mod link;
mod ops;
mod pools;
mod python;
mod reliability;
mod replay;
mod router;
mod schemas;
mod sim;
mod start_stop;
mod support;
mod tidy;
mod traces;
mod up;
mod vllm;
mod worker;
