//! The load generator: one connection, one wildcard inbox, a fixed number of requests in flight, and one task for all
//! of them, so that it is not what limits the rate.

use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt as _};
use hdrhistogram::Histogram;

use super::bodies::{Bodies, Turn};
use super::{BenchError, Way};
use crate::core::id::DpRank;
use crate::local::cpu;
use crate::nats::{Headers, Inbound, Link, LinkOptions, NO_RESPONDERS};
use crate::wire::header;

/// Silence after which the answers that are missing are lost.
const SILENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether there was silence for so long.
const SILENCE_LOOK: Duration = Duration::from_millis(50);
/// How long a single request of [`Generator::answered`] may take.
const PROBE_PATIENCE: Duration = Duration::from_millis(500);
/// Failures in a row after which a run is given up: nothing works, and sending on would only spin.
const MAX_FAILURES_IN_A_ROW: u64 = 1000;
/// How the router's decision begins where the session was pinned (protocol section 6).
const PINNED: &str = "pinned";
/// Longest latency that is told apart, in µs.
const MAX_LATENCY_US: u64 = 60_000_000;
/// When the requests to a worker without a router are to be accepted by, from now: the measurement is long over then.
const ACCEPT_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// Where requests go, and what they carry besides the body.
#[derive(Debug, Clone)]
pub(super) enum Aim {
    /// To a subject, with what a router writes: the worker answers to the header `Rankpin-Reply-To`. There is no
    /// NATS reply subject, so there are no events.
    Worker { subject: String, worker: String, rank: DpRank },
    /// To the router, with a NATS reply subject, in one of so many sessions.
    Router { subject: String, sessions: u64, session: SessionFrom, turn: Turn },
    /// To the router without the body, in one of so many sessions; the body to the rank that it says.
    Decide { subject: String, sessions: u64 },
    /// To the stream of jobs, in one of so many sessions; the answers come as results.
    Job { subject: String, sessions: u64, results: String },
}

/// How the router knows the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionFrom {
    /// A header names it.
    Header,
    /// A header names it, and no other request has it.
    Fresh,
    /// Nothing names it: the body is read.
    Text,
}

/// How long a run is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Extent {
    /// Measured for a time, after another that is not.
    Time { warmup: Duration, duration: Duration },
    /// So many requests.
    Requests(u64),
}

/// A process whose CPU time is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    pub name: &'static str,
    pub id: u32,
}

/// What a run gave.
#[derive(Debug)]
pub(super) struct Sample {
    /// Requests answered in the measured time.
    pub answered: u64,
    /// Of these, how many the router sent where their session was pinned.
    pub pinned: u64,
    /// The measured time.
    pub took: Duration,
    /// Latencies, in µs.
    pub latencies: Histogram<u64>,
    /// CPU time per process, where the system tells it.
    pub cpu: Vec<(&'static str, Duration)>,
    /// Requests that ended in an error.
    pub failed: u64,
    /// Requests that were not answered.
    pub lost: u64,
    /// The first error.
    pub problem: Option<String>,
}

impl Sample {
    /// An error where a request failed.
    pub fn whole(self, way: Way) -> Result<Self, BenchError> {
        match &self.problem {
            Some(problem) => Err(BenchError::Failing { way, problem: problem.clone() }),
            None => Ok(self),
        }
    }
}

/// Sends requests and reads their answers.
#[derive(Debug)]
pub(super) struct Generator {
    link: Link,
    bodies: Bodies,
    accept_by: String,
}

impl Generator {
    /// Connects.
    pub async fn connect(options: LinkOptions, bodies: Bodies) -> Result<Self, BenchError> {
        let link = Link::open(options).await?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let accept_by = (now + ACCEPT_WITHIN).as_millis().to_string();
        Ok(Self { link, bodies, accept_by })
    }

    /// Whether one request is answered.
    pub async fn answered(&self, aim: &Aim) -> bool {
        let probe = self.run_with(aim, 1, Extent::Requests(1), &[], PROBE_PATIENCE).await;
        probe.is_ok_and(|sample| sample.answered == 1)
    }

    /// Keeps so many requests in flight.
    pub async fn run(
        &self,
        aim: &Aim,
        in_flight: usize,
        extent: Extent,
        watched: &[Watched],
    ) -> Result<Sample, BenchError> {
        self.run_with(aim, in_flight, extent, watched, SILENCE).await
    }

