//! The policy `kv`, and soft affinity that balances: `docs/policies.md`.

use super::*;
use crate::core::kv::{Mark, Prompt};
use crate::core::weighing::Weighing;

const KV: Rules = Rules { mode: AffinityMode::Hard, policy: PolicyKind::Kv, rank_choice: RankChoice::Hash };
const SOFT_KV: Rules = Rules { mode: AffinityMode::Soft, ..KV };

/// A prompt with a mark every 100 tokens.
fn prompt(keys: &[u64]) -> Prompt {
    let mark = |(place, key): (usize, &u64)| Mark { key: *key, upto: 100 * (u32::try_from(place).expect("few") + 1) };
    Prompt::new(keys.iter().enumerate().map(mark).collect(), 0)
}

fn saying(keys: &[u64], ask: Ask) -> Ask {
    Ask { prompt: prompt(keys), ..ask }
}

fn sent(fleet: &mut Fleet, placement: &Placement, keys: &[u64], now: Instant) {
    let at = slot(fleet, placement.worker.as_str());
    fleet.note_dispatch(at, placement.rank, &prompt(keys), now);
}

/// Places and sends.
fn send(fleet: &mut Fleet, ask: &Ask, rules: Rules, now: Instant) -> Placement {
    let decision = decide(ask, fleet, Pin::None, rules, now, &mut rng()).expect("there is room");
    fleet.note_dispatch(decision.slot, decision.placement.rank, &ask.prompt, now);
    decision.placement
}

#[test]
fn a_request_goes_where_its_prompt_is_whatever_its_session() {
    let now = start();
    for rules in [KV, SOFT_KV, Rules { mode: AffinityMode::Off, ..KV }] {
        let mut fleet = three(now);
        sent(&mut fleet, &at("b", Some(6)), &[1, 2, 3], now);
        sent(&mut fleet, &at("a", Some(1)), &[1, 2], now);
        for asks in [ask(), of(named("s")), of(derived(5))] {
            let asks = saying(&[1, 2, 3, 4], asks);
            assert_eq!(run(&asks, &mut fleet, Pin::None, rules, now).expect("placed").0, at("b", Some(6)), "{rules:?}");
            let lost = excluding("b", Some(6), Failure::NoResponders, asks);
            assert_eq!(run(&lost, &mut fleet, Pin::None, rules, now).expect("placed").0, at("a", Some(1)));
            assert_eq!(
                run(&pool("p", lost), &mut fleet, Pin::None, rules, now).expect("placed").0.worker.as_str(),
                "a"
            );
        }
    }
}

#[test]
fn a_worker_of_one_rank_is_sent_none_and_hints_count() {
    let now = start();
    let mut fleet = three(now);
    sent(&mut fleet, &at("c", None), &[1, 2, 3], now);
    assert_eq!(run(&saying(&[1, 2, 3], ask()), &mut fleet, Pin::None, KV, now).expect("placed").0, at("c", None));
    let hinted = rank(5, saying(&[1, 2, 3], ask()));
    assert_eq!(run(&hinted, &mut fleet, Pin::None, KV, now).expect("placed").0, at("b", Some(5)));
    let hinted = on("a", saying(&[1, 2, 3], of(named("s"))));
    let (placement, reason, _, step) = run(&hinted, &mut fleet, Pin::None, KV, now).expect("placed");
    assert_eq!((placement.worker.as_str(), reason, step), ("a", Reason::Hinted, PinStep::Claim));
}

#[test]
fn equal_costs_are_shared_by_chance() {
    let now = start();
    let mut fleet = three(now);
    let mut rng = rng();
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..900 {
        let decision = decide(&ask(), &mut fleet, Pin::None, KV, now, &mut rng).expect("placed");
        *seen.entry(decision.placement.to_string()).or_default() += 1;
    }
    assert!(seen.len() == 9 && seen.values().all(|count| (60..=140).contains(count)), "{seen:?}");
}

#[test]
fn what_waits_to_be_prefilled_counts_and_so_does_a_temperature() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 1), spec("b", 0, 1)], now);
    sent(&mut fleet, &at("a", None), &[1, 2, 3], now);
    let asks = saying(&[1, 5], ask());
    assert_eq!(run(&asks, &mut fleet, Pin::None, KV, now).expect("placed").0, at("a", None), "a short wait");
    sent(&mut fleet, &at("a", None), &[11, 12, 13, 14, 15], now);
    // 800 tokens are being prefilled at a, which count a quarter, and 100 would be saved.
    assert_eq!(run(&asks, &mut fleet, Pin::None, KV, now).expect("placed").0, at("b", None));
    let mut hot = |temperature| {
        fleet.set_weighing(Weighing { temperature, load: 0.0, ..Weighing::DEFAULT });
        let asks = saying(&[1, 2, 3], ask());
        let mut rng = rng();
        let mut there = 0;
        for _ in 0..1000 {
            let decision = decide(&asks, &mut fleet, Pin::None, KV, now, &mut rng).expect("placed");
            there += u32::from(decision.placement.worker.as_str() == "a");
        }
        there
    };
    assert_eq!(hot(0.0), 1000);
    // By exp(-cost / prompt): 1 to 1/e.
    assert!((690..=770).contains(&hot(1.0)), "{}", hot(1.0));
}

#[test]
fn one_opening_of_many_is_spread_over_all() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 4), spec("b", 4, 4)], now);
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for n in 0..800 {
        let asks = saying(&[1, 2, 3, 4, 100 + n], ask());
        *seen.entry(send(&mut fleet, &asks, KV, now).to_string()).or_default() += 1;
        for id in ["a", "b"] {
            // It is prefilled at once, so that only what was given before counts.
            let at = slot(&fleet, id);
            for place in 0..4 {
                let rank = fleet.get(at).expect("there").spec.ranks.at(place);
                fleet.begin(at, Some(rank));
                fleet.end(at, Some(rank), false);
            }
        }
    }
    assert!(seen.len() == 8 && seen.values().all(|count| *count <= 125), "{seen:?}");
}

