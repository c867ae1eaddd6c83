//! What goes wrong with a job, and what counts as a failure.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;

use super::{LONG, all_acknowledged, connect, id, job, publish, result, serve, store, stored, with_ack_wait};
use crate::support::cluster::Cluster;
use crate::support::worker::{Behaviour, Dispatch};
use crate::support::{NatsServer, PATIENCE, eventually};

#[tokio::test]
async fn a_refused_one_is_published_again_and_dead_after_five_failures() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let mut tap = cluster.subscribe("rankpin.job.>").await;
    let worker = cluster.worker("w").behaves(Behaviour::Reject(503, "draining")).start().await;
    jobs.submit(&job("j").header("x-mine", "1")).await.expect("it is taken");
    let result = result(&jobs, "j").await;
    let failure = result.failure.expect("it has failed");
    assert_eq!((failure.status, failure.code.as_str()), (503, "no_worker"));
    all_acknowledged(&jobs).await;
    let attempts: Vec<u32> = worker.dispatches().iter().map(|d| d.attempt().parse().expect("a number")).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5]);
    tap.next().await.expect("the first one");
    for n in 1..5 {
        let again = tap.next().await.expect("the client lives");
        let find = |name| crate::support::frontend::find(&again, name).map(str::to_owned);
        assert_eq!(find("Rankpin-Failures"), Some(n.to_string()));
        assert_eq!(find("Rankpin-Attempt"), Some(n.to_string()));
        assert_eq!(find("Nats-Msg-Id"), Some(format!("j.f{n}")));
        assert_eq!(find("x-mine").as_deref(), Some("1"));
    }
    let letter = jobs.next_dead(1).await.expect("the server answers").expect("it is dead");
    assert_eq!((letter.id.clone(), letter.failures, letter.model_token()), (Some(id("j")), 5, "m"));
    assert_eq!(letter.error, Some((503, "no_worker".into())));
    assert!(letter.headers().contains(&("x-mine".into(), "1".into())), "{letter:?}");
    assert!(
        letter.reason.contains("worker \"w\" refused it: the worker refused the request: draining"),
        "{}",
        letter.reason
    );

    // Sent again it begins anew, and may die again: the stream still knows the message ids of its first life.
    jobs.requeue(&letter).await.expect("the server answers");
    let again = async || jobs.next_dead(letter.sequence + 1).await.expect("the server answers");
    let letter = eventually("it is dead again", LONG, again).await;
    assert_eq!((letter.failures, worker.count()), (5, 10));

    let client = cluster.client.clone();
    worker.behave(Behaviour::script(move |dispatch: Dispatch| {
        let client = client.clone();
        async move { serve(&client, &dispatch).await }
    }));
    jobs.requeue(&letter).await.expect("the server answers");
    let answered = async || jobs.result(&id("j")).await.expect("answers").filter(|result| result.failure.is_none());
    eventually("it has an answer", PATIENCE, answered).await;
    assert!(jobs.next_dead(1).await.expect("the server answers").is_none());
    let attempts: Vec<u32> = worker.dispatches().iter().map(|d| d.attempt().parse().expect("a number")).collect();
    assert!(attempts.is_sorted_by(|a, b| a < b), "{attempts:?}");
}

#[tokio::test]
async fn forged_counts_harm_their_own_job_alone() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").behaves(Behaviour::Reject(503, "draining")).start().await;
    let most = u32::MAX.to_string();
    let message = format!("j.f{most}");
    let forged = [("Rankpin-Request-Id", "j"), ("Rankpin-Failures", most.as_str()), ("Rankpin-Attempt", most.as_str())];
    publish(&cluster.client, "rankpin.job.m", &[&forged[..], &[("Nats-Msg-Id", message.as_str())]].concat()).await;
    result(&jobs, "j").await;
    all_acknowledged(&jobs).await;
    assert_eq!((worker.count(), cluster.routers[0].metric("faults").await), (1, 0.0));
    // Without such a message id they count for nothing.
    worker.behave(Behaviour::Reject(404, "not_mine"));
    publish(&cluster.client, "rankpin.job.m", &[&[("Rankpin-Request-Id", "k")], &forged[1..]].concat()).await;
    result(&jobs, "k").await;
    assert_eq!(worker.dispatch(1).await.attempt(), "1");
}

