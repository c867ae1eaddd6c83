//! A worker that is killed with many pinned sessions: their next turns go elsewhere without an error, and nobody else's do.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{ask, frontend, served, sim};
use crate::support::{NatsServer, RouterProcess};

const SESSIONS: usize = 400;
/// Turns at a time.
const AT_ONCE: usize = 8;

/// The value below which so many of a hundred lie.
fn percentile(times: &[Duration], of_hundred: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() * of_hundred / 100).min(sorted.len() - 1)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sessions_of_a_killed_worker_are_bound_again_by_their_next_turns_and_no_others_move() {
    let server = NatsServer::start();
    let router = RouterProcess::start("router", &server, &[]).await;
    let _other_router = RouterProcess::start("other-router", &server, &[]).await;
    let fast = ["--dp-size", "4", "--speed", "1000"];
    let mut workers: BTreeMap<_, _> =
        ["a", "b"].map(|name| (name, sim(&server.url(), server.dir(), name, &fast))).into();
    let client = frontend(&server.url()).await;
    for name in ["a", "b"] {
        let known = async || (router.metric("workers").await == 2.0).then_some(());
        crate::support::eventually(&format!("{name} is known"), super::LONG, known).await;
    }
    served(&client, "warm").await;
    let names: Vec<String> = (0..SESSIONS).map(|n| format!("s{n}")).collect();
    let mut places = Vec::new();
    let (mut before, mut moved) = (Vec::new(), Vec::new());
    for name in &names {
        places.push(ask(&client, name).await.expect("it is served"));
    }
    for chunk in names.iter().zip(&places).collect::<Vec<_>>().chunks(AT_ONCE) {
        let turns = chunk.iter().map(async |(name, place)| {
            let began = Instant::now();
            assert_eq!(ask(&client, name).await.expect("it is served"), **place);
            began.elapsed()
        });
        before.extend(join_all(turns).await);
    }
    let of_a = places.iter().filter(|place| place.starts_with("a/")).count();
    assert!(of_a > SESSIONS / 4, "both workers have sessions: {of_a} of {SESSIONS}");
    workers.get_mut("a").expect("it is there").kill();
    for chunk in names.iter().zip(&places).collect::<Vec<_>>().chunks(AT_ONCE) {
        let turns = chunk.iter().map(async |(name, place)| {
            let began = Instant::now();
            let now = ask(&client, name).await.unwrap_or_else(|e| panic!("{name}: {e}"));
            let elapsed = began.elapsed();
            assert!(now.starts_with("b/"), "{name} is at {now}");
            if place.starts_with("b/") {
                assert_eq!(now, **place, "{name} has nothing to do with it");
                None
            } else {
                Some(elapsed)
            }
        });
        moved.extend(join_all(turns).await.into_iter().flatten());
    }
    assert_eq!(moved.len(), of_a);
    println!(
        "{of_a} sessions of a killed worker: a turn took {:.1?} (p50) and {:.1?} (p99), before it {:.1?} and {:.1?}",
        percentile(&moved, 50),
        percentile(&moved, 99),
        percentile(&before, 50),
        percentile(&before, 99),
    );
}
