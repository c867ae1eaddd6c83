//! What all requests of a router share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};

use super::happenings::Happenings;
use super::jobs::Jobs;
use super::jobs::cancels::Cancels;
use super::kv::Notes;
use super::live::{At, LiveRequests, Seq};
use super::metrics::Metrics;
use super::mirrors::Mirrors;
use super::pinning::PinStores;
use super::queue::Waiting;
use super::seal::Seal;
use crate::config::{Level, RouterConfig};
use crate::core::alias;
use crate::core::ask::Ask;
use crate::core::decide::{Decision, NoPlacement, Pin, Rules, decide};
use crate::core::fleet::Fleet;
use crate::core::hash::PinKey;
use crate::core::id::{DEFAULT_POOL, Placement, Pool, WorkerId};
use crate::core::partition::Partition;
use crate::core::pins::{Entry, Mirror};
use crate::core::queue::{Priority, Queues};
use crate::core::worker::WorkerKind;
use crate::nats::{Lane, Message};
use crate::wire::subject::Subjects;

/// How long the server may take to answer a router that wants to know whether it is ready.
const READY_WITHIN: Duration = Duration::from_secs(1);

/// A router, shared by its tasks.
pub struct Router {
    /// Its settings.
    pub config: RouterConfig,
    /// The subjects of its namespace.
    pub subjects: Subjects,
    /// Mode and policy.
    pub rules: Rules,
    /// The connection on which anybody may send.
    pub intake: Lane,
    /// The connection for dispatch, and for the inbox on which the outcome is heard.
    pub dispatch: Lane,
    /// Where the messages go by which buckets are mirrored.
    pub feeds: Box<[mpsc::Sender<Message>]>,
    /// The buckets of pins.
    pub pins: PinStores,
    /// Durable jobs, where this router takes any.
    pub jobs: Option<Arc<Jobs>>,
    /// This process's own id, which stands in its inbox.
    pub id: String,
    /// When it started.
    pub started: Instant,
    /// Prefix of this router's inbox subjects, with the final dot.
    pub inbox: String,
    /// Makes the rest of them.
    pub seal: Seal,
    /// Prefix of all routers' inbox subjects, with the final dot.
    pub inbox_prefix: String,
    /// Counters.
    pub metrics: Metrics,
    /// What has happened lately.
    pub happenings: Happenings,
    /// Questions about the router as a whole that are just being answered.
    pub answering: AtomicUsize,
    /// Where work is done that would hold up the hot thread.
    pub runtime: Handle,
    /// Large requests that are just being read, in tasks of their own.
    pub reading: AtomicUsize,
    /// Tells that requests at rest have to be looked at some time.
    pub wake_up: Notify,
    /// Cancels of what this router does not have, and may just be handed.
    pub cancels: Mutex<Cancels>,
    /// Whether the router takes new requests: from the time it is ready until it drains.
    pub taking: AtomicBool,
    /// Everything that decisions read and change. Held for microseconds, never across an await.
    state: Mutex<State>,
}

/// What decisions read and change.
pub struct State {
    /// The workers.
    pub fleet: Fleet,
    /// The pins.
    pub mirrors: Mirrors,
    /// Whether the registrations were read once.
    pub fleet_known: bool,
    /// Requests under way.
    pub live: LiveRequests,
    /// Sessions that a request of this router is just claiming, each with what the others wait for, where there are any: it
    /// goes with the claim.
    pub claims: HashMap<PinKey, Option<watch::Sender<()>>, foldhash::fast::RandomState>,
    /// Dispatches that the other routers are to be told.
    pub(super) notes: Notes,
    /// Requests that wait for room.
    pub(super) queue: Queues<Waiting>,
    rng: StdRng,
}

/// Keys under which a request's pin may stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    /// It has no session.
    None,
    /// Its session is named: one key.
    Named(PinKey),
    /// Its session is derived: the strict prefixes of its input, deepest first.
    Derived(Arc<[PinKey]>),
}

impl Keys {
    /// The key of a named session.
    pub fn named(&self) -> Option<PinKey> {
        match self {
            Self::Named(key) => Some(*key),
            Self::None | Self::Derived(_) => None,
        }
    }
}

