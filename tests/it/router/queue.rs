//! Requests that find no room (protocol section 5).

use super::sessions_hashing_to;
use crate::support::frontend::Sent;
use crate::support::{Ask, Behaviour, Cluster, PATIENCE, Worker, eventually};

/// Sends a request and waits until it waits.
async fn queue(cluster: &Cluster, ask: Ask) -> Sent {
    let before = cluster.routers[0].metric("requests_queued").await;
    let sent = cluster.send(ask).await;
    cluster.routers[0].reaches("requests_queued", before + 1.0).await;
    sent
}

/// Sends a request that a worker in [`Behaviour::Hold`] accepts.
async fn hold(cluster: &Cluster, worker: &Worker, ask: Ask) -> Sent {
    let before = worker.count();
    let sent = cluster.send(ask).await;
    worker.dispatch(before).await;
    sent
}

#[tokio::test]
async fn without_room_a_request_waits_within_its_timeout() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let held = hold(&cluster, &worker, Ask::new().session("held")).await;
    for session in ["held", "new"] {
        let refusal = cluster.ask(Ask::new().session(session).timeout_ms(200)).await.router_refusal();
        assert_eq!((refusal.status, refusal.code.as_str()), (429, "overloaded"));
    }
    assert_eq!(cluster.pin("new").await, None);
    assert_eq!(worker.count(), 1, "nothing beyond its limit reaches a worker");
    let waiting = queue(&cluster, Ask::new().session("new")).await;
    worker.behave(Behaviour::Answer);
    worker.dispatch(0).await.answer().await;
    assert_eq!(held.end().await.at(), "w");
    assert_eq!(waiting.end().await.told(), "w placed");
}

#[tokio::test]
async fn by_priority_then_age() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let held = hold(&cluster, &worker, Ask::new()).await;
    let mut waiting = Vec::new();
    for (session, priority) in [("o1", "0"), ("o2", "5"), ("o3", "0"), ("o4", "-1"), ("o5", "5"), ("o6", "2147483647")]
    {
        let ask = Ask::new().session(session).header("Rankpin-Priority", priority);
        waiting.push(queue(&cluster, ask).await);
    }
    worker.behave(Behaviour::Answer);
    worker.dispatch(0).await.answer().await;
    held.end().await;
    for sent in waiting {
        assert_eq!(sent.end().await.at(), "w");
    }
    let order: Vec<_> = worker.dispatches()[1..].iter().map(|dispatch| dispatch.session().to_owned()).collect();
    assert_eq!(order, ["o6", "o2", "o5", "o1", "o3", "o4"]);
}

#[tokio::test]
async fn who_waits_for_his_own_rank_is_passed_by_others() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").ranks(0, 2).with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let on_0: Vec<_> = sessions_hashing_to(0, 2).take(2).collect();
    let on_1 = sessions_hashing_to(1, 2).next().expect("there are many");
    let held = hold(&cluster, &worker, Ask::new().session(&on_0[0])).await;
    // A second turn of the same session, and the first of another that hashes to the same rank.
    let pinned = queue(&cluster, Ask::new().session(&on_0[0]).header("Rankpin-Priority", "9")).await;
    let hashed = queue(&cluster, Ask::new().session(&on_0[1])).await;
    let passing = hold(&cluster, &worker, Ask::new().session(&on_1)).await;
    assert_eq!(worker.dispatch(1).await.session(), on_1);
    // Both ranks are full; one without a rank waits for the sum.
    let anywhere = queue(&cluster, Ask::new()).await;
    worker.behave(Behaviour::Answer);
    worker.dispatch(1).await.answer().await;
    assert_eq!(passing.end().await.at(), "w/1");
    assert_eq!(anywhere.end().await.at(), "w");
    assert_eq!(worker.count(), 3);
    worker.dispatch(0).await.answer().await;
    assert_eq!(held.end().await.at(), "w/0");
    assert_eq!(pinned.end().await.told(), "w/0 pinned");
    assert_eq!(hashed.end().await.told(), "w/0 placed");
    assert_eq!(worker.dispatch(3).await.session(), on_0[0]);
}

#[tokio::test]
async fn an_unpinned_session_goes_where_there_is_room() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let _held = hold(&cluster, &a, Ask::new()).await;
    let b = cluster.worker("b").start().await;
    for n in 0..5 {
        assert_eq!(cluster.turn(&format!("s{n}")).await.told(), "b placed");
    }
    assert_eq!((a.count(), b.count()), (1, 5));
}

#[tokio::test]
async fn what_a_worker_reports_counts_as_well() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").ranks(0, 2).with("max_inflight", 4).start().await;
    let session = sessions_hashing_to(1, 2).next().expect("there are many");
    worker.report(1, &[(0, 0), (1, 4)]).await;
    let full = async || {
        let answer = cluster.ask(Ask::new().header("x-dp-rank", "1").timeout_ms(50)).await;
        (answer.at() == "429 overloaded").then_some(())
    };
    eventually("rank 1 is full by its report", PATIENCE, full).await;
    assert_eq!(cluster.ask(Ask::new().header("x-dp-rank", "0")).await.at(), "w/0");
    let waiting = queue(&cluster, Ask::new().session(&session)).await;
    // An older report, and one of another instance, change nothing.
    worker.report(1, &[(1, 0)]).await;
    let strange = serde_json::json!({"v": 1, "worker": "w", "instance": "x", "seq": 99, "ranks": []});
    worker.client.publish("rankpin.load.w", strange.to_string().into()).await.expect("is published");
    worker.report(2, &[(0, 0), (1, 4)]).await;
    assert_eq!(cluster.routers[0].metric("requests_queued").await, 1.0);
    worker.report(3, &[(0, 4), (1, 3)]).await;
    assert_eq!(waiting.end().await.at(), "w/1");
}

#[tokio::test]
async fn a_report_that_is_too_old_no_longer_counts() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").with("max_inflight", 1).start().await;
    worker.report(1, &[(0, 1)]).await;
    let full = async || (cluster.ask(Ask::new().timeout_ms(50)).await.at() == "429 overloaded").then_some(());
    eventually("the worker is full by its report", PATIENCE, full).await;
    // Nobody reports again, and the request is placed within its own timeout.
    assert_eq!(cluster.at("s").await, "w");
}

#[tokio::test]
async fn a_worker_that_comes_or_leaves_wakes_whoever_waits() {
    let cluster = Cluster::start().await;
    let mut a = cluster.worker("a").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let _held = hold(&cluster, &a, Ask::new().session("held")).await;
    let waiting = queue(&cluster, Ask::new().session("new")).await;
    let pinned = queue(&cluster, Ask::new().session("held").id("pinned")).await;
    let _b = cluster.worker("b").with("max_inflight", 8).start().await;
    assert_eq!(waiting.end().await.told(), "b placed");
    // The pinned one waits for its own worker, until that leaves.
    cluster.routers[0].reaches("requests_queued", 1.0).await;
    a.deregister().await;
    assert_eq!(pinned.end().await.told(), "b repinned,worker-lost");
}

#[tokio::test]
async fn whoever_waits_hears_that_nobody_is_left() {
    let cluster = Cluster::start().await;
    let mut worker = cluster.worker("w").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let _held = hold(&cluster, &worker, Ask::new()).await;
    let waiting = queue(&cluster, Ask::new().session("s")).await;
    worker.deregister().await;
    assert_eq!(waiting.end().await.at(), "503 no_worker");
}
