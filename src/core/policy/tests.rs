use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::core::candidates::RankThere;
use crate::core::fleet::{Fleet, Listed};
use crate::core::testing::{fleet, model, rng, spec, start};
use crate::core::worker::WorkerSpec;

const ALL: [PolicyKind; PolicyKind::NAMED.len()] = [
    PolicyKind::RoundRobin,
    PolicyKind::Random,
    PolicyKind::PowerOfTwo,
    PolicyKind::LeastLoaded,
    PolicyKind::DeviceAwareWeighted,
    PolicyKind::Kv,
];

fn candidates(fleet: &Fleet) -> Candidates<'_> {
    let now = start();
    let model = model("m");
    let of = |listed: Listed<'_>| listed.glance().seen(now).load;
    let all = fleet.listed(&model).map(|listed| Candidate::new(listed, RankThere::Any, of(listed)));
    Candidates::new(all.collect()).expect("there are some")
}

/// Picks one after the other; `busy`: each stays in flight.
fn picks(fleet: &mut Fleet, kind: PolicyKind, count: usize, busy: bool) -> BTreeMap<String, usize> {
    let mut rng = rng();
    let mut counts = BTreeMap::new();
    for _ in 0..count {
        let slot = pick(kind, &candidates(fleet), &mut rng).slot();
        fleet.note_pick(slot, None);
        if busy {
            fleet.begin(slot, None);
        }
        let id = fleet.get(slot).expect("it is there").spec.id.to_string();
        *counts.entry(id).or_default() += 1;
    }
    counts
}

fn weighing(id: &str, weight: f64, device: &str) -> WorkerSpec {
    WorkerSpec { weight, device: device.into(), ..spec(id, 0, 2) }
}

#[test]
fn a_burst_is_spread_evenly_where_load_counts() {
    for kind in [PolicyKind::LeastLoaded, PolicyKind::DeviceAwareWeighted, PolicyKind::RoundRobin] {
        let mut fleet = fleet((0..8).map(|n| spec(&format!("w{n}"), 0, 1)), start());
        let counts = picks(&mut fleet, kind, 64, true);
        assert!(counts.len() == 8 && counts.values().all(|count| *count == 8), "{kind:?}: {counts:?}");
    }
    let mut fleet = fleet((0..8).map(|n| spec(&format!("w{n}"), 0, 1)), start());
    let counts = picks(&mut fleet, PolicyKind::PowerOfTwo, 640, true);
    assert!(counts.values().all(|count| (75..=85).contains(count)), "{counts:?}");
}

#[test]
fn weights_show_in_the_traffic_of_every_policy_idle_or_busy() {
    for kind in ALL {
        for busy in [false, true] {
            let mut fleet = fleet([weighing("a", 3.0, "x"), weighing("b", 1.0, "x")], start());
            let counts = picks(&mut fleet, kind, 4000, busy);
            assert!((2850..=3150).contains(&counts["a"]), "{kind:?}, busy {busy}: {counts:?}");
        }
    }
}

#[test]
fn groups_of_devices_share_by_weight_and_number() {
    let specs = [weighing("a1", 2.0, "a"), weighing("a2", 2.0, "a"), weighing("b1", 1.0, "b")];
    let mut fleet = fleet(specs, start());
    // The group a is busier than b, and gets its share all the same.
    for _ in 0..100 {
        let slot = fleet.find("a1").expect("it is there").0;
        fleet.begin(slot, None);
    }
    let counts = picks(&mut fleet, PolicyKind::DeviceAwareWeighted, 5000, false);
    assert!((900..=1100).contains(&counts["b1"]), "{counts:?}");
    assert_eq!(counts.get("a1"), None, "inside a group the least loaded gets it: {counts:?}");
}

#[test]
fn ties_favour_nobody() {
    for kind in [PolicyKind::PowerOfTwo, PolicyKind::LeastLoaded] {
        let mut fleet = fleet((0..4).map(|n| spec(&format!("w{n}"), 0, 1)), start());
        let counts = picks(&mut fleet, kind, 4000, false);
        assert!(counts.len() == 4 && counts.values().all(|count| (850..=1150).contains(count)), "{kind:?}: {counts:?}");
    }
}

#[test]
fn what_a_worker_can_hold_counts_only_where_all_say_it() {
    let limited = |id: &str, most| WorkerSpec { max_inflight: Some(most), ..spec(id, 0, 1) };
    let mut all_say = fleet([limited("a", 30), limited("b", 10)], start());
    assert_eq!(picks(&mut all_say, PolicyKind::LeastLoaded, 40, true)["a"], 30);
    let mut one_says = fleet([limited("a", 30), spec("b", 0, 1)], start());
    assert_eq!(picks(&mut one_says, PolicyKind::LeastLoaded, 40, true)["a"], 20);
}

#[test]
fn round_robin_is_even_through_churn() {
    let mut fleet = fleet((0..3).map(|n| spec(&format!("w{n}"), 0, 1)), start());
    picks(&mut fleet, PolicyKind::RoundRobin, 301, false);
    fleet.handle_registration(spec("new", 0, 1), std::time::Duration::ZERO, start());
    let counts = picks(&mut fleet, PolicyKind::RoundRobin, 400, false);
    assert!(counts.values().all(|count| (99..=101).contains(count)), "a new worker catches nothing up: {counts:?}");
}

proptest! {
    #[test]
    fn whatever_is_picked_is_a_candidate(
        workers in prop::collection::vec((1u32..9, 0.001f64..1000.0, 0u8..3, 0usize..20), 1..12),
        seed in any::<u64>(),
        which in 0..ALL.len(),
    ) {
        use rand::SeedableRng as _;
        let specs = workers.iter().enumerate().map(|(n, (size, weight, device, _))| WorkerSpec {
            weight: *weight,
            device: format!("d{device}").as_str().into(),
            ..spec(&format!("w{n}"), 0, *size)
        });
        let mut fleet = fleet(specs, start());
        for (n, (.., load)) in workers.iter().enumerate() {
            let slot = fleet.find(&format!("w{n}")).expect("it is there").0;
            (0..*load).for_each(|_| fleet.begin(slot, None));
        }
        let candidates = candidates(&fleet);
        let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
        let picked = pick(ALL[which], &candidates, &mut rng);
        prop_assert!(candidates.as_slice().iter().any(|candidate| std::ptr::eq(candidate, picked)));
        let mut again = rand::rngs::StdRng::seed_from_u64(seed);
        prop_assert_eq!(pick(ALL[which], &candidates, &mut again).slot(), picked.slot());
        if ALL[which] == PolicyKind::LeastLoaded {
            let least = candidates.as_slice().iter().map(|c| candidates.relative_load(c)).fold(f64::INFINITY, f64::min);
            prop_assert!(candidates.relative_load(picked) <= least);
        }
    }
}
