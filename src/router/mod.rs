//! The router: takes requests, places each, dispatches it and stays with it until it ends.
//!
//! The way of one request is a straight line: [`intake`] reads it, [`admit`] checks it, [`route`] places it
//! ([`crate::core::decide`]), pins it ([`pinning`]), sends it ([`dispatch`]) and follows it to its end.

mod admit;
mod alias;
mod answers;
mod chains;
mod claiming;
mod derived;
mod dispatch;
mod failures;
mod fleet_metrics;
mod happenings;
mod hot;
mod http;
mod inbox;
mod intake;
mod jobs;
mod kv;
mod later;
mod live;
mod metrics;
mod mirror;
mod mirrors;
mod partitions;
mod passing;
mod permits;
mod pinning;
mod pools;
mod provision;
mod queue;
mod queue_metrics;
mod rarely;
mod requests_metrics;
mod route;
mod run;
mod seal;
mod series;
mod service;
mod spans;
mod state;
mod ticks;
mod view;

pub use provision::provision;
pub use run::{RouterError, run};
