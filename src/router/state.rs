//! What all requests of a router share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use super::jobs::Jobs;
use super::live::{At, LiveRequests, Mail, Seq};
use super::metrics::Metrics;
use super::pinning::PinStore;
use crate::config::RouterConfig;
use crate::core::ask::Ask;
use crate::core::decide::{Decision, NoPlacement, Pin, Rules, WaitFor, decide};
use crate::core::fleet::{Fleet, WorkerSlot};
use crate::core::hash::PinKey;
use crate::core::id::{Placement, WorkerId};
use crate::core::mode::AffinityMode;
use crate::core::pins::Mirror;
use crate::core::queue::{Priority, Queue};
use crate::core::worker::WorkerKind;
use crate::nats::Lane;
use crate::wire::subject::Subjects;

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
    /// The pins bucket.
    pub pins: PinStore,
    /// Durable jobs, where this router takes any.
    pub jobs: Option<Arc<Jobs>>,
    /// Prefix of this router's inbox subjects, with the final dot.
    pub inbox: String,
    /// Prefix of all routers' inbox subjects, with the final dot.
    pub inbox_prefix: String,
    /// Counters.
    pub metrics: Metrics,
    /// Where work is done that would hold up the hot thread.
    pub runtime: Handle,
    /// Large requests that are just being read, in tasks of their own.
    pub reading: AtomicUsize,
    /// Tells that requests at rest have to be looked at some time.
    pub wake_up: Notify,
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
    pub mirror: Mirror,
    /// Whether the mirror has everything that the bucket has.
    pub mirror_fresh: bool,
    /// Whether the pins were read once.
    pub pins_known: bool,
    /// Whether the registrations were read once.
    pub fleet_known: bool,
    /// Requests under way.
    pub live: LiveRequests,
    /// Sessions that a request of this router is just claiming; the others wait for the sender to go.
    pub claims: HashMap<PinKey, watch::Receiver<()>>,
    queue: Queue<Waiting>,
    rng: StdRng,
}

