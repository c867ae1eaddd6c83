//! A job from its submission to its result.

use rankpin::client::jobs::Cancelled;

use super::{all_acknowledged, connect, id, job, publish, result, serve, store, stored};
use crate::support::cluster::Cluster;
use crate::support::worker::{Behaviour, Dispatch};
use crate::support::{Ask, NatsServer, PATIENCE, eventually};

/// What every job of these tests' workers does.
fn serves(cluster: &Cluster) -> Behaviour {
    let client = cluster.client.clone();
    Behaviour::script(move |dispatch: Dispatch| {
        let client = client.clone();
        async move { serve(&client, &dispatch).await }
    })
}

#[tokio::test]
async fn it_is_acknowledged_once_its_worker_has_finished() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").ranks(0, 2).behaves(Behaviour::Hold).start().await;
    let submitted = jobs.submit(&job("j").header("traceparent", "00-1")).await.expect("it is taken");
    assert!(!submitted.duplicate);
    let dispatch = worker.dispatch(0).await;
    assert_eq!(dispatch.header("Rankpin-Request-Id"), Some("j"));
    assert_eq!(dispatch.header("Rankpin-Reply-To"), Some("rankpin.result.j.1"));
    assert_eq!((dispatch.attempt(), dispatch.header("traceparent")), ("1", Some("00-1")));
    assert_eq!(dispatch.header("Nats-Msg-Id"), None);
    assert!(store(&cluster.client, &dispatch, "the answer").await);
    assert_eq!(jobs.overview().await.expect("the server answers").running, 1, "nobody has said that it is done");
    dispatch.finish("ok").await;
    all_acknowledged(&jobs).await;
    let result = result(&jobs, "j").await;
    assert_eq!((&result.payload[..], result.attempt, result.failure), (&b"the answer"[..], 1, None));
    assert_eq!(cluster.routers[0].metric_where("job_deliveries", "finished").await, 1.0);
    eventually("nothing is held", PATIENCE, async || {
        (cluster.routers[0].metric("jobs_held").await == 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn sessions_and_pins_count() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").ranks(0, 4).behaves(serves(&cluster)).start().await;
    cluster.put_pin("s", "w", Some(3)).await;
    for n in 0..3 {
        let job = job(&format!("j{n}")).header("Rankpin-Session-Id", "s");
        jobs.submit(&job).await.expect("it is taken");
        result(&jobs, &format!("j{n}")).await;
    }
    for dispatch in worker.dispatches() {
        assert_eq!(dispatch.message.subject.as_str(), "rankpin.worker.w.rank.3");
        assert_eq!(dispatch.header("Rankpin-Decision"), Some("pinned"));
    }
}

#[tokio::test]
async fn one_without_an_id_is_named_by_its_place_in_the_stream() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").behaves(serves(&cluster)).start().await;
    let sequence = publish(&cluster.client, "rankpin.job.m", &[]).await;
    let name = format!("job-{sequence}");
    result(&jobs, &name).await;
    assert_eq!(worker.dispatch(0).await.header("Rankpin-Request-Id"), Some(name.as_str()));
}

#[tokio::test]
async fn the_same_id_runs_once() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    assert!(!jobs.submit(&job("j")).await.expect("it is taken").duplicate);
    assert!(jobs.submit(&job("j")).await.expect("it is known").duplicate, "the stream takes its message id once");
    let dispatch = worker.dispatch(0).await;
    // Another message of the same job while it runs: it waits, and finds the result.
    publish(&cluster.client, "rankpin.job.m", &[("Rankpin-Request-Id", "j")]).await;
    let delayed = async || (cluster.routers[0].metric_where("job_deliveries", "delayed").await >= 1.0).then_some(());
    eventually("the second message is put off", PATIENCE, delayed).await;
    store(&cluster.client, &dispatch, "done").await;
    dispatch.finish("ok").await;
    all_acknowledged(&jobs).await;
    // And after it.
    publish(&cluster.client, "rankpin.job.m", &[("Rankpin-Request-Id", "j")]).await;
    all_acknowledged(&jobs).await;
    assert_eq!((worker.count(), stored(&cluster.client, "rankpin.result.j").await), (1, 1));
    assert_eq!(cluster.routers[0].metric_where("job_deliveries", "already_done").await, 2.0);
}

#[tokio::test]
async fn requests_go_first_where_both_wait() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let first = cluster.send(Ask::new()).await;
    let held = worker.dispatch(0).await;
    // The job waits first, and with the higher priority; the requests came later.
    jobs.submit(&job("j").priority(9)).await.expect("it is taken");
    cluster.routers[0].reaches("requests_queued", 1.0).await;
    let requests = [cluster.send(Ask::new().id("r1")).await, cluster.send(Ask::new().id("r2")).await];
    cluster.routers[0].reaches("requests_queued", 3.0).await;
    worker.behave(Behaviour::Answer);
    held.answer().await;
    first.end().await;
    for request in requests {
        request.end().await;
    }
    let order: Vec<_> = (1..4).map(async |n| worker.dispatch(n).await).collect();
    let mut names = Vec::new();
    for dispatch in order {
        names.push(dispatch.await.header("Rankpin-Request-Id").expect("given").to_owned());
    }
    assert_eq!(names, ["r1", "r2", "j"]);
}

