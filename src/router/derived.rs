//! Pins of derived sessions: few, and written after acceptance without anybody waiting (protocol section 4).

use std::time::Instant;

use super::admit::derived_pin_key;
use super::route::Request;
use super::state::Keys;
use crate::core::decide::Decision;
use crate::core::hash::PinKey;
use crate::core::id::{Origin, Placement, SessionId};
use crate::core::partition::Partition;
use crate::core::pins::Pin;
use crate::core::session::Session;
use crate::wire::pin::PinValue;

/// The pin that a request continues.
#[derive(Debug, Clone)]
pub struct Continued {
    key: PinKey,
    /// Index of its prefix among the request's keys.
    index: usize,
    pin: Pin,
}

impl Continued {
    /// Whether the pin is to this placement.
    pub(super) fn is_at(&self, placement: &Placement) -> bool {
        self.pin.placement == *placement
    }
}

/// A pin to write.
struct Write {
    key: u64,
    placement: Placement,
    shared: bool,
    root: String,
}

impl Request {
    /// The pin that the request continues, where its session is derived.
    pub(super) fn find_continued(&self) -> Option<Continued> {
        let (Keys::Derived(keys), Some(key)) = (&self.keys, self.basis.key) else { return None };
        let pin = self.router.state().mirrors.of(self.partition).get(key, Instant::now())?.pin.clone()?;
        let from_deepest = keys.iter().position(|other| *other == key)?;
        Some(Continued { key, index: keys.len() - 1 - from_deepest, pin })
    }

    /// The session as workers see it: of a derived one the id of its first request.
    pub(super) fn root<'s>(&'s self, session: &'s Session) -> &'s str {
        let root = self.continued.as_ref().and_then(|continued| continued.pin.root());
        root.unwrap_or(session.id.as_str())
    }

    /// The worker has the request: what is pinned of it.
    pub(super) fn pin_derived(&mut self, decision: &Decision) {
        let (Some(prefixes), Some(session)) = (&self.prefixes, &self.ask.session) else {
            return self.pin_chain(decision);
        };
        let root = self.root(session).to_owned();
        let at = |key, shared| Write { key, placement: decision.placement.clone(), shared, root: root.clone() };
        let mut writes = Vec::new();
        match &self.continued {
            None => writes.extend(self.opening(at(prefixes.full(), false))),
            Some(continued) if continued.pin.placement != decision.placement => {
                writes.push(at(prefixes.keys()[continued.index], false));
            }
            Some(continued) => self.refresh_derived(continued),
        }
        if let Some(last_assistant) = prefixes.last_assistant() {
            let followed = self.continued.as_ref().is_some_and(|continued| {
                prefixes.covers_assistant(continued.index) && continued.pin.placement == decision.placement
            });
            if !followed && !self.is_pinned_well(last_assistant) {
                writes.push(at(last_assistant, false));
            }
        }
        for write in writes {
            self.write_derived(&write);
        }
    }

    /// The pin of the full input of a request that continues nothing. Where several conversations begin so, and on
    /// different placements, the pin is marked: the next turns are placed afresh rather than all on one rank.
    fn opening(&self, write: Write) -> Option<Write> {
        let existing = {
            let state = self.router.state();
            let key = derived_pin_key(&self.ask, write.key);
            state.mirrors.of(self.partition).get(key, Instant::now()).and_then(|entry| entry.pin.clone())
        };
        let Some(pin) = existing else { return Some(write) };
        if pin.shared || pin.placement == write.placement {
            return None;
        }
        let root = pin.root().map_or(write.root, str::to_owned);
        Some(if self.is_pinned_well(write.key) {
            Write { placement: pin.placement, shared: true, root, key: write.key }
        } else {
            Write { root, ..write }
        })
    }

    /// Whether the key is pinned to a placement that may be used.
    fn is_pinned_well(&self, key: u64) -> bool {
        let now = Instant::now();
        let state = self.router.state();
        let entry = state.mirrors.of(self.partition).get(derived_pin_key(&self.ask, key), now);
        let Some(pin) = entry.and_then(|entry| entry.pin.as_ref()) else { return false };
        let worker = state.fleet.eligible_worker(&pin.placement.worker, &self.ask.model, now);
        worker.is_some_and(|(_, worker)| match pin.placement.rank {
            Some(rank) => worker.spec.ranks.contains(rank) && !worker.is_marked(Some(rank), now),
            None => true,
        })
    }

    fn refresh_derived(&self, continued: &Continued) {
        if !self.basis.is_refresh_due() {
            return;
        }
        let due = {
            let mut state = self.router.state();
            let now = Instant::now();
            let mirror = state.mirrors.of_mut(self.partition);
            let due = mirror.take_refresh(continued.key, now);
            if due { Some(mirror.revision(continued.key, now)) } else { None }
        };
        let (Some(revision), Some(prefixes)) = (due, &self.prefixes) else { return };
        let value = self.derived_value(&Write {
            key: prefixes.keys()[continued.index],
            placement: continued.pin.placement.clone(),
            shared: continued.pin.shared,
            root: continued.pin.root().unwrap_or_default().to_owned(),
        });
        let _ = self.write_later(continued.key, value.encode().into(), revision);
    }

    fn write_derived(&mut self, write: &Write) {
        let key = derived_pin_key(&self.ask, write.key);
        let Some(revision) = self.revision_of_derived(self.partition, key) else { return };
        let value = self.derived_value(write);
        if write.shared {
            // Somebody else's pin, which stays whatever becomes of this request.
            let _ = self.write_later(key, value.encode().into(), revision);
        } else {
            self.pin_later(key, value, revision);
        }
    }

    /// The revision that a write of a derived pin has to expect; `None` where there may be no more of them.
    pub(super) fn revision_of_derived(&self, partition: Partition, key: PinKey) -> Option<u64> {
        let (revision, derived) = {
            let state = self.router.state();
            // How many another partition has is not known here: as many as this one, since they fall by a hash.
            let derived = state.mirrors.of(self.partition).derived();
            (state.mirrors.of(partition).revision(key, Instant::now()), derived)
        };
        // Beyond, a derived session is routed and not pinned (protocol section 8).
        let most = self.router.config.max_derived_pins;
        if revision == 0 && derived >= most {
            self.router.metrics.derived_cap_reached(derived, most);
            return None;
        }
        Some(revision)
    }

    fn derived_value(&self, write: &Write) -> PinValue {
        let session = SessionId::derived(write.key);
        let mut value = PinValue::new(&self.ask.tenant, &self.ask.model, &session, Origin::Derived, &write.placement);
        value.root = Some(write.root.clone());
        value.shared = write.shared;
        value.in_pool(self.router.pool_of(&write.placement.worker).as_ref())
    }
}
