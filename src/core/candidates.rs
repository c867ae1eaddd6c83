//! Placements that a policy may choose among: a set that is never empty.

use super::fleet::{Glance, Listed, Worker, WorkerSlot};
use super::id::DpRank;

/// One placement that may be chosen.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'f> {
    listed: Listed<'f>,
    /// The rank that the request would have there.
    pub rank: RankThere,
    /// Requests in flight at the worker, as far as is known.
    pub load: u64,
}

/// The rank that a request would have on a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankThere {
    /// This one, or none.
    Known(Option<DpRank>),
    /// Whichever it is, there is room on it: it can wait until the worker is chosen. There are many workers, of many ranks
    /// each.
    Any,
}

impl<'f> Candidate<'f> {
    /// Of a worker with so many requests in flight.
    #[inline]
    pub fn new(listed: Listed<'f>, rank: RankThere, load: u64) -> Self {
        Self { listed, rank, load }
    }

    /// The worker at a glance.
    #[inline]
    pub fn glance(&self) -> &'f Glance {
        self.listed.glance()
    }

    /// The worker. Its whole state is far away in memory: for those that are chosen.
    pub fn worker(&self) -> &'f Worker {
        self.listed.worker()
    }

    /// The worker's place in the fleet.
    pub fn slot(&self) -> WorkerSlot {
        self.glance().slot()
    }

    /// The worker's weight.
    #[inline]
    pub fn weight(&self) -> f64 {
        self.glance().weight
    }

    /// When the worker's turn is, in turns of the whole fleet.
    #[inline]
    pub fn turn(&self) -> f64 {
        self.listed.turn()
    }

    /// What the placement was given lately, for each share of the fleet's work that it should have.
    pub fn work(&self) -> f64 {
        match self.rank {
            RankThere::Known(rank) => self.worker().work_at(rank).prompt,
            RankThere::Any => self.glance().work_per_share,
        }
    }
}

/// At least one candidate, in the order of the workers' ids.
#[derive(Debug, Clone)]
pub struct Candidates<'f> {
    all: Vec<Candidate<'f>>,
    /// Whether every one of them declares how much it may have in flight.
    limited: bool,
    /// The sum of their weights.
    weights: f64,
}

impl<'f> Candidates<'f> {
    /// `None` where there is none.
    pub fn new(all: Vec<Candidate<'f>>) -> Option<Self> {
        let (mut limited, mut weights) = (true, 0.0);
        for candidate in &all {
            limited &= candidate.glance().limited;
            weights += candidate.weight();
        }
        (!all.is_empty()).then_some(Self { all, limited, weights })
    }

    /// All of them; never empty.
    #[inline]
    pub fn as_slice(&self) -> &[Candidate<'f>] {
        &self.all
    }

    /// The sum of their weights.
    pub fn weights(&self) -> f64 {
        self.weights
    }

    /// How loaded one of them is: what it has in flight, over its weight and what it can hold. That is its number of
    /// ranks, times `max_inflight` where every candidate declares one: else the limits can't be compared.
    #[inline]
    pub fn relative_load(&self, candidate: &Candidate<'f>) -> f64 {
        let glance = candidate.glance();
        let can_hold = if self.limited { glance.capacity } else { glance.shares };
        // Counts of requests are far below 2^53, where every integer is a float.
        #[expect(clippy::cast_precision_loss, reason = "see above")]
        let load = candidate.load as f64;
        load / can_hold
    }
}