/// What stood in the mirror when a request was placed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Basis {
    /// Where the session's pin stood, or of a named session may stand.
    pub key: Option<PinKey>,
    /// The revision of what stood there, for a compare-and-set; 0: nothing.
    pub revision: u64,
    /// Since when it stood there, where another router wrote it and this one has not put it again.
    pub foreign_since: Option<Instant>,
    refresh_at: Option<Instant>,
}

impl Basis {
    fn of(key: PinKey, entry: Option<&Entry>, mirror: &Mirror) -> Self {
        let foreign = |entry: &Entry| (!entry.ours).then(|| mirror.stored_at(entry));
        Self {
            key: Some(key),
            revision: entry.map_or(0, |entry| entry.revision),
            foreign_since: entry.and_then(foreign),
            refresh_at: entry.map(|entry| mirror.refresh_at(entry)),
        }
    }

    /// Whether a use may have to refresh the pin's age; the mirror knows for certain.
    pub fn is_refresh_due(&self) -> bool {
        self.refresh_at.is_some_and(|at| at <= Instant::now())
    }
}

/// Where a session is pinned.
#[derive(Debug, Clone)]
pub struct Pinned {
    placement: Placement,
    pool: Option<Pool>,
}

impl Pinned {
    fn of(pin: &crate::core::pins::Pin) -> Self {
        Self { placement: pin.placement.clone(), pool: pin.pool().cloned() }
    }
}

/// What a request that asks for a placement gets.
pub enum Asked {
    /// A placement, at which it is counted from now on, and what it goes by.
    Decided(Decision, Basis),
    /// The mirror may not know of this pin: it has to be read from the bucket first.
    Recheck(PinKey),
    /// Another request of this router is claiming the session: ask again when it is done.
    Busy(watch::Receiver<()>),
    /// No room; it is in the queue, and gets mail.
    Queued,
    /// No room, not even in the queue.
    QueueFull,
    /// No placement.
    Failed(NoPlacement),
}

/// A request, as far as placing it goes.
pub struct Asking<'r> {
    /// Its number.
    pub seq: Seq,
    /// What it asks.
    pub ask: &'r Ask,
    /// The partition in which its pin may stand.
    pub partition: Partition,
    /// Under which keys.
    pub keys: &'r Keys,
    /// Its priority in the queue.
    pub priority: Priority,
    /// Whether it holds the claim of its session already.
    pub holds_claim: bool,
    /// Revision of the pin that this request has itself written; 0 where it has not. To itself it is not pinned there.
    pub claimed: u64,
    /// Whether the pins bucket is unreachable.
    pub unreachable: bool,
    /// What may be read from the bucket before the mirror is believed.
    pub recheck: Option<PinKey>,
}

impl Router {
    /// A router that knows nobody yet; called inside the runtime that does its work.
    pub fn new(
        config: RouterConfig,
        [intake, dispatch]: [Lane; 2],
        pins: PinStores,
        jobs: Option<Jobs>,
        inbox: String,
        feeds: Vec<mpsc::Sender<Message>>,
    ) -> Self {
        let rules = Rules { mode: config.affinity, policy: config.policy, rank_choice: config.rank_choice };
        let mut fleet = Fleet::default();
        fleet.set_full_at(config.full_at);
        fleet.set_weighing(config.weighing);
        fleet.set_half_life(config.balance_half_life);
        let now = Instant::now();
        for worker in &config.workers {
            fleet.configure(worker.clone(), now);
        }
        for pool in &config.pools.targets {
            fleet.configure(pool.spec.clone(), now);
        }
        fleet.set_pools(config.pools.pools.clone());
        let state = State {
            fleet,
            mirrors: Mirrors::new(&config.partitions, config.affinity, config.pin_ttl, now),
            // Pools stand in the configuration.
            fleet_known: config.pools.level == Level::Global,
            live: LiveRequests::default(),
            claims: HashMap::default(),
            notes: Notes::default(),
            queue: Queues::new(config.max_waiting),
            rng: StdRng::seed_from_u64(uuid::Uuid::new_v4().as_u64_pair().0),
        };
        let subjects = Subjects::new(config.namespace.clone());
        Self {
            inbox_prefix: format!("{}.", subjects.router_inbox_prefix()),
            subjects,
            rules,
            config,
            intake,
            dispatch,
            feeds: feeds.into(),
            pins,
            jobs: jobs.map(Arc::new),
            id: inbox.trim_end_matches('.').rsplit('.').next().unwrap_or_default().to_owned(),
            inbox,
            seal: Seal::default(),
            started: now,
            metrics: Metrics::new(),
            happenings: Happenings::default(),
            answering: AtomicUsize::new(0),
            runtime: Handle::current(),
            reading: AtomicUsize::new(0),
            wake_up: Notify::new(),
            cancels: Mutex::default(),
            taking: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Handles one message. A fault in that costs the message, and never the others: everybody's pass here.
    pub fn outlive(&self, handle: impl FnOnce()) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(handle)).is_err() {
            self.metrics.faults.inc();
            tracing::error!("a message was dropped because of a fault in rankpin; please report what stands above");
        }
    }

