//! Pins: claimed before a dispatch where replicas have to agree, written after acceptance where not, refreshed by
//! use, and taken back where the request failed (protocol sections 5 and 8).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::route::Request;
use super::state::{Keys, Router};
use crate::core::decide::{Decision, PinStep};
use crate::core::hash::PinKey;
use crate::core::id::{Placement, Pool, WorkerId};
use crate::core::partition::Partition;
use crate::core::pins::Pin;
use crate::nats::bucket::{Bucket, CasError, Stored};
use crate::nats::writes::Writes;
use crate::nats::{Link, Message};
use crate::wire::pin::PinValue;

/// Rounds of lost races after which a request is placed without its pin (protocol section 5).
const MAX_CONTESTED: u32 = 3;
/// How long a claim may still be moved or deleted by the request that made it: the longest time that a request may
/// wait for acceptance, where the configured request timeout is not longer. A pin younger than this, written by
/// another router, is put again before its first use.
const CLAIM_WINDOW: Duration = Duration::from_secs(600);
/// How often an unreachable bucket is asked whether it is back.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Pins kept to be written once an unreachable bucket is back.
const MAX_OWED: usize = 65_536;

/// The buckets of pins, one for each partition.
pub struct PinStores {
    all: Box<[PinStore]>,
    writes: Arc<Writes>,
}

/// A bucket of pins, and whether it can be reached.
pub struct PinStore {
    /// The bucket.
    pub bucket: Bucket,
    unreachable: AtomicBool,
    owed: std::sync::Mutex<Vec<(PinKey, Bytes)>>,
}

/// The right to place a session, held by one request of this router at a time; the others wait until it is dropped.
pub struct Claim {
    router: Arc<Router>,
    key: PinKey,
}

/// A pin that a request has written before its dispatch.
#[derive(Debug, Clone, Copy)]
pub struct Claimed {
    key: PinKey,
    revision: u64,
    since: Instant,
    /// Whether the worker has accepted since: then the pin stays, whatever happens.
    settled: bool,
}

impl Claimed {
    /// The pin's revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

/// A pin that is to be put: as the bucket has it, and as the mirror does.
pub struct NewPin {
    pub(super) value: Bytes,
    pub(super) pin: Pin,
}

/// Whether the pin stands, so that the request may be sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Pinned {
    /// It stands, or none is made.
    Yes,
    /// It is another than was thought.
    AskAgain,
}

impl PinStores {
    /// Over these, in the order of their partitions; at least one.
    pub fn new(buckets: impl IntoIterator<Item = Bucket>, writes: Writes) -> Self {
        let writes = Arc::new(writes);
        let store = |bucket: Bucket| PinStore::new(bucket.written_over(&writes));
        Self { all: buckets.into_iter().map(store).collect(), writes }
    }

    /// Takes the answer to a write. Whether the message is one.
    pub fn hear(&self, message: &Message) -> bool {
        self.writes.hear(message)
    }

    /// That of a partition.
    pub fn of(&self, partition: Partition) -> &PinStore {
        &self.all[partition.index()]
    }

    /// The connection that all of them are used over.
    pub fn link(&self) -> &Link {
        self.of(Partition::FIRST).bucket.link()
    }

    /// Whether any could not be reached lately.
    pub fn is_any_unreachable(&self) -> bool {
        self.all.iter().any(PinStore::is_unreachable)
    }

    /// Pins that are still to be written.
    pub fn owed(&self) -> usize {
        self.all.iter().map(PinStore::owed).sum()
    }
}

impl PinStore {
    fn new(bucket: Bucket) -> Self {
        Self { bucket, unreachable: AtomicBool::new(false), owed: std::sync::Mutex::default() }
    }

    /// Whether the bucket could not be reached lately.
    pub fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::Relaxed)
    }

    fn owed(&self) -> usize {
        self.owed.lock().map_or(0, |owed| owed.len())
    }

    /// Remembers a pin to be written once the bucket is back.
    fn owe(&self, key: PinKey, value: Bytes) {
        let mut owed = self.owed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if owed.len() < MAX_OWED {
            owed.push((key, value));
        }
    }
}

