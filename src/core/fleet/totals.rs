//! What this router has given each rank, and what came of it, since the worker appeared: counts that only go up.

use super::{Fleet, Worker, WorkerSlot};
use crate::core::id::DpRank;

/// Counts of one rank, or of a worker's requests without one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Attempts sent there.
    pub dispatched: u64,
    /// Prompt tokens of those that have ended, as the worker says.
    pub prompt_tokens: u64,
    /// Of these, tokens that its cache held.
    pub cached_tokens: u64,
}

impl Fleet {
    /// A worker says what a request's prompt had, and what of it was cached.
    pub(super) fn count_tokens(&mut self, slot: WorkerSlot, rank: Option<DpRank>, (prompt, cached): (u64, u64)) {
        let Some(mut worker) = self.get_mut(slot) else { return };
        if let Some(totals) = worker.totals_mut(rank) {
            totals.prompt_tokens = totals.prompt_tokens.saturating_add(prompt);
            totals.cached_tokens = totals.cached_tokens.saturating_add(cached.min(prompt));
        }
    }
}

impl Worker {
    /// Counts of a rank; without one, of what the engine placed itself.
    pub fn totals(&self, rank: Option<DpRank>) -> Totals {
        match rank {
            Some(rank) => {
                let index = self.spec.ranks.index_of(rank);
                index.and_then(|index| self.totals.get(index)).copied().unwrap_or_default()
            }
            None => self.totals_unranked,
        }
    }

    /// This router's own requests there that name no rank.
    pub fn own_without_rank(&self) -> u32 {
        self.own_unranked
    }

    pub(super) fn totals_mut(&mut self, rank: Option<DpRank>) -> Option<&mut Totals> {
        let Some(rank) = rank else { return Some(&mut self.totals_unranked) };
        let index = self.spec.ranks.index_of(rank)?;
        if self.totals.len() <= index {
            self.totals.resize(index + 1, Totals::default());
        }
        Some(&mut self.totals[index])
    }
}