#[tokio::test]
async fn without_a_worker_it_only_waits() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    jobs.submit(&job("j")).await.expect("it is taken");
    let delayed = async || (cluster.routers[0].metric_where("job_deliveries", "delayed").await >= 2.0).then_some(());
    eventually("it was put off twice", PATIENCE, delayed).await;
    let client = cluster.client.clone();
    let behaviour = Behaviour::script(move |dispatch: Dispatch| {
        let client = client.clone();
        async move { serve(&client, &dispatch).await }
    });
    let worker = cluster.worker("w").behaves(behaviour).start().await;
    assert!(result(&jobs, "j").await.failure.is_none());
    assert_eq!(worker.dispatch(0).await.header("Rankpin-Failures"), None);
    assert_eq!(cluster.routers[0].metric_where("job_deliveries", "\"failed\"").await, 0.0);
}

#[tokio::test]
async fn an_overloaded_worker_only_delays_it() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").behaves(Behaviour::Reject(429, "overloaded")).start().await;
    jobs.submit(&job("j")).await.expect("it is taken");
    worker.dispatch(1).await;
    let attempts: Vec<u32> = worker.dispatches().iter().map(|d| d.attempt().parse().expect("a number")).collect();
    assert!(attempts.is_sorted_by(|a, b| a < b), "{attempts:?}");
    let client = cluster.client.clone();
    worker.behave(Behaviour::script(move |dispatch: Dispatch| {
        let client = client.clone();
        async move { serve(&client, &dispatch).await }
    }));
    assert!(result(&jobs, "j").await.failure.is_none());
    assert_eq!(cluster.routers[0].metric_where("job_deliveries", "\"failed\"").await, 0.0);
}

#[tokio::test]
async fn what_is_wrong_with_it_is_its_result() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").behaves(Behaviour::Reject(404, "not_mine")).start().await;
    let rows = [
        ("rankpin.job.m", ("Rankpin-Target-Dp-Rank", "9"), "400", "rank_out_of_range"),
        ("rankpin.job.m", ("Rankpin-Pool", "moon"), "404", "unknown_pool"),
        ("rankpin.job.m", ("Rankpin-Request-Id", "a b"), "400", "invalid_request"),
        ("rankpin.job.a.b", ("x-mine", "1"), "400", "invalid_request"),
        ("rankpin.job.m", ("x-mine", "1"), "404", "not_mine"),
    ];
    for (subject, headers, status, code) in rows {
        let sequence = publish(&cluster.client, subject, &[headers]).await;
        let result = result(&jobs, &format!("job-{sequence}")).await;
        let failure = result.failure.expect("it has failed");
        assert_eq!((failure.status.to_string().as_str(), failure.code.as_str()), (status, code), "{headers:?}");
    }
    all_acknowledged(&jobs).await;
    assert_eq!(worker.count(), 1);
}

#[tokio::test]
async fn a_lost_worker_is_a_failure() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let mut lost = cluster.worker("a").behaves(Behaviour::Hold).start().await;
    jobs.submit(&job("j")).await.expect("it is taken");
    let first = lost.dispatch(0).await;
    lost.die().await;
    let client = cluster.client.clone();
    let behaviour = Behaviour::script(move |dispatch: Dispatch| {
        let client = client.clone();
        async move { serve(&client, &dispatch).await }
    });
    let other = cluster.worker("b").behaves(behaviour).start().await;
    let result = result(&jobs, "j").await;
    assert_eq!((result.attempt, result.failure), (2, None));
    assert_eq!(other.dispatch(0).await.attempt(), "2");
    all_acknowledged(&jobs).await;
    // Whatever the lost one still says comes too late.
    assert!(!store(&cluster.client, &first, "late").await);
    assert_eq!(stored(&cluster.client, "rankpin.result.j").await, 1);
}

