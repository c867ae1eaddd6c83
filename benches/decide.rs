//! How long a decision takes in a large fleet: 1,000 workers of 8 ranks each, 100,000 pins.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rankpin::core::ask::Ask;
use rankpin::core::decide::{Pin, Rules, decide};
use rankpin::core::fleet::Fleet;
use rankpin::core::hash::PinKey;
use rankpin::core::id::{DpRank, InstanceId, Model, Origin, Placement, Pool, RankRange, SessionId, Tenant, WorkerId};
use rankpin::core::kv::{Mark, Prompt};
use rankpin::core::load::{RankLoad, Report};
use rankpin::core::mode::{AffinityMode, PolicyKind, RankChoice};
use rankpin::core::pins::{Mirror, Pin as Stored};
use rankpin::core::session::Session;
use rankpin::core::worker::{WorkerKind, WorkerSpec, WorkerState};

/// As in the router.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const WORKERS: u32 = 1000;
const RANKS: u32 = 8;
const PINS: u32 = 100_000;

fn model() -> Model {
    Model::new("m").expect("a valid name")
}

fn worker(n: u32) -> WorkerSpec {
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

fn fleet(now: Instant) -> Fleet {
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

fn session(n: u32, origin: Origin) -> Session {
    let id = match origin {
        Origin::Named => SessionId::named(&format!("session-{n}")).expect("a valid id"),
        Origin::Derived => SessionId::derived(u64::from(n)),
    };
    Session { id, origin }
}

fn ask(session: Session) -> Ask {
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

fn decisions(criterion: &mut Criterion) {
    let now = Instant::now();
    let mut fleet = fleet(now);
    let mut rng = StdRng::seed_from_u64(1);
    let mut mirror = Mirror::new(Duration::from_secs(3600), now);
    for n in 0..PINS {
        let key = PinKey::new(&Tenant::none(), &model(), &session(n, Origin::Named).id);
        let spec = worker(n % WORKERS);
        let rank = DpRank(spec.ranks.start().0 + u16::try_from(n % RANKS).expect("few"));
        let placement = Placement { worker: spec.id, rank: Some(rank) };
        let pin = Stored::new(placement, Origin::Named);
        mirror.handle_value(key, u64::from(n) + 1, Some(pin), now);
    }
    let rules = |policy| Rules { mode: AffinityMode::Hard, policy, rank_choice: RankChoice::Hash };

    let mut group = criterion.benchmark_group("decide");
    let mut n = 0;
    group.bench_function("pinned", |bencher| {
        bencher.iter(|| {
            n = (n + 7919) % PINS;
            let ask = ask(session(n, Origin::Named));
            let key = PinKey::new(&ask.tenant, &ask.model, &ask.session.as_ref().expect("it has one").id);
            let pin = mirror.get(key, now).and_then(|entry| entry.pin.as_ref()).expect("it is pinned");
            let pin = Pin::At(&pin.placement);
            black_box(decide(&ask, &mut fleet, pin, rules(PolicyKind::RoundRobin), now, &mut rng)).expect("placed")
        });
    });
    for (name, policy) in PolicyKind::NAMED {
        for (origin, what) in [(Origin::Named, "named"), (Origin::Derived, "derived")] {
            group.bench_function(format!("fresh, {what}, {name}"), |bencher| {
                bencher.iter(|| {
                    n = (n + 7919) % PINS;
                    let ask = ask(session(n, origin));
                    black_box(decide(&ask, &mut fleet, Pin::None, rules(policy), now, &mut rng)).expect("placed")
                });
            });
        }
    }
    group.finish();
}

/// A conversation whose first messages many share.
fn conversation(own: u64, messages: u32) -> Prompt {
    let key = |n: u32| if n < 3 { u64::from(n) + 1 } else { own << 32 | u64::from(n) };
    Prompt::new((0..messages).map(|n| Mark { key: key(n), upto: 200 * (n + 1) }).collect(), 0)
}

/// The policy `kv`, with a conversation of 500 messages that one rank has, and its opening all.
fn caches(criterion: &mut Criterion) {
    let now = Instant::now();
    let mut fleet = fleet(now);
    let mut rng = StdRng::seed_from_u64(1);
    for n in 0..WORKERS {
        let spec = worker(n);
        let slot = fleet.find(spec.id.as_str()).expect("it is registered").0;
        for rank in spec.ranks.iter() {
            let own = u64::from(n) * u64::from(RANKS) + u64::from(rank.0 % 8) + 1;
            fleet.note_dispatch(slot, Some(rank), &conversation(own, 50), now);
        }
    }
    let long = conversation(17, 499);
    let slot = fleet.find("worker-2").expect("it is registered").0;
    fleet.note_dispatch(slot, Some(worker(2).ranks.start()), &long, now);
    let ask = Ask { prompt: conversation(17, 500), ..ask(session(0, Origin::Named)) };
    let mut group = criterion.benchmark_group("decide");
    for (mode, what) in [(AffinityMode::Hard, "fresh"), (AffinityMode::Soft, "pinned and soft")] {
        let rules = Rules { mode, policy: PolicyKind::Kv, rank_choice: RankChoice::Hash };
        let at = Placement { worker: worker(2).id, rank: Some(worker(2).ranks.start()) };
        let pin = if mode == AffinityMode::Soft { Pin::At(&at) } else { Pin::None };
        group.bench_function(format!("{what}, kv, 500 messages"), |bencher| {
            bencher.iter(|| black_box(decide(&ask, &mut fleet, pin, rules, now, &mut rng)).expect("placed"));
        });
    }
    let slot = fleet.find("worker-3").expect("it is registered").0;
    let rank = worker(3).ranks.start();
    group.bench_function("learn a dispatch, kv, 500 messages", |bencher| {
        bencher.iter(|| black_box(fleet.note_dispatch(slot, Some(rank), &ask.prompt, now)));
    });
    group.finish();
}

criterion_group!(benches, decisions, caches);
criterion_main!(benches);
