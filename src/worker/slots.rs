//! How many requests a worker holds, by rank, and when it takes no more.

use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, watch};

use super::engine::Refusal;
use crate::core::id::{DpRank, RankRange};
use crate::wire::load::RankReport;

/// Requests that one worker holds at most, whatever `max_inflight` says: each costs a task and its body.
pub const MAX_HELD: usize = 16_384;

/// The counts.
#[derive(Debug)]
pub(super) struct Slots {
    ranks: RankRange,
    max_inflight: Option<u32>,
    counts: Mutex<Counts>,
    held: watch::Sender<usize>,
    woken: Notify,
}

#[derive(Debug)]
struct Counts {
    by_rank: Vec<u32>,
    held: usize,
    draining: bool,
    away: bool,
}

/// Room for one request; dropped when the request ends.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    index: Option<usize>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.slots.lock();
        if let Some(index) = self.index {
            counts.by_rank[index] -= 1;
        }
        counts.held -= 1;
        if counts.draining {
            // Under the lock, so that the last word is the last count.
            self.slots.held.send_replace(counts.held);
        }
    }
}

impl Slots {
    pub(super) fn new(ranks: RankRange, max_inflight: Option<u32>) -> Self {
        let counts = Counts { by_rank: vec![0; ranks.size() as usize], held: 0, draining: false, away: false };
        Self { ranks, max_inflight, counts: Mutex::new(counts), held: watch::Sender::new(0), woken: Notify::new() }
    }

    /// Room for a request on a rank, or on none; or why there is none.
    pub(super) fn take(self: &Arc<Self>, rank: Option<DpRank>) -> Result<Slot, Refusal> {
        let index = rank.and_then(|rank| self.ranks.index_of(rank));
        let mut counts = self.lock();
        if counts.draining {
            return Err(Refusal::draining());
        }
        if counts.away {
            return Err(Refusal::unavailable("engine_down", "the worker's engine does not work at the moment"));
        }
        if counts.held >= MAX_HELD {
            return Err(Refusal::overloaded(format!("the worker holds {MAX_HELD} requests")));
        }
        if let Some(max) = self.max_inflight {
            let (used, room) = match index {
                Some(index) => (counts.by_rank[index] as usize, max as usize),
                None => (counts.held, max as usize * counts.by_rank.len()),
            };
            if used >= room {
                return Err(Refusal::overloaded(format!("{used} requests are in flight, the limit is {room}")));
            }
        }
        if let Some(index) = index {
            counts.by_rank[index] += 1;
        }
        counts.held += 1;
        let first = counts.held == 1;
        drop(counts);
        if first {
            self.woken.notify_one();
        }
        Ok(Slot { slots: Arc::clone(self), index })
    }

    /// Takes no more from now on.
    pub(super) fn drain(&self) {
        let mut counts = self.lock();
        counts.draining = true;
        self.held.send_replace(counts.held);
    }

    /// Takes none for now, or takes some again.
    pub(super) fn set_away(&self, away: bool) {
        self.lock().away = away;
    }

    /// Returns once nothing is held any more; counts only while draining.
    pub(super) async fn emptied(&self) {
        let mut held = self.held.subscribe();
        // The sender is a field of `self`, so the channel cannot end.
        let _ = held.wait_for(|held| *held == 0).await;
    }

    /// How many are held.
    pub(super) fn held(&self) -> usize {
        self.lock().held
    }

    /// Whether anything is held.
    pub(super) fn is_busy(&self) -> bool {
        self.lock().held > 0
    }

    /// Returns once the first request after idle time came.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// One entry per rank with the requests that named it.
    pub(super) fn reports(&self) -> Vec<RankReport> {
        let counts = self.lock();
        let ranks = self.ranks.iter().zip(&counts.by_rank);
        ranks
            .map(|(rank, inflight)| RankReport { dp_rank: rank.0, inflight: *inflight, ..RankReport::default() })
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().expect("no code panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(max_inflight: Option<u32>) -> Arc<Slots> {
        Arc::new(Slots::new(RankRange::new(4, 2).expect("valid"), max_inflight))
    }

    #[test]
    fn a_rank_counts_its_own_and_no_rank_counts_all() {
        let slots = slots(Some(1));
        let four = slots.take(Some(DpRank(4))).expect("room");
        assert_eq!(slots.take(Some(DpRank(4))).expect_err("full").status, 429);
        let any = slots.take(None).expect("room for two in all");
        assert_eq!(slots.take(None).expect_err("full").status, 429);
        assert!(slots.take(Some(DpRank(5))).is_ok(), "the rank's own count has no requests without rank");
        assert_eq!(slots.reports().iter().map(|r| (r.dp_rank, r.inflight)).collect::<Vec<_>>(), [(4, 1), (5, 0)]);
        drop((four, any));
        assert!(!slots.is_busy());
    }

    #[tokio::test]
    async fn draining_takes_no_more_and_tells_when_all_is_done() {
        let slots = slots(None);
        let held = slots.take(None).expect("room");
        slots.drain();
        assert_eq!(slots.take(None).expect_err("draining").status, 503);
        let emptied = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.emptied().await }
        });
        drop(held);
        emptied.await.expect("it ends");
    }

    #[test]
    fn the_worker_holds_so_many_at_most() {
        let slots = slots(None);
        let all: Vec<_> = (0..MAX_HELD).map(|_| slots.take(None).expect("room")).collect();
        assert_eq!(slots.take(Some(DpRank(4))).expect_err("full").code, "overloaded");
        drop(all);
    }
}
