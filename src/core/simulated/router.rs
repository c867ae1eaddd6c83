//! The way of a named session's request through one router, as sections 5 and 6 of the protocol have it, in steps that wait
//! for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;

use super::millis;
use super::world::{End, Event, World};
use crate::core::ask::{Ask, Excluded, Failure};
use crate::core::decide::{self, Decision, PinStep, Rules, decide};
use crate::core::fleet::{Fleet, Registered, Worker, WorkerSlot};
use crate::core::hash::PinKey;
use crate::core::id::{DpRank, Origin, Placement};
use crate::core::mode::{AffinityMode, PolicyKind, RankChoice};
use crate::core::pins::{Mirror, Pin};
use crate::core::testing::{ask, named};
use crate::core::worker::WorkerSpec;

const RULES: Rules =
    Rules { mode: AffinityMode::Hard, policy: PolicyKind::PowerOfTwo, rank_choice: RankChoice::LeastLoaded };
const TTL: Duration = Duration::from_secs(3600);
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(2);
const BUCKET_TIMEOUT: Duration = Duration::from_millis(1500);
const MAX_CONTESTED: u32 = 3;

pub struct Router {
    pub mirror: Mirror,
    fleet: Fleet,
    rng: StdRng,
    /// Who is claiming which session.
    claims: BTreeMap<PinKey, usize>,
    /// Who waits for a claim to end.
    waiting: BTreeMap<PinKey, BTreeSet<usize>>,
    counted: usize,
}

#[derive(Debug)]
pub struct Request {
    pub session: usize,
    pub router: usize,
    pub end: Option<End>,
    pub ended: Option<Instant>,
    pub attempt: u32,
    /// Number of its last write.
    pub put: u32,
    ask: Ask,
    decision: Option<Decision>,
    counted: Option<(WorkerSlot, Option<DpRank>)>,
    accepted: bool,
    claimed: Option<u64>,
    settled: bool,
    contested: u32,
    /// The value that is being written, until the bucket answers.
    writing: Option<(Option<Pin>, PinStep)>,
    /// Whether it had claimed what it reads after a lost race.
    had_claimed: bool,
}

impl Router {
    pub fn new(rng: StdRng, now: Instant) -> Self {
        Self {
            mirror: Mirror::new(TTL, now),
            fleet: Fleet::default(),
            rng,
            claims: BTreeMap::new(),
            waiting: BTreeMap::new(),
            counted: 0,
        }
    }

    pub fn hear(&mut self, spec: WorkerSpec, now: Instant) -> Option<WorkerSlot> {
        match self.fleet.handle_registration(spec, Duration::ZERO, now) {
            Registered::Replaced(slot) => Some(slot),
            _ => None,
        }
    }

    pub fn leaked(&self, router: usize) -> Vec<String> {
        let is_counted = |worker: &Worker| worker.spec.ranks.iter().any(|rank| worker.own_on(rank) != 0);
        let workers = self.fleet.iter().filter(|(_, worker)| worker.in_flight() != 0 || is_counted(worker));
        let mut all: Vec<_> =
            workers.map(|(_, w)| format!("router {router} counts {} at {}", w.in_flight(), w.spec.id)).collect();
        if !self.claims.is_empty() || self.waiting.values().any(|all| !all.is_empty()) || self.counted != 0 {
            all.push(format!("router {router} has claims {:?} and {} counted", self.claims, self.counted));
        }
        all
    }
}

impl Request {
    pub fn new(session: usize, router: usize) -> Self {
        let ask = Ask { session: Some(named(&format!("s{session}"))), ..ask() };
        Self {
            session,
            router,
            end: None,
            ended: None,
            attempt: 0,
            put: 0,
            ask,
            decision: None,
            counted: None,
            accepted: false,
            claimed: None,
            settled: false,
            contested: 0,
            writing: None,
            had_claimed: false,
        }
    }

    pub fn key(session: usize) -> PinKey {
        PinKey::of("", "m", &format!("s{session}"))
    }

    fn own_key(&self) -> PinKey {
        Self::key(self.session)
    }
}

fn pin(placement: &Placement) -> Pin {
    Pin::new(placement.clone(), Origin::Named)
}

