//! The rows of protocol section 5, as decisions.

use std::time::{Duration, Instant};

use super::*;
use crate::core::hash::hashed_rank;
use crate::core::id::{Pool, RankRange};
use crate::core::session::Session;
use crate::core::testing::{ask, at, derived, fleet, named, rng, slot, spec, start, worker_id};
use crate::core::worker::WorkerState;

const HARD: Rules = Rules { mode: AffinityMode::Hard, policy: PolicyKind::RoundRobin, rank_choice: RankChoice::Hash };
const SOFT: Rules = Rules { mode: AffinityMode::Soft, policy: PolicyKind::RoundRobin, rank_choice: RankChoice::Hash };
const OFF: Rules = Rules { mode: AffinityMode::Off, policy: PolicyKind::RoundRobin, rank_choice: RankChoice::Hash };

/// Everything of a decision but the slot.
type Told = (Placement, Reason, Option<Cause>, PinStep);

fn told(decided: Result<Decision, NoPlacement>) -> Result<Told, NoPlacement> {
    decided.map(|decision| (decision.placement, decision.reason, decision.cause, decision.pin))
}

fn run(ask: &Ask, fleet: &mut Fleet, pin: Pin<'_>, rules: Rules, now: Instant) -> Result<Told, NoPlacement> {
    told(decide(ask, fleet, pin, rules, now, &mut rng()))
}

/// `a` with ranks 0 to 3 in pool `p`, `b` with ranks 4 to 7 in pool `q`, `c` with the one rank 8.
fn three(now: Instant) -> Fleet {
    let pooled = |id, first, size, pool| {
        let mut spec = spec(id, first, size);
        spec.pool = Pool::new(pool).expect("a valid name");
        spec
    };
    fleet([pooled("a", 0, 4, "p"), pooled("b", 4, 4, "q"), pooled("c", 8, 1, "default")], now)
}

fn of(session: Session) -> Ask {
    Ask { session: Some(session), ..ask() }
}

fn on(worker: &str, ask: Ask) -> Ask {
    Ask { worker_hint: Some(worker.into()), ..ask }
}

fn rank(rank: u16, ask: Ask) -> Ask {
    Ask { rank_hint: Some(RankHint::Rank(DpRank(rank))), ..ask }
}

fn pool(name: &str, ask: Ask) -> Ask {
    Ask { pool: Some(name.into()), ..ask }
}

fn excluding(worker: &str, rank: Option<u16>, failure: Failure, mut ask: Ask) -> Ask {
    ask.excluded.push(Excluded { placement: at(worker, rank), whole_worker: false, failure });
    ask
}

fn hashed(session: &str, first: u32, size: u32) -> u16 {
    hashed_rank(&named(session).id, RankRange::new(first, size).expect("a valid range")).0
}

