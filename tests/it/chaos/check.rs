//! What must be true of the whole history, and of the system after it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use async_nats::jetstream;
use futures_util::StreamExt as _;
use rankpin::client::jobs::Jobs;
use rankpin::core::hash::PinKey;
use rankpin::core::job::MAX_FAILURES;
use serde_json::Value;

use super::faults::Whom;
use super::load::{End, History, Submitted, Told};
use super::system::{System, WORKER_PREFIX, WORKERS};
use crate::reliability::{LONG, frontend, served};
use crate::support::cluster::placement;
use crate::support::eventually;

/// Of so many jobs one at most may be dead.
const MOST_DEAD_OF: usize = 1000;

/// Each stream has one end. What ended well is whole, and says nothing twice; what ended silently had a router or a server
/// that could not speak.
pub fn streams(history: &History) {
    let streams = history.streams.lock().expect("no panic").clone();
    let mut texts = BTreeMap::<&str, &str>::new();
    for told in &streams {
        match &told.end {
            End::Whole => {
                // The simulated engine says the same to everybody who asks the same.
                let text = texts.entry(&told.session).or_insert(&told.text);
                assert!(!told.text.is_empty() && *text == told.text, "{told:?}, and another time {text:?}");
            }
            End::Refused(code) => {
                let known = ["worker_lost", "no_worker", "overloaded", "accept_timeout", "shutting_down", "cancelled"];
                assert!(known.contains(&code.as_str()), "{told:?}");
            }
            End::Own(_) => {}
            End::Silent => {
                let mute = |whom: Whom| matches!(whom, Whom::Router(_) | Whom::Server(_));
                assert!(history.was_lost(told.from, told.until, mute), "{told:?} is silent without a reason");
            }
        }
    }
    let whole = streams.iter().filter(|told| told.end == End::Whole).count();
    assert!(whole * 2 > streams.len(), "most streams are served: {whole} of {}", streams.len());
}

/// The worker of a placement.
fn worker(place: &str) -> usize {
    let name = place.split('/').next().expect("a worker");
    name.strip_prefix(WORKER_PREFIX).and_then(|n| n.parse().ok()).expect("a worker's number")
}

/// No session is on two ranks at once, or goes from one to another, without a loss that was written down: of the worker that it
/// was at, or of a router or server, to which a worker may look lost that is not.
pub fn sessions(history: &History) {
    let mut by_session = BTreeMap::<String, Vec<Told>>::new();
    for told in history.streams.lock().expect("no panic").iter().filter(|told| told.place.is_some()) {
        by_session.entry(told.session.clone()).or_default().push(told.clone());
    }
    let (mut kept, mut moved) = (0, 0);
    for turns in by_session.values_mut() {
        turns.sort_by_key(|told| told.from);
        for pair in turns.windows(2) {
            let [before, after] = pair else { continue };
            let place = |told: &Told| told.place.clone().expect("only those are here");
            if place(before) == place(after) {
                kept += 1;
                continue;
            }
            moved += 1;
            let left = worker(&place(before));
            // Of turns that were under way at once either may be the one that has moved: the one that began later may have
            // been sent before that, and is answered where the session was.
            let (other, at_once) = (worker(&place(after)), after.from < before.until);
            let reason = |whom: Whom| match whom {
                Whom::Worker(n) => n == left || (n == other && at_once),
                Whom::Router(_) | Whom::Server(_) => true,
            };
            let until: Instant = before.until.max(after.until);
            assert!(
                history.was_lost(before.from, until, reason),
                "{before:?} and then {after:?} without a loss; {:?}",
                history.faults.lock().expect("no panic")
            );
        }
    }
    println!("{kept} turns were where the turn before was, {moved} were not, each after a loss");
}