impl Router {
    /// The bucket of a partition did not answer: until it does again, nobody waits for it.
    pub(super) fn lost_bucket(self: &Arc<Self>, partition: Partition, problem: &str) {
        let store = self.pins.of(partition);
        if store.unreachable.swap(true, Ordering::Relaxed) {
            return;
        }
        let bucket = store.bucket.name().to_owned();
        tracing::warn!(
            bucket,
            problem,
            "the pins bucket is unreachable; routing goes on by the mirror, new sessions are placed by hash"
        );
        self.happenings.warn(format!("the bucket {bucket} is unreachable: {problem}"));
        let router = Arc::clone(self);
        tokio::spawn(async move {
            let store = router.pins.of(partition);
            loop {
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
                // One that is full answers, and takes nothing: it is back when it takes what is owed to it.
                if store.bucket.info().await.is_ok() && router.pay_owed(partition).await {
                    break;
                }
            }
            store.unreachable.store(false, Ordering::Relaxed);
            tracing::info!(bucket, "the pins bucket is back");
            router.happenings.note(format!("the bucket {bucket} is back"));
            // What was placed between the two.
            if !router.pay_owed(partition).await {
                router.lost_bucket(partition, "it does not take what is owed to it");
            }
        });
    }

    /// Writes what is owed. Whether the bucket has taken all of it.
    async fn pay_owed(self: &Arc<Self>, partition: Partition) -> bool {
        let store = self.pins.of(partition);
        let owed = std::mem::take(&mut *store.owed.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        let mut owed = owed.into_iter();
        while let Some((key, value)) = owed.next() {
            match store.bucket.put_at(&key.to_string(), value.clone(), 0).await {
                Ok(revision) => self.remember((partition, key), revision, &value, true),
                Err(CasError::Lost) => {
                    self.read_pin(partition, key).await;
                }
                Err(CasError::Unreachable(problem) | CasError::Refused(problem)) => {
                    tracing::debug!(bucket = store.bucket.name(), problem, "pins are still owed");
                    // The rest waits with this one, rather than each for its own timeout.
                    for (key, value) in std::iter::once((key, value)).chain(owed) {
                        store.owe(key, value);
                    }
                    return false;
                }
            }
        }
        true
    }

    /// Takes what is stored under a key into the mirror.
    pub(super) fn remember(&self, (partition, key): (Partition, PinKey), revision: u64, value: &[u8], own: bool) {
        let now = Instant::now();
        let pin = read(key, value);
        let mut state = self.state();
        let mirror = state.mirrors.of_mut(partition);
        if own { mirror.handle_own(key, revision, pin, now) } else { mirror.handle_value(key, revision, pin, now) }
    }

    /// Reads a pin from the stream's leader into the mirror. `false`: the bucket is unreachable.
    pub(super) async fn read_pin(self: &Arc<Self>, partition: Partition, key: PinKey) -> bool {
        self.metrics.leader_reads.inc();
        let known = self.state().mirrors.of(partition).known(key);
        match self.pins.of(partition).bucket.read_leader(&key.to_string()).await {
            Ok(Some(stored)) => {
                let (pin, at) = (stored.value.as_deref().and_then(|value| read(key, value)), local_time(&stored));
                let word = (stored.revision, pin);
                self.state().mirrors.of_mut(partition).handle_leaders_word(key, known, word, at);
                true
            }
            Ok(None) => {
                self.state().mirrors.of_mut(partition).forget(key);
                true
            }
            Err(error) => {
                self.lost_bucket(partition, &error.0);
                false
            }
        }
    }

    /// The pool of a worker, while it is known.
    pub(super) fn pool_of(&self, worker: &WorkerId) -> Option<Pool> {
        self.state().fleet.find(worker.as_str()).map(|(_, worker)| worker.spec.pool.clone())
    }

    /// Writes a pin without anybody waiting for it. A lost race is no error: the winner's pin counts.
    pub(super) fn write_later(
        self: &Arc<Self>,
        (partition, key): (Partition, PinKey),
        value: Bytes,
        expected: u64,
    ) -> Option<JoinHandle<()>> {
        if self.pins.of(partition).is_unreachable() {
            return None;
        }
        if let Some(pin) = read(key, &value) {
            self.state().mirrors.of_mut(partition).foresee(key, pin, Instant::now());
        }
        let router = Arc::clone(self);
        Some(tokio::spawn(async move { router.put_later((partition, key), value, expected).await }))
    }

    pub(super) fn claim(self: &Arc<Self>, key: PinKey) -> Option<Claim> {
        let mut state = self.state();
        if state.claims.contains_key(&key) {
            return None;
        }
        state.claims.insert(key, None);
        Some(Claim { router: Arc::clone(self), key })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // With it goes what others wait for.
        self.router.state().claims.remove(&self.key);
    }
}

impl Request {
    /// The bucket in which its pins stand.
    fn store(&self) -> &PinStore {
        self.router.pins.of(self.partition)
    }

