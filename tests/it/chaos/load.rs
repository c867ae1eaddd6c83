//! What the system serves meanwhile, and the history of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rankpin::client::jobs::{Jobs, JobsOptions};
use rankpin::client::{Client, ClientError, ClientOptions, Request};
use rankpin::core::id::{Model, RequestId, SessionId};
use tokio::task::JoinSet;

use super::faults::{Fault, Whom};
use super::system::System;
use crate::reliability::{LONG, served};

const FRONTENDS: usize = 3;
/// Streams that are open at a time.
const AT_ONCE: usize = 16;
const SESSIONS: usize = 24;
/// How long a stream may be silent, and how long a request may wait for a worker.
const IDLE: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(6);
/// Pause after an error of the frontend's own connection, which would else be tried again in a tight loop.
const BACK_OFF: Duration = Duration::from_millis(100);
/// Pause between two jobs.
const JOB_EVERY: Duration = Duration::from_millis(300);

/// How one stream ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// With all of the answer.
    Whole,
    /// With an error of router or worker, by its code word.
    Refused(String),
    /// With the loss of the frontend's own connection, or a hole that it has left.
    Own(&'static str),
    /// With nothing: the frontend has given it up.
    Silent,
}

/// One stream.
#[derive(Debug, Clone)]
pub struct Told {
    pub session: String,
    pub from: Instant,
    pub until: Instant,
    pub end: End,
    /// `worker/rank`, where a part has come.
    pub place: Option<String>,
    pub text: String,
}

/// All that happened.
#[derive(Debug, Default)]
pub struct History {
    pub streams: Mutex<Vec<Told>>,
    pub faults: Mutex<Vec<(Fault, Instant, Instant)>>,
}

impl History {
    pub fn lost(&self, fault: Fault, from: Instant, until: Instant) {
        self.faults.lock().expect("no panic").push((fault, from, until));
    }

    /// Whether something happened to one of these between two times, or so shortly before that it still has effects.
    pub fn was_lost(&self, from: Instant, until: Instant, whom: impl Fn(Whom) -> bool) -> bool {
        /// Marks of lost ranks, reconnects and elections take their time.
        const EFFECT: Duration = Duration::from_secs(15);
        let faults = self.faults.lock().expect("no panic");
        faults.iter().any(|(fault, began, ended)| whom(fault.whom) && *began <= until && *ended + EFFECT >= from)
    }

    pub fn sessions(&self) -> BTreeSet<String> {
        self.streams.lock().expect("no panic").iter().map(|told| told.session.clone()).collect()
    }

    /// In a few words.
    pub fn told(&self) -> String {
        let mut faults = BTreeMap::<Fault, usize>::new();
        for (fault, ..) in self.faults.lock().expect("no panic").iter() {
            *faults.entry(*fault).or_default() += 1;
        }
        let faults: Vec<_> = faults.iter().map(|(f, n)| format!("{n} {:?} {:?}", f.whom, f.what)).collect();
        let streams = self.streams.lock().expect("no panic");
        let mut ends = BTreeMap::<&End, usize>::new();
        for told in streams.iter() {
            *ends.entry(&told.end).or_default() += 1;
        }
        format!("faults: {}; {} streams: {ends:?}", faults.join(", "), streams.len())
    }
}

/// The load that runs.
pub struct Load {
    frontends: JoinSet<()>,
    submitting: tokio::task::JoinHandle<Submitted>,
}

/// Durable jobs that the stream has taken.
pub struct Submitted {
    pub jobs: Jobs,
    pub count: usize,
}

