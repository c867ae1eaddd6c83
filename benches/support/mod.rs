//! A large fleet as decisions are measured on: 1,000 workers of 8 ranks each, 100,000 pins.

use std::time::{Duration, Instant};

use rankpin::core::ask::Ask;
use rankpin::core::fleet::Fleet;
use rankpin::core::hash::PinKey;
use rankpin::core::id::{DpRank, InstanceId, Model, Origin, Placement, Pool, RankRange, SessionId, Tenant, WorkerId};
use rankpin::core::kv::{Mark, Prompt};
use rankpin::core::load::{RankLoad, Report};
use rankpin::core::pins::{Mirror, Pin};
use rankpin::core::session::Session;
use rankpin::core::worker::{WorkerKind, WorkerSpec, WorkerState};

const WORKERS: u32 = 1000;
const RANKS: u32 = 8;
pub const PINS: u32 = 100_000;

fn model() -> Model {
    Model::new("m").expect("a valid name")
}

pub fn worker(n: u32) -> WorkerSpec {
    WorkerSpec {
        id: WorkerId::new(&format!("worker-{n}")).expect("a valid id"),
        instance: InstanceId::new("i").expect("a valid id"),
        models: vec![model()],
        pool: Pool::new("default").expect("a valid name"),
        ranks: RankRange::new(n % 100 * RANKS, RANKS).expect("a valid range"),
        device: if n.is_multiple_of(2) { "a".into() } else { "b".into() },
        weight: 1.0,
        max_inflight: Some(256),
        kv_blocks: None,
        block_size: None,
        state: WorkerState::Ready,
        kind: WorkerKind::Native,
        subject: None,
    }
}

pub fn fleet(now: Instant) -> Fleet {
    let mut fleet = Fleet::default();
    for n in 0..WORKERS {
        let spec = worker(n);
        let ranks = spec.ranks.iter().map(|rank| RankLoad {
            rank,
            inflight: 10 + (n * 7 + u32::from(rank.0)) % 5,
            queued: 0,
            kv_used_blocks: 0,
            prefill_tokens: 0,
        });
        let report =
            Report { worker: spec.id.clone(), instance: spec.instance.clone(), seq: 1, ranks: ranks.collect() };
        fleet.handle_registration(spec, Duration::ZERO, now);
        fleet.handle_report(report, now);
    }
    fleet
}

pub fn session(n: u32, origin: Origin) -> Session {
    let id = match origin {
        Origin::Named => SessionId::named(&format!("session-{n}")).expect("a valid id"),
        Origin::Derived => SessionId::derived(u64::from(n)),
    };
    Session { id, origin }
}

pub fn ask(session: Session) -> Ask {
    Ask {
        model: model(),
        tenant: Tenant::none(),
        session: Some(session),
        group: None,
        worker_hint: None,
        rank_hint: None,
        pool: None,
        home: None,
        excluded: Vec::new(),
        prompt: Prompt::default(),
    }
}

/// A pin of each session.
pub fn mirror(now: Instant) -> Mirror {
    let mut mirror = Mirror::new(Duration::from_secs(3600), now);
    for n in 0..PINS {
        let key = PinKey::new(&Tenant::none(), &model(), &session(n, Origin::Named).id);
        let spec = worker(n % WORKERS);
        let rank = DpRank(spec.ranks.start().0 + u16::try_from(n % RANKS).expect("few"));
        let placement = Placement { worker: spec.id, rank: Some(rank) };
        mirror.handle_value(key, u64::from(n) + 1, Some(Pin::new(placement, Origin::Named)), now);
    }
    mirror
}

/// A conversation whose first messages many share.
pub fn conversation(own: u64, messages: u32) -> Prompt {
    let key = |n: u32| if n < 3 { u64::from(n) + 1 } else { own << 32 | u64::from(n) };
    Prompt::new((0..messages).map(|n| Mark { key: key(n), upto: 200 * (n + 1) }).collect(), 0)
}

/// A fleet whose ranks all have the opening of these conversations, and one rank 499 messages of the conversation 17.
pub fn fleet_with_caches(now: Instant) -> Fleet {
    let mut fleet = fleet(now);
    for n in 0..WORKERS {
        let spec = worker(n);
        let slot = fleet.find(spec.id.as_str()).expect("it is registered").0;
        for rank in spec.ranks.iter() {
            let own = u64::from(n) * u64::from(RANKS) + u64::from(rank.0 % 8) + 1;
            fleet.note_dispatch(slot, Some(rank), &conversation(own, 50), now);
        }
    }
    let slot = fleet.find("worker-2").expect("it is registered").0;
    fleet.note_dispatch(slot, Some(worker(2).ranks.start()), &conversation(17, 499), now);
    fleet
}
