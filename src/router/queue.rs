//! Requests that wait for room: who is tried when there is some, and what they are told where there is none.

use std::time::Instant;

use super::live::{At, Mail, Seq};
use super::state::{Asked, Asking, Keys, Router, State};
use crate::core::ask::Ask;
use crate::core::decide::freed::Freed;
use crate::core::decide::{NoPlacement, Rules, WaitFor};
use crate::core::error::RouteError;
use crate::core::fleet::WorkerSlot;
use crate::core::hash::PinKey;
use crate::core::id::{DpRank, Model};
use crate::core::partition::Partition;
use crate::core::pins::Pin;
use crate::core::queue::{Place, Priority, Pushed, Tried};

/// Where on a worker there is room: at a placement (its rank, or none), or with `None` anywhere.
type Spot = Option<Option<DpRank>>;

/// A request in the queue.
pub struct Waiting {
    seq: Seq,
    ask: Ask,
    partition: Partition,
    keys: Keys,
    wants: WaitFor,
}

impl Router {
    /// The fleet has changed, or time has passed: whoever waits is tried again.
    pub fn pump(&self, now: Instant) {
        self.state().pump(None, self.rules, now);
    }

    /// A worker has reported: whoever waits for it is tried again.
    pub(super) fn pump_worker(&self, slot: WorkerSlot, now: Instant) {
        self.state().pump(Some((slot, None)), self.rules, now);
    }

    /// The request waits no longer.
    pub(super) fn leave_queue(&self, seq: Seq) {
        self.state().queue.remove(seq, Instant::now());
    }

    /// The error of a request without room, with the time after which another try is worth it.
    pub(super) fn overloaded(
        &self,
        ask: &Ask,
        (partition, keys): (Partition, &Keys),
        priority: Priority,
        why: &str,
    ) -> RouteError {
        let now = Instant::now();
        let state = self.state();
        let place = state.place_of(ask, (partition, keys), priority, now);
        let retry_after_s = state.queue.retry_after_s(&place, now);
        RouteError::Overloaded { why: why.to_owned(), retry_after_s }
    }
}

impl State {
    /// Puts a request into the queue, where there is room for it.
    pub(super) fn wait(&mut self, asking: &Asking<'_>, wants: WaitFor, now: Instant) -> Asked {
        let place = self.place_of(asking.ask, (asking.partition, asking.keys), asking.priority, now);
        let Asking { seq, partition, .. } = *asking;
        let waiting = Waiting { seq, partition, ask: asking.ask.clone(), keys: asking.keys.clone(), wants };
        match self.queue.push(place, asking.seq, waiting, now) {
            Pushed::Waits => Asked::Queued,
            Pushed::Displaced(other) => {
                self.tell(other.seq, Mail::Displaced);
                Asked::Queued
            }
            Pushed::Full => Asked::QueueFull,
        }
    }

    /// Where a request waits, and with whom it takes turns: the turns of one session, and all requests of a tenant that
    /// have none.
    fn place_of(&self, ask: &Ask, (partition, keys): (Partition, &Keys), priority: Priority, now: Instant) -> Place {
        let flow = match (keys, &ask.session) {
            (Keys::Named(key), _) => *key,
            (Keys::Derived(prefixes), Some(session)) => {
                let pin = self.mirrors.of(partition).continued(prefixes, now).and_then(|(_, entry)| entry.pin.as_ref());
                let root = pin.and_then(Pin::root).unwrap_or(session.id.as_str());
                PinKey::of(ask.tenant.as_str(), ask.model.as_str(), root)
            }
            (Keys::None | Keys::Derived(_), _) => PinKey::of(ask.tenant.as_str(), ask.model.as_str(), ""),
        };
        Place { model: ask.model.clone(), priority, flow }
    }

    fn tell(&mut self, seq: Seq, mail: Mail) {
        if let Some(live) = self.live.get_mut(seq) {
            live.send(mail);
        }
    }

    /// A request has left where it was counted: others get the room.
    pub(super) fn freed(&mut self, at: &At, rules: Rules, now: Instant) {
        self.pump(Some((at.slot, Some(at.rank))), rules, now);
    }

    /// Tries those that may have a use for room on a worker (at one placement, or anywhere on it); `None`: everybody.
    pub(super) fn pump(&mut self, freed: Option<(WorkerSlot, Spot)>, rules: Rules, now: Instant) {
        if self.queue.is_empty() {
            return;
        }
        let room = freed.and_then(|(slot, rank)| Some(Freed::on(self.fleet.get(slot)?, rank)));
        let mut queue = std::mem::take(&mut self.queue);
        queue.pump(
            |model| room.as_ref().is_none_or(|room| room.serves(model)),
            room.is_none(),
            now,
            |waiting| room.as_ref().is_none_or(|room| room.may_suit(&waiting.ask, &waiting.wants, rules)),
            |waiting| match self.grant(waiting, rules, now) {
                Tried::Granted { .. } => Tried::Granted { more_room: self.has_more_room(freed, now) },
                other => other,
            },
        );
        self.queue = queue;
    }

    fn has_more_room(&self, freed: Option<(WorkerSlot, Spot)>, now: Instant) -> bool {
        let Some((slot, Some(rank))) = freed else { return true };
        self.fleet.get(slot).is_none_or(|worker| !worker.is_full(rank, now))
    }

    /// Places a waiting request where there is room now. What can't be placed at all any more is told by asking
    /// again: it leaves the queue with mail that makes it do so.
    fn grant(&mut self, waiting: &Waiting, rules: Rules, now: Instant) -> Tried {
        let (basis, pinned) = self.look_up(waiting.partition, &waiting.keys, now);
        match self.place(waiting.seq, &waiting.ask, pinned.as_ref(), false, rules, now) {
            Ok(decision) => {
                self.tell(waiting.seq, Mail::Granted(Box::new((decision, basis))));
                Tried::Granted { more_room: true }
            }
            Err(NoPlacement::Wait(_)) => Tried::NotNow,
            Err(NoPlacement::Exhausted | NoPlacement::Refused(_)) => {
                self.tell(waiting.seq, Mail::AskAgain);
                Tried::Leaves
            }
        }
    }

    /// How many requests wait for room.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Models for which any waits, and how many.
    pub fn queues(&self) -> impl Iterator<Item = (&Model, usize)> {
        self.queue.lengths()
    }

    /// For how many models any waits.
    pub fn models_queued(&self) -> usize {
        self.queue.models_waiting()
    }

    /// Forgets the queues of models that nobody serves any more.
    pub(super) fn forget_queues(&mut self, now: Instant) {
        let fleet = &self.fleet;
        self.queue.forget(|model| fleet.knows(model, now));
    }
}
