//! The system that suffers: three servers, two routers, three workers, each of the latter with a way of its own to the
//! servers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, consumer, stream};

use crate::reliability::{LONG, sim};
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::{Nodes, RouterProcess, eventually};

pub const SERVERS: usize = 3;
pub const ROUTERS: usize = 2;
pub const WORKERS: usize = 3;
/// A worker is called by its number.
pub const WORKER_PREFIX: &str = "w";

/// How long a job waits for its router's word before it is delivered again.
const ACK_WAIT: Duration = Duration::from_secs(6);
const ROUTER: [&str; 6] = ["--replicas", "3", "--jobs-replicas", "3", "--drain-timeout", "5s"];
const WORKER: [&str; 8] = ["--dp-size", "2", "--max-inflight", "8", "--decode-rate", "40", "--output-tokens", "40"];

/// A process and its way to the servers.
pub struct Member<P> {
    pub process: P,
    pub way: Proxy,
    pub since: Instant,
}

pub struct System {
    pub nodes: Nodes,
    pub routers: Vec<Member<RouterProcess>>,
    pub workers: Vec<Member<Process>>,
    dir: PathBuf,
    started: usize,
}

impl System {
    pub async fn start() -> Self {
        let nodes = Nodes::start().await;
        make_jobs(&nodes.client().await).await;
        let dir = nodes.servers[0].dir().to_owned();
        let addresses: Vec<SocketAddr> =
            nodes.servers.iter().map(|server| ([127, 0, 0, 1], server.port()).into()).collect();
        let mut system = Self { nodes, routers: Vec::new(), workers: Vec::new(), dir, started: 0 };
        for _ in 0..ROUTERS {
            let way = Proxy::to(addresses.clone()).await;
            let process = system.router(&way.url()).await;
            system.routers.push(Member { process, way, since: Instant::now() });
        }
        for n in 0..WORKERS {
            let way = Proxy::to(addresses.clone()).await;
            let process = system.worker(n, &way.url());
            system.workers.push(Member { process, way, since: Instant::now() });
        }
        system.all_are_known().await;
        system
    }

    /// Each router has a log of its own, which says where it serves its metrics.
    async fn router(&mut self, url: &str) -> RouterProcess {
        self.started += 1;
        RouterProcess::start_at(&format!("router-{}", self.started), url, &self.dir, &ROUTER).await
    }

    fn worker(&self, n: usize, url: &str) -> Process {
        sim(url, &self.dir, &format!("{WORKER_PREFIX}{n}"), &WORKER)
    }

    pub fn restart_worker(&mut self, n: usize) {
        self.workers[n].process.kill();
        self.workers[n].process = self.worker(n, &self.workers[n].way.url());
        self.workers[n].since = Instant::now();
    }

    pub async fn restart_router(&mut self, n: usize) {
        self.routers[n].process.process.kill();
        let url = self.routers[n].way.url();
        self.routers[n].process = self.router(&url).await;
        self.routers[n].since = Instant::now();
    }

    /// Resident memory of each router in KiB, with the time since its process was started.
    pub fn resident(&self) -> Vec<(u64, Duration)> {
        let of = |member: &Member<RouterProcess>| {
            let age = Duration::from_secs(member.since.elapsed().as_secs());
            Some((member.process.process.resident_kib()?, age))
        };
        self.routers.iter().filter_map(of).collect()
    }

    /// Waits until everything is as it was at first.
    pub async fn heal(&mut self) {
        for n in 0..WORKERS {
            if self.workers[n].process.ended().is_some() {
                // Its name was taken over while it was frozen, or the like.
                self.restart_worker(n);
            }
        }
        self.all_are_known().await;
    }

    /// What all routers that there were have logged of a request or job.
    pub fn logged_of(&self, id: &str) -> String {
        let logs = (1..=self.started).map(|n| self.dir.join(format!("router-{n}.log")));
        let read = logs.filter_map(|log| Some((log.clone(), std::fs::read_to_string(log).ok()?)));
        let of = |(log, text): (PathBuf, String)| {
            let lines: Vec<_> = text.lines().filter(|line| line.contains(id)).collect();
            (!lines.is_empty()).then(|| format!("{}:\n{}", log.display(), lines.join("\n")))
        };
        read.filter_map(of).collect::<Vec<_>>().join("\n")
    }

    async fn all_are_known(&self) {
        for router in &self.routers {
            let known = async || (router.process.metric("workers").await == WORKERS as f64).then_some(());
            eventually("every router knows every worker", LONG, known).await;
        }
    }
}

/// The streams of jobs, with a shorter ack wait than routers would give them.
async fn make_jobs(client: &async_nats::Client) {
    let context = jetstream::new(client.clone());
    let config = stream::Config {
        name: "rankpin_jobs".into(),
        subjects: vec!["rankpin.job.>".into()],
        retention: stream::RetentionPolicy::WorkQueue,
        duplicate_window: Duration::from_secs(3600),
        discard: stream::DiscardPolicy::New,
        num_replicas: SERVERS,
        ..stream::Config::default()
    };
    let stream =
        eventually("the stream is made", LONG, async || context.get_or_create_stream(config.clone()).await.ok()).await;
    let config = consumer::pull::Config {
        durable_name: Some("router".into()),
        ack_wait: ACK_WAIT,
        filter_subject: "rankpin.job.>".into(),
        max_ack_pending: 65_536,
        ..consumer::pull::Config::default()
    };
    eventually("the consumer is made", LONG, async || {
        stream.get_or_create_consumer("router", config.clone()).await.ok()
    })
    .await;
}