#[test]
fn without_a_pin() {
    use {Cause as C, PinStep as P, Reason as R};
    let (now, s) = (start(), || of(named("s")));
    let (on_a, on_b) = (hashed("s", 0, 4), hashed("s", 4, 4));
    let rows: Vec<(&str, Rules, Ask, Told)> = vec![
        ("no session", HARD, ask(), (at("a", None), R::Unpinned, None, P::None)),
        ("named, hard", HARD, s(), (at("a", Some(on_a)), R::Placed, None, P::Claim)),
        ("named, soft", SOFT, s(), (at("a", None), R::Placed, None, P::Claim)),
        ("named, off", OFF, s(), (at("a", None), R::Placed, None, P::None)),
        ("derived, hard", HARD, of(derived(1)), (at("a", Some(0)), R::Placed, Some(C::Derived), P::AfterAccept)),
        ("derived, soft", SOFT, of(derived(1)), (at("a", None), R::Placed, Some(C::Derived), P::AfterAccept)),
        ("one rank", HARD, on("c", s()), (at("c", None), R::Hinted, None, P::Claim)),
        ("worker hint", HARD, on("b", s()), (at("b", Some(on_b)), R::Hinted, None, P::Claim)),
        (
            "worker hint, derived",
            HARD,
            on("b", of(derived(1))),
            (at("b", Some(4)), R::Hinted, Some(C::Derived), P::AfterAccept),
        ),
        ("worker hint, no session", HARD, on("b", ask()), (at("b", None), R::Hinted, None, P::None)),
        ("worker and rank", HARD, rank(6, on("b", s())), (at("b", Some(6)), R::Hinted, None, P::Claim)),
        ("rank alone", HARD, rank(6, s()), (at("b", Some(6)), R::Hinted, None, P::Claim)),
        ("rank alone, soft", SOFT, rank(6, s()), (at("b", Some(6)), R::Hinted, None, P::Claim)),
        ("rank alone, off", OFF, rank(6, ask()), (at("b", Some(6)), R::Hinted, None, P::None)),
        ("the one rank", HARD, rank(8, s()), (at("c", None), R::Hinted, None, P::Claim)),
        ("pool", HARD, pool("q", s()), (at("b", Some(on_b)), R::Placed, None, P::Claim)),
        (
            "after a silent worker",
            HARD,
            excluding("a", Some(on_a), Failure::AcceptTimeout, s()),
            (at("b", Some(on_b)), R::Placed, Some(C::WorkerLost), P::Claim),
        ),
        (
            "after a full worker",
            HARD,
            excluding("a", None, Failure::Overloaded, ask()),
            (at("b", None), R::Unpinned, Some(C::Overload), P::None),
        ),
    ];
    for (what, rules, ask, wanted) in rows {
        assert_eq!(run(&ask, &mut three(now), Pin::None, rules, now), Ok(wanted), "{what}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn with_a_pin() {
    use {Cause as C, PinStep as P, Reason as R};
    let (now, s) = (start(), || of(named("s")));
    let (on_a, on_b) = (hashed("s", 0, 4), hashed("s", 4, 4));
    let moved = |cause| (at("a", Some(on_a)), R::Repinned, Some(cause), P::Claim);
    let rows: Vec<(&str, Rules, Ask, Placement, Told)> = vec![
        ("hard", HARD, s(), at("b", Some(5)), (at("b", Some(5)), R::Pinned, None, P::Keep)),
        ("soft", SOFT, s(), at("b", Some(5)), (at("b", Some(5)), R::Pinned, None, P::Keep)),
        ("soft, no rank", SOFT, s(), at("b", None), (at("b", None), R::Pinned, None, P::Keep)),
        ("derived", HARD, of(derived(1)), at("b", Some(5)), (at("b", Some(5)), R::Pinned, Some(C::Derived), P::Keep)),
        ("completed", HARD, s(), at("b", None), (at("b", Some(on_b)), R::Pinned, Some(C::Completed), P::Complete)),
        (
            "completed as hinted",
            HARD,
            rank(7, s()),
            at("b", None),
            (at("b", Some(7)), R::Hinted, Some(C::Completed), P::Complete),
        ),
        (
            "given the hinted rank, soft",
            SOFT,
            rank(7, s()),
            at("b", None),
            (at("b", Some(7)), R::Hinted, Some(C::Completed), P::AfterAccept),
        ),
        ("one rank, no rank", HARD, s(), at("c", None), (at("c", None), R::Pinned, None, P::Keep)),
        ("one rank, its rank", HARD, s(), at("c", Some(8)), (at("c", None), R::Pinned, None, P::Keep)),
        ("one rank, another", HARD, s(), at("c", Some(9)), moved(C::WorkerLost)),
        ("rank not declared", HARD, s(), at("b", Some(9)), moved(C::WorkerLost)),
        ("worker gone", HARD, s(), at("gone", Some(1)), moved(C::WorkerLost)),
        (
            "worker gone, soft",
            SOFT,
            s(),
            at("gone", Some(1)),
            (at("a", None), R::Repinned, Some(C::WorkerLost), P::AfterAccept),
        ),
        (
            "worker gone, derived",
            HARD,
            of(derived(1)),
            at("gone", Some(1)),
            (at("a", Some(0)), R::Repinned, Some(C::WorkerLost), P::AfterAccept),
        ),
        ("the same worker hinted", HARD, on("b", s()), at("b", Some(5)), (at("b", Some(5)), R::Hinted, None, P::Keep)),
        ("the same rank hinted", HARD, rank(5, s()), at("b", Some(5)), (at("b", Some(5)), R::Hinted, None, P::Keep)),
        ("the one rank hinted", HARD, rank(8, s()), at("c", None), (at("c", None), R::Hinted, None, P::Keep)),
        ("the same pool", HARD, pool("q", s()), at("b", Some(5)), (at("b", Some(5)), R::Pinned, None, P::Keep)),
        (
            "another worker hinted, soft",
            SOFT,
            on("a", s()),
            at("b", Some(5)),
            (at("a", None), R::Hinted, None, P::AfterAccept),
        ),
        (
            "another worker's rank hinted, soft",
            SOFT,
            rank(1, s()),
            at("b", None),
            (at("a", Some(1)), R::Hinted, None, P::AfterAccept),
        ),
        ("refused there", HARD, excluding("b", Some(5), Failure::Draining, s()), at("b", Some(5)), moved(C::Draining)),
    ];
    for (what, rules, ask, pin, wanted) in rows {
        assert_eq!(run(&ask, &mut three(now), Pin::At(&pin), rules, now), Ok(wanted), "{what}");
    }
}

#[test]
fn refusals_in_the_order_of_the_checks() {
    let now = start();
    let invalid = |ask: Ask| Ask { rank_hint: Some(RankHint::Invalid("x".into())), ..ask };
    let other = |ask: Ask| Ask { model: crate::core::testing::model("other"), ..ask };
    let pin = at("a", Some(0));
    let rows = [
        (other(pool("z", on("z", invalid(of(named("s")))))), "unknown_model"),
        (pool("z", on("z", invalid(of(named("s"))))), "unknown_pool"),
        (pool("q", on("z", invalid(of(named("s"))))), "unknown_worker"),
        (pool("q", on("a", invalid(of(named("s"))))), "unknown_worker"),
        (pool("q", on("b", invalid(of(named("s"))))), "rank_out_of_range"),
        (pool("q", on("b", rank(3, of(named("s"))))), "rank_out_of_range"),
        (rank(9, of(named("s"))), "rank_out_of_range"),
        (pool("q", on("b", rank(5, of(named("s"))))), "pin_conflict"),
        (on("b", of(named("s"))), "pin_conflict"),
        (rank(1, of(named("s"))), "pin_conflict"),
        (pool("q", of(named("s"))), "pin_conflict"),
    ];
    for (ask, code) in rows {
        match run(&ask, &mut three(now), Pin::At(&pin), HARD, now) {
            Err(NoPlacement::Refused(error)) => assert_eq!(error.code(), code, "{ask:?}"),
            other => panic!("{ask:?}: {other:?} instead of {code}"),
        }
    }
    // A pin without a rank conflicts with a rank that its worker does not declare.
    let conflict = run(&rank(1, of(named("s"))), &mut three(now), Pin::At(&at("b", None)), HARD, now);
    assert!(matches!(conflict, Err(NoPlacement::Refused(RouteError::PinConflict(_)))), "{conflict:?}");
}

#[test]
fn nobody_ready_is_told_before_what_is_wrong_with_the_hints() {
    let now = start();
    let mut draining = spec("a", 0, 4);
    draining.state = WorkerState::Draining;
    let mut fleet = fleet([draining], now);
    let ask = pool("z", on("z", rank(99, ask())));
    let refused = run(&ask, &mut fleet, Pin::None, HARD, now);
    assert!(matches!(refused, Err(NoPlacement::Refused(RouteError::NoWorker(_)))), "{refused:?}");
    let pin = at("a", Some(1));
    fleet.handle_registration(spec("b", 0, 4), Duration::ZERO, now);
    let moved = run(&of(named("s")), &mut fleet, Pin::At(&pin), HARD, now).expect("b is ready");
    assert_eq!((moved.0.worker.as_str(), moved.1, moved.2), ("b", Reason::Repinned, Some(Cause::Draining)));
    // It has drained and left: that was no loss.
    fleet.handle_deregistration(&worker_id("a"));
    let moved = run(&of(named("s")), &mut fleet, Pin::At(&pin), HARD, now).expect("b is ready");
    assert_eq!((moved.1, moved.2), (Reason::Repinned, Some(Cause::Draining)));
    // Another one of its name that dies is lost.
    fleet.handle_registration(spec("a", 0, 4), Duration::ZERO, now);
    fleet.handle_deregistration(&worker_id("a"));
    let moved = run(&of(named("s")), &mut fleet, Pin::At(&pin), HARD, now).expect("b is ready");
    assert_eq!((moved.1, moved.2), (Reason::Repinned, Some(Cause::WorkerLost)));
}

#[test]
fn lost_ranks_count_as_not_declared() {
    let now = start();
    let mut fleet = three(now);
    let b = slot(&fleet, "b");
    fleet.mark_lost(b, Some(DpRank(5)), now);
    let moved = run(&of(named("s")), &mut fleet, Pin::At(&at("b", Some(5))), HARD, now).expect("a is there");
    assert_eq!((moved.1, moved.2, moved.3), (Reason::Repinned, Some(Cause::WorkerLost), PinStep::Claim));
    let asked = run(&rank(5, ask()), &mut fleet, Pin::None, HARD, now);
    assert!(matches!(asked, Err(NoPlacement::Refused(RouteError::NoWorker(_)))), "{asked:?}");
    let later = now + crate::core::fleet::RANK_LOST_FOR;
    assert_eq!(run(&rank(5, ask()), &mut fleet, Pin::None, HARD, later).expect("it is back").0, at("b", Some(5)));
    // The hashed rank is lost everywhere: the least loaded one in its place.
    let mut alone = crate::core::testing::fleet([spec("w", 0, 4)], now);
    let (w, lost) = (slot(&alone, "w"), hashed("s", 0, 4));
    alone.mark_lost(w, Some(DpRank(lost)), now);
    let loaded = (0..4).filter(|rank| *rank != lost && *rank != (lost + 2) % 4);
    loaded.for_each(|rank| alone.begin(w, Some(DpRank(rank))));
    let placed = run(&of(named("s")), &mut alone, Pin::None, HARD, now).expect("others are there");
    assert_eq!(placed.0, at("w", Some((lost + 2) % 4)));
}

#[test]
fn a_full_placement_is_waited_for_or_left() {
    let now = start();
    let limited = |id, first| {
        let mut spec = spec(id, first, 2);
        spec.max_inflight = Some(1);
        spec
    };
    let mut fleet = fleet([limited("a", 0), limited("b", 2)], now);
    let (a, b) = (slot(&fleet, "a"), slot(&fleet, "b"));
    let pin = at("a", Some(0));
    fleet.begin(a, Some(DpRank(0)));
    let s = of(named("s"));
    let waits = Err(NoPlacement::Wait(WaitFor::Placement(pin.clone())));
    assert_eq!(run(&s, &mut fleet, Pin::At(&pin), HARD, now), waits);
    let soft = run(&s, &mut fleet, Pin::At(&pin), SOFT, now).expect("b has room");
    assert_eq!(soft.2, Some(Cause::Overload));
    let guess = run(&of(derived(1)), &mut fleet, Pin::At(&pin), HARD, now).expect("there is room");
    assert_ne!(guess.0, pin);
    assert_eq!((guess.1, guess.2), (Reason::Repinned, Some(Cause::Overload)));
    for (slot, rank) in [(a, 1), (b, 2), (b, 3)] {
        fleet.begin(slot, Some(DpRank(rank)));
    }
    for ask in [ask(), s, of(derived(1))] {
        assert_eq!(run(&ask, &mut fleet, Pin::None, HARD, now), Err(NoPlacement::Wait(WaitFor::Any)), "{ask:?}");
    }
    fleet.end(b, Some(DpRank(3)), false);
    assert_eq!(run(&ask(), &mut fleet, Pin::None, HARD, now).expect("b has room").0, at("b", None));
}

#[test]
fn a_rank_that_has_refused_is_full_for_a_moment() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 2), spec("b", 2, 2)], now);
    let (a, b) = (slot(&fleet, "a"), slot(&fleet, "b"));
    let (s, pin) = (of(named("s")), at("a", Some(0)));
    fleet.note_refused(a, Some(DpRank(0)), now);
    let waits = Err(NoPlacement::Wait(WaitFor::Placement(pin.clone())));
    assert_eq!(run(&s, &mut fleet, Pin::At(&pin), HARD, now), waits, "a hard pin waits for its own rank");
    let soft = run(&s, &mut fleet, Pin::At(&pin), SOFT, now).expect("others have room");
    assert_eq!((soft.1, soft.2), (Reason::Repinned, Some(Cause::Overload)));
    for n in 0..8 {
        let placed = run(&of(derived(n)), &mut fleet, Pin::None, HARD, now).expect("others have room");
        assert_ne!(placed.0, pin);
    }
    for rank in 1..4 {
        fleet.note_refused(if rank < 2 { a } else { b }, Some(DpRank(rank)), now);
    }
    assert_eq!(run(&of(derived(9)), &mut fleet, Pin::None, HARD, now), Err(NoPlacement::Wait(WaitFor::Any)));
    let later = now + Duration::from_secs(1);
    assert_eq!(run(&s, &mut fleet, Pin::At(&pin), HARD, later).expect("the moment is over").1, Reason::Pinned);
}

