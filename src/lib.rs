//! rankpin keeps every conversation with a language model on the worker and data-parallel rank that has its prefix
//! cached, over plain NATS.
//!
//! # The way of one request
//!
//! A frontend publishes it on `{ns}.request.{model}`. One router of the queue group reads it ([`router`]), checks its
//! headers and, only where it must, its body ([`wire`]), and knows its session: named by a header or derived from the
//! conversation's text ([`core::session`]). It asks the pure core where the request goes ([`core::decide::decide`]):
//! to the session's pin where that is eligible, else where hints and policy say. A new named session's pin is claimed
//! by compare-and-set before the dispatch, so that any number of routers agree. The request is published to the
//! worker's subject for that rank; the worker answers straight to the frontend, and tells the router that it has the
//! request and when it is done ([`worker`]). What is refused, lost or silent before it is accepted goes elsewhere.
//!
//! # What is of use outside
//!
//! [`gateway`] serves HTTP, [`bridge`] stands in front of an engine's HTTP server, [`worker`] hosts an engine, [`client`]
//! is a frontend, [`wire`] has the messages with their schemas. The contract itself is `docs/protocol.md`; nothing in it needs this crate.

pub mod bench;
pub mod bridge;
pub mod cli;
pub mod client;
pub mod config;
pub mod core;
pub mod demo;
pub mod explain;
pub mod gateway;
pub mod local;
pub mod nats;
pub mod ops;
pub mod replay;
pub mod router;
pub mod sim;
pub mod telemetry;
pub mod up;
pub mod wire;
pub mod worker;
