//! Routers as processes: told to stop under load, killed, started again.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{join, join_all};

use crate::support::process::Signal;
use crate::support::{Ask, Behaviour, Cluster, NatsServer, PATIENCE, RouterProcess, eventually};

/// Waits until a worker is known: by then every request for it is served.
async fn served(cluster: &Cluster, session: &str) -> String {
    eventually("the worker is known", PATIENCE, async || Some(cluster.at(session).await).filter(|at| !at.contains(' ')))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_under_load_loses_nothing_and_exits_0() {
    let server = NatsServer::start();
    let mut leaving = RouterProcess::start("leaving", &server, &[]).await;
    let _staying = RouterProcess::start("staying", &server, &[]).await;
    let cluster = Cluster::on(server, 0, &[]).await;
    let _w = cluster.worker("w").ranks(0, 2).start().await;
    // Both know the worker.
    for n in 0..20 {
        served(&cluster, &format!("warm-{n}")).await;
    }
    let stop = AtomicBool::new(false);
    let load = join_all((0..24).map(|n| {
        let (cluster, stop) = (&cluster, &stop);
        async move {
            let session = format!("s{n}");
            let mut turns = 0;
            while !stop.load(Ordering::Relaxed) {
                let at = cluster.at(&session).await;
                assert!(at.starts_with("w/"), "{session}: {at}");
                turns += 1;
            }
            turns
        }
    }));
    let leave = async {
        leaving.process.signal(Signal::Terminate);
        let status = leaving.process.wait(PATIENCE).await;
        stop.store(true, Ordering::Relaxed);
        status
    };
    let (turns, status) = join(load, leave).await;
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(turns.iter().sum::<u32>() > 0);
}

#[tokio::test]
async fn a_stopping_router_waits_for_what_a_worker_has_accepted() {
    let server = NatsServer::start();
    let mut router = RouterProcess::start("router", &server, &[]).await;
    let cluster = Cluster::on(server, 0, &[]).await;
    let worker = cluster.worker("w").start().await;
    served(&cluster, "warm").await;
    worker.behave(Behaviour::Silent);
    let sent = cluster.send(Ask::new().session("s")).await;
    let dispatch = worker.dispatch(worker.count()).await;
    router.process.signal(Signal::Terminate);
    let stops = async || router.process.log().contains("router stops").then_some(());
    eventually("the router drains", PATIENCE, stops).await;
    // It is accepted and served while the router leaves; another worker's loss is still noticed.
    dispatch.accept().await;
    assert!(router.process.ended().is_none());
    dispatch.answer().await;
    assert_eq!(sent.end().await.at(), "w");
    assert_eq!(router.process.wait(PATIENCE).await.code(), Some(0));
    assert_eq!(cluster.pinned_at("s").await.as_deref(), Some("w"));
}

#[tokio::test]
async fn a_killed_router_takes_no_pin_along() {
    let server = NatsServer::start();
    let mut killed = RouterProcess::start("killed", &server, &[]).await;
    let _other = RouterProcess::start("other", &server, &[]).await;
    let cluster = Cluster::on(server, 0, &[]).await;
    let a = cluster.worker("a").ranks(0, 4).start().await;
    let _b = cluster.worker("b").ranks(4, 4).start().await;
    served(&cluster, "warm").await;
    let mut places = Vec::new();
    for n in 0..20 {
        let session = format!("s{n}");
        let at = served(&cluster, &session).await;
        places.push((session, at));
    }
    // The reply stream does not pass through the router, so an accepted request outlives it.
    a.behave(Behaviour::Hold);
    let held = cluster.send(Ask::new().header("Rankpin-Target-Worker", "a")).await;
    let dispatch = a.dispatch(a.count()).await;
    killed.process.kill();
    dispatch.answer().await;
    assert_eq!(held.end().await.at(), "a");
    a.behave(Behaviour::Answer);
    for (session, at) in &places {
        assert_eq!(cluster.turn(session).await.told(), format!("{at} pinned"));
    }
    let _again = RouterProcess::start("again", &cluster.server, &[]).await;
    for _ in 0..3 {
        for (session, at) in &places {
            assert_eq!(cluster.turn(session).await.told(), format!("{at} pinned"));
        }
    }
}

#[tokio::test]
async fn what_waits_for_room_while_the_router_leaves_is_still_served() {
    let mut cluster = Cluster::start().await;
    let worker = cluster.worker("w").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let held = cluster.send(Ask::new()).await;
    let first = worker.dispatch(0).await;
    let waiting = cluster.send(Ask::new().session("s")).await;
    cluster.routers[0].reaches("requests_waiting", 1.0).await;
    let mut router = cluster.routers.remove(0);
    router.tell_to_stop();
    eventually("it takes nothing new", PATIENCE, async || (!router.is_ready().await).then_some(())).await;
    worker.behave(Behaviour::Answer);
    first.answer().await;
    assert_eq!(held.end().await.at(), "w");
    assert_eq!(waiting.end().await.at(), "w");
    router.ended().await;
}