#[test]
fn a_worker_that_says_it_is_leaving_gets_new_sessions_only_where_nobody_else_has_room() {
    let now = start();
    let limited = |id| {
        let mut spec = spec(id, 0, 1);
        spec.max_inflight = Some(1);
        spec
    };
    let mut fleet = fleet([limited("a"), limited("b")], now);
    let (a, b) = (slot(&fleet, "a"), slot(&fleet, "b"));
    fleet.note_leaving(a, now);
    for n in 0..8 {
        let placed = run(&of(named(&format!("s{n}"))), &mut fleet, Pin::None, HARD, now).expect("b has room");
        assert_eq!(placed.0, at("b", None));
    }
    let pin = at("a", None);
    assert_eq!(run(&of(named("s")), &mut fleet, Pin::At(&pin), HARD, now).expect("it is asked").1, Reason::Pinned);
    fleet.begin(b, None);
    assert_eq!(run(&ask(), &mut fleet, Pin::None, HARD, now).expect("a has room").0, pin);
    let later = now + crate::core::fleet::LEAVING_FOR;
    fleet.end(b, None, true);
    let places: std::collections::BTreeSet<_> =
        (0..4).map(|_| run(&ask(), &mut fleet, Pin::None, HARD, later).expect("there is room").0.to_string()).collect();
    assert_eq!(places.len(), 2);
}

