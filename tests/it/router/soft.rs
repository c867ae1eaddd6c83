//! Placement with affinity soft (protocol section 5): the pin is preferred, and left when it is overloaded.

use crate::support::{Ask, Behaviour, Cluster, PATIENCE, Worker, eventually};

const SOFT: &[(&str, &str)] = &[("affinity", "soft")];

/// Pins a session at a worker: asked for there, it's pinned as placed.
async fn pin(cluster: &Cluster, session: &str, worker: &str) {
    let ask = Ask::new().session(session).header("Rankpin-Target-Worker", worker);
    assert_eq!(cluster.ask(ask).await.at(), worker);
    pinned(cluster, session, worker).await;
}

/// Soft pins are written after the worker has accepted, and nobody waits for that.
async fn pinned(cluster: &Cluster, session: &str, at: &str) {
    let what = format!("{session} is pinned at {at}");
    let pinned = async || (cluster.pinned_at(session).await.as_deref() == Some(at)).then_some(());
    eventually(&what, PATIENCE, pinned).await;
}

/// Fills a worker of `max_inflight` 1 with a request that stays.
async fn fill(cluster: &Cluster, worker: &Worker) -> crate::support::frontend::Sent {
    worker.behave(Behaviour::Hold);
    let before = worker.count();
    let sent = cluster.send(Ask::new().header("Rankpin-Target-Worker", &worker.id)).await;
    worker.dispatch(before).await;
    sent
}

#[tokio::test]
async fn an_unpinned_session_is_pinned_as_it_was_placed() {
    let cluster = Cluster::with(1, SOFT).await;
    let _w = cluster.worker("w").ranks(4, 4).start().await;
    assert_eq!(cluster.turn("s").await.told(), "w placed");
    pinned(&cluster, "s", "w").await;
    assert_eq!(cluster.turn("s").await.told(), "w pinned");
    let hinted = Ask::new().session("h").header("x-dp-rank", "6");
    assert_eq!(cluster.ask(hinted).await.told(), "w/6 hinted");
    pinned(&cluster, "h", "w/6").await;
    assert_eq!(cluster.turn("h").await.told(), "w/6 pinned");
}

#[tokio::test]
async fn the_pin_is_preferred() {
    let cluster = Cluster::with(1, SOFT).await;
    let (_a, _b) = (cluster.worker("a").start().await, cluster.worker("b").start().await);
    pin(&cluster, "s", "b").await;
    for _ in 0..5 {
        assert_eq!(cluster.turn("s").await.told(), "b pinned");
    }
}

#[tokio::test]
async fn an_overloaded_pin_is_left_for_good() {
    let cluster = Cluster::with(1, SOFT).await;
    let a = cluster.worker("a").with("max_inflight", 1).start().await;
    let _b = cluster.worker("b").with("max_inflight", 8).start().await;
    pin(&cluster, "s", "a").await;
    let held = fill(&cluster, &a).await;
    assert_eq!(cluster.turn("s").await.told(), "b repinned,overload");
    pinned(&cluster, "s", "b").await;
    a.dispatches().last().expect("it holds one").answer().await;
    held.end().await;
    // There is room at a again, and the session stays where it is now warm.
    for _ in 0..3 {
        assert_eq!(cluster.turn("s").await.told(), "b pinned");
    }
}

#[tokio::test]
async fn a_pin_moves_only_once_the_new_worker_has_accepted() {
    let cluster = Cluster::with(1, &[("affinity", "soft"), ("accept_timeout", "500ms")]).await;
    let a = cluster.worker("a").with("max_inflight", 1).start().await;
    let b = cluster.worker("b").behaves(Behaviour::Silent).start().await;
    pin(&cluster, "s", "a").await;
    let _held = fill(&cluster, &a).await;
    assert_eq!(cluster.ask(Ask::new().session("s").timeout_ms(300)).await.at(), "504 accept_timeout");
    assert_eq!(b.count(), 1);
    assert_eq!(cluster.pinned_at("s").await, Some("a".into()));
}

#[tokio::test]
async fn a_session_of_a_worker_that_left_is_placed_by_the_policy() {
    let cluster = Cluster::with(1, SOFT).await;
    let mut a = cluster.worker("a").start().await;
    let _b = cluster.worker("b").ranks(0, 2).start().await;
    pin(&cluster, "s", "a").await;
    a.deregister().await;
    cluster.knows_workers(1).await;
    assert_eq!(cluster.turn("s").await.told(), "b repinned,worker-lost");
    pinned(&cluster, "s", "b").await;
}

#[tokio::test]
async fn a_hint_or_pool_wins_over_the_pin() {
    let cluster = Cluster::with(1, SOFT).await;
    let _a = cluster.worker("a").ranks(0, 2).with("pool", "p").start().await;
    let _b = cluster.worker("b").ranks(2, 2).with("pool", "q").start().await;
    pin(&cluster, "s", "a").await;
    let ask = |name: &str, value: &str| Ask::new().session("s").header(name, value);
    assert_eq!(cluster.ask(ask("Rankpin-Target-Worker", "b")).await.told(), "b hinted");
    pinned(&cluster, "s", "b").await;
    assert_eq!(cluster.ask(ask("Rankpin-Target-Dp-Rank", "1")).await.told(), "a/1 hinted");
    pinned(&cluster, "s", "a/1").await;
    assert_eq!(cluster.ask(ask("Rankpin-Pool", "q")).await.at(), "b");
    pinned(&cluster, "s", "b").await;
}