#[tokio::test]
async fn a_router_holds_as_many_as_it_may() {
    let cluster = Cluster::with(1, &[("max_jobs", "2")]).await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    for n in 0..5 {
        jobs.submit(&job(&format!("j{n}"))).await.expect("it is taken");
    }
    worker.dispatch(1).await;
    let overview = jobs.overview().await.expect("the server answers");
    assert_eq!((overview.running, overview.pending), (2, 3));
    worker.behave(serves(&cluster));
    for n in 0..2 {
        serve(&cluster.client, &worker.dispatch(n).await).await;
    }
    all_acknowledged(&jobs).await;
    assert_eq!(worker.count(), 5);
}

#[tokio::test]
async fn one_that_waits_is_cancelled_at_once() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let _busy = cluster.send(Ask::new()).await;
    worker.dispatch(0).await;
    jobs.submit(&job("j")).await.expect("it is taken");
    cluster.routers[0].reaches("requests_queued", 1.0).await;
    cluster.cancel("j").await;
    let result = result(&jobs, "j").await;
    assert_eq!(result.failure.map(|failure| (failure.status, failure.code)), Some((499, "cancelled".into())));
    all_acknowledged(&jobs).await;
    assert_eq!(worker.count(), 1, "it was never sent");
}

#[tokio::test]
async fn one_that_runs_is_cancelled_at_its_worker() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    jobs.submit(&job("j")).await.expect("it is taken");
    let dispatch = worker.dispatch(0).await;
    cluster.cancel("j").await;
    assert_eq!(worker.cancel(0).await, ("j".to_owned(), "1".to_owned()));
    assert_eq!(jobs.result(&id("j")).await.expect("the server answers").map(|r| r.failure), None);
    dispatch.finish("cancelled").await;
    let result = result(&jobs, "j").await;
    assert_eq!(result.failure.map(|failure| failure.status), Some(499));
    all_acknowledged(&jobs).await;
}

#[tokio::test]
async fn one_that_no_router_has_is_cancelled_by_its_result() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    jobs.submit(&job("j")).await.expect("it is taken");
    // Nothing serves the model: it is only put off.
    let delayed = async || (cluster.routers[0].metric_where("job_deliveries", "delayed").await >= 1.0).then_some(());
    eventually("it is put off", PATIENCE, delayed).await;
    assert_eq!(jobs.cancel(&id("j")).await.expect("the server answers"), Cancelled::Yes);
    assert_eq!(jobs.cancel(&id("j")).await.expect("the server answers"), Cancelled::TooLate);
    let worker = cluster.worker("w").behaves(serves(&cluster)).start().await;
    all_acknowledged(&jobs).await;
    assert_eq!(worker.count(), 0);
}

#[tokio::test]
async fn one_that_no_router_has_at_the_moment_is_cancelled_when_it_comes() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    jobs.submit(&job("j")).await.expect("it is taken");
    let delayed = async || (cluster.routers[0].metric_where("job_deliveries", "delayed").await >= 1.0).then_some(());
    eventually("it is put off", PATIENCE, delayed).await;
    cluster.cancel("j").await;
    let result = result(&jobs, "j").await;
    assert_eq!(result.failure.map(|failure| failure.status), Some(499));
    all_acknowledged(&jobs).await;
}

#[tokio::test]
async fn a_plain_responder_serves_jobs() {
    let server = NatsServer::start();
    let dir = tempfile::tempdir().expect("a temp directory");
    let path = dir.path().join("rankpin.toml");
    std::fs::write(&path, "[[worker]]\nid = 'legacy'\nmodels = ['m']\nsubject = 'svc.legacy'\n").expect("written");
    let cluster = Cluster::on(server, 1, &[("config", path.to_str().expect("UTF-8"))]).await;
    let mut service = cluster.subscribe("svc.legacy").await;
    let jobs = connect(&cluster.server).await;
    jobs.submit(&job("j")).await.expect("it is taken");
    let request = futures_util::StreamExt::next(&mut service).await.expect("the client lives");
    cluster.client.publish(request.reply.expect("an inbox"), "plain".into()).await.expect("is published");
    let result = result(&jobs, "j").await;
    assert_eq!((&result.payload[..], result.worker), (&b"plain"[..], Some(("legacy".into(), None))));
    all_acknowledged(&jobs).await;
}