impl World {
    /// A step of a request.
    pub fn route(&mut self, event: Event) {
        match event {
            Event::Ask(request) => self.ask(request),
            Event::PutDone { request, put, revision } if self.requests[request].put == put => {
                self.put_done(request, revision);
            }
            Event::PutTimedOut { request, put } if self.requests[request].put == put => self.put_timed_out(request),
            Event::ReadDone { request, key } => self.read_done(request, key),
            Event::NoResponders { request, attempt } => self.failed(request, attempt, Failure::NoResponders),
            Event::Silent { request, attempt } if !self.requests[request].accepted => {
                self.failed(request, attempt, Failure::AcceptTimeout);
            }
            Event::Accepted { request, attempt } => self.accepted(request, attempt),
            Event::Finished { request, attempt } if self.is_current(request, attempt) => self.end(request, End::Served),
            _ => {}
        }
    }

    fn is_current(&self, request: usize, attempt: u32) -> bool {
        let of = &self.requests[request];
        of.end.is_none() && of.counted.is_some() && of.attempt == attempt
    }

    fn ask(&mut self, number: usize) {
        let (now, key) = (self.now, self.requests[number].own_key());
        if self.requests[number].end.is_some() {
            return;
        }
        self.vacate(number);
        let request = &mut self.requests[number];
        let router = &mut self.routers[request.router];
        if router.claims.get(&key).is_some_and(|holder| *holder != number) {
            router.waiting.entry(key).or_default().insert(number);
            return;
        }
        let entry = router.mirror.get(key, now);
        let revision = entry.map_or(0, |entry| entry.revision);
        let foreign = entry.is_some_and(|entry| !entry.ours);
        let own = request.claimed.is_some_and(|claimed| claimed == revision);
        let pinned = entry.and_then(|entry| entry.pin.as_ref()).filter(|_| !own).map(|pin| pin.placement.clone());
        let known = match &pinned {
            Some(placement) => decide::Pin::At(placement),
            None if request.contested >= MAX_CONTESTED => decide::Pin::Unreachable,
            None => decide::Pin::None,
        };
        let Ok(decision) = decide(&request.ask, &mut router.fleet, known, RULES, now, &mut router.rng) else {
            return self.end(number, End::Refused);
        };
        router.fleet.begin(decision.slot, decision.placement.rank);
        router.counted += 1;
        request.counted = Some((decision.slot, decision.placement.rank));
        request.accepted = false;
        let value = match decision.pin {
            PinStep::Claim | PinStep::Complete => Some(pin(&decision.placement)),
            PinStep::Keep if foreign => pinned.as_ref().map(pin),
            PinStep::Keep | PinStep::None | PinStep::AfterAccept => None,
        };
        let step = decision.pin;
        request.decision = Some(decision);
        match value {
            Some(value) => {
                router.claims.insert(key, number);
                let expected = request.claimed.unwrap_or(revision);
                self.write(number, Some(value), step, expected);
            }
            None => self.dispatch(number),
        }
    }

    fn write(&mut self, number: usize, value: Option<Pin>, step: PinStep, expected: u64) {
        let request = &mut self.requests[number];
        request.put += 1;
        request.writing = Some((value.clone(), step));
        let (key, put) = (request.own_key(), request.put);
        self.after(BUCKET_TIMEOUT, Event::PutTimedOut { request: number, put });
        self.send_perhaps(Event::Put { request: number, key, pin: value, expected });
    }

    fn put_done(&mut self, number: usize, revision: Option<u64>) {
        let request = &mut self.requests[number];
        let Some((value, step)) = request.writing.take() else { return };
        let key = request.own_key();
        let Some(revision) = revision else {
            request.contested += 1;
            request.had_claimed = request.claimed.take().is_some();
            self.release(number);
            return self.send(Event::ReadDone { request: number, key });
        };
        self.routers[request.router].mirror.handle_own(key, revision, value, self.now);
        if request.end.is_some() {
            // It has taken its claim back.
            return;
        }
        if step == PinStep::Claim {
            request.claimed = Some(revision);
        } else {
            self.release(number);
        }
        self.dispatch(number);
    }

    /// No answer: the value may stand or not, and the leader knows.
    fn put_timed_out(&mut self, number: usize) {
        let request = &mut self.requests[number];
        if request.writing.take().is_none() || request.end.is_some() {
            return;
        }
        request.contested += 1;
        let key = request.own_key();
        self.release(number);
        self.send(Event::ReadDone { request: number, key });
    }