/// Each job that was taken has one final result, and no job is left anywhere.
pub async fn jobs(system: &System, submitted: &Submitted) {
    let Submitted { jobs, count } = submitted;
    let done = async || {
        let all = jobs.overview().await.ok()?;
        (all.done >= *count as u64 && all.pending + all.running == 0).then_some(())
    };
    eventually("every job has its result and is acknowledged", 2 * LONG, done).await;
    let dead = dead(jobs).await;
    let (mut from, mut seen, mut failed) = (1, 0, 0);
    while let Some(result) = jobs.next_result(from).await.expect("the server answers") {
        from = result.sequence + 1;
        seen += 1;
        if let Some(failure) = &result.failure {
            let said = || system.logged_of(result.id.as_str());
            assert!(dead.contains(result.id.as_str()), "job {}: {failure:?}\n{}", result.id, said());
            failed += 1;
            continue;
        }
        let replies = jobs.replies(&result).await.expect("the server answers");
        let counted = result.parts + u64::from(!result.payload.is_empty());
        assert_eq!(replies.len() as u64, counted, "job {} has the parts that its last message counts", result.id);
    }
    assert_eq!(seen, *count, "each job has one result");
    // Each delivery here has about one chance in six to meet a fault: five in a row are one in thousands.
    assert!(failed * MOST_DEAD_OF <= *count, "{failed} of {count} jobs have failed five times");
    for router in &system.routers {
        let none = async || (router.process.metric("jobs_held").await == 0.0).then_some(());
        eventually("no job is held", LONG, none).await;
    }
    println!("{count} jobs, one result each; {failed} of them an error, after five failures");
}

/// The jobs that were given up: each has failed five times, and is told why.
async fn dead(jobs: &Jobs) -> BTreeSet<String> {
    let (mut from, mut all) = (1, BTreeSet::new());
    while let Some(letter) = jobs.next_dead(from).await.expect("the server answers") {
        from = letter.sequence + 1;
        let code = letter.error.as_ref().map_or("", |(_, code)| code.as_str());
        assert_eq!(letter.failures, MAX_FAILURES, "{letter:?}");
        assert!(["worker_lost", "accept_timeout", "no_worker"].contains(&code), "{letter:?}");
        all.insert(letter.id.expect("they all have ids").to_string());
    }
    all
}

/// The pin of each session is where its turns go.
pub async fn pins(system: &System, history: &History) {
    let client = frontend(&system.nodes.urls()).await;
    let context = jetstream::new(system.nodes.client().await);
    for session in history.sessions() {
        let place = served(&client, &session).await;
        let key = PinKey::of("", "m", &session).to_string();
        eventually(&format!("{session} is pinned at {place}"), LONG, async || {
            let bucket = context.get_key_value("rankpin_pins").await.ok()?;
            let value = bucket.get(key.clone()).await.ok()??;
            let pin: Value = serde_json::from_slice(&value).expect("a pin is JSON");
            (placement(pin["worker"].as_str()?, pin["dp_rank"].as_u64()) == place).then_some(())
        })
        .await;
        for _ in 0..2 {
            assert_eq!(served(&client, &session).await, place, "{session} is the same to every router");
        }
    }
}

/// Nothing is counted any more, by routers or by workers.
pub async fn gauges(system: &System) {
    for router in &system.routers {
        for gauge in ["requests_in_flight", "requests_queued", "requests_waiting", "pins_owed"] {
            let none = async || (router.process.metric(gauge).await == 0.0).then_some(());
            eventually(&format!("{gauge} is 0"), LONG, none).await;
        }
        assert_eq!(router.process.metric("faults").await, 0.0);
    }
    let client = system.nodes.client().await;
    for n in 0..WORKERS {
        let mut loads = client.subscribe(format!("rankpin.load.{WORKER_PREFIX}{n}")).await.expect("subscribes");
        eventually(&format!("worker {n} has nothing to do"), LONG, async || {
            let report = loads.next().await?;
            let report: Value = serde_json::from_slice(&report.payload).expect("a report is JSON");
            let busy = |rank: &Value| rank["inflight"] != 0 || rank["queued"] != 0;
            (!report["ranks"].as_array()?.iter().any(busy)).then_some(())
        })
        .await;
    }
}
