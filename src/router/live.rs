//! Requests that are under way, and the mail by which each hears of what happens to it.
//!
//! A request's mailbox needs no bound of its own: each kind of mail comes at most once per attempt, which the entry
//! here sees to, and attempts are bounded.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::route::{self, Request, Stage};
use super::state::Basis;
use crate::core::decide::Decision;
use crate::core::fleet::WorkerSlot;
use crate::core::id::{DpRank, RequestId, WorkerId};
use crate::core::kv::Expected;
use crate::nats::Message;
use crate::nats::bucket::CasError;
use crate::wire::event::{Finished, Outcome, Rejection};

/// Most requests under way in one router; one more is answered `overloaded`.
pub const MAX_LIVE: usize = 65_536;
/// Most payload bytes of requests under way in one router; beyond, requests are answered `overloaded`.
pub const MAX_LIVE_BYTES: usize = 1 << 30;
/// After the router was cut off, reports of idle workers are believed only this much later: they may be from before.
const SETTLE_AFTER: Duration = Duration::from_secs(2);
/// Given-up attempts remembered, to cancel them again where their worker accepts late.
const MAX_GIVEN_UP: usize = 4_096;

/// Most times at which requests at rest have to be looked at; one more gets a task instead. Times of requests that have
/// ended stand until they pass.
const MAX_WAKE: usize = 262_144;

/// Number of no attempt: they count from 1.
const NO_ATTEMPT: u32 = 0;

/// Something that happened to a request. It is small, since a mailbox makes room for many at once.
#[derive(Debug)]
pub enum Mail {
    /// It was in the queue and can't be placed as things stand now: it has to ask again to hear why.
    AskAgain,
    /// Room appeared: it is placed, and counted there; with the revision of the pin that it was decided by.
    Granted(Box<(Decision, Basis)>),
    /// It had to give its place in the queue to another request.
    Displaced,
    /// Nobody listens where it was sent.
    NoResponders,
    /// The worker took it.
    Accepted,
    /// The routers of a pool have it, and look for a worker.
    Taken,
    /// The worker does not take it.
    Rejected(Box<Rejection>),
    /// The worker is done.
    Finished(Box<Finished>),
    /// A plain responder's whole answer.
    Answer(Box<Message>),
    /// The worker is lost.
    WorkerLost,
    /// The frontend, which sends the body itself, has sent it.
    Sent,
    /// Nobody listens where that frontend is told of its request.
    FrontendGone,
    /// The frontend cancelled.
    Cancelled,
    /// The bucket has answered that the request's pin is put, at this revision, or is not.
    Put(Box<Result<u64, CasError>>),
    /// The router stops and waits no longer.
    ShuttingDown,
}

/// Number of a request in this router; goes up.
pub type Seq = u64;

/// Hashes our own numbers, which nobody else can choose: they need no protection against crafted collisions.
type Numbers = BuildHasherDefault<NumberHasher>;

/// See [`Numbers`].
#[derive(Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 over the golden ratio: what is next to each other is spread over the high bits, which the table uses.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// One request under way.
#[derive(Debug)]
pub struct Live {
    id: RequestId,
    bytes: usize,
    mailbox: Mailbox,
    attempt: u32,
    seen: u8,
    cancelled: bool,
    kind: Kind,
    /// When its worker last said anything of it.
    heard: Option<Instant>,
    /// Where it is counted.
    pub at: Option<At>,
    /// Inbox of the router at the global level that has sent it here.
    events_to: Option<Arc<str>>,
    /// How many routers at the global level it had passed.
    hops: u32,
}

/// Who waits for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A frontend.
    Request,
    /// A frontend that sends the body itself.
    Decide,
    /// The stream of jobs.
    Job,
}

/// What the worker of a job has last said.
#[derive(Debug, Clone)]
pub enum Word {
    /// No worker has accepted it.
    NotAccepted,
    /// Its worker works on it, and said so at this time.
    Accepted {
        /// When.
        heard: Instant,
        /// The worker's place in the fleet.
        slot: WorkerSlot,
        /// The attempt.
        attempt: u32,
    },
}

