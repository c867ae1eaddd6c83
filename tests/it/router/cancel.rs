//! Cancels, in every phase of a request (protocol section 6.1).

use crate::support::frontend::find;
use crate::support::{Ask, Behaviour, Cluster, PATIENCE, eventually};

fn ask(id: &str) -> Ask {
    Ask::new().session(id).id(id)
}

#[tokio::test]
async fn before_the_dispatch_the_router_ends_it() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let held = cluster.send(ask("held")).await;
    worker.dispatch(0).await;
    let queued = cluster.send(ask("queued")).await;
    cluster.routers[0].reaches("requests_waiting", 1.0).await;
    cluster.cancel("queued").await;
    let refusal = queued.end().await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (499, "cancelled"));
    worker.dispatch(0).await.answer().await;
    assert_eq!(held.end().await.at(), "w");
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    assert_eq!((worker.count(), worker.cancels().len()), (1, 0));
}

#[tokio::test]
async fn while_another_turn_claims_the_session_the_router_ends_it() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").behaves(Behaviour::Silent).start().await;
    let first = cluster.send(Ask::new().session("s").id("first")).await;
    let dispatch = worker.dispatch(0).await;
    let second = cluster.send(Ask::new().session("s").id("second")).await;
    cluster.routers[0].reaches("requests_in_flight", 2.0).await;
    cluster.cancel("second").await;
    assert_eq!(second.end().await.at(), "499 cancelled");
    dispatch.accept().await;
    dispatch.answer().await;
    assert_eq!(first.end().await.at(), "w");
    assert_eq!(worker.count(), 1);
}

#[tokio::test]
async fn after_the_dispatch_the_worker_is_told_and_again_where_it_accepts() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").behaves(Behaviour::Silent).start().await;
    let sent = cluster.send(ask("r")).await;
    let dispatch = worker.dispatch(0).await;
    cluster.cancel("r").await;
    assert_eq!(worker.cancel(0).await, ("r".to_owned(), "1".to_owned()));
    dispatch.accept().await;
    assert_eq!(worker.cancel(1).await, ("r".to_owned(), "1".to_owned()));
    dispatch.fail(499, "cancelled").await;
    let answer = sent.end().await;
    assert_eq!((answer.at().as_str(), answer.header("Rankpin-Seq")), ("499 cancelled", Some("0")));
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
}

#[tokio::test]
async fn where_no_acceptance_comes_the_router_ends_it() {
    let cluster = Cluster::with(1, &[("accept_timeout", "500ms")]).await;
    let worker = cluster.worker("w").behaves(Behaviour::Silent).start().await;
    let other = cluster.worker("other").start().await;
    let sent = cluster.send(ask("r").header("Rankpin-Target-Worker", "w")).await;
    let dispatch = worker.dispatch(0).await;
    cluster.cancel("r").await;
    worker.cancel(0).await;
    let refusal = sent.end().await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (499, "cancelled"));
    assert_eq!(cluster.pin("r").await, None);
    assert_eq!(other.count(), 0, "a cancelled request is not tried elsewhere");
    let before = worker.cancels().len();
    dispatch.accept().await;
    worker.cancel(before).await;
    // What the frontend has asked for, the worker may tell it; what the router has told, it may not.
    let given_up = |message: &async_nats::Message| find(message, "Rankpin-Given-Up").is_some();
    let told: Vec<bool> = worker.cancels().iter().map(given_up).collect();
    assert_eq!(told, [false, true, true]);
}

#[tokio::test]
async fn a_refusal_after_the_cancel_ends_it() {
    let cluster = Cluster::start().await;
    for late in [false, true] {
        let id = format!("late-{late}");
        let worker = cluster.worker(&format!("w-{late}")).behaves(Behaviour::Silent).start().await;
        let sent = cluster.send(ask(&id).header("Rankpin-Target-Worker", &worker.id)).await;
        let dispatch = worker.dispatch(0).await;
        if late {
            dispatch.accept().await;
        }
        cluster.cancel(&id).await;
        worker.cancel(0).await;
        dispatch.reject(503, "draining").await;
        assert_eq!(sent.end().await.at(), "499 cancelled");
        assert_eq!(worker.count(), 1);
    }
}

#[tokio::test]
async fn after_acceptance_the_worker_ends_it() {
    let cluster = Cluster::with(3, &[]).await;
    let worker = cluster.worker("w").ranks(0, 4).behaves(Behaviour::Hold).start().await;
    for n in 0..9 {
        let id = format!("r{n}");
        let sent = cluster.send(ask(&id)).await;
        let dispatch = worker.dispatch(n).await;
        // An acceptance that comes after the cancel would be answered by a second one.
        for router in &cluster.routers {
            router.reaches("requests_waiting", 0.0).await;
        }
        // Every router hears the cancel, and the one that holds the request acts on it.
        cluster.cancel(&id).await;
        assert_eq!(worker.cancel(n).await, (id, "1".to_owned()));
        dispatch.fail(499, "cancelled").await;
        assert_eq!(sent.end().await.at(), "499 cancelled");
    }
    assert_eq!(worker.cancels().len(), 9);
    let mut cancelled = 0.0;
    for router in &cluster.routers {
        router.reaches("requests_in_flight", 0.0).await;
        cancelled += router.metric_where("requests", "outcome=\"cancelled\"").await;
    }
    assert_eq!(cancelled, 9.0);
}

#[tokio::test]
async fn a_cancel_of_nothing_is_nothing() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").start().await;
    for id in ["unknown", "a.b", "%", "r"] {
        cluster.cancel(id).await;
    }
    assert_eq!(cluster.ask(ask("r")).await.at(), "w");
    // The answer may be here before the router has heard that it is finished.
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    cluster.cancel("r").await;
    assert_eq!(cluster.ask(ask("r")).await.at(), "w");
    assert_eq!(worker.cancels().len(), 0);
}

#[tokio::test]
async fn two_requests_of_one_id_are_both_cancelled() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let sent = [cluster.send(Ask::new().id("r")).await, cluster.send(Ask::new().id("r")).await];
    worker.dispatch(1).await;
    cluster.routers[0].reaches("requests_waiting", 0.0).await;
    cluster.cancel("r").await;
    let both = async || (worker.cancels().len() == 2).then_some(());
    eventually("both are cancelled", PATIENCE, both).await;
    for dispatch in worker.dispatches() {
        dispatch.fail(499, "cancelled").await;
    }
    for sent in sent {
        assert_eq!(sent.end().await.at(), "499 cancelled");
    }
}
