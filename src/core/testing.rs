//! What the core's own tests start from: small fleets, and a moment from which they step time themselves.

use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::ask::Ask;
use super::fleet::{Fleet, WorkerSlot};
use super::id::{DpRank, InstanceId, Model, Origin, Placement, Pool, RankRange, SessionId, Tenant, WorkerId};
use super::kv::Prompt;
use super::session::Session;
use super::worker::{WorkerKind, WorkerSpec, WorkerState};

/// Some moment.
pub fn start() -> Instant {
    Instant::now()
}

pub fn rng() -> StdRng {
    StdRng::seed_from_u64(7)
}

pub fn worker_id(id: &str) -> WorkerId {
    WorkerId::new(id).expect("a valid id")
}

pub fn model(name: &str) -> Model {
    Model::new(name).expect("a valid name")
}

/// A ready worker of model `m` in pool `default`, without a limit.
pub fn spec(id: &str, first: u32, size: u32) -> WorkerSpec {
    WorkerSpec {
        id: worker_id(id),
        instance: InstanceId::new("i").expect("a valid id"),
        models: vec![model("m")],
        pool: Pool::new("default").expect("a valid name"),
        ranks: RankRange::new(first, size).expect("a valid range"),
        device: "cpu".into(),
        weight: 1.0,
        max_inflight: None,
        kv_blocks: None,
        block_size: None,
        state: WorkerState::Ready,
        kind: WorkerKind::Native,
        subject: None,
    }
}

pub fn fleet(specs: impl IntoIterator<Item = WorkerSpec>, now: Instant) -> Fleet {
    let mut fleet = Fleet::default();
    for spec in specs {
        fleet.handle_registration(spec, Duration::ZERO, now);
    }
    fleet
}

pub fn slot(fleet: &Fleet, id: &str) -> WorkerSlot {
    fleet.find(id).expect("the worker is there").0
}

/// A request for model `m` without a session.
pub fn ask() -> Ask {
    Ask {
        model: model("m"),
        tenant: Tenant::none(),
        session: None,
        group: None,
        worker_hint: None,
        rank_hint: None,
        pool: None,
        home: None,
        excluded: Vec::new(),
        prompt: Prompt::default(),
    }
}

pub fn named(id: &str) -> Session {
    Session { id: SessionId::named(id).expect("a valid id"), origin: Origin::Named }
}

pub fn derived(key: u64) -> Session {
    Session { id: SessionId::derived(key), origin: Origin::Derived }
}

pub fn at(worker: &str, rank: Option<u16>) -> Placement {
    Placement { worker: worker_id(worker), rank: rank.map(DpRank) }
}
