//! What holds of every decision, whatever the fleet and the request.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::core::decide::survey::{Score, Standing, Surveyed, survey};
use crate::core::kv::Prompt;
use crate::core::testing::{model, worker_id};

const IDS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A worker in some state.
#[derive(Debug, Clone)]
struct AnyWorker {
    id: &'static str,
    first: u32,
    size: u32,
    pool: &'static str,
    serves_m: bool,
    ready: bool,
    max_inflight: Option<u32>,
    /// Requests on ranks, counted modulo the size.
    load: Vec<u16>,
    /// Ranks marked lost, counted modulo the size.
    lost: Vec<u16>,
}

impl AnyWorker {
    fn join(&self, fleet: &mut Fleet, now: Instant) {
        let mut spec = spec(self.id, self.first, self.size);
        spec.pool = Pool::new(self.pool).expect("a valid name");
        spec.max_inflight = self.max_inflight;
        if !self.ready {
            spec.state = WorkerState::Draining;
        }
        if !self.serves_m {
            spec.models = vec![model("other")];
        }
        let ranks = spec.ranks;
        fleet.handle_registration(spec, Duration::ZERO, now);
        let slot = slot(fleet, self.id);
        for place in &self.load {
            fleet.begin(slot, (self.size > 1).then(|| ranks.at(u64::from(*place))));
        }
        for place in &self.lost {
            fleet.mark_lost(slot, Some(ranks.at(u64::from(*place))), now);
        }
    }
}

prop_compose! {
    fn some_worker(id: &'static str)(
        first in 0u32..6,
        size in 1u32..5,
        pool in select(&["p", "q"][..]),
        serves_m in prop::bool::weighted(0.9),
        ready in prop::bool::weighted(0.9),
        max_inflight in prop::option::of(1u32..3),
        load in vec(any::<u16>(), 0..5),
        lost in vec(any::<u16>(), 0..2),
    ) -> AnyWorker {
        AnyWorker { id, first, size, pool, serves_m, ready, max_inflight, load, lost }
    }
}

fn some_workers() -> impl Strategy<Value = Vec<AnyWorker>> {
    IDS.map(|id| prop::option::weighted(0.8, some_worker(id)))
        .prop_map(|workers| workers.into_iter().flatten().collect())
}

fn some_session() -> impl Strategy<Value = Option<Session>> {
    prop_oneof![
        Just(None),
        (0u8..30).prop_map(|n| Some(named(&format!("s{n}")))),
        any::<u64>().prop_map(|k| Some(derived(k)))
    ]
}

fn some_placement() -> impl Strategy<Value = Placement> {
    (select(&IDS[..]), prop::option::of(0u16..10)).prop_map(|(id, rank)| at(id, rank))
}

fn some_exclusion() -> impl Strategy<Value = Excluded> {
    let failures = [Failure::NoResponders, Failure::AcceptTimeout, Failure::Overloaded, Failure::Draining];
    (some_placement(), any::<bool>(), select(failures.to_vec()))
        .prop_map(|(placement, whole_worker, failure)| Excluded { placement, whole_worker, failure })
}

prop_compose! {
    fn some_ask()(
        session in some_session(),
        worker in prop::option::weighted(0.3, select(&IDS[..])),
        rank in prop::option::weighted(0.3, 0u16..10),
        pool in prop::option::weighted(0.3, select(&["p", "q"][..])),
        excluded in vec(some_exclusion(), 0..3),
        group in prop::option::weighted(0.2, select(&["parent", "other"][..])),
    ) -> Ask {
        Ask {
            session,
            group: group.map(|id| named(id).id),
            worker_hint: worker.map(Into::into),
            rank_hint: rank.map(|rank| RankHint::Rank(DpRank(rank))),
            pool: pool.map(Into::into),
            excluded,
            prompt: Prompt::default(),
            ..ask()
        }
    }
}

