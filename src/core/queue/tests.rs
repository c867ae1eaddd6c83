use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::core::testing::{model, start};

const GO_ON: Tried = Tried::Granted { more_room: true };

fn place(priority: i32, session: &str) -> Place {
    Place { model: model("m"), priority: Priority::Request(priority), flow: PinKey::of("", "m", session) }
}

/// Everybody who waits, in the order in which they go.
fn drain<T: Clone>(queues: &mut Queues<T>) -> Vec<T> {
    let mut order = Vec::new();
    while !queues.is_empty() {
        queues.pump(
            |_| true,
            false,
            start(),
            |_| true,
            |request| {
                order.push(request.clone());
                GO_ON
            },
        );
    }
    order
}

#[test]
fn by_priority_then_age() {
    let mut queues = Queues::new(10);
    for (priority, age, request) in [
        (0, 1, "old"),
        (5, 2, "high"),
        (0, 3, "young"),
        (-1, 4, "low"),
        (5, 5, "high, young"),
        (i32::MAX, 6, "top"),
        (5, 7, "gone"),
    ] {
        assert_eq!(queues.push(place(priority, request), age, request, start()), Pushed::Waits);
    }
    assert_eq!(queues.remove(9, start()), None);
    assert_eq!(queues.remove(7, start()), Some("gone"));
    assert_eq!(drain(&mut queues), ["top", "high", "high, young", "old", "young", "low"]);
    assert_eq!((queues.len(), queues.models_waiting()), (0, 0));
}

#[test]
fn jobs_wait_behind_every_request_and_give_way_to_them() {
    let mut queues = Queues::new(4);
    let at = |priority| Place { priority, ..place(0, "s") };
    for (priority, age, request) in [
        (Priority::Job(i32::MAX), 1, "urgent job"),
        (Priority::Job(0), 2, "job"),
        (Priority::Request(i32::MIN), 3, "patient request"),
        (Priority::Request(0), 4, "request"),
    ] {
        assert_eq!(queues.push(at(priority), age, request, start()), Pushed::Waits);
    }
    assert_eq!(queues.push(at(Priority::Job(-1)), 5, "idle job", start()), Pushed::Full);
    assert_eq!(queues.push(at(Priority::Request(-1)), 6, "late request", start()), Pushed::Displaced("job"));
    assert_eq!(drain(&mut queues), ["request", "late request", "patient request", "urgent job"]);
}

#[test]
fn inside_a_priority_sessions_take_turns() {
    let mut queues = Queues::new(100);
    let mut age = 0;
    let mut push = |priority, session: &'static str| {
        age += 1;
        queues.push(place(priority, session), age, (session, age), start());
    };
    (0..4).for_each(|_| push(0, "flood"));
    (0..2).for_each(|_| push(0, "b"));
    push(0, "c");
    push(-1, "low");
    push(0, "flood");
    let order = drain(&mut queues);
    let sessions: Vec<_> = order.iter().map(|(session, _)| *session).collect();
    assert_eq!(sessions, ["flood", "b", "c", "flood", "b", "flood", "flood", "flood", "low"]);
    let of_flood: Vec<_> = order.iter().filter(|(session, _)| *session == "flood").map(|(_, age)| *age).collect();
    assert_eq!(of_flood, [1, 2, 3, 4, 9], "by age inside a session");
}

#[test]
fn who_finds_no_room_stays_and_others_pass_by() {
    let mut queues = Queues::new(10);
    for (age, request) in [(1, "a"), (2, "b"), (3, "a"), (4, "b")] {
        queues.push(place(0, request), age, request, start());
    }
    queues.pump(
        |_| true,
        false,
        start(),
        |_| true,
        |request| if *request == "b" { Tried::Granted { more_room: false } } else { Tried::NotNow },
    );
    assert_eq!(drain(&mut queues), ["a", "b", "a"]);
}

#[test]
fn who_can_have_no_place_any_more_leaves() {
    let mut queues = Queues::new(10);
    for age in 1..=3 {
        queues.push(place(0, "s"), age, age, start());
    }
    queues.pump(|_| true, false, start(), |_| true, |age| if *age == 2 { Tried::Leaves } else { Tried::NotNow });
    assert_eq!(drain(&mut queues), [1, 3]);
}