struct Waiting {
    seq: Seq,
    ask: Ask,
    keys: Keys,
    wants: WaitFor,
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

/// What a request that asks for a placement gets.
pub enum Asked {
    /// A placement, at which it is counted from now on, and the revision of the named session's pin that it was made
    /// by (0: none).
    Decided(Decision, u64),
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
    /// Where its pin may stand.
    pub keys: &'r Keys,
    /// Its priority in the queue.
    pub priority: Priority,
    /// Whether it holds the claim of its session already.
    pub holds_claim: bool,
    /// Revision of the pin that this request has itself written; 0 where it has not. To itself it is not pinned there.
    pub claimed: u64,
    /// Whether the pins bucket is unreachable.
    pub unreachable: bool,
}

impl Router {
    /// A router that knows nobody yet; called inside the runtime that does its work.
    pub fn new(
        config: RouterConfig,
        [intake, dispatch]: [Lane; 2],
        pins: PinStore,
        jobs: Option<Jobs>,
        inbox: String,
    ) -> Self {
        let rules = Rules { mode: config.affinity, policy: config.policy, rank_choice: config.rank_choice };
        let mut fleet = Fleet::default();
        let now = Instant::now();
        for worker in &config.workers {
            fleet.configure(worker.clone(), now);
        }
        let state = State {
            fleet,
            mirror: Mirror::new(config.pin_ttl),
            mirror_fresh: config.affinity == AffinityMode::Off,
            pins_known: config.affinity == AffinityMode::Off,
            fleet_known: false,
            live: LiveRequests::default(),
            claims: HashMap::new(),
            queue: Queue::default(),
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
            pins,
            jobs: jobs.map(Arc::new),
            inbox,
            metrics: Metrics::new(),
            runtime: Handle::current(),
            reading: AtomicUsize::new(0),
            wake_up: Notify::new(),
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

    /// Whether requests can be routed.
    pub fn is_ready(&self) -> bool {
        let connected = self.intake.is_connected() && self.dispatch.is_connected();
        connected && self.taking.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Places a request, or queues it.
    pub fn ask(&self, asking: &Asking<'_>, now: Instant) -> Asked {
        let mut state = self.state();
        if let Some(key) = asking.keys.named().filter(|_| !asking.holds_claim)
            && let Some(claim) = state.claims.get(&key)
        {
            return Asked::Busy(claim.clone());
        }
        match state.place(asking, self.rules, now) {
            Ok(decision) => Asked::Decided(decision, state.revision(asking.keys, now)),
            Err(NoPlacement::Wait(wants)) => {
                let waiting = Waiting { seq: asking.seq, ask: asking.ask.clone(), keys: asking.keys.clone(), wants };
                if state.queue.push(asking.priority, asking.seq, waiting) { Asked::Queued } else { Asked::QueueFull }
            }
            Err(other) => Asked::Failed(other),
        }
    }

    /// A request leaves where it is counted; those that wait for the room get it.
    pub fn vacate(&self, seq: Seq, now: Instant) {
        let mut state = self.state();
        if let Some(at) = state.vacate(seq) {
            state.pump(Some(at.slot), self.rules, now);
        }
    }

    /// The request waits no longer.
    pub fn leave_queue(&self, priority: Priority, seq: Seq) {
        self.state().queue.remove(priority, seq);
    }

    /// A worker's report was taken in. One that has nothing to do settles what the router is uncertain of.
    pub fn settle_idle(&self, worker: &WorkerId, now: Instant) {
        let mut state = self.state();
        let Some((slot, worker)) = state.fleet.find(worker.as_str()) else { return };
        if worker.is_idle(now) && state.live.has_uncertain() {
            state.live.settle_idle(slot, now);
        }
    }

    /// The fleet has changed: whoever waits is tried again.
    pub fn pump(&self, now: Instant) {
        self.state().pump(None, self.rules, now);
    }
}

impl State {
    fn place(&mut self, asking: &Asking<'_>, rules: Rules, now: Instant) -> Result<Decision, NoPlacement> {
        let own = asking.claimed != 0 && self.revision(asking.keys, now) == asking.claimed;
        let keys = if own { &Keys::None } else { asking.keys };
        let decision = self.decide(asking.ask, keys, asking.unreachable, rules, now)?;
        self.occupy(asking.seq, &decision);
        Ok(decision)
    }

    fn decide(
        &mut self,
        ask: &Ask,
        keys: &Keys,
        unreachable: bool,
        rules: Rules,
        now: Instant,
    ) -> Result<Decision, NoPlacement> {
        let pinned = find_pin(&self.mirror, keys, now).map(|(_, pin)| pin.placement.clone());
        let pin = match &pinned {
            Some(placement) => Pin::At(placement),
            None if unreachable && ask.session.is_some() => Pin::Unreachable,
            None => Pin::None,
        };
        decide(ask, &mut self.fleet, pin, rules, now, &mut self.rng)
    }

    fn revision(&self, keys: &Keys, now: Instant) -> u64 {
        keys.named().map_or(0, |key| self.mirror.revision(key, now))
    }

    fn occupy(&mut self, seq: Seq, decision: &Decision) {
        let plain = self.fleet.get(decision.slot).is_some_and(|worker| worker.spec.kind == WorkerKind::Plain);
        self.fleet.begin(decision.slot, decision.placement.rank);
        if let Some(live) = self.live.get_mut(seq) {
            live.at = Some(At {
                slot: decision.slot,
                rank: decision.placement.rank,
                accepted: false,
                plain,
                uncertain: None,
            });
        }
    }

    fn vacate(&mut self, seq: Seq) -> Option<At> {
        self.live.end_attempt(seq);
        let at = self.live.get_mut(seq)?.at.take()?;
        self.fleet.end(at.slot, at.rank, at.accepted);
        Some(at)
    }

    /// How many requests wait for room.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The request has ended, however it did.
    pub fn end(&mut self, seq: Seq, priority: Priority, rules: Rules, now: Instant) {
        self.queue.remove(priority, seq);
        let freed = self.vacate(seq);
        self.live.remove(seq);
        if let Some(at) = freed {
            self.pump(Some(at.slot), rules, now);
        }
    }

    /// The worker has accepted the request.
    pub fn accept(&mut self, seq: Seq) {
        let Some(at) = self.live.get_mut(seq).and_then(|live| live.at.as_mut()) else { return };
        if !std::mem::replace(&mut at.accepted, true) {
            let slot = at.slot;
            self.fleet.note_accepted(slot);
        }
    }

    fn pump(&mut self, freed: Option<WorkerSlot>, rules: Rules, now: Instant) {
        if self.queue.is_empty() {
            return;
        }
        let freed = freed.and_then(|slot| self.fleet.get(slot)).map(|worker| worker.spec.id.clone());
        let mut queue = std::mem::take(&mut self.queue);
        queue.pump(
            |waiting| match (&waiting.wants, &freed) {
                (WaitFor::Placement(Placement { worker, .. }), Some(freed)) => worker == freed,
                (WaitFor::Placement(_) | WaitFor::Any, _) => true,
            },
            |waiting| self.grant(waiting, rules, now),
        );
        self.queue = queue;
    }

    /// Places a waiting request where there is room now. What can't be placed at all any more is told by asking
    /// again: it leaves the queue with mail that makes it do so.
    fn grant(&mut self, waiting: &Waiting, rules: Rules, now: Instant) -> bool {
        let decided = self.decide(&waiting.ask, &waiting.keys, false, rules, now);
        match decided {
            Ok(decision) => {
                self.occupy(waiting.seq, &decision);
                let revision = self.revision(&waiting.keys, now);
                if let Some(live) = self.live.get_mut(waiting.seq) {
                    live.send(Mail::Granted(Box::new((decision, revision))));
                }
                true
            }
            Err(NoPlacement::Wait(_)) => false,
            Err(NoPlacement::Exhausted | NoPlacement::Refused(_)) => {
                if let Some(live) = self.live.get_mut(waiting.seq) {
                    live.send(Mail::AskAgain);
                }
                true
            }
        }
    }
}

/// The pin that a request continues: of a derived session the deepest strict prefix that is pinned and not shared
/// (protocol section 4).
pub fn find_pin<'m>(mirror: &'m Mirror, keys: &Keys, now: Instant) -> Option<(PinKey, &'m crate::core::pins::Pin)> {
    match keys {
        Keys::None => None,
        Keys::Named(key) => Some((*key, mirror.get(*key, now)?.pin.as_ref()?)),
        Keys::Derived(prefixes) => mirror.continued(prefixes, now),
    }
}

/// Milliseconds since 1970 by the wall clock.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
