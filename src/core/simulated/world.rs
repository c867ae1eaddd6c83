//! Time, messages, workers, and what has happened.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::bucket::Bucket;
use super::millis;
use super::router::{Request, Router};
use crate::core::hash::PinKey;
use crate::core::id::{InstanceId, Placement};
use crate::core::pins::Pin;
use crate::core::testing::{spec, start, worker_id};
use crate::core::worker::WorkerSpec;

/// A run.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub routers: usize,
    pub workers: usize,
    pub sessions: usize,
    pub turns: usize,
    pub kills: usize,
    /// Of a thousand messages that may be lost: dispatches, acceptances, answers of the bucket.
    pub lost_of_thousand: u32,
    /// Longest time that a message takes, in ms.
    pub late: u64,
}

/// Something that happens at a time.
#[derive(Debug, Clone)]
pub enum Event {
    Ask(usize),
    Put { request: usize, key: PinKey, pin: Option<Pin>, expected: u64 },
    PutDone { request: usize, put: u32, revision: Option<u64> },
    PutTimedOut { request: usize, put: u32 },
    ReadDone { request: usize, key: PinKey },
    Watched { router: usize, revision: u64 },
    Arrives { request: usize, attempt: u32, placement: Placement },
    NoResponders { request: usize, attempt: u32 },
    Accepted { request: usize, attempt: u32 },
    Silent { request: usize, attempt: u32 },
    Done { worker: usize, instance: u32, request: usize, attempt: u32 },
    Finished { request: usize, attempt: u32 },
    Cancel { request: usize, attempt: u32, placement: Placement },
    Kill(usize),
    Revive(usize),
    Beat(usize),
    Heard { router: usize, spec: Box<WorkerSpec> },
    Tick(usize),
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Served,
    WorkerLost,
    Refused,
}

/// A worker's time with a request.
#[derive(Debug, Clone)]
struct Run {
    session: usize,
    placement: Placement,
    request: usize,
    attempt: u32,
    from: Instant,
    until: Option<Instant>,
}

#[derive(Debug)]
struct Worker {
    alive: bool,
    instance: u32,
}

pub struct World {
    pub setup: Setup,
    pub now: Instant,
    pub rng: StdRng,
    pub bucket: Bucket,
    pub routers: Vec<Router>,
    pub requests: Vec<Request>,
    begun: Instant,
    queue: BinaryHeap<Reverse<(Instant, u64, u64)>>,
    events: BTreeMap<u64, Event>,
    number: u64,
    workers: Vec<Worker>,
    runs: Vec<Run>,
    losses: Vec<(String, Instant)>,
    /// When each router gets the next change at the earliest: a watch keeps the order.
    watched: Vec<Instant>,
}

/// Ranks of each worker.
const RANKS: u32 = 2;
const BEAT: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(200);
/// How long a killed worker is away.
const AWAY: Duration = Duration::from_secs(4);
/// Effects of a loss: marks stand for five seconds, silence is noticed after six, a late message comes later still.
const EFFECT: Duration = Duration::from_secs(12);
/// After the last turn everything has settled within this.
const SETTLED_AFTER: Duration = Duration::from_secs(60);

impl World {
    pub fn new(setup: Setup, seed: u64) -> Self {
        let now = start();
        let mut rng = StdRng::seed_from_u64(seed);
        let routers =
            (0..setup.routers).map(|n| Router::new(StdRng::seed_from_u64(seed ^ (n as u64 + 1)), now)).collect();
        let workers = (0..setup.workers).map(|_| Worker { alive: true, instance: 0 }).collect();
        let mut world = Self {
            setup,
            now,
            begun: now,
            bucket: Bucket::default(),
            routers,
            requests: Vec::new(),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            number: 0,
            workers,
            runs: Vec::new(),
            losses: Vec::new(),
            watched: vec![now; setup.routers],
            rng: StdRng::seed_from_u64(rng.random()),
        };
        for worker in 0..setup.workers {
            for router in 0..setup.routers {
                let spec = world.spec(worker);
                world.routers[router].hear(spec, now);
            }
            world.after(BEAT / 2, Event::Beat(worker));
        }
        (0..setup.routers).for_each(|router| world.after(TICK, Event::Tick(router)));
        for turn in 0..setup.turns {
            let (session, router) = (rng.random_range(0..setup.sessions), rng.random_range(0..setup.routers));
            world.requests.push(Request::new(session, router));
            // Many at the same moment: that is when routers have to agree.
            let at = millis(rng.random_range(0..20) * 500);
            world.after(at, Event::Ask(turn));
        }
        for _ in 0..setup.kills {
            let worker = rng.random_range(0..setup.workers);
            world.after(millis(rng.random_range(0..10_000)), Event::Kill(worker));
        }
        world
    }

