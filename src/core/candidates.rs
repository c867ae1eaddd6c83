//! Placements that a policy may choose among: a set that is never empty.

use super::fleet::WorkerSlot;
use super::id::Placement;

/// One placement that may be chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Where.
    pub placement: Placement,
    /// The worker's place in the fleet.
    pub slot: WorkerSlot,
    /// Number of the pick that last chose this worker; 0 where none has.
    pub last_pick: u64,
}

/// At least one candidate.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidates(Vec<Candidate>);

impl Candidates {
    /// `None` where there is none.
    pub fn new(all: Vec<Candidate>) -> Option<Self> {
        (!all.is_empty()).then_some(Self(all))
    }

    /// All of them; never empty.
    pub fn as_slice(&self) -> &[Candidate] {
        &self.0
    }
}
