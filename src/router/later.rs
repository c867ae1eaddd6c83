//! Pins that are written at acceptance, without anybody waiting: where the worker refuses the request after all, they
//! move along with it, or go with it (protocol section 6).

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::route::Request;
use super::state::Router;
use crate::core::hash::PinKey;
use crate::core::id::Placement;
use crate::core::partition::Partition;
use crate::nats::bucket::CasError;
use crate::wire::pin::PinValue;

/// A pin that a request has written at its acceptance.
pub struct Later {
    key: PinKey,
    value: PinValue,
    written: JoinHandle<()>,
}

impl Request {
    /// Pins the request's placement under a key that is at revision `expected`.
    pub(super) fn pin_later(&mut self, key: PinKey, value: PinValue, expected: u64) {
        if let Some(written) = self.write_later(key, value.encode().into(), expected) {
            self.later.push(Later { key, value, written });
        }
    }

    /// Another worker has the request now: what was pinned at its first acceptance follows.
    pub(super) fn move_later(&mut self, placement: &Placement) {
        for later in std::mem::take(&mut self.later) {
            let mut value = later.value.clone();
            value.worker = placement.worker.as_str().into();
            value.dp_rank = placement.rank.map(|rank| rank.0);
            value = value.in_pool(self.router.pool_of(&placement.worker).as_ref());
            let at = (self.partition, later.key);
            let written = self.router.replace_after(later.written, at, later.value, Some(value.clone()));
            self.later.push(Later { key: later.key, value, written });
        }
    }

    /// No worker has it: what was pinned at its acceptance is taken back.
    pub(super) fn take_back_later(&mut self) {
        for later in std::mem::take(&mut self.later) {
            self.router.replace_after(later.written, (self.partition, later.key), later.value, None);
        }
    }
}

impl Router {
    /// Once an earlier write is done, replaces what it wrote, or deletes it; not what somebody else has put there.
    fn replace_after(
        self: &Arc<Self>,
        earlier: JoinHandle<()>,
        (partition, key): (Partition, PinKey),
        old: PinValue,
        new: Option<PinValue>,
    ) -> JoinHandle<()> {
        let router = Arc::clone(self);
        tokio::spawn(async move {
            // A write that panicked has written nothing, and is found so in the mirror.
            let _ = earlier.await;
            let now = Instant::now();
            let revision = {
                let state = router.state();
                let stands = state.mirrors.of(partition).get(key, now);
                let pin = stands.and_then(|entry| Some((entry.revision, &entry.pin.as_ref()?.placement)));
                pin.filter(|(_, at)| at.worker.as_str() == old.worker && at.rank.map(|rank| rank.0) == old.dp_rank)
                    .map(|(revision, _)| revision)
            };
            let Some(revision) = revision else { return };
            match new {
                Some(new) => router.put_later((partition, key), new.encode().into(), revision).await,
                None => router.delete_later((partition, key), revision).await,
            }
        })
    }

    /// Writes a pin. A lost race is no error: the winner's pin counts.
    pub(super) async fn put_later(self: &Arc<Self>, at: (Partition, PinKey), value: Bytes, expected: u64) {
        let (partition, key) = at;
        match self.pins.of(partition).bucket.put_at(&key.to_string(), value.clone(), expected).await {
            Ok(revision) => self.remember(at, revision, &value, true),
            Err(error) => self.not_written(at, error).await,
        }
    }

    async fn delete_later(self: &Arc<Self>, at: (Partition, PinKey), expected: u64) {
        let (partition, key) = at;
        match self.pins.of(partition).bucket.delete_at(&key.to_string(), expected).await {
            Ok(revision) => {
                self.state().mirrors.of_mut(partition).handle_own(key, revision, None, Instant::now());
            }
            Err(error) => self.not_written(at, error).await,
        }
    }

    async fn not_written(self: &Arc<Self>, (partition, key): (Partition, PinKey), error: CasError) {
        match error {
            CasError::Lost => {
                self.metrics.claims_lost.inc();
                // The mirror has what was to be written; the winner's pin counts.
                self.read_pin(partition, key).await;
            }
            CasError::Unreachable(problem) | CasError::Refused(problem) => self.lost_bucket(partition, &problem),
        }
    }
}
