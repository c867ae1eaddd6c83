//! Two routers, two workers and the frontends of one round.

use std::path::Path;
use std::time::Duration;

use super::{DemoError, Options, Round};
use crate::client::{Client, ClientOptions, Request};
use crate::core::id::{Model, Namespace, RankRange, WorkerId};
use crate::local::{self, LocalError, NatsServer, Process};

const ROUTERS: usize = 2;
const FRONTENDS: usize = 2;
/// First rank of each worker; each has [`RANKS`].
const WORKERS: [(&str, u32); 2] = [("w1", 0), ("w2", 4)];
const RANKS: u32 = 4;
/// Answers in a row that every worker has to give before a round begins. Requests fall to either router at random,
/// so that each of them has answered for each worker then, but for one start in two thousand.
const PROOFS: u32 = 12;
/// How long one of these requests may take.
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest silence of an answer. Killed routers would be noticed by it; here it only counts when something is wrong.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// What runs during a round; all of it ends when it is dropped.
#[derive(Debug)]
pub(super) struct Cluster {
    pub frontends: Vec<Client>,
    pub workers: Vec<Worker>,
    routers: Vec<Process>,
}

/// A worker's process.
#[derive(Debug)]
pub(super) struct Worker {
    pub id: WorkerId,
    pub ranks: RankRange,
    pub process: Process,
}

impl Cluster {
    /// Starts the processes, and returns once every router knows every worker.
    pub async fn start(server: &NatsServer, dir: &Path, round: Round, options: &Options) -> Result<Self, DemoError> {
        let dir = dir.join(round.namespace());
        std::fs::create_dir(&dir).map_err(LocalError::Files)?;
        let mut models: Vec<&Model> =
            options.conversations.iter().flat_map(|c| &c.turns).map(|turn| &turn.model).collect();
        models.sort();
        models.dedup();
        let mut routers = Vec::new();
        for number in 1..=ROUTERS {
            routers.push(router(&format!("router-{number}"), server, &dir, round)?);
        }
        let mut workers = Vec::new();
        for (id, start) in WORKERS {
            let id = WorkerId::new(id).expect("a valid name");
            let ranks = RankRange::new(start, RANKS).expect("few ranks");
            workers.push(worker(id, ranks, server, &dir, round, options.speed, &models)?);
        }
        let mut frontends = Vec::new();
        for _ in 0..FRONTENDS {
            let mut client = ClientOptions::new(server.url());
            client.namespace = Namespace::new(round.namespace()).expect("a valid name");
            client.idle_timeout = IDLE_TIMEOUT;
            frontends.push(Client::connect(client).await?);
        }
        let mut cluster = Self { frontends, workers, routers };
        if let Some(model) = models.first() {
            cluster.wait_until_ready(model).await?;
        }
        Ok(cluster)
    }

    /// Which ranks each worker has.
    pub fn ranks(&self) -> Vec<(WorkerId, RankRange)> {
        self.workers.iter().map(|worker| (worker.id.clone(), worker.ranks)).collect()
    }

    async fn wait_until_ready(&mut self, model: &Model) -> Result<(), DemoError> {
        let client = &self.frontends[0];
        let ids: Vec<WorkerId> = self.workers.iter().map(|worker| worker.id.clone()).collect();
        let workers = self.workers.iter_mut().map(|worker| &mut worker.process);
        let mut processes: Vec<&mut Process> = self.routers.iter_mut().chain(workers).collect();
        for id in &ids {
            local::ready(&mut processes, async || all_answer(client, model, id).await.then_some(())).await?;
        }
        Ok(())
    }
}

async fn all_answer(client: &Client, model: &Model, worker: &WorkerId) -> bool {
    for _ in 0..PROOFS {
        let body = serde_json::json!({"model": model.as_str(), "messages": [], "max_tokens": 1}).to_string();
        let request = Request::new(model.clone(), body).target_worker(worker).timeout(PROOF_TIMEOUT);
        let Ok(replies) = client.send(request).await else { return false };
        if replies.collect().await.is_err() {
            return false;
        }
    }
    true
}

fn router(name: &str, server: &NatsServer, dir: &Path, round: Round) -> Result<Process, LocalError> {
    let affinity = match round {
        Round::Off => "off",
        Round::Hard | Round::Killed => "hard",
    };
    let mut command = local::process::ourselves()?;
    command.args(["router", "--nats-url", server.url(), "--namespace", round.namespace(), "--listen", "off"]);
    command.args(["--policy", "round-robin", "--affinity", affinity]);
    Process::start(name, command, dir)
}

fn worker(
    id: WorkerId,
    ranks: RankRange,
    server: &NatsServer,
    dir: &Path,
    round: Round,
    speed: f64,
    models: &[&Model],
) -> Result<Worker, LocalError> {
    let mut command = local::process::ourselves()?;
    command.args(["sim", "--nats-url", server.url(), "--namespace", round.namespace(), "--worker", id.as_str()]);
    command.args(["--dp-start", &ranks.start().to_string(), "--dp-size", &ranks.size().to_string()]);
    command.args(["--speed", &speed.to_string()]);
    for model in models {
        command.args(["--model", model.as_str()]);
    }
    let process = Process::start(id.as_str(), command, dir)?;
    Ok(Worker { id, ranks, process })
}
