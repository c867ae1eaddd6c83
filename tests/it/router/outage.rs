//! The server or a bucket goes away and comes back (protocol section 5).

use std::time::Duration;

use async_nats::jetstream::{self, kv};
use rankpin::core::hash;
use rankpin::core::id::{SessionId, WorkerId};

use super::hashed_at;
use crate::support::{Ask, Behaviour, Cluster, PATIENCE, eventually};

async fn delete_bucket(cluster: &Cluster, name: &str) {
    let context = jetstream::new(cluster.client.clone());
    context.delete_stream(format!("KV_{name}")).await.expect("is deleted");
}

async fn make_bucket(cluster: &Cluster, name: &str, max_age: Duration) {
    let config = kv::Config { bucket: name.into(), history: 1, max_age, ..kv::Config::default() };
    jetstream::new(cluster.client.clone()).create_key_value(config).await.expect("is made");
}

/// A turn of a session, if it's answered within a second: none is while nobody is connected.
async fn try_turn(cluster: &Cluster, session: &str) -> Option<String> {
    let turn = async {
        let mut sent = cluster.send(Ask::new().session(session)).await;
        let first = sent.next().await;
        let worker = crate::support::frontend::find(&first, "Rankpin-Worker")?.to_owned();
        let rank = crate::support::frontend::find(&first, "Rankpin-Dp-Rank").map(|rank| rank.parse().expect("a rank"));
        Some(crate::support::cluster::placement(&worker, rank))
    };
    tokio::time::timeout(Duration::from_secs(1), turn).await.ok().flatten()
}

#[tokio::test]
async fn a_restarted_server_is_found_again_with_every_pin() {
    let mut cluster = Cluster::with(2, &[]).await;
    let _a = cluster.worker("a").ranks(0, 4).start().await;
    let _b = cluster.worker("b").ranks(4, 4).start().await;
    let mut places = Vec::new();
    for n in 0..20 {
        let session = format!("s{n}");
        let at = cluster.at(&session).await;
        places.push((session, at));
    }
    cluster.server.kill();
    cluster.server.restart();
    eventually("requests are served again", PATIENCE * 2, async || try_turn(&cluster, "new").await).await;
    for (session, at) in &places {
        let again = eventually("the session is served", PATIENCE, async || try_turn(&cluster, session).await).await;
        assert_eq!(again, *at, "{session}");
        assert_eq!(cluster.pinned_at(session).await.as_ref(), Some(at));
    }
    for router in &cluster.routers {
        router.reaches("workers", 2.0).await;
    }
}

/// Where routers agree to place a session without the bucket: the highest `xxh3_64(worker 0x00 session)`.
fn rendezvous(session: &str) -> String {
    let id = SessionId::named(session).expect("valid");
    let weight = |worker: &&str| hash::rendezvous(&WorkerId::new(worker).expect("valid"), &id);
    let worker = ["a", "b"].into_iter().max_by_key(weight).expect("two workers");
    hashed_at(worker, session, if worker == "a" { 0 } else { 4 }, 4)
}

#[tokio::test]
async fn without_the_pins_bucket_routers_agree_and_pin_once_it_is_back() {
    let mut cluster = Cluster::with(3, &[]).await;
    let _a = cluster.worker("a").ranks(0, 4).start().await;
    let _b = cluster.worker("b").ranks(4, 4).start().await;
    cluster.put_pin("known", "b", Some(5)).await;
    for router in &cluster.routers {
        router.reaches("pins_mirrored", 1.0).await;
    }
    delete_bucket(&cluster, "rankpin_pins").await;
    for n in 0..8 {
        let session = format!("s{n}");
        for _ in 0..6 {
            let told = cluster.turn(&session).await.told();
            let placed = told.strip_suffix(" placed,bucket-unreachable").or(told.strip_suffix(" pinned"));
            assert_eq!(placed, Some(rendezvous(&session).as_str()), "{told}");
        }
    }
    // What the mirror knows still holds, and what has no session needs no bucket.
    for _ in 0..6 {
        assert_eq!(cluster.turn("known").await.told(), "b/5 pinned");
        assert!(!cluster.ask(Ask::new()).await.at().contains(' '));
    }
    make_bucket(&cluster, "rankpin_pins", Duration::from_secs(3600)).await;
    for n in 0..8 {
        let session = format!("s{n}");
        let at = rendezvous(&session);
        let what = format!("{session} is pinned at {at}");
        let pinned = async || (cluster.pinned_at(&session).await.as_ref() == Some(&at)).then_some(());
        eventually(&what, PATIENCE, pinned).await;
    }
    for router in &cluster.routers {
        router.reaches("bucket_unreachable", 0.0).await;
        router.reaches("pins_owed", 0.0).await;
    }
    let session = eventually("new sessions are claimed again", PATIENCE, async || {
        let session = uuid::Uuid::new_v4().to_string();
        (cluster.turn(&session).await.decision() == "placed").then_some(session)
    })
    .await;
    assert!(cluster.pin(&session).await.is_some());
    // A router that starts now finds what they agreed on.
    cluster.routers.clear();
    cluster.add_router(&[]).await;
    for n in 0..8 {
        let session = format!("s{n}");
        assert_eq!(cluster.turn(&session).await.told(), format!("{} pinned", rendezvous(&session)));
    }
}

