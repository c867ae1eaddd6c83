//! What is measured: a cluster that runs, or one of our own.

use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::bodies::Turn;
use super::forwarder::make_bucket;
use super::load::{Aim, Generator, SessionFrom, Watched};
use super::{Accepts, BenchError, Decides, Firsts, Options, Way};
use crate::core::id::{DpRank, Model, Namespace, WorkerId};
use crate::local::{self, LocalError, NatsServer, Process};
use crate::nats::{Access, Link, LinkOptions};
use crate::wire::subject::Subjects;

/// How long a cluster that runs is asked until it answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Ranks of our own worker.
const RANKS: u16 = 4;

/// A cluster that somebody else runs.
#[derive(Debug, Clone)]
pub struct Running {
    /// How to connect.
    pub link: LinkOptions,
    /// The same as it was said, for the forwarder.
    pub access: Access,
    /// Its namespace.
    pub namespace: Namespace,
    /// The model to ask for.
    pub model: Model,
    /// The worker that is asked directly.
    pub worker: WorkerId,
    /// Its rank that is asked directly.
    pub rank: DpRank,
}

/// What is measured, with all that we started for it.
#[derive(Debug)]
pub(super) struct Cluster {
    // In the order in which they end; the directory goes last.
    forwarder: Process,
    storing: Option<Process>,
    own: Option<Own>,
    target: Running,
    forwarded: String,
    _dir: TempDir,
}

#[derive(Debug)]
struct Own {
    routers: Vec<Process>,
    worker: Process,
    server: NatsServer,
}

impl Cluster {
    /// Starts what is not there: always the null forwarder, and the rest where no running cluster is named.
    pub async fn start(options: &Options) -> Result<Self, BenchError> {
        let dir = tempfile::Builder::new().prefix("rankpin-bench-").tempdir().map_err(LocalError::Files)?;
        let (own, target) = match &options.running {
            Some(running) => (None, running.clone()),
            None => {
                let server = NatsServer::start(dir.path()).await?;
                let target = Running {
                    link: LinkOptions::new(server.url(), "rankpin bench"),
                    access: Access::at(server.url()),
                    namespace: Namespace::new("bench").expect("a valid name"),
                    model: Model::new("bench").expect("a valid name"),
                    worker: WorkerId::new("echo").expect("a valid name"),
                    rank: DpRank(0),
                };
                let start = || Process::start("router", router(&target, server.url(), options.decides)?, dir.path());
                let routers = (0..options.routers).map(|_| start()).collect::<Result<_, _>>()?;
                let worker = Process::start("worker", worker(&target, server.url(), options)?, dir.path())?;
                (Some(Own { routers, worker, server }), target)
            }
        };
        // A subject of this run: two benches of one cluster don't forward for each other.
        let forwarded = format!("{}.bench.{}", target.namespace, uuid::Uuid::new_v4().simple());
        let to = Subjects::new(target.namespace.clone()).rank(&target.worker, target.rank);
        let forwarder = |from: &str, more: &[&str]| {
            let mut command = local::process::ourselves()?;
            // As variables: flags are seen by other users of the machine.
            command.arg("bench-forwarder").envs(target.access.environment());
            command.args(["--from", from, "--to", &to]).args(more);
            Process::start("forwarder", command, dir.path())
        };
        let storing = match options.firsts {
            Firsts::No => None,
            Firsts::Too => {
                let bucket = format!("{}_bench", target.namespace);
                make_bucket(&Link::open(target.link.clone()).await?, &bucket).await?;
                Some(forwarder(&format!("{forwarded}.stored"), &["--store", &bucket])?)
            }
        };
        let forwarder = forwarder(&forwarded, &[])?;
        Ok(Self { forwarder, storing, own, target, forwarded, _dir: dir })
    }

    /// How the generator connects.
    pub fn link_options(&self) -> LinkOptions {
        self.target.link.clone()
    }