    /// The revision that a write of one of its pins has to expect.
    pub(super) fn revision(&self, key: PinKey) -> u64 {
        self.router.state().mirrors.of(self.partition).revision(key, Instant::now())
    }

    pub(super) fn is_bucket_unreachable(&self) -> bool {
        self.router.pins.of(self.partition).is_unreachable() || self.contested >= MAX_CONTESTED
    }

    /// The pin that may be read from the bucket, once, before the mirror is believed: a named session's own; of a derived
    /// one whose body holds an assistant item the prefix before the first of these, which another router may just have
    /// pinned; and a response that another may just have seen end (protocol sections 4 and 4.1).
    pub(super) fn pin_to_recheck(&self) -> Option<PinKey> {
        if self.rechecked || self.router.pins.of(self.partition).is_unreachable() {
            return None;
        }
        match (&self.keys, &self.prefixes) {
            (Keys::None, _) => None,
            (Keys::Named(key), _) => Some(*key),
            (Keys::Derived(keys), None) => keys.first().copied(),
            (Keys::Derived(keys), Some(prefixes)) => keys.iter().rev().nth(prefixes.before_first_assistant()?).copied(),
        }
    }

    pub(super) async fn recheck_pin(&mut self, key: PinKey) {
        self.rechecked = true;
        self.router.read_pin(self.partition, key).await;
        self.recheck_alias().await;
    }

    /// What has to be put before the dispatch: a claim, or once per key the value that another router has put lately.
    pub(super) fn pin_to_put(&self, decision: &Decision) -> Option<NewPin> {
        let key = self.keys.named().filter(|_| self.claims())?;
        if self.is_bucket_unreachable() && decision.pin != PinStep::None {
            // It is sent where it is decided, and its pin left as it stands.
            return None;
        }
        match decision.pin {
            PinStep::Claim | PinStep::Complete => Some(self.new_pin(&decision.placement)),
            PinStep::AfterAccept => None,
            PinStep::None => {
                self.owe_pin(key, decision);
                None
            }
            PinStep::Keep => {
                let young = |since: Instant| since.elapsed() < self.claim_window();
                if !self.basis.foreign_since.is_some_and(young) {
                    return None;
                }
                let foreign = {
                    let state = self.router.state();
                    let mirror = state.mirrors.of(self.partition);
                    let entry = mirror.get(key, Instant::now()).filter(|entry| !entry.ours)?;
                    entry.pin.as_ref()?.placement.clone()
                };
                Some(self.new_pin(&foreign))
            }
        }
    }

    fn claim_window(&self) -> Duration {
        CLAIM_WINDOW.max(self.router.config.request_timeout)
    }

