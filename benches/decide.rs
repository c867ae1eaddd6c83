//! How long a decision takes in a large fleet: 1,000 workers of 8 ranks each, 100,000 pins.

mod support;

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rankpin::core::ask::Ask;
use rankpin::core::decide::{Pin, Rules, decide};
use rankpin::core::hash::PinKey;
use rankpin::core::id::{Origin, Placement};
use rankpin::core::mode::{AffinityMode, PolicyKind, RankChoice};

use self::support::{PINS, ask, conversation, fleet, fleet_with_caches, mirror, session, worker};

/// As in the router.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn decisions(criterion: &mut Criterion) {
    let now = Instant::now();
    let mut fleet = fleet(now);
    let mut rng = StdRng::seed_from_u64(1);
    let mirror = mirror(now);
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

/// The policy `kv`, with a conversation of 500 messages that one rank has, and its opening all.
fn caches(criterion: &mut Criterion) {
    let now = Instant::now();
    let mut fleet = fleet_with_caches(now);
    let mut rng = StdRng::seed_from_u64(1);
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
