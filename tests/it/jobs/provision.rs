//! The streams: made, found, or not to be had.

use std::time::Duration;

use async_nats::jetstream::{self, consumer, stream};

use rankpin::client::jobs::{Jobs, JobsOptions};

use super::{connect, job, result, with_ack_wait};
use crate::support::cluster::{Cluster, RouterTask};
use crate::support::server::Options;
use crate::support::worker::Behaviour;
use crate::support::{NatsServer, PATIENCE, RouterProcess, eventually};

#[tokio::test]
async fn they_are_made_as_the_protocol_says() {
    let cluster = Cluster::with(2, &[("jobs.max_messages", "1000"), ("jobs.results_max_age", "2h")]).await;
    let context = jetstream::new(cluster.client.clone());
    let config = async |name: &str| context.get_stream(name).await.expect("it is made").cached_info().config.clone();
    let jobs = config("rankpin_jobs").await;
    assert_eq!(jobs.retention, stream::RetentionPolicy::WorkQueue);
    assert_eq!(
        (jobs.storage, jobs.max_messages, jobs.discard),
        (stream::StorageType::File, 1000, stream::DiscardPolicy::New)
    );
    assert_eq!(config("rankpin_results").await.max_age, Duration::from_secs(2 * 3600));
    assert_eq!(config("rankpin_dead").await.subjects, ["rankpin.dead.>"]);
    let stream = context.get_stream("rankpin_jobs").await.expect("it is made");
    let consumer: consumer::PullConsumer = stream.get_consumer("router").await.expect("it is made");
    let config = &consumer.cached_info().config;
    assert_eq!((config.ack_policy, config.ack_wait), (consumer::AckPolicy::Explicit, Duration::from_secs(30)));
    for router in &cluster.routers {
        router.reaches("jobs_enabled", 1.0).await;
    }
}

#[tokio::test]
async fn what_is_there_is_left_as_it_is_and_differences_are_told() {
    let server = NatsServer::start();
    with_ack_wait(&server.client().await, Duration::from_secs(7)).await;
    let router = RouterProcess::start("router", &server, &["--jobs-max-bytes", "1000000"]).await;
    let log = router.process.log();
    for told in ["max bytes: found -1, wanted 1000000", "ack wait: found 7s, wanted 30s"] {
        assert!(log.contains(told), "{told}: {log}");
    }
    let context = jetstream::new(server.client().await);
    let stream = context.get_stream("rankpin_jobs").await.expect("it is there");
    assert_eq!(stream.cached_info().config.max_bytes, -1);
}

#[tokio::test]
async fn a_router_that_takes_no_jobs_makes_no_streams() {
    let cluster = Cluster::with(1, &[("max_jobs", "0")]).await;
    let context = jetstream::new(cluster.client.clone());
    assert!(context.get_stream("rankpin_jobs").await.is_err());
    assert_eq!(cluster.routers[0].metric("jobs_enabled").await, 0.0);
    let _w = cluster.worker("w").start().await;
    assert_eq!(cluster.at("s").await, "w");
}

#[tokio::test]
async fn where_they_may_not_be_had_requests_are_routed_all_the_same() {
    for denied in ["$JS.API.STREAM.*.rankpin_jobs", "$JS.API.CONSUMER.*.rankpin_jobs.>", "rankpin.result.*"] {
        let config = format!(
            r#"authorization {{ users: [
                {{ user: admin, password: p }}
                {{ user: router, password: p, permissions: {{
                    publish: {{ allow: ">", deny: ["{denied}"] }}, subscribe: {{ allow: ">" }} }} }}
            ] }}"#
        );
        let server = NatsServer::start_with(Options { config, ..Options::default() });
        let url = format!("nats://router:p@127.0.0.1:{}", server.port());
        let router = RouterTask::start(&url, &[]).await;
        let cluster = Cluster::of(server, router, "admin", "p").await;
        let _w = cluster.worker("w").start().await;
        assert_eq!(cluster.at("s").await, "w", "{denied}");
        assert_eq!(cluster.routers[0].metric("jobs_enabled").await, 0.0, "{denied}");
    }
}

#[tokio::test]
async fn where_the_server_refuses_them_requests_are_routed_all_the_same() {
    let server = NatsServer::start();
    let router = RouterProcess::start("router", &server, &["--jobs-replicas", "3"]).await;
    let told = async || router.process.log().contains("stream rankpin_jobs can't be made").then_some(());
    eventually("the log says why there are no jobs", PATIENCE, told).await;
    assert_eq!((router.metric("jobs_enabled").await, router.get("/readyz").await.0), (0.0, 200));
}

