//! What a router would make of a request, and why: its session and where that comes from, its prefix keys, which texts
//! counted, the pin it would follow and where it would go. Every rule is the router's own; here it is only told.

mod alias;
mod cluster;
mod compare;
mod show;
mod text;
mod turn;

pub use cluster::{Cluster, ClusterError, look};
pub use compare::{Comparison, compare};
pub use text::{comparison, explanation};
pub use turn::{Given, Turn, read};

use serde::Serialize;

/// All that is told of one request.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// What its headers and body say.
    #[serde(flatten)]
    pub turn: Turn,
    /// What the cluster makes of it, where that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
}
