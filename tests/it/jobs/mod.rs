//! Durable jobs against a real server: workers that the test scripts, and real processes that are killed.

mod chaos;
mod cli;
mod crash;
mod failures;
mod life;
mod poison;
mod provision;
mod worker;

use std::time::Duration;

use async_nats::jetstream::{self, consumer, stream};
use async_nats::{Client, HeaderMap};
use rankpin::client::Request;
use rankpin::client::jobs::{JobResult, Jobs, JobsOptions, Overview};
use rankpin::core::id::{Model, RequestId};

use crate::support::worker::Dispatch;
use crate::support::{NatsServer, PATIENCE, eventually};

/// How long tests wait for what takes pauses and ack waits by rule.
const LONG: Duration = Duration::from_secs(90);

fn id(text: &str) -> RequestId {
    RequestId::new(text).expect("valid")
}

/// A job of model `m`.
pub fn job(name: &str) -> Request {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    Request::new(Model::new("m").expect("valid"), body).request_id(id(name))
}

pub async fn connect(server: &NatsServer) -> Jobs {
    Jobs::connect(JobsOptions::new(&server.url())).await.expect("connects")
}

/// The result of a job, waited for.
pub async fn result(jobs: &Jobs, name: &str) -> JobResult {
    let what = format!("job {name} has its result");
    eventually(&what, LONG, async || jobs.result(&id(name)).await.expect("the server answers")).await
}

/// Waits until no job is left in the stream.
async fn all_acknowledged(jobs: &Jobs) {
    let none = async || {
        let Overview { pending, running, .. } = jobs.overview().await.expect("the server answers");
        (pending + running == 0).then_some(())
    };
    eventually("every job is acknowledged", LONG, none).await;
}

/// Messages under a subject of the results.
async fn stored(client: &Client, subject: &str) -> u64 {
    let results = jetstream::new(client.clone()).get_stream("rankpin_results").await.expect("it is there");
    let mut subjects = results.info_with_subjects(subject).await.expect("the server answers");
    let mut count = 0;
    while let Some(one) = futures_util::StreamExt::next(&mut subjects).await {
        count += one.expect("the server answers").1 as u64;
    }
    count
}

/// Stores the final message of a dispatched job as a worker has to. Whether it was the first.
async fn store(client: &Client, dispatch: &Dispatch, payload: &str) -> bool {
    let name = dispatch.header("Rankpin-Request-Id").expect("a job has an id");
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("Rankpin-Request-Id", name),
        ("Rankpin-Attempt", dispatch.attempt()),
        ("Rankpin-Seq", "0"),
        ("Rankpin-Final", "true"),
        ("Nats-Expected-Last-Subject-Sequence", "0"),
    ] {
        headers.insert(name, value);
    }
    let subject = format!("rankpin.result.{name}");
    let context = jetstream::new(client.clone());
    let sent = context.publish_with_headers(subject, headers, payload.to_owned().into()).await.expect("is published");
    sent.await.is_ok()
}

/// What a worker does with a job: accepts it, stores its final message, and says that it is done.
async fn serve(client: &Client, dispatch: &Dispatch) {
    dispatch.accept().await;
    store(client, dispatch, "done").await;
    dispatch.finish("ok").await;
}

/// Makes the stream of jobs with a consumer whose ack wait is short: routers take what is there.
async fn with_ack_wait(client: &Client, ack_wait: Duration) {
    let context = jetstream::new(client.clone());
    let config = stream::Config {
        name: "rankpin_jobs".into(),
        subjects: vec!["rankpin.job.>".into()],
        retention: stream::RetentionPolicy::WorkQueue,
        duplicate_window: Duration::from_secs(3600),
        discard: stream::DiscardPolicy::New,
        ..stream::Config::default()
    };
    let stream = context.create_stream(config).await.expect("the stream is made");
    let config = consumer::pull::Config {
        durable_name: Some("router".into()),
        ack_wait,
        filter_subject: "rankpin.job.>".into(),
        max_ack_pending: 65_536,
        ..consumer::pull::Config::default()
    };
    stream.create_consumer(config).await.expect("the consumer is made");
}

/// Publishes a job with these headers and nothing else.
async fn publish(client: &Client, subject: &str, headers: &[(&str, &str)]) -> u64 {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, *value);
    }
    let context = jetstream::new(client.clone());
    let body = r#"{"model":"m","messages":[]}"#;
    let sent = context.publish_with_headers(subject.to_owned(), map, body.into()).await.expect("is published");
    tokio::time::timeout(PATIENCE, sent.into_future()).await.expect("in time").expect("it is stored").sequence
}
