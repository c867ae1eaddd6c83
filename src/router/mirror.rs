//! The mirrors of both buckets: pins and registrations, kept by watches that are never trusted to be complete.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::time::MissedTickBehavior;

use super::pinning::{local_time, read_stored};
use super::state::Router;
use crate::core::fleet::Registered;
use crate::core::hash::PinKey;
use crate::core::id::WorkerId;
use crate::core::partition::Partition;
use crate::core::worker::WorkerState as Declared;
use crate::nats::bucket::{Bucket, BucketInfo, Change, Unreachable, Watch, Watched};
use crate::nats::{LinkState, guard};
use crate::wire::registration::Registration;

/// How often the stream is asked whether it is still the same one.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// Checks after which a watch that is still behind is made anew; a first fill takes some.
const MAX_TICKS_BEHIND: u32 = 15;
/// Pause before a bucket that can't be watched is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Reconnects within [`FLAP_WINDOW`] after which a stored message is suspected of killing the connection.
const FLAPS: usize = 3;
/// See [`FLAPS`].
const FLAP_WINDOW: Duration = Duration::from_secs(10);
/// Registrations whose revision is remembered.
const MAX_SEEN: usize = 65_536;

/// Who takes what a bucket says.
pub trait Reader: Send {
    /// A change; `fresh` where the mirror had everything before it.
    fn change(&mut self, router: &Arc<Router>, change: Change, fresh: bool);
    /// Whether the mirror now has everything.
    fn complete(&mut self, router: &Arc<Router>, complete: bool);
    /// The bucket is another one than before.
    fn made_anew(&mut self, router: &Arc<Router>);
    /// Changes were missed for a while.
    fn interrupted(&mut self, router: &Arc<Router>);
}

