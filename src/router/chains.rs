//! Chains of responses: a request that names the response it goes on from (`previous_response_id`) sends only what is
//! new, so that its text tells nothing. What a worker calls a response is pinned as an alias of the session that the
//! response belongs to (protocol section 4.1).

use std::time::Instant;

use super::route::Request;
use crate::core::decide::Decision;
use crate::core::hash::PinKey;
use crate::core::id::{Origin, Placement, SessionId};
use crate::core::mode::AffinityMode;
use crate::wire::event::Finished;
use crate::wire::pin::PinValue;

impl Request {
    /// The worker has a request that goes on from a response: where it was placed elsewhere than the response is pinned,
    /// the alias follows. A response that nobody knows is not pinned: its id is only what a frontend says.
    pub(super) fn pin_chain(&mut self, decision: &Decision) {
        let (Some(session), Some(continued)) = (self.ask.session.clone(), &self.continued) else { return };
        let value = self.alias_value(&session.id, &decision.placement, self.root(&session));
        let key = PinKey::new(&self.ask.tenant, &self.ask.model, &session.id);
        let now = Instant::now();
        let (revision, due) = {
            let mut state = self.router.state();
            let mirror = state.mirrors.of_mut(self.partition);
            (mirror.revision(key, now), mirror.take_refresh(key, now))
        };
        if continued.is_at(&decision.placement) {
            if due {
                let _ = self.write_later(key, value.encode().into(), revision);
            }
        } else {
            self.pin_later(key, value, revision);
        }
    }

    /// The request has ended. Where its worker names the response, and no name of the session will come with the next
    /// turn, the response is pinned where it was made; nobody waits for the write.
    pub(super) fn keep_response(&self, decision: &Decision, finished: &Finished) {
        let Some(id) = &finished.response_id else { return };
        if self.router.rules.mode == AffinityMode::Off || self.ask.named() {
            return;
        }
        let Ok(alias) = SessionId::of_response(id) else {
            tracing::debug!(worker = %decision.placement.worker, "a worker's response_id is none that can be named");
            return;
        };
        let root = self.ask.session.as_ref().map_or(alias.as_str(), |session| self.root(session));
        let value = self.alias_value(&alias, &decision.placement, root);
        let key = PinKey::new(&self.ask.tenant, &self.ask.model, &alias);
        // Its next turn is known by this id alone, and so may be of another partition than this one.
        let partition = self.router.partition_of(&self.ask.tenant, self.asked_for(), &alias);
        if let Some(revision) = self.revision_of_derived(partition, key) {
            let _ = self.router.write_later((partition, key), value.encode().into(), revision);
        }
    }

    fn alias_value(&self, alias: &SessionId, placement: &Placement, root: &str) -> PinValue {
        let mut value = PinValue::new(&self.ask.tenant, &self.ask.model, alias, Origin::Derived, placement);
        value.root = Some(root.to_owned());
        value.in_pool(self.router.pool_of(&placement.worker).as_ref())
    }
}
