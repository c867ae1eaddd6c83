//! Many jobs while processes are killed and frozen and the server restarts, by a seed. Each job has exactly one result.
//!
//! `RANKPIN_CHAOS_JOBS="JOBS FAULTS SEED"` makes it longer, or another one:
//! `RANKPIN_CHAOS_JOBS="10000 20 3" cargo test --test it -- jobs::chaos --nocapture`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rankpin::client::Request;
use rankpin::client::jobs::Jobs;
use rankpin::core::id::Model;

use super::{LONG, all_acknowledged, connect, id, stored, with_ack_wait};
use crate::support::process::{Process, Signal};
use crate::support::rankpin::sim;
use crate::support::{NatsServer, PATIENCE, RouterProcess, eventually};

/// How long a frozen process stands still: longer than the ack wait and the accept timeout.
const FROZEN: Duration = Duration::from_secs(4);

/// What is done to a running system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    KillRouter(usize),
    KillWorker(usize),
    FreezeRouter(usize),
    FreezeWorker(usize),
    RestartServer,
}

impl Fault {
    /// Kills are what happens most.
    fn draw(rng: &mut StdRng) -> Self {
        match rng.random_range(0..12) {
            n @ 0..2 => Self::KillRouter(n),
            n @ 2..8 => Self::KillWorker((n - 2) % WORKERS),
            8 => Self::FreezeRouter(rng.random_range(0..ROUTERS)),
            9 | 10 => Self::FreezeWorker(rng.random_range(0..WORKERS)),
            _ => Self::RestartServer,
        }
    }
}

const ROUTERS: usize = 2;
const WORKERS: usize = 3;

struct System {
    server: NatsServer,
    routers: Vec<RouterProcess>,
    workers: Vec<Process>,
    started: usize,
    inflight: String,
}

impl System {
    async fn start(jobs: usize) -> Self {
        let server = NatsServer::start();
        with_ack_wait(&server.client().await, Duration::from_secs(2)).await;
        // So few that jobs wait for room, so many that the whole ends soon.
        let inflight = if jobs < 1000 { "4" } else { "32" }.to_owned();
        let mut system = Self { server, routers: Vec::new(), workers: Vec::new(), started: 0, inflight };
        for _ in 0..ROUTERS {
            let router = system.router().await;
            system.routers.push(router);
        }
        for n in 0..WORKERS {
            let worker = system.worker(n);
            system.workers.push(worker);
        }
        system
    }

    /// Each router has a log of its own, which says where it serves its metrics.
    async fn router(&mut self) -> RouterProcess {
        self.started += 1;
        RouterProcess::start(&format!("router-{}", self.started), &self.server, &[]).await
    }

    fn worker(&self, n: usize) -> Process {
        sim(&self.server, &format!("w{n}"), &["--max-inflight", &self.inflight, "--output-tokens", "40"])
    }

    async fn suffer(&mut self, fault: Fault) {
        match fault {
            Fault::KillRouter(n) => {
                self.routers[n].process.kill();
                self.routers[n] = self.router().await;
            }
            Fault::KillWorker(n) => {
                self.workers[n].kill();
                self.workers[n] = self.worker(n);
            }
            Fault::FreezeRouter(n) => freeze(&self.routers[n].process).await,
            Fault::FreezeWorker(n) => freeze(&self.workers[n]).await,
            Fault::RestartServer => self.server.restart(),
        }
    }
}

async fn freeze(process: &Process) {
    process.signal(Signal::Stop);
    tokio::time::sleep(FROZEN).await;
    process.signal(Signal::Continue);
}

async fn submit(jobs: &Jobs, count: usize) {
    let model = Model::new("m").expect("valid");
    for n in 0..count {
        let stream = n % 4 == 0;
        let body =
            format!(r#"{{"model":"m","stream":{stream},"messages":[{{"role":"user","content":"question {n}"}}]}}"#);
        let request = Request::new(model.clone(), body).request_id(id(&format!("j{n}")));
        let request = if n % 3 == 0 { request.header("Rankpin-Session-Id", &format!("s{}", n % 10)) } else { request };
        jobs.submit(&request).await.expect("it is taken");
    }
}

/// JOBS, FAULTS, SEED.
fn wanted() -> (usize, usize, u64) {
    let Ok(text) = std::env::var("RANKPIN_CHAOS_JOBS") else { return (240, 8, 7) };
    let words: Vec<&str> = text.split_whitespace().collect();
    let [jobs, faults, seed] = words[..] else { panic!("RANKPIN_CHAOS_JOBS=\"JOBS FAULTS SEED\"") };
    let number = |word: &str| word.parse().expect("a number");
    (number(jobs), number(faults), seed.parse().expect("a number"))
}

#[tokio::test]
async fn many_jobs_and_many_faults_give_one_result_each() {
    let (count, faults, seed) = wanted();
    let mut rng = StdRng::seed_from_u64(seed);
    let began = Instant::now();
    let mut system = System::start(count).await;
    let jobs = connect(&system.server).await;
    submit(&jobs, count).await;
    // A server that restarts does not answer for a moment.
    let done = async || jobs.overview().await.map_or(0, |all| usize::try_from(all.done).expect("few"));
    let mut suffered = BTreeMap::<Fault, usize>::new();
    for fault in 0..faults {
        // Spread over the run by how far it has come.
        let next = (fault + 1) * count / (faults + 2);
        eventually("the jobs go on", 2 * LONG, async || (done().await >= next).then_some(())).await;
        let fault = Fault::draw(&mut rng);
        *suffered.entry(fault).or_default() += 1;
        system.suffer(fault).await;
    }
    eventually("every job has its result", 4 * LONG, async || (done().await >= count).then_some(())).await;
    all_acknowledged(&jobs).await;
    check(&system, &jobs, count).await;
    println!("{count} jobs, seed {seed}, {suffered:?}: one result each, in {:.0?}", began.elapsed());
}

/// Each job has one final result, an answer whose parts are whole; nothing is left over anywhere.
async fn check(system: &System, jobs: &Jobs, count: usize) {
    let client = system.server.client().await;
    assert_eq!(stored(&client, "rankpin.result.*").await, count as u64, "each one final message");
    let (mut from, mut seen, mut attempts) = (1, 0, 0);
    while let Some(result) = jobs.next_result(from).await.expect("the server answers") {
        from = result.sequence + 1;
        assert_eq!(result.failure, None, "job {}", result.id);
        let replies = jobs.replies(&result).await.expect("the server answers");
        let counted = result.parts + u64::from(!result.payload.is_empty());
        assert_eq!(replies.len() as u64, counted, "job {} has the parts that its last message counts", result.id);
        attempts += u32::from(result.attempt > 1);
        seen += 1;
    }
    assert_eq!(seen, count);
    println!("{attempts} jobs needed more than one attempt");
    assert!(jobs.next_dead(1).await.expect("the server answers").is_none(), "none is dead");
    for router in &system.routers {
        let nothing_held = async || (router.metric("jobs_held").await == 0.0).then_some(());
        eventually("nothing is held", PATIENCE, nothing_held).await;
        for gauge in ["requests_in_flight", "requests_queued", "faults"] {
            assert_eq!(router.metric(gauge).await, 0.0, "{gauge}");
        }
    }
}