    /// The shared state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves counts off by one at worst; going on serves everybody else.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether requests can be routed: it takes them, and both connections of their way carry messages. One that stands may
    /// still lead to a server that is frozen or cut off.
    pub async fn is_ready(&self) -> bool {
        self.taking.load(std::sync::atomic::Ordering::Relaxed)
            && tokio::join!(self.intake.answers(READY_WITHIN), self.dispatch.answers(READY_WITHIN)) == (true, true)
    }

    /// The same at a glance: it takes requests, and its connections stand.
    pub fn is_up(&self) -> bool {
        let takes = self.taking.load(std::sync::atomic::Ordering::Relaxed);
        takes && self.intake.is_connected() && self.dispatch.is_connected()
    }

    /// Places a request, or queues it.
    pub fn ask(&self, asking: &Asking<'_>, now: Instant) -> Asked {
        let mut state = self.state();
        if let Some(key) = asking.keys.named().filter(|_| !asking.holds_claim)
            && let Some(others) = state.claims.get_mut(&key)
        {
            return Asked::Busy(others.get_or_insert_with(|| watch::channel(()).0).subscribe());
        }
        let (basis, pinned) = state.look_up(asking.partition, asking.keys, now);
        let doubtful = match asking.keys {
            Keys::None => false,
            Keys::Named(_) => !state.mirrors.is_fresh(asking.partition),
            Keys::Derived(_) => pinned.is_none(),
        };
        if let Some(key) = asking.recheck.filter(|_| doubtful) {
            return Asked::Recheck(key);
        }
        // To itself a request is not pinned where it has claimed.
        let pinned = pinned.filter(|_| asking.claimed == 0 || asking.claimed != basis.revision);
        match state.place(asking.seq, asking.ask, pinned.as_ref(), asking.unreachable, self.rules, now) {
            Ok(decision) => Asked::Decided(decision, basis),
            Err(NoPlacement::Wait(wants)) => state.wait(asking, wants, now),
            Err(other) => Asked::Failed(other),
        }
    }

    /// A request leaves where it is counted; those that wait for the room get it.
    pub fn vacate(&self, seq: Seq, now: Instant) {
        let mut state = self.state();
        if let Some(at) = state.vacate(seq) {
            state.freed(&at, self.rules, now);
        }
    }

    /// A worker's report was taken in. One that has nothing to do settles what the router is uncertain of.
    pub fn settle_idle(&self, worker: &WorkerId, now: Instant) {
        let mut state = self.state();
        let Some((slot, worker)) = state.fleet.find(worker.as_str()) else { return };
        if worker.is_idle(now) && state.live.has_uncertain() {
            state.live.settle_idle(slot, now);
        }
    }
}

impl State {
    /// The model that an alias leads a request to.
    pub(super) fn choose(
        &mut self,
        partition: Partition,
        asked: alias::Asked<'_>,
        now: Instant,
    ) -> Option<alias::Choice> {
        alias::choose(asked, &self.fleet, self.mirrors.of(partition), now, &mut self.rng)
    }