    /// Waits until a request is answered on every way.
    pub async fn wait_until_ready(&mut self, generator: &Generator) -> Result<(), BenchError> {
        for way in Way::OF_NAMED {
            let aim = self.aim(way, 1);
            let mut processes = vec![&mut self.forwarder];
            processes.extend(&mut self.storing);
            let Some(own) = &mut self.own else {
                let answered = async {
                    while !generator.answered(&aim).await {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                };
                tokio::time::timeout(ANSWER_TIMEOUT, answered)
                    .await
                    .map_err(|_| BenchError::NoAnswer { way, after: ANSWER_TIMEOUT })?;
                continue;
            };
            processes.push(&mut own.worker);
            processes.extend(&mut own.routers);
            local::ready(&mut processes, async || generator.answered(&aim).await.then_some(())).await?;
        }
        Ok(())
    }

    /// Where requests go on a way.
    pub fn aim(&self, way: Way, sessions: u64) -> Aim {
        let subjects = Subjects::new(self.target.namespace.clone());
        let to_worker =
            |subject| Aim::Worker { subject, worker: self.target.worker.to_string(), rank: self.target.rank };
        match way {
            Way::Direct => to_worker(subjects.rank(&self.target.worker, self.target.rank)),
            Way::Forwarded => to_worker(self.forwarded.clone()),
            Way::Stored => to_worker(format!("{}.stored", self.forwarded)),
            Way::First => self.routed(u64::MAX, SessionFrom::Fresh, Turn::Late),
            Way::Decided => {
                let subject = subjects.decide(&self.target.model);
                Aim::Decide { subject, sessions }
            }
            Way::Job => {
                let subject = subjects.job(&self.target.model);
                Aim::Job { subject, sessions, results: subjects.final_results() }
            }
            Way::Routed => self.routed(sessions, SessionFrom::Header, Turn::Late),
            Way::Derived => self.routed(sessions, SessionFrom::Text, Turn::Late),
        }
    }

    /// Where requests go that the router takes.
    pub fn routed(&self, sessions: u64, session: SessionFrom, turn: Turn) -> Aim {
        let subject = Subjects::new(self.target.namespace.clone()).request(&self.target.model);
        Aim::Router { subject, sessions, session, turn }
    }

    /// The processes that a request on a way passes, as far as we know them.
    pub fn processes(&self, way: Way) -> Vec<Watched> {
        let mut all = vec![Watched { name: "generator", id: std::process::id() }];
        if let Some(own) = &self.own {
            all.push(Watched { name: "server", id: own.server.id() });
            all.push(Watched { name: "worker", id: own.worker.id() });
        }
        match way {
            Way::Direct => {}
            Way::Forwarded => all.push(Watched { name: "forwarder", id: self.forwarder.id() }),
            Way::Stored => {
                all.extend(self.storing.iter().map(|process| Watched { name: "forwarder", id: process.id() }));
            }
            Way::Routed | Way::Derived | Way::Decided | Way::First | Way::Job => {
                let routers = self.own.iter().flat_map(|own| &own.routers);
                all.extend(routers.map(|router| Watched { name: "router", id: router.id() }));
            }
        }
        all
    }

    /// Messages that our own server has taken in.
    pub async fn messages_in(&self) -> Option<u64> {
        self.own.as_ref()?.server.messages_in().await
    }
}

fn router(target: &Running, url: &str, decides: Decides) -> Result<Command, LocalError> {
    let mut command = local::process::ourselves()?;
    command.args(["router", "--nats-url", url, "--namespace", target.namespace.as_str()]);
    command.args(["--policy", "round-robin", "--affinity", "hard", "--listen", "off"]);
    match decides {
        Decides::No => {}
        Decides::Too => {
            command.arg("--decide-mode");
        }
    }
    Ok(command)
}

fn worker(target: &Running, url: &str, options: &Options) -> Result<Command, LocalError> {
    let mut command = local::process::ourselves()?;
    command.args(["sim", "--engine", "echo", "--nats-url", url, "--namespace", target.namespace.as_str()]);
    command.args(["--worker", target.worker.as_str(), "--model", target.model.as_str()]);
    command.args(["--dp-start", &target.rank.to_string(), "--dp-size", &RANKS.to_string()]);
    command.args(["--parts", &options.parts.to_string(), "--answer-bytes", &options.answer.to_string()]);
    match options.accepts {
        Accepts::Yes => {}
        Accepts::No => {
            command.arg("--no-accept");
        }
    }
    Ok(command)
}