fn some_rules() -> impl Strategy<Value = Rules> {
    let modes = [AffinityMode::Hard, AffinityMode::Soft, AffinityMode::Off];
    let policies = PolicyKind::NAMED.map(|(_, policy)| policy);
    let choices = RankChoice::NAMED.map(|(_, choice)| choice);
    (select(modes.to_vec()), select(policies.to_vec()), select(choices.to_vec()))
        .prop_map(|(mode, policy, rank_choice)| Rules { mode, policy, rank_choice })
}

fn join_all(workers: &[AnyWorker], now: Instant) -> Fleet {
    let mut fleet = Fleet::default();
    workers.iter().for_each(|worker| worker.join(&mut fleet, now));
    fleet
}

proptest! {
    #[test]
    fn a_survey_says_what_a_decision_finds(
        workers in some_workers(),
        ask in some_ask(),
        rules in some_rules(),
    ) {
        let now = start();
        let mut fleet = join_all(&workers, now);
        let seen = survey(&ask, &fleet, rules, now);
        let counted = if rules.policy == PolicyKind::Kv { seen.len() } else { fleet.iter().count() };
        prop_assert_eq!(seen.len(), counted);
        let open = |at: &Placement| seen.iter().any(|one| one.standing == Standing::Open && one.placement == *at);
        let any = |standing| seen.iter().any(|one| one.standing == standing);
        match decide(&ask, &mut fleet, Pin::None, rules, now, &mut rng()) {
            // A group has a rank of its own.
            Ok(_) if ask.group.is_some() => {}
            Ok(decision) => {
                prop_assert!(open(&decision.placement), "{:?} of {:?}", decision, seen);
                let chosen = seen.iter().find(|one| one.placement == decision.placement).and_then(|one| one.score);
                let less = |other: &Surveyed| match (other.score, chosen) {
                    (Some(Score::Load(other)), Some(Score::Load(chosen))) => other < chosen,
                    _ => false,
                };
                // Soft affinity may leave out those with much recent work.
                if rules.policy == PolicyKind::LeastLoaded && rules.mode != AffinityMode::Soft {
                    prop_assert!(!seen.iter().any(less), "{:?} of {:?}", decision, seen);
                }
            }
            Err(NoPlacement::Wait(_)) => {
                let full = seen.iter().any(|one| matches!(one.standing, Standing::Full(_)));
                prop_assert!(!any(Standing::Open) && full, "{:?}", seen);
            }
            Err(NoPlacement::Exhausted | NoPlacement::Refused(_)) => prop_assert!(!any(Standing::Open), "{:?}", seen),
        }
    }

    #[test]
    fn a_chosen_placement_is_always_allowed(
        workers in some_workers(),
        ask in some_ask(),
        pin in prop::option::of(some_placement()),
        rules in some_rules(),
        seed in any::<u64>(),
    ) {
        use rand::SeedableRng as _;
        let now = start();
        let mut fleet = join_all(&workers, now);
        let pin = pin.as_ref().map_or(Pin::None, Pin::At);
        let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
        let Ok(decision) = decide(&ask, &mut fleet, pin, rules, now, &mut rng) else { return Ok(()) };
        let Placement { worker: id, rank } = &decision.placement;
        let (slot, worker) = fleet.eligible_worker(id, &ask.model, now).expect("it is eligible");
        prop_assert_eq!(slot, decision.slot);
        prop_assert!(ask.exclusion(id, *rank).is_none());
        prop_assert!(!worker.is_full(*rank, now));
        prop_assert!(ask.worker_hint.as_deref().is_none_or(|hint| hint == id.as_str()));
        prop_assert!(ask.pool.as_deref().is_none_or(|pool| pool == worker.spec.pool.as_str()));
        let ranks = worker.spec.ranks;
        match rank {
            Some(rank) => {
                prop_assert!(ranks.size() > 1, "a worker of one rank never gets one");
                prop_assert!(ranks.contains(*rank));
                prop_assert!(!worker.is_marked(Some(*rank), now));
            }
            None => prop_assert!(ranks.size() == 1 || rules.mode != AffinityMode::Hard || ask.session.is_none()),
        }
        if let Some(RankHint::Rank(hint)) = ask.rank_hint {
            prop_assert_eq!(*rank, (ranks.size() > 1).then_some(hint));
            prop_assert!(ranks.contains(hint));
        }
    }

    #[test]
    fn a_pin_is_stable_while_its_worker_is_eligible(
        others in some_workers(),
        first in 0u32..6,
        size in 2u32..5,
        place in any::<u64>(),
        session in 0u8..30,
        soft in any::<bool>(),
    ) {
        let now = start();
        let mut fleet = join_all(&others, now);
        fleet.handle_registration(spec("z", first, size), Duration::ZERO, now);
        let pin = at("z", Some(RankRange::new(first, size).expect("valid").at(place).0));
        let ask = of(named(&format!("s{session}")));
        let rules = if soft { SOFT } else { HARD };
        let wanted = Ok((pin.clone(), Reason::Pinned, None, PinStep::Keep));
        prop_assert_eq!(run(&ask, &mut fleet, Pin::At(&pin), rules, now), wanted.clone());
        for other in &others {
            fleet.handle_deregistration(&worker_id(other.id));
            prop_assert_eq!(run(&ask, &mut fleet, Pin::At(&pin), rules, now), wanted.clone());
        }
    }

    #[test]
    fn one_workers_death_moves_only_its_own_sessions(sizes in vec(1u32..5, 2..5), dies in any::<prop::sample::Index>()) {
        let now = start();
        let specs = sizes.iter().zip(IDS).scan(0, |first, (size, id)| {
            *first += size;
            Some(spec(id, *first - size, *size))
        });
        let mut fleet = fleet(specs, now);
        let asks: Vec<_> = (0..40).map(|n| of(named(&format!("s{n}")))).collect();
        let pins: Vec<_> = asks.iter().map(|ask| run(ask, &mut fleet, Pin::None, HARD, now).expect("placed").0).collect();
        let dead = IDS[dies.index(sizes.len())];
        fleet.handle_deregistration(&worker_id(dead));
        for (ask, pin) in asks.iter().zip(&pins) {
            let (placement, reason, ..) = run(ask, &mut fleet, Pin::At(pin), HARD, now).expect("placed");
            if pin.worker.as_str() == dead {
                prop_assert_ne!(placement.worker.as_str(), dead);
                prop_assert_eq!(reason, Reason::Repinned);
            } else {
                prop_assert_eq!((&placement, reason), (pin, Reason::Pinned));
            }
        }
    }

    #[test]
    fn round_robin_stays_fair_while_workers_come_and_go(changes in vec(prop::option::weighted(0.3, 0usize..3), 1..200)) {
        let now = start();
        let mut fleet = fleet([spec("a", 0, 2), spec("b", 2, 2)], now);
        let mut picks = BTreeMap::<String, i64>::new();
        for change in changes {
            if let Some(n) = change {
                let id = IDS[2 + n];
                if !fleet.handle_deregistration(&worker_id(id)) {
                    fleet.handle_registration(spec(id, 0, 2), Duration::ZERO, now);
                }
            }
            let placed = run(&ask(), &mut fleet, Pin::None, HARD, now).expect("placed").0;
            *picks.entry(placed.worker.to_string()).or_default() += 1;
            let count = |id: &str| picks.get(id).copied().unwrap_or(0);
            prop_assert!((count("a") - count("b")).abs() <= 1, "{:?}", picks);
        }
    }

    #[test]
    fn derived_sessions_take_a_workers_ranks_in_turn(size in 2u32..9, rounds in 1usize..4) {
        let now = start();
        let mut fleet = fleet([spec("w", 3, size)], now);
        let mut picks = BTreeMap::<u16, usize>::new();
        for n in 0..u64::from(size) * rounds as u64 {
            let placed = run(&of(derived(n)), &mut fleet, Pin::None, HARD, now).expect("placed").0;
            *picks.entry(placed.rank.expect("a derived session has a rank").0).or_default() += 1;
        }
        prop_assert_eq!(picks.len(), size as usize);
        prop_assert!(picks.values().all(|count| *count == rounds), "{:?}", picks);
    }
}