#[test]
fn one_release_tries_a_bounded_number_and_passes_over_those_that_cannot_go() {
    let mut queues = Queues::new(1000);
    let count = u64::try_from(MAX_TRIED).expect("small") * 2;
    for age in 0..count {
        queues.push(place(0, &age.to_string()), age, if age < count / 2 { "elsewhere" } else { "here" }, start());
    }
    let mut tried = 0;
    let mut not_now = |_: &&str| {
        tried += 1;
        Tried::NotNow
    };
    queues.pump(|_| true, false, start(), |request| *request == "here", &mut not_now);
    assert_eq!((tried, queues.len()), (MAX_TRIED, 2 * MAX_TRIED));
    let mut tried = 0;
    for age in 0..count {
        queues.push(place(5, "one session"), count + age, "here", start());
    }
    queues.pump(
        |_| true,
        false,
        start(),
        |_| true,
        |_| {
            tried += 1;
            if tried <= MAX_TRIED_OF_FLOW { Tried::NotNow } else { Tried::Granted { more_room: false } }
        },
    );
    assert_eq!(tried, MAX_TRIED_OF_FLOW + 1, "one session's blocked requests don't use up all tries");
    assert_eq!(queues.len(), 4 * MAX_TRIED - 1);
}

#[test]
fn a_look_at_everybody_goes_on_where_the_last_one_stopped() {
    let mut queues = Queues::new(1000);
    let count = u64::try_from(MAX_TRIED).expect("small") * 2 + 1;
    for age in 0..count {
        queues.push(place(0, &age.to_string()), age, age, start());
    }
    // Only the last one could go.
    let mut look = || {
        queues.pump(|_| true, true, start(), |_| true, |age| if *age == count - 1 { GO_ON } else { Tried::NotNow });
        queues.len()
    };
    let all = 2 * MAX_TRIED + 1;
    assert_eq!([look(), look(), look()], [all, all, all - 1]);
}

#[test]
fn each_model_has_a_queue_of_its_own_and_a_worker_of_several_is_shared_in_turns() {
    let mut queues = Queues::new(3);
    let at = |name: &str, session: &str| Place {
        model: model(name),
        priority: Priority::Request(0),
        flow: PinKey::of("", name, session),
    };
    for age in 1..=3 {
        queues.push(at("a", "flood"), age, "a", start());
    }
    assert_eq!(queues.push(at("a", "flood"), 4, "a", start()), Pushed::Full);
    assert_eq!(queues.push(at("b", "s"), 5, "b", start()), Pushed::Waits);
    assert_eq!((queues.len(), queues.models_waiting()), (4, 2));
    let one = |queues: &mut Queues<&'static str>, served: &[&str]| {
        let mut got = None;
        queues.pump(
            |model| served.contains(&model.as_str()),
            false,
            start(),
            |_| true,
            |request| {
                got = Some(*request);
                Tried::Granted { more_room: false }
            },
        );
        got
    };
    assert_eq!([one(&mut queues, &["a", "b"]), one(&mut queues, &["a", "b"])], [Some("a"), Some("b")]);
    assert_eq!([one(&mut queues, &["b"]), one(&mut queues, &["a"])], [None, Some("a")]);
    queues.forget(|model| model.as_str() == "b");
    assert_eq!((queues.len(), queues.models.len()), (1, 2), "whoever waits is not forgotten");
    assert_eq!(one(&mut queues, &["a"]), Some("a"));
    queues.forget(|_| false);
    assert!(queues.models.is_empty());
}

#[test]
fn a_full_queue_takes_who_counts_more() {
    let mut queues = Queues::new(4);
    let mut age = 0;
    let mut push = |queues: &mut Queues<u64>, priority, session: &str| {
        age += 1;
        queues.push(place(priority, session), age, age, start())
    };
    for session in ["flood", "flood", "flood", "a"] {
        assert_eq!(push(&mut queues, 0, session), Pushed::Waits);
    }
    assert_eq!(push(&mut queues, 0, "flood"), Pushed::Full, "a session doesn't displace itself");
    assert_eq!(push(&mut queues, 0, "b"), Pushed::Displaced(3), "the youngest of the session with the most");
    assert_eq!(push(&mut queues, 0, "c"), Pushed::Displaced(2));
    assert_eq!(push(&mut queues, 0, "d"), Pushed::Full, "everybody has one");
    assert_eq!(push(&mut queues, -1, "low"), Pushed::Full);
    assert_eq!(push(&mut queues, 1, "high"), Pushed::Displaced(7), "of equals the one whose turn is last");
    assert_eq!(queues.len(), 4);
    assert_eq!(drain(&mut queues), [10, 1, 4, 6]);
}

