//! What a worker declares, already checked.

use std::sync::Arc;

use super::id::{InstanceId, Model, Pool, RankRange, WorkerId};

/// One worker's declaration.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerSpec {
    /// Its id.
    pub id: WorkerId,
    /// Its process.
    pub instance: InstanceId,
    /// The models it serves, sorted; empty only of a pool that serves any.
    pub models: Vec<Model>,
    /// Its pool.
    pub pool: Pool,
    /// The ranks it hosts.
    pub ranks: RankRange,
    /// Kind of device.
    pub device: Arc<str>,
    /// Relative share of traffic, above 0.
    pub weight: f64,
    /// Most requests in flight per rank.
    pub max_inflight: Option<u32>,
    /// Blocks in each rank's prefix cache.
    pub kv_blocks: Option<u64>,
    /// Tokens in a block.
    pub block_size: Option<u32>,
    /// Whether it takes new sessions.
    pub state: WorkerState,
    /// Whether it speaks the lifecycle of section 6.
    pub kind: WorkerKind,
    /// Where it listens, for workers from the configuration; registered ones listen on the protocol's subjects.
    pub subject: Option<Arc<str>>,
}

impl WorkerSpec {
    /// How much of the fleet's work it should have.
    pub fn shares(&self) -> f64 {
        self.weight * f64::from(self.ranks.size())
    }
}

/// State of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// Takes requests.
    Ready,
    /// Takes no new sessions; those pinned to it move at their next turn.
    Draining,
}

/// How a worker speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerKind {
    /// The events of protocol section 6.
    Native,
    /// One answer on the reply subject, as any NATS service gives.
    Plain,
    /// The routers of a pool, to a router at the global level: the events of section 6, over requests (section 6.3).
    Pool,
}

impl WorkerSpec {
    /// Whether it serves a model.
    pub fn serves(&self, model: &Model) -> bool {
        self.models.is_empty() || self.models.binary_search(model).is_ok()
    }
}