    /// Makes or confirms the pin before the dispatch, while no other request of this router may.
    pub(super) async fn pin_before_dispatch(&mut self, decision: &Decision, new: NewPin) -> Pinned {
        let revision = self.basis.revision;
        let Keys::Named(key) = self.keys else { return Pinned::Yes };
        if self.claim.is_none() {
            match self.router.claim(key) {
                Some(claim) => self.claim = Some(claim),
                None => return Pinned::AskAgain,
            }
            if self.revision(key) != revision {
                // Somebody had the claim between the decision and now.
                self.claim = None;
                return Pinned::AskAgain;
            }
        }
        let expected = self.claimed.map_or(revision, |claimed| claimed.revision);
        match self.store().bucket.put_at(&key.to_string(), new.value, expected).await {
            Ok(revision) => {
                self.pin_stands(key, decision, new.pin, revision);
                Pinned::Yes
            }
            Err(error) => self.pin_fails(key, decision, error).await,
        }
    }

    /// The pin is put.
    pub(super) fn pin_stands(&mut self, key: PinKey, decision: &Decision, pin: Pin, revision: u64) {
        self.router.metrics.pin_written(decision.pin);
        self.router.state().mirrors.of_mut(self.partition).handle_own(key, revision, Some(pin), Instant::now());
        if decision.pin == PinStep::Claim {
            self.claimed = Some(Claimed { key, revision, since: Instant::now(), settled: false });
        } else {
            // Confirmed: nobody has to wait for this request's worker to answer.
            self.claim = None;
        }
    }

    /// The pin is not put.
    pub(super) async fn pin_fails(&mut self, key: PinKey, decision: &Decision, error: CasError) -> Pinned {
        match error {
            CasError::Lost => {
                self.lose_race(key).await;
                Pinned::AskAgain
            }
            CasError::Refused(problem) => {
                self.claim = None;
                self.contested += 1;
                self.router.lost_bucket(self.partition, &problem);
                if decision.pin == PinStep::Keep { Pinned::Yes } else { Pinned::AskAgain }
            }
            CasError::Unreachable(problem) => {
                self.claim = None;
                self.contested += 1;
                // A bucket that is only slow may have stored the value after all: its leader knows.
                if self.router.read_pin(self.partition, key).await {
                    return Pinned::AskAgain;
                }
                self.router.lost_bucket(self.partition, &problem);
                if decision.pin == PinStep::Keep { Pinned::Yes } else { Pinned::AskAgain }
            }
        }
    }

    /// Another router has put the key: its pin counts. Where this request had claimed it, it is an ordinary pinned
    /// request from now on, and first tries the pinned placement once more.
    async fn lose_race(&mut self, key: PinKey) {
        self.router.metrics.claims_lost.inc();
        self.contested += 1;
        self.claim = None;
        let had_claimed = self.claimed.take().is_some();
        if !self.router.read_pin(self.partition, key).await || !had_claimed {
            return;
        }
        let state = self.router.state();
        let entry = state.mirrors.of(self.partition).get(key, Instant::now());
        if let Some(pin) = entry.and_then(|entry| entry.pin.as_ref()) {
            self.ask.excluded.retain(|e| e.placement.worker != pin.placement.worker);
        }
    }

    fn value(&self, placement: &Placement) -> Bytes {
        self.pin_value(placement).encode().into()
    }

    fn new_pin(&self, placement: &Placement) -> NewPin {
        let value = self.pin_value(placement);
        let pool = value.pool.as_deref().and_then(|pool| Pool::new(pool).ok());
        let pin = Pin::new(placement.clone(), value.origin.into()).with(None, pool);
        NewPin { value: value.encode().into(), pin }
    }

    fn pin_value(&self, placement: &Placement) -> PinValue {
        let session = self.ask.session.as_ref().expect("only requests with a session are pinned");
        let value = PinValue::new(&self.ask.tenant, &self.ask.model, &session.id, session.origin, placement);
        value.in_pool(self.router.pool_of(&placement.worker).as_ref())
    }

