//! The worker library with a job: each test plays the router, and reads the stream of results.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use rankpin::client::jobs::{JobResult, Jobs};
use rankpin::wire::event::Outcome;

use super::{connect, id, stored};
use crate::support::NatsServer;
use crate::support::server::Options;
use crate::worker::{Attempt, Field};

struct Scene {
    field: Field,
    jobs: Jobs,
}

impl Scene {
    async fn new() -> Self {
        Self::on(Field::new().await).await
    }

    async fn on(field: Field) -> Self {
        let config = stream::Config {
            name: "rankpin_results".into(),
            subjects: vec!["rankpin.result.>".into()],
            ..stream::Config::default()
        };
        jetstream::new(field.client.clone()).create_stream(config).await.expect("the stream is made");
        let jobs = connect(&field.server).await;
        Self { field, jobs }
    }

    /// Dispatches an attempt at a job.
    async fn dispatch(&self, name: &str, attempt: &str, payload: &'static str) -> Attempt {
        let reply_to = format!("rankpin.result.{name}.{attempt}");
        let headers = [("Rankpin-Reply-To", reply_to.as_str()), ("Rankpin-Attempt", attempt)];
        self.field.dispatch("any", name, payload, &headers).await
    }

    async fn result(&self, name: &str) -> Option<JobResult> {
        self.jobs.result(&id(name)).await.expect("the server answers")
    }

    async fn stored(&self, subject: &str) -> u64 {
        stored(&self.field.client, subject).await
    }
}

#[tokio::test]
async fn an_answer_that_a_message_does_not_hold_is_one_answer_all_the_same() {
    let options = Options { config: "max_payload: 2048".into(), ..Default::default() };
    let scene = Scene::on(Field::on(NatsServer::start_with(options)).await).await;
    let _worker = scene.field.worker(0, 1).await;
    let mut attempt = scene.dispatch("j", "1", "large").await;
    attempt.accepted().await;
    attempt.finished(Outcome::Ok).await;
    let result = scene.result("j").await.expect("it stands before it is finished");
    assert_eq!((result.parts, result.failure.clone()), (3, None));
    let replies = scene.jobs.replies(&result).await.expect("the server answers");
    assert_eq!(replies.iter().map(bytes::Bytes::len).collect::<Vec<_>>(), [4096]);
}

#[tokio::test]
async fn parts_stand_under_their_attempt_and_the_end_under_the_job() {
    let scene = Scene::new().await;
    let _worker = scene.field.worker(0, 1).await;
    let mut attempt = scene.dispatch("j", "3", "stream").await;
    attempt.accepted().await;
    attempt.finished(Outcome::Ok).await;
    let result = scene.result("j").await.expect("it stands before it is finished");
    assert_eq!((result.attempt, result.parts, result.failure.clone()), (3, 2, None));
    assert_eq!(result.worker, Some(("w".into(), None)));
    assert_eq!(scene.jobs.replies(&result).await.expect("the server answers"), ["a", "b"]);
    assert_eq!(scene.stored("rankpin.result.>").await, 3);
}

#[tokio::test]
async fn the_first_end_counts_and_the_second_one_is_none() {
    let scene = Scene::new().await;
    let _worker = scene.field.worker(0, 1).await;
    for (number, payload) in [("1", "whole"), ("2", "stream")] {
        let mut attempt = scene.dispatch("j", number, payload).await;
        attempt.accepted().await;
        // It is done, whichever attempt did it.
        attempt.finished(Outcome::Ok).await;
        let result = scene.result("j").await.expect("it stands");
        assert_eq!((&result.payload[..], result.attempt), (&b"all"[..], 1));
    }
    assert_eq!(scene.stored("rankpin.result.j").await, 1);
}

#[tokio::test]
async fn an_attempt_that_is_cancelled_leaves_no_end() {
    let scene = Scene::new().await;
    let _worker = scene.field.worker(0, 1).await;
    let mut attempt = scene.dispatch("j", "1", "hang").await;
    attempt.accepted().await;
    scene.field.cancel("j", "1").await;
    let finished = attempt.finished(Outcome::Cancelled).await;
    assert_eq!(finished.output_tokens, Some(7));
    assert!(scene.result("j").await.is_none());
}

#[tokio::test]
async fn an_attempt_that_the_drain_cuts_off_is_given_back() {
    let scene = Scene::new().await;
    let worker = scene.field.worker(0, 1).await;
    let mut attempt = scene.dispatch("j", "1", "hang").await;
    attempt.accepted().await;
    worker.drain(Duration::ZERO).await.expect("it drains");
    assert_eq!(attempt.rejected().await, (503, "draining".into()));
    assert!(scene.result("j").await.is_none());
}

#[tokio::test]
async fn a_refusal_after_parts_is_still_one_and_a_failure_is_the_result() {
    let scene = Scene::new().await;
    let _worker = scene.field.worker(0, 1).await;
    let mut late = scene.dispatch("j", "1", "refuse late").await;
    late.accepted().await;
    assert_eq!(late.rejected().await, (429, "overloaded".into()));
    assert!(scene.result("j").await.is_none());
    let mut broken = scene.dispatch("k", "1", "panic").await;
    broken.accepted().await;
    broken.finished(Outcome::Error).await;
    let failure = scene.result("k").await.expect("it stands").failure.expect("it has failed");
    assert_eq!((failure.status, failure.code.as_str()), (500, "worker_error"));
}
