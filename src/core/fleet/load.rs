//! Load: this router's own requests, counted at once, and what workers report of everybody's.

use std::time::{Duration, Instant};

use super::{Fleet, Worker, WorkerSlot};
use crate::core::id::DpRank;
use crate::core::load::Report;

/// A load report older than this no longer counts (protocol section 7).
pub const REPORT_COUNTS_FOR: Duration = Duration::from_secs(5);

impl Fleet {
    /// A request goes to this placement.
    pub fn begin(&mut self, slot: WorkerSlot, rank: Option<DpRank>) {
        let Some(mut worker) = self.get_mut(slot) else { return };
        worker.refusals.begin(rank);
        if let Some(totals) = worker.totals_mut(rank) {
            totals.dispatched += 1;
        }
        match rank.and_then(|rank| worker.spec.ranks.index_of(rank)) {
            Some(index) => {
                if worker.own.len() <= index {
                    worker.own.resize(index + 1, 0);
                }
                worker.own[index] += 1;
            }
            None => worker.own_unranked += 1,
        }
        worker.own_total += 1;
    }

    /// A request has left this placement, `accepted` or not. A worker that was deregistered goes with its last one.
    pub fn end(&mut self, slot: WorkerSlot, rank: Option<DpRank>, accepted: bool) {
        let Some(mut worker) = self.get_mut(slot) else { return };
        if worker.own_at(rank) == 1 {
            worker.settle_work(rank);
        }
        let count = match rank {
            // A worker that declares the rank no longer took its count along.
            Some(rank) => worker.spec.ranks.index_of(rank).and_then(|index| worker.own.get_mut(index)),
            None => Some(&mut worker.own_unranked),
        };
        if let Some(count) = count.filter(|count| **count > 0) {
            *count -= 1;
            worker.own_total -= 1;
        }
        if accepted {
            worker.accepted = worker.accepted.saturating_sub(1);
        } else {
            worker.refusals.end(rank);
        }
        let gone = !worker.registered && worker.in_flight() == 0;
        drop(worker);
        if gone {
            self.remove(slot);
        }
    }

    /// A request at this placement was accepted: from now on the worker is probed.
    pub fn note_accepted(&mut self, slot: WorkerSlot, rank: Option<DpRank>) {
        if let Some(mut worker) = self.get_mut(slot) {
            worker.accepted += 1;
            worker.refusals.accepted(rank);
        }
    }

    /// A load report came in. False where it is ignored: another instance's, or not newer than the last one.
    pub fn handle_report(&mut self, mut report: Report, now: Instant) -> bool {
        let full_at = self.full_at;
        let Some((slot, _)) = self.find(report.worker.as_str()) else { return false };
        let mut worker = self.get_mut(slot).expect("it was just found");
        if worker.spec.instance != report.instance {
            return false;
        }
        if worker.report.as_ref().is_some_and(|(last, _)| last.seq >= report.seq) {
            return false;
        }
        let ranks = worker.spec.ranks;
        report.ranks.retain(|load| ranks.contains(load.rank));
        report.ranks.sort_by_key(|load| load.rank);
        report.ranks.dedup_by_key(|load| load.rank);
        worker.last_sign = now;
        worker.reported_total = report.ranks.iter().map(|load| u64::from(load.inflight)).sum();
        let worker = &mut *worker;
        worker.own_then.clone_from(&worker.own);
        worker.own_total_then = worker.in_flight();
        worker.over = full_at.judge_all(&report, worker.spec.kv_blocks);
        worker.report_work(&report);
        worker.report = Some((report, now));
        true
    }
}

impl Worker {
    /// This router's own requests here.
    pub fn in_flight(&self) -> u32 {
        self.own_total
    }

    /// This router's own requests on a rank.
    pub fn own_on(&self, rank: DpRank) -> u32 {
        let index = self.spec.ranks.index_of(rank);
        index.and_then(|index| self.own.get(index)).copied().unwrap_or(0)
    }

    /// Load of a rank: the larger of own and reported in-flight.
    pub fn load_of(&self, rank: DpRank, now: Instant) -> u32 {
        let reported = self.fresh_report(now).and_then(|report| {
            let at = report.ranks.binary_search_by_key(&rank, |load| load.rank).ok()?;
            Some(report.ranks[at].inflight)
        });
        self.own_on(rank).max(reported.unwrap_or(0))
    }

    /// What a rank has in flight now, as far as can be known: what this router has there, and what others had when the
    /// worker last reported. Several routers that choose by it don't all run for the same rank, and a burst is spread
    /// before anything of it was reported.
    pub fn load_now_of(&self, rank: DpRank, now: Instant) -> u32 {
        let others = self.fresh_report(now).map_or(0, |report| {
            let at = report.ranks.binary_search_by_key(&rank, |load| load.rank);
            let reported = at.map_or(0, |at| report.ranks[at].inflight);
            let index = self.spec.ranks.index_of(rank);
            let own_then = index.and_then(|index| self.own_then.get(index)).copied().unwrap_or(0);
            reported.saturating_sub(own_then)
        });
        self.own_on(rank).saturating_add(others)
    }

    /// What the whole worker has in flight now, by the same rule.
    pub fn load_now(&self, now: Instant) -> u64 {
        let others =
            self.fresh_report(now).map_or(0, |_| self.reported_total.saturating_sub(u64::from(self.own_total_then)));
        u64::from(self.in_flight()) + others
    }

    /// Load of the whole worker: the larger of own and reported in-flight, over all ranks and without one.
    pub fn load(&self, now: Instant) -> u64 {
        let reported = self.fresh_report(now).map_or(0, |_| self.reported_total);
        u64::from(self.in_flight()).max(reported)
    }

    /// Whether its last report, where it still counts, says that no rank has anything to do.
    pub fn is_idle(&self, now: Instant) -> bool {
        let idle = |report: &Report| report.ranks.iter().all(|load| load.inflight == 0 && load.queued == 0);
        self.fresh_report(now).is_some_and(|report| !report.ranks.is_empty() && idle(report))
    }

    /// The last report, where it still counts.
    pub fn fresh_report(&self, now: Instant) -> Option<&Report> {
        let (report, at) = self.report.as_ref()?;
        (now.saturating_duration_since(*at) <= REPORT_COUNTS_FOR).then_some(report)
    }
}
