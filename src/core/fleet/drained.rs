//! Workers that have drained and left: their sessions move because somebody wanted it so, and not because they were lost.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use super::Fleet;
use crate::core::id::WorkerId;

/// For how long it is remembered that a worker has drained: as long as pins stay by default that nobody uses.
const DRAINED_KNOWN_FOR: Duration = Duration::from_secs(3600);
/// Most workers of which that is remembered; those of one more are taken for lost.
const MAX_DRAINED: usize = 4_096;

/// Which workers have drained and left, and when.
#[derive(Debug, Default)]
pub(super) struct Drained(HashMap<WorkerId, Instant, RandomState>);

impl Fleet {
    /// Whether a worker has drained and left, and no other has come under its name.
    pub fn has_drained(&self, id: &str, now: Instant) -> bool {
        self.drained.has(id, now)
    }
}

impl Drained {
    /// A worker that was draining has left.
    pub fn note(&mut self, id: &WorkerId, now: Instant) {
        if self.0.len() >= MAX_DRAINED {
            self.forget(now);
        }
        if self.0.len() < MAX_DRAINED {
            self.0.insert(id.clone(), now);
        }
    }

    /// A worker of this name is there.
    pub fn is_back(&mut self, id: &WorkerId) {
        self.0.remove(id);
    }

    /// Drops what is too old.
    pub fn forget(&mut self, now: Instant) {
        self.0.retain(|_, left| now.saturating_duration_since(*left) <= DRAINED_KNOWN_FOR);
    }

    fn has(&self, id: &str, now: Instant) -> bool {
        self.0.get(id).is_some_and(|left| now.saturating_duration_since(*left) <= DRAINED_KNOWN_FOR)
    }
}