#[test]
fn every_placement_that_failed_is_not_tried_again() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 1), spec("b", 1, 1)], now);
    let both = excluding("b", None, Failure::NoResponders, excluding("a", None, Failure::NoResponders, ask()));
    assert_eq!(run(&both, &mut fleet, Pin::None, HARD, now), Err(NoPlacement::Exhausted));
}

#[test]
fn without_the_bucket_everybody_finds_the_same_worker() {
    let now = start();
    let ids = ["a", "b", "c", "d"];
    for n in 0..50 {
        let session = named(&format!("s{n}"));
        let wanted = ids.iter().max_by_key(|id| hash::rendezvous(&at(id, None).worker, &session.id)).expect("four");
        for order in [ids, ["d", "b", "a", "c"]] {
            let mut fleet = fleet(order.map(|id| spec(id, 0, 4)), now);
            // Whatever was picked before.
            run(&ask(), &mut fleet, Pin::None, HARD, now).expect("somebody is there");
            let placed = run(&of(session.clone()), &mut fleet, Pin::Unreachable, HARD, now).expect("somebody is there");
            assert_eq!(placed.0, at(wanted, Some(hashed(&format!("s{n}"), 0, 4))));
            assert_eq!((placed.2, placed.3), (Some(Cause::BucketUnreachable), PinStep::None));
        }
    }
}

mod kv;
mod properties;

#[test]
fn a_named_session_gets_the_least_loaded_rank_where_that_is_chosen() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 4)], now);
    let rules = Rules { rank_choice: RankChoice::LeastLoaded, ..HARD };
    let mut ranks = Vec::new();
    for n in 0..8 {
        let ask = of(named(&format!("s{n}")));
        let decision = decide(&ask, &mut fleet, Pin::None, rules, now, &mut rng()).expect("there is room");
        fleet.begin(decision.slot, decision.placement.rank);
        ranks.push(decision.placement.rank.expect("a rank").0);
    }
    assert_eq!(ranks, [0, 1, 2, 3, 0, 1, 2, 3]);
    let pin = at("a", None);
    let decision = decide(&of(named("s")), &mut fleet, Pin::At(&pin), rules, now, &mut rng()).expect("there is room");
    assert_eq!((decision.placement.rank, decision.pin), (Some(DpRank(0)), PinStep::Complete));
}
