//! What workers report of their load.

use super::id::{DpRank, InstanceId, WorkerId};

/// One load report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Who reports.
    pub worker: WorkerId,
    /// Its process; a report of another than the registered one is ignored.
    pub instance: InstanceId,
    /// Goes up with every report; one that is not higher is ignored.
    pub seq: u64,
    /// One entry per rank.
    pub ranks: Vec<RankLoad>,
}

/// Load of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankLoad {
    /// The rank.
    pub rank: DpRank,
    /// Requests it works on.
    pub inflight: u32,
    /// Requests it has accepted and not begun.
    pub queued: u32,
    /// Blocks of its prefix cache in use.
    pub kv_used_blocks: u64,
    /// Prompt tokens still to be prefilled.
    pub prefill_tokens: u64,
}