    /// What the mirror knows of a request's session: where it is pinned is the placement of its pin, of a derived one of
    /// the deepest strict prefix that is pinned and not shared (protocol section 4).
    pub(super) fn look_up(&self, partition: Partition, keys: &Keys, now: Instant) -> (Basis, Option<Pinned>) {
        let mirror = self.mirrors.of(partition);
        let (key, entry) = match keys {
            Keys::None => return (Basis::default(), None),
            Keys::Named(key) => (*key, mirror.get(*key, now)),
            Keys::Derived(prefixes) => match mirror.continued(prefixes, now) {
                Some((key, entry)) => (key, Some(entry)),
                None => return (Basis::default(), None),
            },
        };
        let pin = entry.and_then(|entry| entry.pin.as_ref());
        (Basis::of(key, entry, mirror), pin.map(Pinned::of))
    }

    /// Decides where a request goes, and counts it there.
    pub(super) fn place(
        &mut self,
        seq: Seq,
        ask: &Ask,
        pinned: Option<&Pinned>,
        unreachable: bool,
        rules: Rules,
        now: Instant,
    ) -> Result<Decision, NoPlacement> {
        let home = pinned.and_then(|pin| self.lost_home(pin, ask, now));
        let at_home = home.map(|home| Ask { home: Some(home), ..ask.clone() });
        let ask = at_home.as_ref().unwrap_or(ask);
        let pin = match pinned.map(|pin| &pin.placement) {
            // It moves, and nobody can be told where to: it is placed as one without a pin, by what every router finds alike.
            Some(at) if unreachable && self.fleet.eligible_worker(&at.worker, &ask.model, now).is_none() => {
                Pin::Unreachable
            }
            Some(placement) => Pin::At(placement),
            None if unreachable && ask.session.is_some() => Pin::Unreachable,
            None => Pin::None,
        };
        let decision = decide(ask, &mut self.fleet, pin, rules, now, &mut self.rng)?;
        self.occupy(seq, ask, &decision, now);
        Ok(decision)
    }

    /// The pool of a pin whose worker is gone: the session stays in it, where the configuration has pools.
    fn lost_home(&self, pin: &Pinned, ask: &Ask, now: Instant) -> Option<Pool> {
        if self.fleet.pools().rules.is_empty() {
            return None;
        }
        let home = pin.pool.clone().or_else(|| Pool::new(DEFAULT_POOL).ok());
        let there = self.fleet.eligible_worker(&pin.placement.worker, &ask.model, now).is_some();
        home.filter(|_| !there || !ask.excluded.is_empty())
    }

    pub(super) fn occupy(&mut self, seq: Seq, ask: &Ask, decision: &Decision, now: Instant) {
        let kind = self.fleet.get(decision.slot).map(|worker| worker.spec.kind);
        self.fleet.begin(decision.slot, decision.placement.rank);
        let expected = self.note_dispatch(ask, decision, now);
        if let Some(live) = self.live.get_mut(seq) {
            live.at = Some(At {
                slot: decision.slot,
                rank: decision.placement.rank,
                accepted: false,
                plain: kind == Some(WorkerKind::Plain),
                pool: kind == Some(WorkerKind::Pool),
                heard: now,
                sent: now,
                uncertain: None,
                expected,
            });
        }
    }

    fn vacate(&mut self, seq: Seq) -> Option<At> {
        self.live.end_attempt(seq);
        let at = self.live.get_mut(seq)?.at.take()?;
        self.fleet.end(at.slot, at.rank, at.accepted);
        Some(at)
    }

    /// The request has ended, however it did.
    pub fn end(&mut self, seq: Seq, rules: Rules, now: Instant) {
        self.queue.remove(seq, now);
        let freed = self.vacate(seq);
        self.live.remove(seq);
        if let Some(at) = freed {
            self.freed(&at, rules, now);
        }
    }

    /// The worker has accepted the request.
    pub fn accept(&mut self, seq: Seq) {
        let Some(at) = self.live.get_mut(seq).and_then(|live| live.at.as_mut()) else { return };
        if !std::mem::replace(&mut at.accepted, true) {
            let (slot, rank) = (at.slot, at.rank);
            self.fleet.note_accepted(slot, rank);
        }
    }
}

/// Milliseconds since 1970 by the wall clock.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
