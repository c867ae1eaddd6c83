//! Which workers may have a request: most of them at a glance.

use super::{NoPlacement, RankOn, View, WaitFor, allows};
use crate::core::candidates::{Candidate, Candidates, RankThere};
use crate::core::fleet::{Listed, Worker};

/// Every placement that is allowed and has not failed.
#[derive(Default)]
pub(super) struct Open<'a> {
    /// Where there is room.
    free: Vec<Candidate<'a>>,
    /// Where there is room, but the worker has just said that it takes nothing new: only where nobody else has.
    leaving: Vec<Candidate<'a>>,
    /// Whether there are others, without room.
    full: bool,
}

impl Open<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.free.is_empty() && self.leaving.is_empty() && !self.full
    }
}

/// How a worker that serves the model stands to a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Look {
    /// The request may have it, on whichever rank.
    Easy,
    /// It may have it, where it has room on the rank that the request would have.
    Closer,
    /// It can't have it.
    No,
}

impl<'a> View<'a> {
    /// Where the request may go, with the rank that `rank_on` gives on each worker.
    pub(super) fn open(&self, rank_on: impl Fn(&Worker) -> RankOn) -> Open<'a> {
        let mut open = Open { free: Vec::with_capacity(self.fleet.count(&self.ask.model)), ..Open::default() };
        self.fleet.listed(&self.ask.model).for_each(|listed| {
            let seen = listed.glance().seen(self.now);
            if seen.open && self.takes_anything {
                open.free.push(Candidate::new(listed, RankThere::Any, seen.load));
            } else if self.is_worth_a_look(listed) {
                self.look_closer(listed, seen.load, &rank_on, &mut open);
            }
        });
        open
    }

    /// How a worker looks to the request.
    #[inline]
    pub(super) fn look(&self, listed: Listed<'_>) -> Look {
        if self.takes_anything && listed.glance().seen(self.now).open {
            return Look::Easy;
        }
        if self.is_worth_a_look(listed) { Look::Closer } else { Look::No }
    }

    fn is_worth_a_look(&self, listed: Listed<'_>) -> bool {
        let worker = listed.worker();
        worker.is_ready(self.now) && allows(self.ask, worker)
    }

    fn look_closer(&self, listed: Listed<'a>, load: u64, rank_on: impl Fn(&Worker) -> RankOn, open: &mut Open<'a>) {
        let worker = listed.worker();
        let Some(rank) = self.resolve(rank_on(worker), worker) else { return };
        let lost = rank.is_some_and(|rank| worker.is_marked(Some(rank), self.now));
        if lost || self.ask.exclusion(&worker.spec.id, rank).is_some() {
            return;
        }
        let candidate = Candidate::new(listed, RankThere::Known(rank), load);
        if worker.is_full(rank, self.now) {
            open.full = true;
        } else if worker.is_leaving(self.now) {
            open.leaving.push(candidate);
        } else {
            open.free.push(candidate);
        }
    }

    /// The candidates that have room; those that say that they take nothing new only where there are no others.
    pub(super) fn with_room(&self, open: Open<'a>) -> Result<Candidates<'a>, NoPlacement> {
        let full = open.full;
        let of = |these| Candidates::new(self.with_less_work(these));
        of(open.free).or_else(|| of(open.leaving)).ok_or(if full {
            NoPlacement::Wait(WaitFor::Any)
        } else {
            NoPlacement::Exhausted
        })
    }
}
