//! When there is no room at a placement, and why (protocol section 5).

use std::time::Instant;

use super::{Fleet, Worker, WorkerSlot};
use crate::core::id::DpRank;
use crate::core::load::{RankLoad, Report};

/// What a rank may report before it counts as full, besides `max_inflight`; nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FullAt {
    /// Share of the declared `kv_blocks` in use, in percent.
    pub kv_percent: Option<u32>,
    /// Requests that it has accepted and not begun.
    pub queued: Option<u32>,
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FullBy {
    /// It has `max_inflight` requests.
    Inflight,
    /// It reports as many blocks in use as [`FullAt`] says.
    KvUse,
    /// It reports as many requests queued as [`FullAt`] says.
    Queued,
    /// It has refused a request a moment ago.
    Refused,
}

impl FullAt {
    /// Whether a rank reports too much.
    fn judge(self, load: &RankLoad, kv_blocks: Option<u64>) -> Option<FullBy> {
        let over = |percent: u32, blocks: u64| {
            u128::from(load.kv_used_blocks) * 100 >= u128::from(blocks) * u128::from(percent)
        };
        if self.kv_percent.zip(kv_blocks).is_some_and(|(percent, blocks)| over(percent, blocks)) {
            return Some(FullBy::KvUse);
        }
        self.queued.is_some_and(|most| load.queued >= most).then_some(FullBy::Queued)
    }

    /// The ranks of a report that report too much, in order.
    pub(super) fn judge_all(self, report: &Report, kv_blocks: Option<u64>) -> Vec<(DpRank, FullBy)> {
        if self == Self::default() {
            return Vec::new();
        }
        report.ranks.iter().filter_map(|load| Some((load.rank, self.judge(load, kv_blocks)?))).collect()
    }
}

impl Fleet {
    /// What counts as full from the next report of each worker on.
    pub fn set_full_at(&mut self, full_at: FullAt) {
        self.full_at = full_at;
    }

    /// A request was refused for overload.
    pub fn note_refused(&mut self, slot: WorkerSlot, rank: Option<DpRank>, now: Instant) {
        if let Some(mut worker) = self.get_mut(slot) {
            worker.refusals.refused(rank, now);
        }
    }
}

impl Worker {
    /// Whether there is no room at a placement.
    pub fn is_full(&self, rank: Option<DpRank>, now: Instant) -> bool {
        self.why_full(rank, now).is_some()
    }

    /// Why there is no room at a placement; `None` where there is.
    pub fn why_full(&self, rank: Option<DpRank>, now: Instant) -> Option<FullBy> {
        if self.refusals.hold(rank, now) {
            return Some(FullBy::Refused);
        }
        if let Some(most) = self.spec.max_inflight {
            let full = match rank {
                Some(rank) => self.load_of(rank, now) >= most,
                None => self.load(now) >= u64::from(most) * u64::from(self.spec.ranks.size()),
            };
            if full {
                return Some(FullBy::Inflight);
            }
        }
        self.full_by_report(rank, now)
    }

    fn full_by_report(&self, rank: Option<DpRank>, now: Instant) -> Option<FullBy> {
        if self.over.is_empty() || self.fresh_report(now).is_none() {
            return None;
        }
        match rank {
            Some(rank) => self.over.iter().find(|(over, _)| *over == rank).map(|(_, by)| *by),
            // Where the engine chooses the rank, it is full when each of its ranks is.
            None if self.over.len() == self.spec.ranks.size() as usize => self.over.first().map(|(_, by)| *by),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::fleet::REPORT_COUNTS_FOR;
    use crate::core::id::InstanceId;
    use crate::core::testing::{fleet, slot, spec, start, worker_id};
    use crate::core::worker::WorkerSpec;

    fn report(seq: u64, loads: &[(u16, u32, u64)]) -> Report {
        let load = |&(rank, queued, kv_used_blocks)| RankLoad {
            rank: DpRank(rank),
            inflight: 0,
            queued,
            kv_used_blocks,
            prefill_tokens: 0,
        };
        let instance = InstanceId::new("i").expect("a valid id");
        Report { worker: worker_id("a"), instance, seq, ranks: loads.iter().map(load).collect() }
    }

    fn why(fleet: &Fleet, rank: Option<u16>, now: Instant) -> Option<FullBy> {
        fleet.get(slot(fleet, "a")).expect("it is there").why_full(rank.map(DpRank), now)
    }

    #[test]
    fn reports_make_a_rank_full_only_where_that_is_wanted() {
        let now = start();
        let with_blocks = |blocks| fleet([WorkerSpec { kv_blocks: blocks, ..spec("a", 0, 2) }], now);
        let mut unlimited = with_blocks(Some(100));
        unlimited.handle_report(report(1, &[(0, 1000, 100)]), now);
        assert_eq!(why(&unlimited, Some(0), now), None, "off by default");

        let mut fleet = with_blocks(Some(100));
        fleet.set_full_at(FullAt { kv_percent: Some(90), queued: Some(4) });
        fleet.handle_report(report(1, &[(0, 3, 89), (1, 0, 90)]), now);
        assert_eq!([Some(0), Some(1), None].map(|rank| why(&fleet, rank, now)), [None, Some(FullBy::KvUse), None]);
        fleet.handle_report(report(2, &[(0, 4, 0), (1, 0, 95)]), now);
        assert_eq!([Some(0), None].map(|rank| why(&fleet, rank, now)), [Some(FullBy::Queued); 2], "each rank is");
        assert_eq!(why(&fleet, Some(0), now + REPORT_COUNTS_FOR + Duration::from_millis(1)), None);
        fleet.handle_report(report(3, &[(0, 3, 0), (1, 3, 0)]), now);
        assert_eq!(why(&fleet, Some(0), now), None);

        let mut undeclared = with_blocks(None);
        undeclared.set_full_at(FullAt { kv_percent: Some(90), queued: None });
        undeclared.handle_report(report(1, &[(0, 1000, u64::MAX)]), now);
        assert_eq!(why(&undeclared, Some(0), now), None, "a share of nothing is none");
    }

    #[test]
    fn a_refusal_counts_for_its_rank_alone() {
        let now = start();
        let mut fleet = fleet([spec("a", 0, 2)], now);
        let a = slot(&fleet, "a");
        fleet.note_refused(a, Some(DpRank(1)), now);
        assert_eq!([Some(0), Some(1), None].map(|rank| why(&fleet, rank, now)), [None, Some(FullBy::Refused), None]);
        let later = now + super::super::refusals::REFUSED_FOR.0;
        assert_eq!(why(&fleet, Some(1), later), None);
        fleet.begin(a, Some(DpRank(1)));
        assert_eq!(why(&fleet, Some(1), later), Some(FullBy::Refused), "one tries");
        fleet.end(a, Some(DpRank(1)), false);
        fleet.begin(a, Some(DpRank(1)));
        fleet.note_accepted(a, Some(DpRank(1)));
        assert_eq!(why(&fleet, Some(1), later), None);
    }
}
