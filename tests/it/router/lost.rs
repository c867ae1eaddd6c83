//! Workers that are lost after they accepted (protocol section 6).

use crate::support::{Ask, Behaviour, Cluster, PATIENCE, eventually};

#[tokio::test]
async fn two_probes_that_nobody_hears_end_accepted_requests() {
    let cluster = Cluster::start().await;
    let mut a = cluster.worker("a").behaves(Behaviour::Hold).start().await;
    let b = cluster.worker("b").behaves(Behaviour::Hold).start().await;
    let on = async |worker: &str| {
        let ask = Ask::new().session(worker).header("Rankpin-Target-Worker", worker);
        cluster.send(ask).await
    };
    let (lost, kept) = (on("a").await, on("b").await);
    let held = b.dispatch(0).await;
    a.dispatch(0).await;
    eventually("a worker that holds requests is probed", PATIENCE, async || (a.probes() > 0).then_some(())).await;
    a.die().await;
    let refusal = lost.end().await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (503, "worker_lost"));
    // What it accepted stays pinned until the next turn finds it gone.
    assert_eq!(cluster.pinned_at("a").await.as_deref(), Some("a"));
    held.answer().await;
    assert_eq!(kept.end().await.at(), "b");
    b.behave(Behaviour::Answer);
    assert_eq!(cluster.turn("a").await.told(), "b repinned,worker-lost");
}

#[tokio::test]
async fn another_instance_under_the_name_ends_accepted_requests() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let sent = cluster.send(Ask::new().session("s")).await;
    worker.dispatch(0).await;
    cluster.routers[0].reaches("requests_waiting", 0.0).await;
    worker.declare("instance", "another").await;
    assert_eq!(sent.end().await.at(), "503 worker_lost");
    worker.behave(Behaviour::Answer);
    assert_eq!(cluster.turn("s").await.told(), "w pinned");
}

#[tokio::test]
async fn silence_is_loss_and_reports_and_events_are_signs_of_life() {
    let cluster = Cluster::start().await;
    let mut workers = Vec::new();
    let mut sent = Vec::new();
    for id in ["silent", "reports", "progress"] {
        let worker = cluster.worker(id).behaves(Behaviour::Hold).without_heartbeat().start().await;
        sent.push(cluster.send(Ask::new().session(id).header("Rankpin-Target-Worker", id)).await);
        worker.dispatch(0).await;
        workers.push(worker);
    }
    // All three hear their probes; the first says nothing.
    let silent = sent.remove(0);
    let mut seq = 0;
    let ended = tokio::spawn(silent.end());
    let lost = eventually("the silent worker is lost", PATIENCE, async || {
        seq += 1;
        workers[1].report(seq, &[(0, 1)]).await;
        workers[2].dispatch(0).await.progress().await;
        ended.is_finished().then_some(())
    });
    lost.await;
    assert_eq!(ended.await.expect("it does not panic").at(), "503 worker_lost");
    assert!(workers[0].probes() > 0);
    for (worker, sent) in workers[1..].iter().zip(sent) {
        worker.dispatch(0).await.answer().await;
        assert_eq!(sent.end().await.at(), worker.id);
    }
}

#[tokio::test]
async fn reports_of_another_instance_are_no_sign_of_life() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").without_heartbeat().start().await;
    let lost = eventually("the worker is lost", PATIENCE, async || {
        let report = serde_json::json!({"v": 1, "worker": "w", "instance": "stranger", "seq": 1, "ranks": []});
        worker.client.publish("rankpin.load.w", report.to_string().into()).await.expect("is published");
        (cluster.routers[0].metric("workers").await == 0.0).then_some(())
    });
    lost.await;
    assert_eq!(cluster.at("s").await, "503 no_worker");
}

#[tokio::test]
async fn a_deleted_registration_lets_accepted_requests_run_on() {
    let cluster = Cluster::start().await;
    let mut worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let sent = cluster.send(Ask::new().session("s")).await;
    let dispatch = worker.dispatch(0).await;
    cluster.routers[0].reaches("requests_waiting", 0.0).await;
    worker.deregister().await;
    let gone = async || (cluster.at("other").await == "503 no_worker").then_some(());
    eventually("it takes nothing new", PATIENCE, gone).await;
    dispatch.progress().await;
    // It is still looked after: probed, and with room to finish.
    let probes = worker.probes();
    eventually("it is still probed", PATIENCE, async || (worker.probes() > probes).then_some(())).await;
    dispatch.answer().await;
    assert_eq!(sent.end().await.at(), "w");
    cluster.knows_workers(0).await;
}

#[tokio::test]
async fn a_router_that_starts_takes_no_worker_for_alive_that_has_long_been_silent() {
    let mut cluster = Cluster::start().await;
    let worker = cluster.worker("w").without_heartbeat().start().await;
    cluster.knows_workers(1).await;
    cluster.routers[0].reaches("workers", 0.0).await;
    cluster.add_router(&[]).await;
    // The registration is still in the bucket, older than six seconds.
    assert_eq!(cluster.routers[1].metric("workers").await, 0.0);
    worker.put().await;
    cluster.knows_workers(1).await;
}
