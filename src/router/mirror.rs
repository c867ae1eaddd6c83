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
use crate::nats::bucket::{Bucket, BucketInfo, Change, Unreachable};
use crate::nats::feed::{Feed, News};
use crate::wire::registration::Registration;

/// How often the stream is asked whether it is still the same one.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// Checks after which a watch that is still behind is made anew; a first fill takes some.
const MAX_TICKS_BEHIND: u32 = 15;
/// Pause before a bucket that can't be watched is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
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
    /// The bucket has lost what came before a sequence, of which a watch is not told; `left` keys it still has.
    fn lost_before(&mut self, router: &Arc<Router>, sequence: u64, left: u64);
    /// Changes were missed for a while.
    fn interrupted(&mut self, router: &Arc<Router>);
}

/// Mirrors a bucket for ever.
pub async fn follow(router: Arc<Router>, bucket: Bucket, feed: Feed, reader: impl Reader) {
    let mut follower = Follower::new(router, bucket, feed, reader);
    loop {
        let watched = follower.watch_once().await;
        if follower.watching {
            follower.reader.interrupted(&follower.router);
        }
        follower.fall_behind();
        if let Err(error) = watched {
            tracing::debug!(bucket = follower.bucket.name(), %error, "cannot watch the bucket, trying on");
            follower.revive().await;
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

struct Follower<R> {
    router: Arc<Router>,
    bucket: Bucket,
    feed: Feed,
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
    /// Whether the watch has told all that its server has: a replica, which may be behind the stream's leader.
    drained: bool,
    ticks_behind: u32,
    /// Sequence that the stream had at the last look: by now it should have come.
    due: u64,
    /// What the stream had when the mirror had everything: what ran out before is not waited for.
    floor: u64,
    was_complete: bool,
}

impl<R: Reader> Follower<R> {
    fn new(router: Arc<Router>, bucket: Bucket, feed: Feed, reader: R) -> Self {
        router.metrics.mirror_complete(bucket.name(), false);
        Self {
            router,
            bucket,
            feed,
            reader,
            created: None,
            seen: 0,
            target: u64::MAX,
            complete: false,
            watching: false,
            drained: false,
            ticks_behind: 0,
            due: 0,
            floor: 0,
            was_complete: false,
        }
    }

    /// Watches until the watch ends, or has to be made anew.
    async fn watch_once(&mut self) -> Result<(), Unreachable> {
        let mut state = self.feed.lane().state();
        let connects = match state.wait_for(|state| state.connected).await {
            Ok(state) => state.connects,
            Err(closed) => return Err(Unreachable(closed.to_string())),
        };
        self.begin().await?;
        let begun = Instant::now();
        let mut check = tokio::time::interval(CHECK_EVERY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Cancel-safe: a change is either returned or stays in the feed, the rest is looked at anew.
            tokio::select! {
                news = self.feed.next() => {
                    let mut next = Some(news);
                    while let Some(news) = next {
                        if let Some(problem) = self.hear(news).await? {
                            // A watch that ends at once would do so again.
                            return if begun.elapsed() < RETRY_PAUSE { Err(Unreachable(problem)) } else { Ok(()) };
                        }
                        next = self.feed.ready();
                    }
                }
                _ = state.changed() => {
                    let now = state.borrow_and_update();
                    if !now.connected || now.connects != connects {
                        // What was on its way is lost.
                        return Ok(());
                    }
                }
                _ = check.tick() => {
                    if self.check().await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Takes a piece of news; why the watch has ended, where it has.
    async fn hear(&mut self, news: News) -> Result<Option<String>, Unreachable> {
        match news {
            News::Change(change) => self.take(change).await?,
            News::Unsound(change) => self.take_unsound(change).await?,
            News::Told => self.drained().await?,
            News::Ended(problem) => {
                tracing::debug!(bucket = self.bucket.name(), problem, "the watch has ended");
                return Ok(Some(problem));
            }
        }
        Ok(None)
    }

    async fn begin(&mut self) -> Result<(), Unreachable> {
        let info = self.bucket.info().await?;
        self.look(&info);
        let from = (self.seen > 0).then_some(self.seen + 1);
        self.feed.begin(&self.bucket, from).await?;
        self.watching = true;
        self.ticks_behind = 0;
        self.look(&info);
        Ok(())
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

    /// Messages that are missing though they were there at the last look.
    fn lag(&mut self, info: &BucketInfo) -> u64 {
        if self.complete && !self.was_complete {
            self.floor = info.last_sequence;
        }
        self.was_complete = self.complete;
        let due = std::mem::replace(&mut self.due, info.last_sequence);
        if info.messages == 0 { 0 } else { due.saturating_sub(self.seen.max(self.floor)) }
    }

    /// There is no watch: the mirror may be behind until one has caught up.
    fn fall_behind(&mut self) {
        self.watching = false;
        self.target = u64::MAX;
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
        if info.first_sequence > self.due {
            // Nothing is left of what was there at the last look: it was written anew, or ran out, or was purged.
            self.reader.lost_before(&self.router, info.first_sequence, info.messages);
        }
        if !self.complete {
            self.target = info.last_sequence;
            if self.watching && (info.messages == 0 || self.seen >= self.target) {
                self.set_complete(true);
            }
        }
        anew
    }

    async fn take(&mut self, change: Change) -> Result<(), Unreachable> {
        let (revision, pending) = (change.stored.revision, change.pending);
        self.reader.change(&self.router, change, self.complete);
        self.seen = self.seen.max(revision);
        if !self.complete && self.seen >= self.target {
            self.set_complete(true);
        }
        if pending == 0 { self.drained().await } else { Ok(()) }
    }

    /// It would break the connections of those who read the bucket with a client library, so it is replaced by a deletion
    /// where this user may do that.
    async fn take_unsound(&mut self, change: Change) -> Result<(), Unreachable> {
        tracing::warn!(
            bucket = self.bucket.name(),
            key = change.key,
            sequence = change.stored.revision,
            "a stored message has a header block that breaks NATS clients; it is passed over, and deleted where that is allowed"
        );
        let _ = self.bucket.delete_at(&change.key, change.stored.revision).await;
        self.take(change).await
    }

    /// The watch's server has told all that it has. Once at once; where that was too early, with the looks at the stream.
    async fn drained(&mut self) -> Result<(), Unreachable> {
        if std::mem::replace(&mut self.drained, true) { Ok(()) } else { self.check_drained().await }
    }

    /// A watch that has told all that its server has, and not the stream's last sequence: either that message is gone, or the
    /// server is a replica that is behind. The leader knows which is the last one that it has.
    async fn check_drained(&mut self) -> Result<(), Unreachable> {
        if self.complete || !self.drained {
            return Ok(());
        }
        self.target = self.target.min(self.bucket.last_kept().await?);
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

    /// The client by which the bucket is asked may have died.
    async fn revive(&self) {
        let link = self.bucket.link();
        let (_, generation) = link.client();
        let dead = link.state().borrow().dead;
        if dead == Some(generation) {
            self.router.metrics.rebuilt.inc();
            link.rebuild(generation).await;
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

    fn lost_before(&mut self, router: &Arc<Router>, sequence: u64, left: u64) {
        let mut state = router.state();
        let mirror = state.mirrors.of_mut(self.0);
        // Where each key was written anew or ran out there is nothing to look for.
        if mirror.len() as u64 > left {
            mirror.drop_before(sequence);
        }
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

    /// Workers live by their leases.
    fn lost_before(&mut self, _router: &Arc<Router>, _sequence: u64, _left: u64) {}

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
