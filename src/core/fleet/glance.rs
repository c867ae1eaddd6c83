//! What a decision looks at of every worker that serves its model, side by side in memory. There may be thousands: a
//! worker's whole state lies in several places, and is looked at only where this look is not enough.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use super::work::Work;
use super::{Fleet, REPORT_COUNTS_FOR, Worker, WorkerSlot};
use crate::core::id::{Model, RankRange};
use crate::core::worker::WorkerState;

/// What one look says of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Requests in flight there, as [`Worker::load_now`] has it.
    pub load: u64,
    /// Whether it takes requests, and none of its ranks is lost or full. A closer look may find that it does where this says
    /// no.
    pub open: bool,
}

/// One worker at a glance. What every decision reads of every worker lies in the first 64 bytes, which processors fetch
/// at once.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub struct Glance {
    /// How long the last report counts; `None` where there is none.
    reported_until: Option<Instant>,
    /// This router's own requests there.
    own: u32,
    /// Requests that the last report has, and how many of them are not this router's.
    reported: u32,
    others: u32,
    /// Most requests in flight per rank, the largest number where there is no limit.
    most: u32,
    /// Whether there is one.
    pub limited: bool,
    /// How much of the fleet's work it should have.
    pub shares: f64,
    slot: WorkerSlot,
    /// Whether it is registered and ready.
    ready: bool,
    /// Whether nothing of it is marked lost, refuses, takes nothing new, or is full by its report.
    easy: bool,
    /// The ranks it hosts.
    pub ranks: RankRange,
    /// Relative share of traffic, above 0.
    pub weight: f64,
    /// Its shares, times the most that a rank may have in flight where there is a limit.
    pub capacity: f64,
    /// What it was given lately, for each share of the fleet's work that it should have.
    pub work_per_share: f64,
    /// When its next turn is.
    turn: f64,
    /// What all of it was given lately.
    pub work: Work,
    /// A hash of its kind of device.
    pub device: u64,
}

impl Glance {
    /// Of a worker at its place.
    pub(super) fn of(worker: &Worker, slot: WorkerSlot) -> Self {
        let spec = &worker.spec;
        let count = |requests: u64| u32::try_from(requests).unwrap_or(u32::MAX);
        Self {
            slot,
            ranks: spec.ranks,
            weight: spec.weight,
            shares: spec.shares(),
            most: spec.max_inflight.unwrap_or(u32::MAX),
            limited: spec.max_inflight.is_some(),
            capacity: spec.shares() * f64::from(spec.max_inflight.unwrap_or(1)),
            device: worker.device,
            work: worker.work(),
            work_per_share: worker.work().prompt / spec.shares(),
            turn: worker.turn,
            own: worker.in_flight(),
            reported: count(worker.reported_total),
            others: count(worker.reported_total.saturating_sub(worker.own_total_then.into())),
            reported_until: worker.report.as_ref().map(|(_, at)| *at + REPORT_COUNTS_FOR),
            ready: worker.registered && spec.state == WorkerState::Ready,
            easy: worker.marks.is_empty()
                && worker.refusals.is_empty()
                && worker.over.is_empty()
                && worker.leaving_until.is_none(),
        }
    }

    /// The worker's place in the fleet.
    #[inline]
    pub fn slot(&self) -> WorkerSlot {
        self.slot
    }

    /// A look at it.
    #[inline]
    pub fn seen(&self, now: Instant) -> Seen {
        let (reported, others) = if self.is_reported(now) { (self.reported, self.others) } else { (0, 0) };
        Seen {
            load: u64::from(self.own) + u64::from(others),
            open: self.ready & self.easy & (self.own.max(reported) < self.most),
        }
    }

    #[inline]
    fn is_reported(&self, now: Instant) -> bool {
        self.reported_until.is_some_and(|until| now <= until)
    }
}

/// A worker that serves a model: at a glance, and, further away, itself.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'f> {
    fleet: &'f Fleet,
    glance: &'f Glance,
}

impl<'f> Listed<'f> {
    /// At a glance.
    #[inline]
    pub fn glance(&self) -> &'f Glance {
        self.glance
    }

    /// Itself.
    #[inline]
    pub fn worker(&self) -> &'f Worker {
        self.fleet.at(self.glance.slot.index).expect("models list workers that are there")
    }

    /// When its turn is, in turns of the whole fleet: never behind the last one, since who was away has nothing to catch up.
    #[inline]
    pub fn turn(&self) -> f64 {
        self.glance.turn.max(self.fleet.turn)
    }
}

impl Fleet {
    /// The workers that serve a model, ready or not, in the order of their ids; after them those that serve any.
    pub fn listed(&self, model: &Model) -> impl Iterator<Item = Listed<'_>> + Clone {
        let listed = self.by_model.get(model).map_or(&[][..], Vec::as_slice);
        let all = listed.iter().chain(&self.for_any_model);
        all.map(|&index| Listed { fleet: self, glance: &self.glances[index as usize] })
    }

    /// How many there are.
    pub fn count(&self, model: &Model) -> usize {
        self.by_model.get(model).map_or(0, Vec::len) + self.for_any_model.len()
    }

    /// After a change of them all.
    pub(super) fn glance_at_all(&mut self) {
        for index in 0..self.slots.len() {
            self.glance_again(u32::try_from(index).expect("there are at most MAX_WORKERS slots, and configured ones"));
        }
    }

    /// After a change of a worker.
    pub(super) fn glance_again(&mut self, index: u32) {
        let (generation, worker) = &self.slots[index as usize];
        let slot = WorkerSlot { index, generation: *generation };
        let Some(worker) = worker else { return };
        let glance = Glance::of(worker, slot);
        match self.glances.get_mut(index as usize) {
            Some(at) => *at = glance,
            None => self.glances.push(glance),
        }
    }
}

/// A worker that is being changed. When that is done, the look at it is made anew.
pub(super) struct Changing<'f> {
    worker: &'f mut Worker,
    glance: &'f mut Glance,
}

impl<'f> Changing<'f> {
    pub(super) fn new(worker: &'f mut Worker, glance: &'f mut Glance) -> Self {
        Self { worker, glance }
    }
}

impl Deref for Changing<'_> {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        self.worker
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut Worker {
        self.worker
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        *self.glance = Glance::of(self.worker, self.glance.slot);
    }
}
