//! Placements that a policy may choose among: a set that is never empty.

use super::fleet::{Worker, WorkerSlot};
use super::id::DpRank;

/// One placement that may be chosen.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'f> {
    /// The worker's place in the fleet.
    pub slot: WorkerSlot,
    /// The worker.
    pub worker: &'f Worker,
    /// The rank that the request would have there.
    pub rank: Option<DpRank>,
    /// Whether it gets the least loaded rank there instead, once the worker is chosen.
    pub by_load: bool,
    /// Requests in flight at the worker, as far as is known.
    pub load: u64,
    /// When the worker's turn is, in turns of the whole fleet.
    pub turn: f64,
}

impl Candidate<'_> {
    /// The worker's weight.
    pub fn weight(&self) -> f64 {
        self.worker.spec.weight
    }
}

/// At least one candidate.
#[derive(Debug, Clone)]
pub struct Candidates<'f> {
    all: Vec<Candidate<'f>>,
    /// Whether every one of them declares how much it may have in flight.
    limited: bool,
}

impl<'f> Candidates<'f> {
    /// `None` where there is none.
    pub fn new(all: Vec<Candidate<'f>>) -> Option<Self> {
        let limited = all.iter().all(|candidate| candidate.worker.spec.max_inflight.is_some());
        (!all.is_empty()).then_some(Self { all, limited })
    }

    /// All of them; never empty.
    pub fn as_slice(&self) -> &[Candidate<'f>] {
        &self.all
    }

    /// How loaded one of them is: what it has in flight, over its weight and what it can hold. That is its number of
    /// ranks, times `max_inflight` where every candidate declares one: else the limits can't be compared.
    pub fn relative_load(&self, candidate: &Candidate<'f>) -> f64 {
        let spec = &candidate.worker.spec;
        let limit = spec.max_inflight.filter(|_| self.limited).unwrap_or(1);
        let room = spec.weight * f64::from(spec.ranks.size()) * f64::from(limit);
        // Counts of requests are far below 2^53, where every integer is a float.
        #[expect(clippy::cast_precision_loss, reason = "see above")]
        let load = candidate.load as f64;
        load / room
    }
}