#[test]
fn full_ranks_are_passed_over_and_waited_for() {
    let now = start();
    let limited = |id| crate::core::worker::WorkerSpec { max_inflight: Some(1), ..spec(id, 0, 2) };
    let mut fleet = fleet([limited("a")], now);
    sent(&mut fleet, &at("a", Some(1)), &[1, 2, 3], now);
    let asks = saying(&[1, 2, 3], ask());
    let at_a = slot(&fleet, "a");
    fleet.begin(at_a, Some(DpRank(1)));
    assert_eq!(run(&asks, &mut fleet, Pin::None, KV, now).expect("placed").0, at("a", Some(0)));
    fleet.begin(at_a, Some(DpRank(0)));
    assert_eq!(run(&asks, &mut fleet, Pin::None, KV, now), Err(NoPlacement::Wait(WaitFor::Any)));
    let tried = excluding("a", Some(0), Failure::Overloaded, excluding("a", Some(1), Failure::Overloaded, asks));
    assert_eq!(run(&tried, &mut fleet, Pin::None, KV, now), Err(NoPlacement::Exhausted));
}

#[test]
fn hard_pins_stay_where_soft_ones_move_for_free() {
    let now = start();
    let mut fleet = three(now);
    sent(&mut fleet, &at("b", Some(6)), &[1, 2, 3], now);
    let asks = saying(&[1, 2, 3, 4], of(named("s")));
    let elsewhere = at("a", Some(0));
    let pinned = |step| (elsewhere.clone(), Reason::Pinned, None, step);
    assert_eq!(run(&asks, &mut fleet, Pin::At(&elsewhere), KV, now), Ok(pinned(PinStep::Keep)));
    let moved = (at("b", Some(6)), Reason::Repinned, Some(Cause::Cold), PinStep::AfterAccept);
    assert_eq!(run(&asks, &mut fleet, Pin::At(&elsewhere), SOFT_KV, now), Ok(moved));
    // Half of it is enough to stay.
    sent(&mut fleet, &elsewhere, &[1, 2], now);
    assert_eq!(run(&asks, &mut fleet, Pin::At(&elsewhere), SOFT_KV, now), Ok(pinned(PinStep::Keep)));
    // Hints hold it, and what is cold everywhere stays.
    let cold = saying(&[11, 12], of(named("s")));
    let hinted = on("a", cold.clone());
    let (placement, reason, ..) = run(&hinted, &mut fleet, Pin::At(&elsewhere), SOFT_KV, now).expect("placed");
    assert_eq!((placement, reason), (elsewhere.clone(), Reason::Hinted));
}

#[test]
fn soft_sessions_leave_a_rank_with_more_than_its_share_once() {
    let now = start();
    for policy in [PolicyKind::LeastLoaded, PolicyKind::RoundRobin, PolicyKind::Kv] {
        let rules = Rules { policy, ..SOFT };
        let mut fleet = fleet([spec("a", 0, 1), spec("b", 0, 1), spec("c", 0, 1)], now);
        fleet.set_weighing(Weighing { limit: Some(1.1), ..Weighing::DEFAULT });
        let asks = Ask { prompt: Prompt::new(Vec::new(), 1000), ..of(named("s")) };
        let mut pin = at("a", None);
        let mut moves = Vec::new();
        for turn in 0..60 {
            let decision = decide(&asks, &mut fleet, Pin::At(&pin), rules, now, &mut rng()).expect("placed");
            if decision.placement != pin {
                assert_eq!((decision.reason, decision.cause), (Reason::Repinned, Some(Cause::Balance)));
                moves.push(turn);
            }
            pin = decision.placement.clone();
            fleet.note_dispatch(decision.slot, decision.placement.rank, &asks.prompt, now);
        }
        // Over is who has more than 1.1 means and 12.8 prompts: one has k, the mean is k/3.
        assert_eq!(moves.first(), Some(&21), "{policy:?}: {moves:?}");
        assert!(moves.len() <= 3, "{policy:?}: {moves:?}");
        let stays = Rules { mode: AffinityMode::Hard, ..rules };
        let kept = decide(&asks, &mut fleet, Pin::At(&at("a", None)), stays, now, &mut rng()).expect("placed");
        assert_eq!(kept.reason, Reason::Pinned, "hard affinity never moves for it");
        fleet.set_weighing(Weighing { limit: None, ..Weighing::DEFAULT });
        let kept = decide(&asks, &mut fleet, Pin::At(&at("a", None)), rules, now, &mut rng()).expect("placed");
        assert_eq!(kept.reason, Reason::Pinned, "without a limit nothing moves for it");
    }
}

#[test]
fn new_sessions_begin_where_least_was_given() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 1), spec("b", 0, 1), spec("c", 0, 1)], now);
    let rules = Rules { policy: PolicyKind::LeastLoaded, ..HARD };
    let mut places = Vec::new();
    for (n, tokens) in [9000, 100, 200, 100, 100, 100].into_iter().enumerate() {
        let asks = Ask { prompt: Prompt::new(Vec::new(), tokens), ..of(named(&format!("s{n}"))) };
        places.push(send(&mut fleet, &asks, rules, now).worker.to_string());
    }
    let long = places[0].clone();
    assert_eq!(places.iter().filter(|place| **place == long).count(), 1, "{places:?}");
}