/// Mirrors a bucket for ever.
pub async fn follow(router: Arc<Router>, bucket: Bucket, reader: impl Reader) {
    let mut follower = Follower::new(router, bucket, reader);
    loop {
        if let Err(error) = follower.watch_once().await {
            tracing::debug!(bucket = follower.bucket.name(), %error, "cannot watch the bucket, trying on");
            follower.set_complete(false);
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

struct Follower<R> {
    router: Arc<Router>,
    bucket: Bucket,
    reader: R,
    /// When the mirrored stream was made.
    created: Option<SystemTime>,
    /// Highest sequence seen.
    seen: u64,
    /// Sequence from which on the mirror is complete.
    target: u64,
    complete: bool,
    /// Whether there is a watch: without one nothing is complete, not even an empty bucket.
    watching: bool,
    /// Whether the watch was made after the connection last came to stand.
    fresh_watch: bool,
    /// Whether that watch has told all that its server has: a replica, which may be behind the stream's leader.
    drained: bool,
    ticks_behind: u32,
    /// How often the connection had come to stand when it was last looked at.
    connects: u64,
    flaps: Vec<Instant>,
    /// Sequence that the stream had at the last look: by now it should have come.
    due: u64,
    /// What the stream had when the mirror had everything: what ran out before is not waited for.
    floor: u64,
    was_complete: bool,
}

impl<R: Reader> Follower<R> {
    fn new(router: Arc<Router>, bucket: Bucket, reader: R) -> Self {
        router.metrics.mirror_complete(bucket.name(), false);
        Self {
            router,
            bucket,
            reader,
            created: None,
            seen: 0,
            target: u64::MAX,
            complete: false,
            watching: false,
            fresh_watch: false,
            drained: false,
            ticks_behind: 0,
            connects: 0,
            flaps: Vec::new(),
            due: 0,
            floor: 0,
            was_complete: false,
        }
    }

    async fn watch_once(&mut self) -> Result<(), Unreachable> {
        self.watching = false;
        let bucket = self.bucket.clone();
        let mut state = bucket.link().state();
        let now = state.borrow_and_update().clone();
        self.note_connection(&now).await;
        let mut watch = self.open_watch().await?;
        let mut check = tokio::time::interval(CHECK_EVERY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Cancel-safe: a change is either returned or stays in the watch, the rest is looked at anew.
            tokio::select! {
                watched = watch.next() => match watched {
                    Watched::Change(change) => {
                        let drained = self.drained;
                        self.take(change);
                        // Once at once; where that was too early, with the looks at the stream.
                        if !drained {
                            self.check_drained().await?;
                        }
                    }
                    Watched::Interrupted(problem) => {
                        tracing::debug!(bucket = bucket.name(), problem, "the watch was interrupted");
                        self.reader.interrupted(&self.router);
                        self.fall_behind();
                    }
                    Watched::Dead => {
                        let generation = watch.generation;
                        drop(watch);
                        self.revive(generation).await;
                        return Ok(());
                    }
                },
                _ = state.changed() => {
                    let now = state.borrow_and_update().clone();
                    if now.dead == Some(watch.generation) {
                        let generation = watch.generation;
                        drop(watch);
                        self.revive(generation).await;
                        return Ok(());
                    }
                    if self.note_connection(&now).await {
                        // The client library would notice after ten seconds that its consumer is gone.
                        return Ok(());
                    }
                }
                _ = check.tick() => {
                    if !bucket.link().is_connected() {
                        continue;
                    }
                    if self.check().await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn open_watch(&mut self) -> Result<Watch, Unreachable> {
        let info = self.bucket.info().await?;
        self.look(&info);
        let from = (self.seen > 0).then_some(self.seen + 1);
        let watch = self.bucket.watch(from).await?;
        self.watching = true;
        self.fresh_watch = true;
        self.drained = false;
        self.ticks_behind = 0;
        self.look(&info);
        Ok(watch)
    }

    /// Looks whether the mirror is where the stream is. True where it takes a new watch.
    async fn check(&mut self) -> Result<bool, Unreachable> {
        let info = self.bucket.info().await?;
        if self.look(&info) {
            return Ok(true);
        }
        let lag = self.lag(&info);
        self.router.metrics.mirror_lag(self.bucket.name(), lag);
        self.check_drained().await?;
        if self.is_stuck() {
            self.seen = 0;
            return Ok(true);
        }
        Ok(false)
    }

    /// The connection was lost, or came to stand again (true): the mirror may be behind until a watch has caught up.
    async fn note_connection(&mut self, now: &LinkState) -> bool {
        if !now.connected {
            self.fall_behind();
        } else if now.connects != self.connects {
            let first = std::mem::replace(&mut self.connects, now.connects) == 0;
            if !first {
                self.fall_behind();
                self.reader.interrupted(&self.router);
                self.guard_flapping().await;
            }
            return true;
        }
        false
    }

    /// Messages that are missing though they were there at the last look.
    fn lag(&mut self, info: &BucketInfo) -> u64 {
        if self.complete && !self.was_complete {
            self.floor = info.last_sequence;
        }
        self.was_complete = self.complete;
        let due = std::mem::replace(&mut self.due, info.last_sequence);
        if info.messages == 0 { 0 } else { due.saturating_sub(self.seen.max(self.floor)) }
    }

    fn fall_behind(&mut self) {
        self.target = u64::MAX;
        self.fresh_watch = false;
        self.drained = false;
        self.set_complete(false);
    }

    /// Compares with the stream as it is. True where it is another stream than the one that is mirrored.
    fn look(&mut self, info: &BucketInfo) -> bool {
        // A stream that has lost its end, as after a power cut or where it was restored, is none that is known either.
        let anew = self.created.is_some_and(|created| created != info.created) || info.last_sequence < self.seen;
        if anew {
            tracing::warn!(
                bucket = self.bucket.name(),
                "a bucket was made anew, or has lost its end; its mirror begins anew too"
            );
            self.seen = 0;
            (self.due, self.floor) = (0, 0);
            self.set_complete(false);
            self.reader.made_anew(&self.router);
        }
        self.created = Some(info.created);
        if info.messages == 0 && self.complete && self.seen > 0 && info.last_sequence >= self.seen {
            // Purged: a watch is not told.
            self.reader.made_anew(&self.router);
        }
        if !self.complete {
            self.target = info.last_sequence;
            if self.watching && (info.messages == 0 || self.seen >= self.target) {
                self.set_complete(true);
            }
        }
        anew
    }

    fn take(&mut self, change: Change) {
        let (revision, pending) = (change.stored.revision, change.pending);
        self.reader.change(&self.router, change, self.complete);
        self.seen = self.seen.max(revision);
        // What comes after a reconnect may still be of the watch before it.
        self.drained |= pending == 0 && self.fresh_watch;
        if !self.complete && self.seen >= self.target {
            self.set_complete(true);
        }
    }

    /// A watch that has told all that its server has, and not the stream's last sequence: either that message is gone, or the
    /// server is a replica that is behind. The leader knows which is the last one that it has.
    async fn check_drained(&mut self) -> Result<(), Unreachable> {
        if self.complete || !self.drained {
            return Ok(());
        }
        self.target = self.target.min(guard::last_kept(&self.bucket).await?);
        if self.seen >= self.target {
            self.set_complete(true);
        }
        Ok(())
    }

    /// Whether the watch does not get to the sequence that it should: that message may be gone. A new watch tells.
    fn is_stuck(&mut self) -> bool {
        self.ticks_behind = if self.complete { 0 } else { self.ticks_behind + 1 };
        self.ticks_behind > MAX_TICKS_BEHIND
    }

    fn set_complete(&mut self, complete: bool) {
        self.complete = complete;
        self.router.metrics.mirror_complete(self.bucket.name(), complete);
        self.reader.complete(&self.router, complete);
    }

    /// The client died while it read the bucket: a message in it may be what kills it, and would do so again.
    async fn revive(&mut self, generation: u64) {
        self.router.metrics.rebuilt.inc();
        self.fall_behind();
        self.pass_poison().await;
        self.bucket.link().rebuild(generation).await;
        self.reader.interrupted(&self.router);
    }

    /// A message that breaks the connection without killing the client is sent again after every reconnect.
    async fn guard_flapping(&mut self) {
        let now = Instant::now();
        self.flaps.retain(|at| now.duration_since(*at) < FLAP_WINDOW);
        self.flaps.push(now);
        if self.flaps.len() >= FLAPS {
            self.flaps.clear();
            self.pass_poison().await;
        }
    }

    async fn pass_poison(&mut self) {
        for change in guard::read_past_poison(&self.bucket, self.seen).await {
            self.take(change);
        }
    }
}

/// Takes pins into the mirror of their partition.
pub struct Pins(pub Partition);

impl Reader for Pins {
    fn change(&mut self, router: &Arc<Router>, change: Change, fresh: bool) {
        let Some(key) = PinKey::parse(&change.key) else {
            router.metrics.malformed("pin_key");
            return;
        };
        if !router.state().mirrors.of(self.0).is_news(key, change.stored.revision) {
            return;
        }
        let pin = read_stored(key, &change.stored);
        if pin.is_none() && change.stored.value.is_some() {
            router.metrics.malformed("pin");
        }
        // What comes live was stored just now, whatever the server's clock says: clocks differ between hosts.
        let at = if fresh { Instant::now() } else { local_time(&change.stored) };
        router.state().mirrors.of_mut(self.0).handle_value(key, change.stored.revision, pin, at);
    }

    fn complete(&mut self, router: &Arc<Router>, complete: bool) {
        router.state().mirrors.set_fresh(self.0, complete);
    }

    fn made_anew(&mut self, router: &Arc<Router>) {
        router.state().mirrors.of_mut(self.0).clear();
    }

    fn interrupted(&mut self, _router: &Arc<Router>) {}
}

/// Takes registrations into the fleet.
#[derive(Default)]
pub struct Workers {
    /// Revision last seen of each key: a watch that begins anew repeats what is no news.
    seen: HashMap<String, u64>,
    filled: bool,
}

impl Reader for Workers {
    fn change(&mut self, router: &Arc<Router>, change: Change, _fresh: bool) {
        let revision = change.stored.revision;
        if self.seen.get(&change.key).is_some_and(|seen| *seen >= revision) {
            return;
        }
        if self.seen.len() >= MAX_SEEN && !self.seen.contains_key(&change.key) {
            self.seen.clear();
        }
        self.seen.insert(change.key.clone(), revision);
        match &change.stored.value {
            Some(value) => self.put(router, &change, value),
            None => deregister(router, &change.key),
        }
    }

    fn complete(&mut self, router: &Arc<Router>, complete: bool) {
        self.filled |= complete;
        router.state().fleet_known |= complete;
        if complete {
            router.pump(Instant::now());
        }
    }

    fn made_anew(&mut self, _router: &Arc<Router>) {
        self.seen.clear();
    }

    fn interrupted(&mut self, router: &Arc<Router>) {
        router.outage_ended();
    }
}

impl Workers {
    fn put(&self, router: &Arc<Router>, change: &Change, value: &[u8]) {
        let spec = match Registration::parse(&change.key, value) {
            Ok(spec) => spec,
            Err(problem) => {
                router.metrics.malformed("registration");
                tracing::warn!(worker = change.key, problem, "a registration is refused");
                router.happenings.warn(format!("the registration of {} is refused: {problem}", change.key));
                return;
            }
        };
        let now = Instant::now();
        // Only what stood there before this router is judged by its stored time: clocks differ between hosts.
        let age = if self.filled { Duration::ZERO } else { now.duration_since(local_time(&change.stored)) };
        let mut state = router.state();
        let outcome = state.fleet.handle_registration(spec, age, now);
        match outcome {
            Registered::New => {
                tracing::info!(worker = change.key, "worker registered");
                router.happenings.note(format!("worker {} registered", change.key));
            }
            Registered::Changed => {
                tracing::info!(worker = change.key, "worker changed its registration");
                let state = state.fleet.find(&change.key).map(|(_, worker)| worker.spec.state);
                let word = if state == Some(Declared::Draining) { "is draining" } else { "changed its registration" };
                router.happenings.note(format!("worker {} {word}", change.key));
            }
            Registered::Replaced(slot) => {
                tracing::warn!(worker = change.key, "another instance has taken over the worker's name");
                router.happenings.warn(format!("another instance has taken over worker {}", change.key));
                state.live.lose(slot);
            }
            Registered::Full => {
                tracing::warn!(worker = change.key, "a registration is refused: there are too many workers");
            }
            Registered::Configured => {
                tracing::warn!(
                    worker = change.key,
                    "a registration is refused: the configuration has a worker of this name"
                );
            }
            Registered::Renewed | Registered::Stale => return,
        }
        drop(state);
        router.pump(now);
    }
}

fn deregister(router: &Arc<Router>, key: &str) {
    let Ok(id) = WorkerId::new(key) else { return };
    if router.state().fleet.handle_deregistration(&id) {
        tracing::info!(worker = key, "worker deregistered");
        router.happenings.note(format!("worker {key} left"));
        router.pump(Instant::now());
    }
}
