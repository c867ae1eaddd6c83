//! Replay of a recorded request trace: the router's own decisions, in virtual time, against simulated targets.
//!
//! Nothing of a policy is written here a second time: each run drives [`crate::core`] as a router does. Beside it run
//! reference rules that need nothing of the core, to compare with. Every run is deterministic by
//! its seed.

mod cache;
mod published;
mod report;
mod router;
mod run;
mod target;
mod trace;

use std::time::Duration;

pub use report::{json, table};
pub use router::Combination;
pub use run::{Measured, Named, replay};
pub use trace::{Trace, TraceError};

use crate::core::mode::RankChoice;
use crate::core::weighing::Weighing;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Workers.
    pub workers: u32,
    /// Ranks of each.
    pub ranks: u32,
    /// Blocks in each rank's cache; `None`: without end.
    pub blocks: Option<u64>,
    /// Tokens a second that a rank prefills, one prompt after the other.
    pub prefill_rate: f64,
    /// Tokens a second of each answer.
    pub decode_rate: f64,
    /// Seed of every choice by chance.
    pub seed: u64,
    /// How many times faster than recorded the requests come.
    pub speed: f64,
    /// How a named session gets its rank.
    pub rank_choice: RankChoice,
    /// How long an unused pin stays.
    pub pin_ttl: Duration,
    /// What decisions weigh.
    pub weighing: Weighing,
    /// After how long work counts half.
    pub half_life: Duration,
}

impl Setup {
    /// All ranks of all workers.
    fn targets(&self) -> usize {
        self.workers as usize * self.ranks as usize
    }
}