#[tokio::test]
async fn progress_keeps_it_and_silence_is_a_failure() {
    let server = NatsServer::start();
    with_ack_wait(&server.client().await, Duration::from_secs(3)).await;
    let cluster = Cluster::on(server, 1, &[]).await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    jobs.submit(&job("j")).await.expect("it is taken");
    let dispatch = worker.dispatch(0).await;
    // Longer than the ack wait twice over.
    let end = Instant::now() + Duration::from_secs(7);
    while Instant::now() < end {
        dispatch.progress().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(worker.count(), 1, "it is neither lost nor delivered again");
    // Now it says nothing more.
    let again = worker.dispatch(1).await;
    assert_eq!(again.attempt(), "2");
    assert_eq!(worker.cancel(0).await, ("j".to_owned(), "1".to_owned()));
    assert!(store(&cluster.client, &again, "second").await);
    again.finish("ok").await;
    all_acknowledged(&jobs).await;
    assert_eq!(&result(&jobs, "j").await.payload[..], b"second");
}

#[tokio::test]
async fn a_router_that_waits_keeps_it() {
    let server = NatsServer::start();
    with_ack_wait(&server.client().await, Duration::from_secs(2)).await;
    let cluster = Cluster::on(server, 1, &[]).await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let _busy = cluster.send(crate::support::Ask::new()).await;
    let busy = worker.dispatch(0).await;
    jobs.submit(&job("j")).await.expect("it is taken");
    cluster.routers[0].reaches("requests_queued", 1.0).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    busy.answer().await;
    let dispatch = worker.dispatch(1).await;
    // Delivered once, or its attempts would begin behind those of the first delivery.
    assert_eq!(dispatch.attempt(), "1");
    store(&cluster.client, &dispatch, "done").await;
    dispatch.finish("ok").await;
    all_acknowledged(&jobs).await;
}

#[tokio::test]
async fn a_stopping_router_hands_waiting_jobs_over_at_once() {
    let mut cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let _busy = cluster.send(crate::support::Ask::new()).await;
    let busy = worker.dispatch(0).await;
    jobs.submit(&job("j")).await.expect("it is taken");
    cluster.routers[0].reaches("requests_queued", 1.0).await;
    cluster.add_router(&[]).await;
    cluster.routers[0].tell_to_stop();
    // The other one does not know of the request that fills the worker.
    let dispatch = eventually("the other router sends it", LONG, async || worker.dispatches().get(1).cloned()).await;
    busy.answer().await;
    store(&cluster.client, &dispatch, "done").await;
    dispatch.finish("ok").await;
    all_acknowledged(&jobs).await;
    cluster.routers.remove(0).ended().await;
}

#[tokio::test]
async fn a_stopping_router_finishes_and_acknowledges_what_runs() {
    let mut cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    jobs.submit(&job("j")).await.expect("it is taken");
    let dispatch = worker.dispatch(0).await;
    cluster.routers[0].tell_to_stop();
    let not_taking = async || (!cluster.routers[0].is_ready().await).then_some(());
    eventually("it takes no more", PATIENCE, not_taking).await;
    jobs.submit(&job("k")).await.expect("it is taken");
    store(&cluster.client, &dispatch, "done").await;
    dispatch.finish("ok").await;
    cluster.routers.remove(0).ended().await;
    // There is no router any more that could acknowledge it later.
    let overview = jobs.overview().await.expect("the server answers");
    // The other job waits. It may have been on its way to this router when that was told, and is then given back.
    assert_eq!((overview.running + overview.pending, overview.done), (1, 1));
    assert_eq!(worker.count(), 1);
}

#[tokio::test]
async fn a_router_killed_between_publishing_again_and_acknowledging_leaves_one_result() {
    let server = NatsServer::start();
    with_ack_wait(&server.client().await, Duration::from_secs(30)).await;
    let client = server.client().await;
    // What such a router leaves behind: the old message, and the new one.
    publish(&client, "rankpin.job.m", &[("Rankpin-Request-Id", "j"), ("Nats-Msg-Id", "j")]).await;
    let again = [("Rankpin-Failures", "1"), ("Rankpin-Attempt", "1"), ("Nats-Msg-Id", "j.f1")];
    publish(&client, "rankpin.job.m", &[&[("Rankpin-Request-Id", "j")], &again[..]].concat()).await;
    let cluster = Cluster::on(server, 1, &[]).await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").behaves(Behaviour::Reject(503, "draining")).start().await;
    result(&jobs, "j").await;
    all_acknowledged(&jobs).await;
    // Both lives fail, and the job dies once.
    assert_eq!(stored(&cluster.client, "rankpin.result.j").await, 1);
    let letter = jobs.next_dead(1).await.expect("the server answers").expect("it is dead");
    assert!(jobs.next_dead(letter.sequence + 1).await.expect("the server answers").is_none());
    // The new message has one failure behind it; whether the old one is tried at all depends on which comes first.
    assert!(worker.count() >= 4);
}

#[tokio::test]
async fn a_worker_that_says_finished_without_a_result_has_failed() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let lies = Behaviour::script(|dispatch: Dispatch| async move {
        dispatch.accept().await;
        dispatch.finish("ok").await;
    });
    let worker = cluster.worker("w").behaves(lies).start().await;
    jobs.submit(&job("j")).await.expect("it is taken");
    worker.dispatch(1).await;
    let client = cluster.client.clone();
    worker.behave(Behaviour::script(move |dispatch: Dispatch| {
        let client = client.clone();
        async move { serve(&client, &dispatch).await }
    }));
    assert_eq!(result(&jobs, "j").await.failure, None);
    all_acknowledged(&jobs).await;
    assert_eq!(stored(&cluster.client, "rankpin.result.j").await, 1);
}