/// Where the mail of a request goes.
#[derive(Debug)]
enum Mailbox {
    /// Somebody handles the request at the moment, and looks here when that is done.
    Held(Vec<Mail>),
    /// It rests: it waits for its worker, and nobody else for it.
    Resting(Box<Resting>),
    /// It has a task of its own.
    Task(UnboundedSender<Mail>),
}

/// A request that was sent, and has no task: most end without ever having had one.
pub struct Resting {
    /// The request. It is large, and stays where it was made.
    pub request: Box<Request>,
    /// How far it has come.
    pub stage: Stage,
}

impl std::fmt::Debug for Resting {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "a request at rest")
    }
}

/// Where a request is.
#[derive(Debug, Clone)]
pub struct At {
    /// The worker's place in the fleet.
    pub slot: WorkerSlot,
    /// The rank.
    pub rank: Option<DpRank>,
    /// Whether the worker has accepted it.
    pub accepted: bool,
    /// Whether a message without an event is its answer.
    pub plain: bool,
    /// Whether it is a pool, whose routers tell now and then that they still have the request.
    pub pool: bool,
    /// When something was last heard of it from there.
    pub heard: Instant,
    /// When it was sent there.
    pub sent: Instant,
    /// Accepted before the router was cut off at this time: its end may have been missed.
    pub uncertain: Option<Instant>,
    /// What of its prompt was expected there.
    pub expected: Expected,
}

/// Kinds of mail that come once per attempt, as bits.
#[derive(Debug, Clone, Copy)]
pub enum Once {
    /// `accepted`.
    Accepted = 1,
    /// `rejected`.
    Rejected = 2,
    /// `finished`, or a plain answer.
    Ended = 4,
    /// No responders.
    NoResponders = 8,
    /// The worker's loss.
    Lost = 16,
    /// A pool's first sign of life.
    Taken = 32,
    /// No responders at the inbox of a frontend that sends the body.
    Gone = 64,
    /// That frontend's word that it has sent it.
    Sent = 128,
}

/// All requests under way.
#[derive(Debug, Default)]
pub struct LiveRequests {
    next: Seq,
    bytes: usize,
    by_seq: HashMap<Seq, Live, Numbers>,
    by_id: HashMap<RequestId, Seq, RandomState>,
    /// Further requests of an id that another one has.
    same_id: HashMap<RequestId, Vec<Seq>>,
    given_up: HashMap<(Seq, u32), (RequestId, WorkerId)>,
    given_up_order: VecDeque<(Seq, u32)>,
    /// When requests at rest have to be looked at, with the attempt that is waited for.
    wake: VecDeque<(Instant, Seq, u32)>,
    /// The same for those that wait for the bucket, which has another time than a worker.
    wake_claiming: VecDeque<(Instant, Seq, u32)>,
}