impl Load {
    pub async fn start(system: &System, history: &Arc<History>, stop: &Arc<AtomicBool>, seed: u64) -> Self {
        let urls = system.nodes.urls();
        let mut clients = Vec::new();
        for _ in 0..FRONTENDS {
            let options = ClientOptions { idle_timeout: IDLE, request_timeout: TIMEOUT, ..ClientOptions::new(&urls) };
            clients.push(Client::connect(options).await.expect("a server takes connections"));
        }
        served(&clients[0], "warm").await;
        let mut frontends = JoinSet::new();
        for n in 0..AT_ONCE {
            let (client, history, stop) = (clients[n % FRONTENDS].clone(), Arc::clone(history), Arc::clone(stop));
            let rng = StdRng::seed_from_u64(seed ^ ((n as u64 + 1) << 32));
            frontends.spawn(ask_on(client, history, stop, rng));
        }
        let jobs = Jobs::connect(JobsOptions::new(&urls)).await.expect("a server takes connections");
        let submitting = tokio::spawn(submit_on(jobs, Arc::clone(stop)));
        Self { frontends, submitting }
    }

    /// Waits until every stream has ended and every job is taken.
    pub async fn end(self) -> Submitted {
        self.frontends.join_all().await;
        self.submitting.await.expect("it does not panic")
    }
}

async fn ask_on(client: Client, history: Arc<History>, stop: Arc<AtomicBool>, mut rng: StdRng) {
    while !stop.load(Ordering::Relaxed) {
        let session = format!("s{}", rng.random_range(0..SESSIONS));
        let told = ask(&client, &session).await;
        let own = matches!(told.end, End::Own(_));
        history.streams.lock().expect("no panic").push(told);
        if own {
            tokio::time::sleep(BACK_OFF).await;
        }
    }
}

/// Asks, and follows the answer to its end.
pub async fn ask(client: &Client, session: &str) -> Told {
    let body = format!(r#"{{"model":"m","stream":true,"messages":[{{"role":"user","content":"tell of {session}"}}]}}"#);
    let request = Request::new(Model::new("m").expect("valid"), body)
        .session(&SessionId::named(session).expect("valid"))
        .timeout(TIMEOUT);
    let from = Instant::now();
    let (mut place, mut text, mut end) = (None, String::new(), End::Whole);
    match client.send(request).await {
        Ok(mut stream) => {
            while let Some(chunk) = stream.next().await {
                match chunk {
                    Ok(chunk) => text.push_str(&part(&chunk.payload)),
                    Err(error) => end = judge(&error),
                }
                place = stream.served().map(|served| served.placement.to_string()).or(place);
            }
        }
        Err(error) => end = judge(&error),
    }
    Told { session: session.to_owned(), from, until: Instant::now(), end, place, text }
}

fn judge(error: &ClientError) -> End {
    match error {
        ClientError::Service { code, .. } => End::Refused(code.clone()),
        ClientError::Idle(_) => End::Silent,
        ClientError::Disconnected => End::Own("disconnected"),
        ClientError::Sequence(_) => End::Own("a hole"),
        ClientError::NoResponders => End::Own("no router"),
        other => panic!("no stream may end so: {other}"),
    }
}

/// The words in one part of a chat answer.
fn part(payload: &[u8]) -> String {
    let Ok(part) = serde_json::from_slice::<serde_json::Value>(payload) else { return String::new() };
    part["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
}

async fn submit_on(jobs: Jobs, stop: Arc<AtomicBool>) -> Submitted {
    let count = AtomicUsize::new(0);
    while !stop.load(Ordering::Relaxed) {
        let n = count.fetch_add(1, Ordering::Relaxed);
        let body = format!(
            r#"{{"model":"m","max_tokens":20,"stream":{},"messages":[{{"role":"user","content":"job {n}"}}]}}"#,
            n.is_multiple_of(4)
        );
        let id = RequestId::new(&format!("j{n}")).expect("valid");
        let request = Request::new(Model::new("m").expect("valid"), body).request_id(id);
        // Under one id it is taken once, however often it is sent.
        let until = Instant::now() + LONG;
        while jobs.submit(&request).await.is_err() {
            assert!(Instant::now() < until, "the stream of jobs takes none");
            tokio::time::sleep(BACK_OFF).await;
        }
        tokio::time::sleep(JOB_EVERY).await;
    }
    Submitted { jobs, count: count.into_inner() }
}