/// What a power cut leaves of a stream that is synced now and then, and what somebody restores from yesterday: its end is gone,
/// and its sequences come again.
#[tokio::test]
async fn a_stream_that_has_lost_its_end_is_believed_and_costs_no_request() {
    let mut cluster = Cluster::start().await;
    let a = cluster.worker("a").ranks(0, 4).start().await;
    let _b = cluster.worker("b").ranks(4, 4).start().await;
    let sessions: Vec<String> = (0..8).map(|n| format!("s{n}")).collect();
    for session in &sessions {
        cluster.put_pin(session, "b", Some(5)).await;
    }
    cluster.routers[0].reaches("pins_mirrored", 8.0).await;
    cluster.server.kill();
    let (store, saved) = (cluster.server.dir().join("store"), cluster.server.dir().join("saved"));
    copy(&store, &saved);
    cluster.server.restart();
    for session in &sessions {
        eventually("the pin is moved", PATIENCE, async || {
            let pins = jetstream::new(cluster.client.clone()).get_key_value("rankpin_pins").await.ok()?;
            pins.status().await.ok()
        })
        .await;
        for _ in 0..3 {
            cluster.put_pin(session, "a", Some(1)).await;
        }
    }
    cluster.routers[0].reaches("mirror_complete", 2.0).await;
    for session in &sessions {
        let at = async || (try_turn(&cluster, session).await.as_deref() == Some("a/1")).then_some(());
        eventually("the move is heard of", PATIENCE, at).await;
    }
    cluster.server.kill();
    std::fs::remove_dir_all(&store).expect("is removed");
    std::fs::rename(&saved, &store).expect("is put back");
    cluster.server.restart();
    drop(a);
    let reads = cluster.routers[0].metric("pin_leader_reads").await;
    for session in &sessions {
        let at = async || (try_turn(&cluster, session).await.as_deref() == Some("b/5")).then_some(());
        eventually("the session is where the bucket has it", PATIENCE, at).await;
    }
    cluster.routers[0].reaches("mirror_complete", 2.0).await;
    assert!(cluster.routers[0].metric("pin_leader_reads").await - reads < 200.0, "nobody asks in a circle");
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let copied = std::process::Command::new("cp").arg("-r").args([from, to]).status().expect("cp runs");
    assert!(copied.success());
}

#[tokio::test]
async fn without_the_pins_bucket_a_session_whose_worker_is_gone_is_one_place_to_every_router() {
    let cluster = Cluster::with(3, &[]).await;
    let _a = cluster.worker("a").ranks(0, 4).start().await;
    let _b = cluster.worker("b").ranks(4, 4).start().await;
    let gone = cluster.worker("gone").ranks(8, 4).start().await;
    for n in 0..4 {
        cluster.put_pin(&format!("s{n}"), "gone", Some(9)).await;
    }
    for router in &cluster.routers {
        router.reaches("pins_mirrored", 4.0).await;
    }
    delete_bucket(&cluster, "rankpin_pins").await;
    drop(gone);
    for n in 0..4 {
        let session = format!("s{n}");
        let told = format!("{} placed,bucket-unreachable", rendezvous(&session));
        let there = async || (cluster.turn(&session).await.told() == told).then_some(());
        eventually("the worker is known to be gone", PATIENCE, there).await;
    }
    for router in &cluster.routers {
        router.reaches("workers", 2.0).await;
    }
    for n in 0..4 {
        let session = format!("s{n}");
        for _ in 0..6 {
            assert_eq!(cluster.at(&session).await, rendezvous(&session), "{session}");
        }
    }
}

#[tokio::test]
async fn a_bucket_whose_last_message_is_gone_is_mirrored_whole() {
    let mut cluster = Cluster::with(0, &[]).await;
    // As a bucket is made, but that its messages may be deleted.
    let config = jetstream::stream::Config {
        name: "KV_rankpin_pins".into(),
        subjects: vec!["$KV.rankpin_pins.>".into()],
        max_messages_per_subject: 1,
        allow_direct: true,
        ..jetstream::stream::Config::default()
    };
    let context = jetstream::new(cluster.client.clone());
    let mut stream = context.create_stream(config).await.expect("is made");
    for n in 0..3 {
        cluster.put_pin(&format!("s{n}"), "w", Some(1)).await;
    }
    // As where it has run out: the stream's last sequence is that of no message.
    let last = stream.info().await.expect("it is there").state.last_sequence;
    assert!(stream.delete_message(last).await.expect("it goes"));
    cluster.add_router(&[]).await;
    cluster.routers[0].reaches("mirror_complete", 2.0).await;
    cluster.routers[0].reaches("pins_mirrored", 2.0).await;
}