#[tokio::test]
async fn missing_streams_are_told_and_found_once_somebody_makes_them() {
    let server = NatsServer::start();
    // The buckets alone.
    drop(RouterTask::start(&server.url(), &[("max_jobs", "0")]).await);
    let router = RouterProcess::start("router", &server, &["--provision", "never"]).await;
    let told = async || router.process.log().contains("stream rankpin_jobs is missing").then_some(());
    eventually("the log says what is missing", PATIENCE, told).await;
    assert_eq!(router.metric("jobs_enabled").await, 0.0);
    drop(RouterTask::start(&server.url(), &[]).await);
    let on = async || (router.metric("jobs_enabled").await == 1.0).then_some(());
    eventually("it has found them", PATIENCE, on).await;
    let jobs = connect(&server).await;
    jobs.submit(&job("j").header("Rankpin-Target-Dp-Rank", "none")).await.expect("it is taken");
    let _sim = crate::support::rankpin::sim(&server, "w", &[]);
    assert_eq!(result(&jobs, "j").await.failure.map(|failure| failure.status), Some(400));
}

#[tokio::test]
async fn one_job_too_many_is_refused_when_it_is_submitted() {
    let cluster = Cluster::with(1, &[("jobs.max_messages", "2")]).await;
    let jobs = connect(&cluster.server).await;
    for n in 0..2 {
        jobs.submit(&job(&format!("j{n}"))).await.expect("it is taken");
    }
    let error = jobs.submit(&job("j2")).await.expect_err("there is no room");
    assert!(error.to_string().contains("maximum messages exceeded"), "{error}");
}

#[tokio::test]
async fn a_consumer_that_somebody_deletes_is_made_again() {
    let cluster = Cluster::start().await;
    let jobs = connect(&cluster.server).await;
    let _w = cluster.worker("w").behaves(Behaviour::Reject(404, "not_mine")).start().await;
    let stream = jetstream::new(cluster.client.clone()).get_stream("rankpin_jobs").await.expect("it is made");
    stream.delete_consumer("router").await.expect("it is deleted");
    jobs.submit(&job("j")).await.expect("it is taken");
    assert_eq!(result(&jobs, "j").await.failure.map(|failure| failure.code), Some("not_mine".into()));
    let made = stream.get_consumer::<consumer::pull::Config>("router").await;
    assert_eq!(made.expect("it is made again").cached_info().config.ack_wait, Duration::from_secs(30));
}

#[tokio::test]
async fn least_privileges_are_enough() {
    let config = r#"authorization { users: [
        { user: admin, password: p }
        { user: router, password: p, permissions: {
            publish: { allow: [
                "rankpin.worker.>", "_INBOX.>", "_INBOX_.>", "_INBOX_rankpin_router.>", "$KV.rankpin_pins.>",
                "$JS.API.STREAM.INFO.KV_rankpin_workers", "$JS.API.STREAM.INFO.KV_rankpin_pins",
                "$JS.API.CONSUMER.CREATE.KV_rankpin_workers.>", "$JS.API.CONSUMER.CREATE.KV_rankpin_pins.>",
                "$JS.API.CONSUMER.MSG.NEXT.KV_rankpin_workers.>", "$JS.API.CONSUMER.MSG.NEXT.KV_rankpin_pins.>",
                "$JS.API.STREAM.INFO.rankpin_jobs", "$JS.API.STREAM.INFO.rankpin_results",
                "$JS.API.STREAM.INFO.rankpin_dead", "$JS.API.STREAM.MSG.DELETE.rankpin_jobs",
                "$JS.API.STREAM.MSG.GET.rankpin_jobs", "$JS.API.CONSUMER.INFO.rankpin_jobs.router",
                "$JS.API.CONSUMER.MSG.NEXT.rankpin_jobs.router", "$JS.ACK.rankpin_jobs.router.>",
                "rankpin.job.>", "rankpin.result.*", "rankpin.dead.>"
            ] }
            subscribe: { allow: [
                "rankpin.request router", "rankpin.request.> router", "rankpin.trusted.> router",
                "rankpin.cancel.*", "rankpin.load.*", "_INBOX_rankpin_router.>"
            ] }
        } }
    ] }"#;
    let server = NatsServer::start_with(Options { config: config.into(), ..Options::default() });
    let admin = format!("nats://admin:p@127.0.0.1:{}", server.port());
    drop(RouterTask::start(&admin, &[]).await);
    let url = format!("nats://router:p@127.0.0.1:{}", server.port());
    let router = RouterTask::start(&url, &[("provision", "never")]).await;
    let cluster = Cluster::of(server, router, "admin", "p").await;
    let jobs = Jobs::connect(JobsOptions::new(&admin)).await.expect("connects");
    let worker = cluster.worker("w").behaves(Behaviour::Reject(503, "draining")).start().await;
    jobs.submit(&job("j")).await.expect("it is taken");
    // What is published again, the dead letter and the error in its result.
    assert_eq!(result(&jobs, "j").await.failure.map(|failure| failure.status), Some(503));
    assert_eq!(worker.count(), 5);
    super::all_acknowledged(&jobs).await;
    assert!(jobs.next_dead(1).await.expect("the server answers").is_some());
}