    async fn run_with(
        &self,
        aim: &Aim,
        in_flight: usize,
        extent: Extent,
        watched: &[Watched],
        patience: Duration,
    ) -> Result<Sample, BenchError> {
        // An inbox per run: what comes late for another one is not taken for an answer of this one.
        let id = uuid::Uuid::new_v4().simple().to_string();
        let inbox = format!("{}.{id}.", self.link.options().inbox_prefix);
        let (client, _) = self.link.client();
        let answers = match aim {
            Aim::Worker { .. } | Aim::Router { .. } | Aim::Decide { .. } => format!("{inbox}*"),
            Aim::Job { results, .. } => results.clone(),
        };
        let subscribed = client.subscribe(answers).await;
        let mut messages = subscribed.map_err(|_| BenchError::ConnectionLost)?.map(Inbound::from);
        self.link.barrier().await?;
        let mut run = Run::new(self, aim, extent, watched, id, inbox);
        run.drive(in_flight, &mut messages, patience).await?;
        Ok(run.sample())
    }
}

/// One run.
struct Run<'g> {
    generator: &'g Generator,
    aim: &'g Aim,
    extent: Extent,
    watched: &'g [Watched],
    id: String,
    inbox: String,
    /// When each request in flight was sent, by the last token of its inbox.
    sent: Vec<Instant>,
    open: u64,
    serial: u64,
    begun: Instant,
    /// From when on answers are counted.
    counting_since: Option<Instant>,
    /// When counting ended.
    ended: Option<Instant>,
    cpu_before: Vec<Option<Duration>>,
    cpu: Vec<(&'static str, Duration)>,
    latencies: Histogram<u64>,
    answered: u64,
    pinned: u64,
    failed: u64,
    failed_in_a_row: u64,
    problem: Option<String>,
}

impl<'g> Run<'g> {
    fn new(
        generator: &'g Generator,
        aim: &'g Aim,
        extent: Extent,
        watched: &'g [Watched],
        id: String,
        inbox: String,
    ) -> Self {
        Self {
            generator,
            aim,
            extent,
            watched,
            id,
            inbox,
            sent: Vec::new(),
            open: 0,
            serial: 0,
            begun: Instant::now(),
            counting_since: None,
            ended: None,
            cpu_before: Vec::new(),
            cpu: Vec::new(),
            latencies: Histogram::new_with_max(MAX_LATENCY_US, 3).expect("three digits of a minute fit"),
            answered: 0,
            pinned: 0,
            failed: 0,
            failed_in_a_row: 0,
            problem: None,
        }
    }

    async fn drive(
        &mut self,
        in_flight: usize,
        messages: &mut (impl Stream<Item = Inbound> + Unpin),
        patience: Duration,
    ) -> Result<(), BenchError> {
        self.begun = Instant::now();
        let mut heard = self.begun;
        let mut look = tokio::time::interval(SILENCE_LOOK);
        if let Extent::Requests(_) = self.extent {
            self.begin(self.begun);
        }
        for slot in 0..in_flight {
            if self.goes_on(self.begun) {
                self.sent.push(self.begun);
                self.send(slot).await?;
                self.open += 1;
            }
        }
        while self.open > 0 {
            // Cancel-safe: a message that is not taken stays in the subscription.
            let message = tokio::select! {
                biased;
                message = messages.next() => message.ok_or(BenchError::ConnectionLost)?,
                _ = look.tick() => match heard.elapsed() > patience {
                    true => break,
                    false => continue,
                },
            };
            let now = Instant::now();
            heard = now;
            if self.place(&message).await? {
                continue;
            }
            let Some(slot) = self.take(&message, now) else { continue };
            if self.failed_in_a_row > MAX_FAILURES_IN_A_ROW {
                break;
            }
            if self.goes_on(now) {
                self.send(slot).await?;
            } else {
                self.open -= 1;
            }
        }
        self.end(Instant::now());
        Ok(())
    }

    /// Sends a body to the rank that the router says. Whether this is such a message.
    async fn place(&mut self, message: &Inbound) -> Result<bool, BenchError> {
        let Aim::Decide { .. } = self.aim else { return Ok(false) };
        let Some(to) = message.headers.find(header::SEND_TO) else { return Ok(false) };
        let mut headers = Headers::new();
        let told = |name: &str| ![header::EVENT, header::SEND_TO].contains(&name);
        message.headers.iter().filter(|(name, _)| told(name)).for_each(|(name, value)| headers.add(name, value));
        // Nobody reads it here, and all are alike or as good.
        let body = self.generator.bodies.of(self.serial, Turn::Late);
        let publish = self.generator.link.publish(to.to_owned(), message.reply.clone(), headers, body);
        publish.await.map_err(|_| BenchError::ConnectionLost)?;
        Ok(true)
    }

    /// The place of the request that a message answers.
    fn slot(&self, message: &Inbound) -> Option<usize> {
        match self.aim {
            Aim::Worker { .. } | Aim::Router { .. } | Aim::Decide { .. } => {
                message.subject.strip_prefix(self.inbox.as_str())?.parse().ok()
            }
            // The last token is the request's id, which ends in its place.
            Aim::Job { .. } => {
                let (id, slot) = message.subject.rsplit_once('-')?;
                id.contains(&self.id).then(|| slot.parse().ok()).flatten()
            }
        }
    }