impl LiveRequests {
    /// Takes a request in; `None` where there is no room, or where it is a job that is under way already.
    pub fn insert(&mut self, id: RequestId, bytes: usize, kind: Kind) -> Option<Seq> {
        if self.by_seq.len() >= MAX_LIVE || self.bytes.saturating_add(bytes) > MAX_LIVE_BYTES {
            return None;
        }
        // The same job in two messages runs once: the second one finds the first one's result later.
        if kind == Kind::Job && self.has_job(&id) {
            return None;
        }
        self.next += 1;
        self.bytes += bytes;
        match self.by_id.entry(id.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(self.next);
            }
            Entry::Occupied(_) => self.same_id.entry(id.clone()).or_default().push(self.next),
        }
        let mailbox = Mailbox::Held(Vec::new());
        let live = Live {
            id,
            bytes,
            mailbox,
            attempt: NO_ATTEMPT,
            seen: 0,
            cancelled: false,
            kind,
            heard: None,
            at: None,
            events_to: None,
            hops: 0,
        };
        self.by_seq.insert(self.next, live);
        Some(self.next)
    }

    /// A router at the global level has sent the request here, and hears of it there.
    pub fn tell_of(&mut self, seq: Seq, events_to: &Arc<str>, hops: u32) {
        if let Some(live) = self.by_seq.get_mut(&seq) {
            live.events_to = Some(Arc::clone(events_to));
            live.hops = hops;
        }
    }

    /// Where routers at the global level hear of the requests that they have sent here.
    pub fn events_to(&self) -> Vec<Arc<str>> {
        self.by_seq.values().filter_map(|live| live.events_to.clone()).collect()
    }

    /// Looks at every request under way.
    pub fn for_each(&mut self, look: impl FnMut(&mut Live)) {
        self.by_seq.values_mut().for_each(look);
    }

    /// The request has ended.
    pub fn remove(&mut self, seq: Seq) {
        let Some(live) = self.by_seq.remove(&seq) else { return };
        self.bytes -= live.bytes;
        let mut next = None;
        if let Some(others) = self.same_id.get_mut(&live.id) {
            others.retain(|other| *other != seq);
            next = others.first().copied();
            if others.is_empty() {
                self.same_id.remove(&live.id);
            }
        }
        if let Entry::Occupied(mut first) = self.by_id.entry(live.id)
            && *first.get() == seq
        {
            match next {
                Some(next) => *first.get_mut() = next,
                None => {
                    first.remove();
                }
            }
        }
    }

    /// The request of a number.
    pub fn get_mut(&mut self, seq: Seq) -> Option<&mut Live> {
        self.by_seq.get_mut(&seq)
    }

    /// A new attempt begins: mail of earlier ones no longer counts.
    pub fn begin_attempt(&mut self, seq: Seq, attempt: u32, now: Instant) {
        if let Some(live) = self.by_seq.get_mut(&seq) {
            live.attempt = attempt;
            live.seen = 0;
            if let Some(at) = &mut live.at {
                at.sent = now;
            }
        }
    }

    /// An attempt has ended: what its worker still says no longer counts.
    pub fn end_attempt(&mut self, seq: Seq) {
        if let Some(live) = self.by_seq.get_mut(&seq) {
            live.attempt = NO_ATTEMPT;
            live.seen = 0;
        }
    }

    /// The entry of an attempt that still counts.
    pub fn current(&mut self, seq: Seq, attempt: u32) -> Option<&mut Live> {
        self.by_seq.get_mut(&seq).filter(|live| live.attempt == attempt && attempt != NO_ATTEMPT)
    }

    /// A request that is held gets a task: mail goes there from now on, and what has come meanwhile first.
    pub fn give_task(&mut self, seq: Seq) -> UnboundedReceiver<Mail> {
        let (sender, receiver) = unbounded_channel();
        if let Some(live) = self.by_seq.get_mut(&seq)
            && let Mailbox::Held(waiting) = std::mem::replace(&mut live.mailbox, Mailbox::Task(sender))
        {
            for mail in waiting {
                live.send(mail);
            }
        }
        receiver
    }

    /// A request that is held rests from now on; until `wake_at` where it must be looked at then. It is given back
    /// where mail has come meanwhile, or where too many rest.
    pub fn rest(&mut self, resting: Box<Resting>, wake_at: Option<Instant>) -> Result<(), Box<Resting>> {
        let seq = resting.request.seq();
        let Some(live) = self.by_seq.get_mut(&seq) else { return Err(resting) };
        if !matches!(&live.mailbox, Mailbox::Held(waiting) if waiting.is_empty()) {
            return Err(resting);
        }
        if let Some(at) = wake_at {
            let wake = match resting.stage {
                Stage::Claiming(_) => &mut self.wake_claiming,
                Stage::Placing(_) | Stage::Placed(_) | Stage::Sent(..) | Stage::Accepted(_) => &mut self.wake,
            };
            // They come in order, but for what waits for another time than most: that may have a task.
            if wake.len() >= MAX_WAKE || wake.back().is_some_and(|(last, ..)| *last > at) {
                return Err(resting);
            }
            wake.push_back((at, seq, live.attempt));
        }
        live.mailbox = Mailbox::Resting(resting);
        Ok(())
    }

    /// When the next request at rest has to be looked at.
    pub fn next_wake(&self) -> Option<Instant> {
        [&self.wake, &self.wake_claiming].into_iter().filter_map(|wake| Some(wake.front()?.0)).min()
    }

    /// Gives a task to those at rest whose worker has said nothing in time.
    pub fn wake(&mut self, now: Instant) {
        for wake in [&mut self.wake, &mut self.wake_claiming] {
            while wake.front().is_some_and(|(at, ..)| *at <= now) {
                let Some((_, seq, attempt)) = wake.pop_front() else { break };
                if let Some(live) = self.by_seq.get_mut(&seq).filter(|live| live.attempt == attempt)
                    && !live.at.as_ref().is_some_and(|at| at.accepted)
                {
                    live.start_task();
                }
            }
        }
    }

    /// Everything that rests, to be dropped: the router ends.
    pub fn abandon(&mut self) -> Vec<Resting> {
        self.by_seq.values_mut().filter_map(Live::hold).map(|resting| *resting).collect()
    }

    /// Tells every request of this id that its frontend cancelled. How many there are.
    pub fn cancel(&mut self, id: &str) -> usize {
        let mut all: Vec<Seq> = self.by_id.get(id).copied().into_iter().collect();
        let others = self.same_id.get(id).into_iter().flatten().copied();
        all.extend(others);
        all.dedup();
        for seq in &all {
            if let Some(live) = self.by_seq.get_mut(seq)
                && !std::mem::replace(&mut live.cancelled, true)
            {
                live.send(Mail::Cancelled);
            }
        }
        all.len()
    }

    /// Tells every request at a worker that it is lost.
    pub fn lose(&mut self, slot: WorkerSlot) {
        for live in self.by_seq.values_mut() {
            if live.at.as_ref().is_some_and(|at| at.slot == slot) && live.first(Once::Lost) {
                live.send(Mail::WorkerLost);
            }
        }
    }

    /// The router was cut off: the end of what was accepted before may have been missed.
    pub fn mark_uncertain(&mut self, now: Instant) {
        for live in self.by_seq.values_mut() {
            if let Some(at) = live.at.as_mut().filter(|at| at.accepted) {
                at.uncertain = Some(now);
            }
        }
    }

    /// A worker says that it has nothing to do: requests there whose end may have been missed have ended.
    pub fn settle_idle(&mut self, slot: WorkerSlot, now: Instant) {
        for live in self.by_seq.values_mut() {
            let ended = live.at.as_ref().is_some_and(|at| {
                at.slot == slot && at.uncertain.is_some_and(|since| now.duration_since(since) > SETTLE_AFTER)
            });
            if !ended {
                continue;
            }
            let (once, mail) = match live.kind {
                Kind::Request | Kind::Decide => (Once::Ended, Mail::Finished(Box::new(Finished::outcome(Outcome::Ok)))),
                // Whether it has a result is looked for where it is taken for lost.
                Kind::Job => (Once::Lost, Mail::WorkerLost),
            };
            if live.first(once) {
                live.send(mail);
            }
        }
    }

    /// Whether any request's end may have been missed.
    pub fn has_uncertain(&self) -> bool {
        self.by_seq.values().any(|live| live.at.as_ref().is_some_and(|at| at.uncertain.is_some()))
    }

    /// Tells every request that is not accepted that the router stops.
    pub fn shut_down(&mut self) {
        for live in self.by_seq.values_mut() {
            if !live.at.as_ref().is_some_and(|at| at.accepted) {
                live.send(Mail::ShuttingDown);
            }
        }
    }

    /// Tells every job that no worker has been sent that the router stops: another router can take it at once.
    pub fn hand_jobs_over(&mut self) {
        for live in self.by_seq.values_mut().filter(|live| live.kind == Kind::Job && live.at.is_none()) {
            live.send(Mail::ShuttingDown);
        }
    }

    /// Whether a job of this id is under way.
    pub fn has_job(&self, id: &RequestId) -> bool {
        self.of_id(id).any(|live| live.kind == Kind::Job)
    }

    /// Whether a request of this id is under way that had passed fewer routers: it has come round in a circle.
    pub fn was_here(&self, id: &RequestId, hops: u32) -> bool {
        self.of_id(id).any(|live| live.hops < hops)
    }

    fn of_id(&self, id: &RequestId) -> impl Iterator<Item = &Live> {
        let others = self.same_id.get(id).into_iter().flatten();
        self.by_id.get(id).into_iter().chain(others).filter_map(|seq| self.by_seq.get(seq))
    }

    /// The worker of a request is as good as lost: it says nothing any more.
    pub fn lose_one(&mut self, seq: Seq) {
        if let Some(live) = self.by_seq.get_mut(&seq)
            && live.first(Once::Lost)
        {
            live.send(Mail::WorkerLost);
        }
    }

    /// What the worker of a request has last said; `None` where the request has ended.
    pub fn word(&self, seq: Seq) -> Option<Word> {
        let live = self.by_seq.get(&seq)?;
        Some(match (&live.at, live.heard) {
            (Some(at), Some(heard)) if at.accepted => Word::Accepted { heard, slot: at.slot, attempt: live.attempt },
            _ => Word::NotAccepted,
        })
    }

    /// Ends an attempt that was given up, and remembers it, to cancel it again where it is accepted late.
    pub fn give_up(&mut self, seq: Seq, attempt: u32, id: RequestId, worker: WorkerId) {
        self.end_attempt(seq);
        if self.given_up_order.len() >= MAX_GIVEN_UP
            && let Some(oldest) = self.given_up_order.pop_front()
        {
            self.given_up.remove(&oldest);
        }
        self.given_up_order.push_back((seq, attempt));
        self.given_up.insert((seq, attempt), (id, worker));
    }

    /// Whom to cancel where a given-up attempt is accepted late.
    pub fn accepted_late(&mut self, seq: Seq, attempt: u32) -> Option<(RequestId, WorkerId)> {
        self.given_up.remove(&(seq, attempt))
    }

    /// How many are under way.
    pub fn len(&self) -> usize {
        self.by_seq.len()
    }

    /// How many of them are not accepted yet.
    pub fn waiting(&self) -> usize {
        self.by_seq.values().filter(|live| !live.at.as_ref().is_some_and(|at| at.accepted)).count()
    }
}