#[test]
fn a_frontend_is_told_the_pace_of_its_own_place() {
    let now = start();
    let mut queues = Queues::new(1000);
    for age in 0..500 {
        queues.push(place(0, "flood"), age, age, now);
    }
    // Ten leave a second.
    let mut then = now;
    for _ in 0..100 {
        then += std::time::Duration::from_millis(100);
        let mut room = true;
        queues.pump(
            |_| true,
            false,
            then,
            |_| true,
            |_| {
                if std::mem::take(&mut room) { Tried::Granted { more_room: false } } else { Tried::NotNow }
            },
        );
    }
    assert!((38..=42).contains(&queues.retry_after_s(&place(0, "flood"), then)), "behind 400 of its own");
    assert_eq!(queues.retry_after_s(&place(0, "other"), then), 1, "one round ahead of it");
    assert!(queues.retry_after_s(&place(-1, "other"), then) >= 38);
    let unknown = Place { model: model("x"), ..place(0, "s") };
    assert_eq!(queues.retry_after_s(&unknown, then), 1);
}

proptest! {
    /// Whatever comes and goes: the bound holds, nobody is lost or served twice, and while two sessions of one priority
    /// wait, neither gets two places more than the other.
    #[test]
    fn bounded_complete_and_fair(steps in prop::collection::vec((0..4u8, 0..3i32, 0..5u8), 1..200)) {
        let mut queues = Queues::new(16);
        let mut waiting: BTreeMap<u64, (i32, u8)> = BTreeMap::new();
        // Places got by a session since it last had nobody waiting, by priority.
        let mut got: BTreeMap<(i32, u8), u64> = BTreeMap::new();
        for (age, (step, priority, session)) in steps.into_iter().enumerate() {
            let age = age as u64;
            match step {
                0 | 1 => match queues.push(place(priority, &session.to_string()), age, age, start()) {
                    Pushed::Waits => {
                        waiting.insert(age, (priority, session));
                    }
                    Pushed::Displaced(other) => {
                        prop_assert!(waiting.remove(&other).is_some_and(|(lower, _)| lower <= priority));
                        waiting.insert(age, (priority, session));
                    }
                    Pushed::Full => prop_assert_eq!(waiting.len(), 16),
                },
                2 => {
                    let oldest = waiting.keys().next().copied();
                    if let Some(oldest) = oldest {
                        prop_assert_eq!(queues.remove(oldest, start()), Some(oldest));
                        waiting.remove(&oldest);
                    }
                }
                _ => {
                    let mut served = None;
                    let mut one = |age: &u64| {
                        served = Some(*age);
                        Tried::Granted { more_room: false }
                    };
                    queues.pump(|_| true, false, start(), |_| true, &mut one);
                    let highest = waiting.values().map(|(priority, _)| *priority).max();
                    let served = served.map(|age| waiting.remove(&age).expect("it waits"));
                    prop_assert_eq!(served.map(|(priority, _)| priority), highest);
                    if let Some(served) = served {
                        let others: Vec<_> = waiting.values().filter(|other| other.0 == served.0 && **other != served).collect();
                        let own = got.entry(served).or_default();
                        *own += 1;
                        let own = *own;
                        for other in others {
                            let of_other = got.get(other).copied().unwrap_or(0);
                            prop_assert!(own <= of_other + 1, "{served:?} got {own}, {other:?} {of_other}");
                        }
                    }
                }
            }
            // Turns count while a session waits: who comes anew begins where the others are.
            let present: std::collections::BTreeSet<_> = waiting.values().copied().collect();
            got.retain(|flow, _| present.contains(flow));
            for flow in &present {
                let others = got.iter().filter(|(other, _)| other.0 == flow.0).map(|(_, count)| *count).max();
                got.entry(*flow).or_insert_with(|| others.unwrap_or(0));
            }
            prop_assert_eq!(queues.len(), waiting.len());
        }
    }
}