    /// Takes an answer; returns the place that it frees, where it is the last message of one.
    fn take(&mut self, message: &Inbound, now: Instant) -> Option<usize> {
        let slot = self.slot(message)?;
        let sent = *self.sent.get(slot)?;
        if let Some(problem) = problem_of(message) {
            self.failed += 1;
            self.failed_in_a_row += 1;
            self.problem.get_or_insert(problem);
            return Some(slot);
        }
        message.headers.find(header::FINAL)?;
        self.failed_in_a_row = 0;
        if self.counting_since.is_some() && self.ended.is_none() {
            self.answered += 1;
            if let Aim::Router { .. } | Aim::Decide { .. } | Aim::Job { .. } = self.aim {
                let decision = message.headers.find(header::DECISION).unwrap_or_default();
                self.pinned += u64::from(decision.starts_with(PINNED));
            }
            let micros = u64::try_from((now - sent).as_micros()).unwrap_or(MAX_LATENCY_US);
            self.latencies.saturating_record(micros);
        }
        Some(slot)
    }

    /// Whether another request is sent, by the time of now; begins and ends the counting when it is time.
    fn goes_on(&mut self, now: Instant) -> bool {
        match self.extent {
            Extent::Requests(most) => self.serial < most,
            Extent::Time { warmup, duration } => {
                match self.counting_since {
                    None if now >= self.begun + warmup => self.begin(now),
                    Some(since) if now >= since + duration => self.end(now),
                    None | Some(_) => {}
                }
                self.ended.is_none()
            }
        }
    }

    fn begin(&mut self, now: Instant) {
        self.cpu_before = self.watched.iter().map(|process| cpu::used(process.id)).collect();
        self.counting_since = Some(now);
    }

    fn end(&mut self, now: Instant) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(now);
        for (process, before) in self.watched.iter().zip(&self.cpu_before) {
            if let (Some(before), Some(after)) = (*before, cpu::used(process.id)) {
                self.cpu.push((process.name, after.saturating_sub(before)));
            }
        }
    }

    async fn send(&mut self, slot: usize) -> Result<(), BenchError> {
        let serial = self.serial;
        self.serial += 1;
        let mut headers = Headers::new();
        headers.set(header::REQUEST_ID, &format!("{}-{serial}-{slot}", self.id));
        let inbox = format!("{}{slot}", self.inbox);
        let (subject, reply, body) = match self.aim {
            Aim::Worker { subject, worker, rank } => {
                headers.set(header::REPLY_TO, &inbox);
                headers.set(header::WORKER, worker);
                headers.set(header::DP_RANK, &rank.to_string());
                headers.set(header::ACCEPT_BY, &self.generator.accept_by);
                headers.set(header::ATTEMPT, "1");
                headers.set(header::DECISION, "unpinned");
                (subject, None, self.generator.bodies.of(serial, Turn::Late))
            }
            Aim::Router { subject, sessions, session, turn } => {
                let number = serial % sessions;
                match session {
                    SessionFrom::Header => headers.set(header::SESSION_ID, &format!("bench-{number}")),
                    SessionFrom::Fresh => headers.set(header::SESSION_ID, &format!("{}-{number}", self.id)),
                    SessionFrom::Text => {}
                }
                (subject, Some(inbox.into()), self.generator.bodies.of(number, *turn))
            }
            Aim::Decide { subject, sessions } => {
                headers.set(header::SESSION_ID, &format!("bench-{}", serial % sessions));
                let size = self.generator.bodies.of(serial, Turn::Late).len();
                headers.set(header::BODY_SIZE, &size.to_string());
                (subject, Some(inbox.into()), bytes::Bytes::new())
            }
            Aim::Job { subject, sessions, .. } => {
                headers.set(header::SESSION_ID, &format!("bench-{}", serial % sessions));
                (subject, None, self.generator.bodies.of(serial, Turn::Late))
            }
        };
        self.sent[slot] = Instant::now();
        let publish = self.generator.link.publish(subject.clone(), reply, headers, body);
        publish.await.map_err(|_| BenchError::ConnectionLost)
    }

    fn sample(self) -> Sample {
        let took = match (self.counting_since, self.ended) {
            (Some(since), Some(ended)) => ended - since,
            (None, _) | (_, None) => Duration::ZERO,
        };
        Sample {
            answered: self.answered,
            pinned: self.pinned,
            took,
            latencies: self.latencies,
            cpu: self.cpu,
            failed: self.failed,
            lost: self.open,
            problem: self.problem,
        }
    }
}

/// What a message says is wrong, where it does.
fn problem_of(message: &Inbound) -> Option<String> {
    if message.status == Some(NO_RESPONDERS) {
        return Some("nobody listens there".to_owned());
    }
    let code = message.headers.find(header::SERVICE_ERROR_CODE)?;
    let word = message.headers.find(header::SERVICE_ERROR).unwrap_or_default();
    let words = crate::wire::reply::error_message(&message.payload).unwrap_or_default();
    Some(format!("{code} {word} {words}").trim_end().to_owned())
}