    pub fn run(&mut self) {
        let end = self.begun + SETTLED_AFTER;
        while let Some(Reverse((at, _, number))) = self.queue.pop() {
            if at > end {
                return;
            }
            self.now = at;
            let event = self.events.remove(&number).expect("each is there once");
            self.handle(event);
        }
    }

    /// Something happens after a time; what happens at the same time does so in any order.
    pub fn after(&mut self, pause: Duration, event: Event) {
        self.number += 1;
        let tie = self.rng.random();
        self.queue.push(Reverse((self.now + pause, tie, self.number)));
        self.events.insert(self.number, event);
    }

    /// A message is sent, and comes after a while.
    pub fn send(&mut self, event: Event) {
        let late = millis(self.rng.random_range(0..=self.setup.late));
        self.after(late, event);
    }

    /// The same, where it may be lost.
    pub fn send_perhaps(&mut self, event: Event) {
        if self.rng.random_range(0..1000) >= self.setup.lost_of_thousand {
            self.send(event);
        }
    }

    /// A router takes a worker for lost.
    pub fn note_loss(&mut self, placement: &Placement) {
        self.losses.push((placement.worker.to_string(), self.now));
    }

    fn spec(&self, worker: usize) -> WorkerSpec {
        let instance = InstanceId::new(&format!("i{}", self.workers[worker].instance)).expect("valid");
        let first = u32::try_from(worker).expect("few") * RANKS;
        WorkerSpec { instance, ..spec(&name(worker), first, RANKS) }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Put { request, key, pin, expected } => self.put(request, key, pin, expected),
            Event::Watched { router, revision } => {
                let (key, pin) = self.bucket.entry(revision).expect("it was stored").clone();
                self.routers[router].mirror.handle_value(key, revision, pin, self.now);
            }
            Event::Arrives { request, attempt, placement } => self.arrive(request, attempt, placement),
            Event::Done { worker, instance, request, attempt } => {
                if self.workers[worker].alive
                    && self.workers[worker].instance == instance
                    && self.end_run(request, attempt)
                {
                    self.send(Event::Finished { request, attempt });
                }
            }
            Event::Cancel { request, attempt, placement } => {
                let worker = number(&placement);
                if self.workers[worker].alive && self.end_run(request, attempt) {
                    self.send(Event::Finished { request, attempt });
                }
            }
            Event::Kill(worker) => self.kill(worker),
            Event::Revive(worker) => {
                self.workers[worker] = Worker { alive: true, instance: self.workers[worker].instance + 1 };
                self.after(Duration::ZERO, Event::Beat(worker));
            }
            Event::Beat(worker) => {
                if self.workers[worker].alive {
                    for router in 0..self.setup.routers {
                        let spec = Box::new(self.spec(worker));
                        self.send(Event::Heard { router, spec });
                    }
                    self.after(BEAT, Event::Beat(worker));
                }
            }
            Event::Heard { router, spec } => self.heard(router, *spec),
            Event::Tick(router) => {
                self.tick(router);
                self.after(TICK, Event::Tick(router));
            }
            other => self.route(other),
        }
    }

    fn put(&mut self, request: usize, key: PinKey, pin: Option<Pin>, expected: u64) {
        let revision = self.bucket.put_at(key, pin, expected);
        if let Some(revision) = revision {
            for router in 0..self.setup.routers {
                let late = millis(self.rng.random_range(0..=self.setup.late));
                let at = self.watched[router].max(self.now + late);
                // One after the other, never at the same moment.
                self.watched[router] = at + Duration::from_nanos(1);
                self.after(at - self.now, Event::Watched { router, revision });
            }
        }
        let put = self.requests[request].put;
        self.send_perhaps(Event::PutDone { request, put, revision });
    }

    fn arrive(&mut self, request: usize, attempt: u32, placement: Placement) {
        let worker = number(&placement);
        if !self.workers[worker].alive {
            return self.send(Event::NoResponders { request, attempt });
        }
        let session = self.requests[request].session;
        let instance = self.workers[worker].instance;
        self.runs.push(Run { session, placement, request, attempt, from: self.now, until: None });
        self.send_perhaps(Event::Accepted { request, attempt });
        let takes = millis(self.rng.random_range(10..1500));
        self.after(takes, Event::Done { worker, instance, request, attempt });
    }

    fn end_run(&mut self, request: usize, attempt: u32) -> bool {
        let now = self.now;
        let mut open = self.runs.iter_mut().filter(|run| run.until.is_none());
        let found = open.find(|run| (run.request, run.attempt) == (request, attempt));
        found.map(|run| run.until = Some(now)).is_some()
    }

    fn kill(&mut self, worker: usize) {
        if !std::mem::replace(&mut self.workers[worker].alive, false) {
            return;
        }
        self.losses.push((name(worker), self.now));
        for run in self.runs.iter_mut().filter(|run| run.until.is_none() && number(&run.placement) == worker) {
            run.until = Some(self.now);
        }
        self.after(AWAY, Event::Revive(worker));
    }

    pub fn ends(&self) -> Vec<Option<End>> {
        self.requests.iter().map(|request| request.end).collect()
    }

    /// What is still counted anywhere.
    pub fn leaked(&self) -> Vec<String> {
        self.routers.iter().enumerate().flat_map(|(n, router)| router.leaked(n)).collect()
    }

    /// Where a router's mirror is not what the bucket has.
    pub fn disagreements(&self) -> Vec<String> {
        let mut all = Vec::new();
        for session in 0..self.setup.sessions {
            let key = Request::key(session);
            let stored = self.bucket.get(key);
            for (n, router) in self.routers.iter().enumerate() {
                let seen = router.mirror.get(key, self.now).map(|entry| (entry.revision, entry.pin.clone()));
                if seen != stored {
                    all.push(format!("router {n}, session {session}: {seen:?} in place of {stored:?}"));
                }
            }
        }
        all
    }

    /// Pins that are not where the session was served last. One that was refused since may have moved the pin, or taken it
    /// back.
    pub fn pins_that_lie(&self) -> Vec<String> {
        let mut all = Vec::new();
        for session in 0..self.setup.sessions {
            let of_session = |request: &&Request| request.session == session;
            let served = self.runs.iter().rfind(|run| {
                let request = &self.requests[run.request];
                run.session == session && request.end == Some(End::Served) && request.attempt == run.attempt
            });
            let Some(run) = served else { continue };
            let failed = |request: &Request| request.end != Some(End::Served) && request.ended >= Some(run.from);
            if self.requests.iter().filter(of_session).any(failed) {
                continue;
            }
            let pin = self.bucket.get(Request::key(session)).and_then(|(_, pin)| pin);
            let pinned = pin.map(|pin| pin.placement);
            if pinned.as_ref() != Some(&run.placement) {
                all.push(format!("session {session} was at {} and is pinned at {pinned:?}", run.placement));
            }
        }
        all
    }

    /// Sessions that went from one placement to another: from which worker to which, and when.
    pub fn moves(&self) -> Vec<(usize, String, String, Instant)> {
        let mut last = BTreeMap::<usize, &Run>::new();
        let mut moves = Vec::new();
        for run in &self.runs {
            if let Some(before) = last.insert(run.session, run)
                && before.placement != run.placement
            {
                let worker = |run: &Run| run.placement.worker.to_string();
                moves.push((run.session, worker(before), worker(run), run.from));
            }
        }
        moves
    }

    /// Whether somebody took a worker for lost lately.
    pub fn was_lost(&self, worker: &str, at: Instant) -> bool {
        self.losses.iter().any(|(lost, when)| lost == worker && *when <= at && at.duration_since(*when) <= EFFECT)
    }

    /// The run in words, without the time at which it began.
    pub fn told(&self) -> String {
        let at = |when: Instant| when.duration_since(self.begun).as_millis();
        let runs = self.runs.iter().map(|run| format!("{} at {} from {}\n", run.session, run.placement, at(run.from)));
        runs.collect()
    }
}

fn name(worker: usize) -> String {
    format!("w{worker}")
}

fn number(placement: &Placement) -> usize {
    let id = worker_id(placement.worker.as_str());
    id.as_str()[1..].parse().expect("workers are called so")
}