/// A watch is not told of a purge, and by the next look at the stream it may hold something again.
#[tokio::test]
async fn pins_that_were_purged_are_forgotten_though_others_came_at_once() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    for n in 0..10 {
        cluster.at(&format!("filler-{n}")).await;
    }
    cluster.routers[0].reaches("pins_mirrored", 10.0).await;
    let stream = jetstream::new(cluster.client.clone()).get_stream("KV_rankpin_pins").await.expect("it is there");
    stream.purge().await.expect("it is purged");
    cluster.put_pin("s", "w", Some(1)).await;
    cluster.routers[0].reaches("pins_mirrored", 1.0).await;
    assert_eq!(cluster.turn("s").await.told(), "w/1 pinned");
    assert_eq!(cluster.turn("filler-0").await.decision(), "placed");
}

#[tokio::test]
async fn a_pins_bucket_that_was_made_anew_is_mirrored_anew() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    for n in 0..10 {
        cluster.at(&format!("filler-{n}")).await;
    }
    cluster.routers[0].reaches("pins_mirrored", 10.0).await;
    delete_bucket(&cluster, "rankpin_pins").await;
    make_bucket(&cluster, "rankpin_pins", Duration::from_secs(3600)).await;
    // A first key of the new bucket, at a sequence that the mirror is already past.
    cluster.put_pin("s", "w", Some(((super::hashed("s", 0, 4) + 1) % 4) as u16)).await;
    let wanted = format!("w/{} pinned", (super::hashed("s", 0, 4) + 1) % 4);
    cluster.routers[0].reaches("pins_mirrored", 1.0).await;
    assert_eq!(cluster.turn("s").await.told(), wanted);
    assert_eq!(cluster.turn("filler-0").await.decision(), "placed");
}

#[tokio::test]
async fn a_workers_bucket_that_was_made_anew_is_read_anew() {
    let cluster = Cluster::start().await;
    let _a = cluster.worker("a").start().await;
    assert_eq!(cluster.at("s").await, "a");
    delete_bucket(&cluster, "rankpin_workers").await;
    // Nobody is lost by that alone.
    assert_eq!(cluster.turn("s").await.told(), "a pinned");
    make_bucket(&cluster, "rankpin_workers", Duration::from_secs(30)).await;
    let _b = cluster.worker("b").start_unnoticed().await;
    let found = async || (cluster.ask(Ask::new().header("Rankpin-Target-Worker", "b")).await.at() == "b").then_some(());
    eventually("a worker of the new bucket is found", PATIENCE, found).await;
    assert_eq!(cluster.turn("s").await.told(), "a pinned");
}

#[tokio::test]
async fn workers_that_come_back_after_the_routers_are_tried_again() {
    let mut cluster = Cluster::start().await;
    let mut worker = cluster.worker("w").ranks(0, 2).start().await;
    let at = cluster.at("s").await;
    // The worker's subscriptions are not there when the router is back, and come a moment later.
    worker.die().await;
    cluster.server.kill();
    cluster.server.restart();
    // Each of its three connections stands again; one that met the server at its start may have come twice.
    let back = async || (cluster.routers[0].metric("nats_connects").await >= 6.0).then_some(());
    eventually("the router is back", PATIENCE, back).await;
    let sent = cluster.send(Ask::new().session("s")).await;
    for subject in ["rankpin.worker.w.rank.0", "rankpin.worker.w.rank.1", "rankpin.worker.w.cancel"] {
        worker.listen(subject).await;
    }
    assert_eq!(sent.end().await.told(), format!("{at} pinned"));
}

#[tokio::test]
async fn an_end_that_was_missed_in_an_outage_is_learnt_from_an_idle_worker() {
    let mut cluster = Cluster::start().await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let _sent = cluster.send(Ask::new().session("s")).await;
    worker.dispatch(0).await;
    cluster.routers[0].reaches("requests_waiting", 0.0).await;
    // It finishes while nobody is connected, and its event is lost.
    cluster.server.kill();
    cluster.server.restart();
    eventually("requests are served again", PATIENCE * 2, async || {
        worker.behave(Behaviour::Answer);
        try_turn(&cluster, "t").await
    })
    .await;
    let mut seq = 0;
    let settled = eventually("the router counts nothing there any more", PATIENCE, async || {
        seq += 1;
        worker.report(seq, &[(0, 0)]).await;
        (cluster.routers[0].metric("requests_in_flight").await == 0.0).then_some(())
    });
    settled.await;
}
