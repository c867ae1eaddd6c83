//! What is done to a running system.

use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;

use super::system::{ROUTERS, SERVERS, System, WORKERS};
use crate::support::process::Signal;
use crate::support::proxy::Carriage;

/// How long something stands still: longer than the accept timeout, and than two probes.
const STILL: Duration = Duration::from_secs(4);
/// How long a killed server stays away: longer than an election.
const AWAY: Duration = Duration::from_secs(3);
/// By how much a slow way delays each piece.
const LATE: Duration = Duration::from_millis(80);

/// Whom it happens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whom {
    Worker(usize),
    Router(usize),
    Server(usize),
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Killed,
    Frozen,
    CutOff,
    Slowed,
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    pub what: What,
    pub whom: Whom,
}

impl Fault {
    /// Kills are what happens most, and to workers.
    pub fn draw(rng: &mut StdRng) -> Self {
        let whom = match rng.random_range(0..10) {
            0..6 => Whom::Worker(rng.random_range(0..WORKERS)),
            6..8 => Whom::Router(rng.random_range(0..ROUTERS)),
            _ => Whom::Server(rng.random_range(0..SERVERS)),
        };
        let what = match (rng.random_range(0..8), whom) {
            (0..4, _) => What::Killed,
            (4..6, _) | (_, Whom::Server(_)) => What::Frozen,
            (6, _) => What::CutOff,
            _ => What::Slowed,
        };
        Self { what, whom }
    }
}

impl System {
    /// Does it, and undoes it.
    pub async fn suffer(&mut self, fault: Fault) {
        match (fault.what, fault.whom) {
            (What::Killed, Whom::Worker(n)) => self.restart_worker(n),
            (What::Killed, Whom::Router(n)) => self.restart_router(n).await,
            (What::Killed, Whom::Server(n)) => {
                self.nodes.servers[n].kill();
                tokio::time::sleep(AWAY).await;
                self.nodes.servers[n].restart();
            }
            (What::Frozen, Whom::Worker(n)) => {
                self.workers[n].process.signal(Signal::Stop);
                tokio::time::sleep(STILL).await;
                self.workers[n].process.signal(Signal::Continue);
            }
            (What::Frozen, Whom::Router(n)) => {
                self.routers[n].process.process.signal(Signal::Stop);
                tokio::time::sleep(STILL).await;
                self.routers[n].process.process.signal(Signal::Continue);
            }
            (What::Frozen | What::CutOff | What::Slowed, Whom::Server(n)) => {
                self.nodes.servers[n].freeze();
                tokio::time::sleep(STILL).await;
                self.nodes.servers[n].thaw();
            }
            (What::CutOff, whom) => self.carry(whom, Carriage::Cut).await,
            (What::Slowed, whom) => self.carry(whom, Carriage::Late(LATE)).await,
        }
    }

    async fn carry(&self, whom: Whom, carriage: Carriage) {
        let way = match whom {
            Whom::Worker(n) => &self.workers[n].way,
            Whom::Router(n) => &self.routers[n].way,
            Whom::Server(_) => return,
        };
        way.set(carriage);
        tokio::time::sleep(STILL).await;
        way.set(Carriage::Through);
    }
}