    /// The bucket is unreachable: the placement, which every router finds by the same hash, is kept in mind and pinned
    /// once the bucket is back.
    fn owe_pin(&self, key: PinKey, decision: &Decision) {
        let value = self.value(&decision.placement);
        let known = self.router.state().mirrors.of(self.partition).get(key, Instant::now()).is_some();
        if !known && self.store().is_unreachable() {
            self.router.remember((self.partition, key), 0, &value, true);
            self.store().owe(key, value);
        }
    }

    /// The worker has the request: its pin stays, and others of the session may go on.
    pub(super) fn settle(&mut self, decision: &Decision) {
        self.tell_accepted();
        self.span.end();
        self.release_permit();
        self.claim = None;
        self.given_back = false;
        if let Some(claimed) = &mut self.claimed {
            claimed.settled = true;
        }
        if !self.later.is_empty() {
            self.move_later(&decision.placement);
            return;
        }
        match (&self.keys, decision.pin) {
            (Keys::Named(key), PinStep::Keep) => self.refresh(*key),
            (Keys::Named(key), PinStep::AfterAccept) => {
                let (key, value) = (*key, self.pin_value(&decision.placement));
                let expected = self.revision(key);
                self.pin_later(key, value, expected);
            }
            (Keys::Named(_), PinStep::None | PinStep::Claim | PinStep::Complete) | (Keys::None, _) => {}
            (Keys::Derived(_), _) => self.pin_derived(decision),
        }
    }

    /// The worker has given the request back before any reply: its pins may move along.
    pub(super) fn unsettle(&mut self) {
        self.given_back = true;
        self.tell_given_back();
        if let Some(claimed) = &mut self.claimed {
            claimed.settled = false;
        }
    }

    /// A failed request takes back the pins that it made.
    pub(super) async fn give_back_pin(&mut self) {
        if self.given_back {
            self.take_back_later();
        }
        let window = self.claim_window();
        let Some(claimed) = self.claimed.take().filter(|claimed| !claimed.settled && claimed.since.elapsed() < window)
        else {
            return;
        };
        if let Ok(revision) = self.store().bucket.delete_at(&claimed.key.to_string(), claimed.revision).await {
            let mut state = self.router.state();
            state.mirrors.of_mut(self.partition).handle_own(claimed.key, revision, None, Instant::now());
        }
        self.claim = None;
    }

    pub(super) fn refresh(&self, key: PinKey) {
        if !self.basis.is_refresh_due() {
            return;
        }
        let due = {
            let mut state = self.router.state();
            let mirror = state.mirrors.of_mut(self.partition);
            if mirror.take_refresh(key, Instant::now()) { mirror.get(key, Instant::now()).cloned() } else { None }
        };
        let Some((revision, pin)) = due.and_then(|entry| Some((entry.revision, entry.pin?))) else { return };
        let _ = self.write_later(key, self.value(&pin.placement), revision);
    }

    /// Writes a pin without anybody waiting for it. A lost race is no error: the winner's pin counts.
    pub(super) fn write_later(&self, key: PinKey, value: Bytes, expected: u64) -> Option<JoinHandle<()>> {
        self.router.write_later((self.partition, key), value, expected)
    }
}

fn read(key: PinKey, value: &[u8]) -> Option<Pin> {
    match PinValue::parse(key, value) {
        Ok(read) => Some(read.into()),
        Err(problem) => {
            tracing::debug!(%key, problem, "a pin can't be read and will be replaced");
            None
        }
    }
}

/// When a value was stored, by this router's monotonic clock.
pub(super) fn local_time(stored: &Stored) -> Instant {
    let age = SystemTime::now().duration_since(stored.created).unwrap_or_default();
    let now = Instant::now();
    now.checked_sub(age).unwrap_or(now)
}

/// A value of the pins bucket, as the mirror takes it.
pub(super) fn read_stored(key: PinKey, stored: &Stored) -> Option<Pin> {
    stored.value.as_deref().and_then(|value| read(key, value))
}