impl Live {
    /// Its worker has said something.
    pub fn note_word(&mut self, now: Instant) {
        self.heard = Some(now);
    }

    /// Whether this is the first mail of its kind in this attempt.
    pub fn first(&mut self, kind: Once) -> bool {
        let bit = kind as u8;
        let first = self.seen & bit == 0;
        self.seen |= bit;
        first
    }

    /// What it means that nobody listens where this attempt was sent: to a worker, or to the frontend that sends the body.
    pub fn no_responders(&self) -> (Once, Mail) {
        match self.kind {
            Kind::Request | Kind::Job => (Once::NoResponders, Mail::NoResponders),
            Kind::Decide => (Once::Gone, Mail::FrontendGone),
        }
    }

    /// Whether a pool's routers have taken in this attempt.
    pub fn was_taken(&self) -> bool {
        self.seen & Once::Taken as u8 != 0
    }

    /// Sends mail. A request at rest gets a task for it; one that has ended reads none.
    pub fn send(&mut self, mail: Mail) {
        self.start_task();
        match &mut self.mailbox {
            Mailbox::Held(waiting) => waiting.push(mail),
            Mailbox::Task(task) => {
                let _ = task.send(mail);
            }
            Mailbox::Resting(_) => unreachable!("it has just got a task"),
        }
    }

    /// Takes a request at rest, to handle what has come for it; mail waits until it rests again or gets a task.
    pub fn hold(&mut self) -> Option<Box<Resting>> {
        match std::mem::replace(&mut self.mailbox, Mailbox::Held(Vec::new())) {
            Mailbox::Resting(resting) => Some(resting),
            other => {
                self.mailbox = other;
                None
            }
        }
    }

    /// The same of a request whose pin is being put, and of no other.
    pub fn hold_claiming(&mut self) -> Option<Box<Resting>> {
        match &self.mailbox {
            Mailbox::Resting(resting) if matches!(resting.stage, Stage::Claiming(_)) => self.hold(),
            Mailbox::Resting(_) | Mailbox::Held(_) | Mailbox::Task(_) => None,
        }
    }

    /// Sends mail that matters only to who is awake: a request at rest does not wait for it.
    pub fn send_awake(&mut self, mail: Mail) {
        if !matches!(self.mailbox, Mailbox::Resting(_)) {
            self.send(mail);
        }
    }

    fn start_task(&mut self) {
        if let Some(resting) = self.hold() {
            let (sender, receiver) = unbounded_channel();
            self.mailbox = Mailbox::Task(sender);
            route::start(*resting, receiver);
        }
    }
}