    fn read_done(&mut self, number: usize, key: PinKey) {
        let request = &mut self.requests[number];
        let router = &mut self.routers[request.router];
        match self.bucket.get(key) {
            Some((revision, pin)) => {
                if let Some(pin) = pin.as_ref().filter(|_| std::mem::take(&mut request.had_claimed)) {
                    request.ask.excluded.retain(|excluded| excluded.placement.worker != pin.placement.worker);
                }
                router.mirror.handle_value(key, revision, pin, self.now);
            }
            None => router.mirror.forget(key),
        }
        self.ask(number);
    }

    fn dispatch(&mut self, number: usize) {
        let request = &mut self.requests[number];
        request.attempt += 1;
        let attempt = request.attempt;
        let placement = request.decision.as_ref().expect("it was decided").placement.clone();
        self.after(ACCEPT_TIMEOUT, Event::Silent { request: number, attempt });
        self.send_perhaps(Event::Arrives { request: number, attempt, placement });
    }

    fn accepted(&mut self, number: usize, attempt: u32) {
        if !self.is_current(number, attempt) {
            // Given up: its worker is told once more.
            let placement = self.requests[number].ask.excluded.last().map(|excluded| excluded.placement.clone());
            if let Some(placement) = placement {
                self.send(Event::Cancel { request: number, attempt, placement });
            }
            return;
        }
        let request = &mut self.requests[number];
        request.accepted = true;
        request.settled = true;
        let (slot, rank) = request.counted.expect("it is current");
        self.routers[request.router].fleet.note_accepted(slot, rank);
        self.release(number);
    }

    fn failed(&mut self, number: usize, attempt: u32, failure: Failure) {
        if !self.is_current(number, attempt) || self.requests[number].accepted {
            return;
        }
        let request = &mut self.requests[number];
        let decision = request.decision.take().expect("it was sent");
        let placement = decision.placement.clone();
        match failure {
            Failure::NoResponders => {
                self.routers[request.router].fleet.mark_lost(decision.slot, placement.rank, self.now);
            }
            _ => self.send(Event::Cancel { request: number, attempt, placement: placement.clone() }),
        }
        self.note_loss(&placement);
        self.requests[number].ask.excluded.push(Excluded { placement, whole_worker: false, failure });
        self.ask(number);
    }

    fn vacate(&mut self, number: usize) {
        let request = &mut self.requests[number];
        if let Some((slot, rank)) = request.counted.take() {
            let router = &mut self.routers[request.router];
            router.fleet.end(slot, rank, request.accepted);
            router.counted -= 1;
        }
    }

    /// Its session may be placed by others.
    fn release(&mut self, number: usize) {
        let request = &self.requests[number];
        let (key, router) = (request.own_key(), request.router);
        if self.routers[router].claims.get(&key) == Some(&number) {
            self.routers[router].claims.remove(&key);
            for waiting in self.routers[router].waiting.remove(&key).unwrap_or_default() {
                self.after(millis(0), Event::Ask(waiting));
            }
        }
    }

    fn end(&mut self, number: usize, end: End) {
        self.vacate(number);
        let now = self.now;
        let request = &mut self.requests[number];
        request.end = Some(end);
        request.ended = Some(now);
        if end == End::Served {
            request.settled = true;
        }
        if let Some(revision) = request.claimed.take().filter(|_| !request.settled) {
            self.write(number, None, PinStep::None, revision);
        }
        self.release(number);
    }

    pub fn heard(&mut self, router: usize, spec: WorkerSpec) {
        let now = self.now;
        if let Some(slot) = self.routers[router].hear(spec, now) {
            self.lose(router, slot);
        }
    }

    pub fn tick(&mut self, router: usize) {
        let now = self.now;
        for (slot, _) in self.routers[router].fleet.expire(now) {
            self.lose(router, slot);
        }
    }

    /// A worker is lost, and with it what it has accepted; what it has not goes elsewhere.
    fn lose(&mut self, router: usize, lost: WorkerSlot) {
        for number in 0..self.requests.len() {
            let request = &self.requests[number];
            if request.router != router || request.counted.is_none_or(|(slot, _)| slot != lost) {
                continue;
            }
            if request.accepted {
                self.end(number, End::WorkerLost);
            } else if request.writing.is_none() {
                let attempt = request.attempt;
                self.failed(number, attempt, Failure::NoResponders);
            }
        }
    }
}
