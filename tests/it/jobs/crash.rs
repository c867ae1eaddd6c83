//! Processes that are killed, at every phase of a job: each job has exactly one final result.

use std::time::Duration;

use rankpin::client::jobs::JobResult;

use super::{LONG, all_acknowledged, connect, id, job, result, serve, store, stored, with_ack_wait};
use crate::support::rankpin::sim;
use crate::support::worker::{Behaviour, Dispatch, Worker};
use crate::support::{Cluster, NatsServer, PATIENCE, RouterProcess, eventually};

/// A cluster whose only router is a process, and whose jobs are delivered again after two seconds.
struct Scene {
    cluster: Cluster,
    router: RouterProcess,
    worker: Worker,
}

async fn scene(behaviour: Behaviour) -> Scene {
    let server = NatsServer::start();
    with_ack_wait(&server.client().await, Duration::from_secs(2)).await;
    let router = RouterProcess::start("router", &server, &[]).await;
    let cluster = Cluster::on(server, 0, &[]).await;
    let worker = cluster.worker("w").behaves(behaviour).start_unnoticed().await;
    let known = async || (router.metric("workers").await == 1.0).then_some(());
    eventually("the router knows the worker", PATIENCE, known).await;
    Scene { cluster, router, worker }
}

impl Scene {
    fn serves(&self) -> Behaviour {
        let client = self.cluster.client.clone();
        Behaviour::script(move |dispatch: Dispatch| {
            let client = client.clone();
            async move { serve(&client, &dispatch).await }
        })
    }

    /// Kills the router, and starts another one.
    async fn replace_router(&mut self) {
        self.router.process.kill();
        self.router = RouterProcess::start("router-2", &self.cluster.server, &[]).await;
    }

    /// The job is done, once.
    async fn ends(&self, name: &str) {
        let jobs = connect(&self.cluster.server).await;
        assert_eq!(result(&jobs, name).await.failure, None);
        all_acknowledged(&jobs).await;
        assert_eq!(stored(&self.cluster.client, &format!("rankpin.result.{name}")).await, 1);
    }
}

#[tokio::test]
async fn a_router_killed_while_the_job_is_sent() {
    let mut scene = scene(Behaviour::Silent).await;
    let jobs = connect(&scene.cluster.server).await;
    jobs.submit(&job("j")).await.expect("it is taken");
    let first = scene.worker.dispatch(0).await;
    scene.worker.behave(scene.serves());
    scene.replace_router().await;
    scene.ends("j").await;
    let second = scene.worker.dispatch(1).await;
    let attempt = |dispatch: &Dispatch| dispatch.attempt().parse::<u32>().expect("a number");
    assert!(attempt(&second) > attempt(&first), "attempts go up across deliveries");
}

#[tokio::test]
async fn a_router_killed_while_the_job_runs() {
    let mut scene = scene(Behaviour::Hold).await;
    let jobs = connect(&scene.cluster.server).await;
    jobs.submit(&job("j")).await.expect("it is taken");
    let first = scene.worker.dispatch(0).await;
    scene.worker.behave(scene.serves());
    scene.replace_router().await;
    // Its worker goes on, and is the second one to answer.
    scene.worker.dispatch(1).await;
    scene.ends("j").await;
    assert!(!store(&scene.cluster.client, &first, "late").await);
    assert_eq!(stored(&scene.cluster.client, "rankpin.result.j").await, 1);
}

#[tokio::test]
async fn a_router_killed_after_the_result_stands_and_before_it_hears_so() {
    let mut scene = scene(Behaviour::Hold).await;
    let jobs = connect(&scene.cluster.server).await;
    jobs.submit(&job("j")).await.expect("it is taken");
    let dispatch = scene.worker.dispatch(0).await;
    assert!(store(&scene.cluster.client, &dispatch, "done").await);
    scene.replace_router().await;
    scene.ends("j").await;
    assert_eq!(scene.worker.count(), 1, "it is not run again");
}

#[tokio::test]
async fn a_router_killed_while_the_job_waits() {
    let mut scene = scene(Behaviour::Hold).await;
    scene.worker.declare("state", "draining").await;
    let jobs = connect(&scene.cluster.server).await;
    jobs.submit(&job("j")).await.expect("it is taken");
    let delayed = async || (scene.router.metric("job_deliveries").await >= 1.0).then_some(());
    eventually("it was put off", PATIENCE, delayed).await;
    scene.worker.behave(scene.serves());
    scene.replace_router().await;
    scene.worker.declare("state", "ready").await;
    scene.ends("j").await;
}

#[tokio::test]
async fn a_server_that_restarts_keeps_the_jobs() {
    let mut scene = scene(Behaviour::Hold).await;
    let jobs = connect(&scene.cluster.server).await;
    for n in 0..5 {
        jobs.submit(&job(&format!("j{n}"))).await.expect("it is taken");
    }
    scene.worker.dispatch(4).await;
    scene.worker.behave(scene.serves());
    scene.cluster.server.restart();
    for n in 0..5 {
        scene.ends(&format!("j{n}")).await;
    }
}

#[tokio::test]
async fn a_simulated_worker_streams_a_job_and_is_killed_at_another() {
    let server = NatsServer::start();
    let _router = RouterProcess::start("router", &server, &[]).await;
    let jobs = connect(&server).await;
    let mut first = sim(&server, "a", &["--speed", "100"]);
    let body = r#"{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"hi"}]}"#;
    let model = rankpin::core::id::Model::new("m").expect("valid");
    let request = rankpin::client::Request::new(model.clone(), body).request_id(id("streamed"));
    jobs.submit(&request).await.expect("it is taken");
    let streamed = result(&jobs, "streamed").await;
    assert_eq!(streamed.failure, None);
    let replies = jobs.replies(&streamed).await.expect("the server answers");
    let all = |of: &JobResult| of.parts + u64::from(!of.payload.is_empty());
    assert!(replies.len() as u64 == all(&streamed) && replies.len() > 3, "{} of {}", replies.len(), streamed.parts);

    // Slow enough to be killed in the middle; another one does it.
    first.kill();
    let mut slow = sim(&server, "b", &["--decode-rate", "1"]);
    let request = rankpin::client::Request::new(model, body).request_id(id("lost"));
    jobs.submit(&request).await.expect("it is taken");
    let client = server.client().await;
    let begun = async || (stored(&client, "rankpin.result.lost.*").await > 0).then_some(());
    eventually("the first part of it is stored", LONG, begun).await;
    slow.kill();
    let _other = sim(&server, "c", &["--speed", "100"]);
    let lost = result(&jobs, "lost").await;
    assert_eq!((lost.failure.clone(), lost.worker.clone()), (None, Some(("c".into(), None))));
    assert!(lost.attempt > 1);
    assert_eq!(jobs.replies(&lost).await.expect("the server answers").len() as u64, all(&lost));
    all_acknowledged(&jobs).await;
}
