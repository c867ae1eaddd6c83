//! What becomes of a job after its delivery: its result, its next delivery, or its dead letter.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Jobs;
use super::delivery::{Ack, Delivery};
use crate::core::error::RouteError;
use crate::core::id::RequestId;
use crate::core::job::{self, Attempts, Fate, MAX_FAILURES};
use crate::nats::jetstream::{Get, Stored};
use crate::nats::{Block, Headers, JetStreamError, Message};
use crate::router::state::Router;
use crate::wire::Encoding;
use crate::wire::event::{Finished, Outcome};
use crate::wire::header;
use crate::wire::job::{Tried, message_id, message_id_in_place_of};
use crate::wire::reply::ErrorBody;

/// Times that something is stored at most; then the job is delivered again, and it is done then.
const STORE_TRIES: u32 = 3;
/// Pause between them.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// One delivery of a job.
pub struct Job<'d> {
    pub router: &'d Arc<Router>,
    pub jobs: &'d Arc<Jobs>,
    pub message: Message,
    pub delivery: &'d Delivery,
    pub id: RequestId,
    pub tried: Tried,
}

impl Job<'_> {
    /// Whether the job has its final result.
    pub async fn is_done(&self) -> Result<bool, JetStreamError> {
        let subject = self.router.subjects.result(&self.id);
        Ok(retried(|| self.jobs.api.last_sequence(&subject)).await? != 0)
    }

    /// It has, and is not run again.
    pub fn already_done(&self) {
        self.end("already_done", Ack::Done);
    }

    /// Something is in the way that has nothing to do with it.
    pub fn delay(&self, problem: &str) {
        tracing::debug!(request_id = %self.id, problem, "a job is delayed");
        self.end("delayed", Ack::Again(job::delay(self.delivery.delivered)));
    }

    /// Draws the consequence of how the delivery went. `attempt` is the last one.
    pub async fn settle(&self, attempt: u32, outcome: Result<Finished, RouteError>, attempts: Attempts) {
        let error = match outcome {
            Ok(finished) => {
                self.router.metrics.finished(&finished);
                match finished.outcome {
                    Outcome::Ok | Outcome::Error => return self.finished(attempt).await,
                    // Workers leave that to the router, which alone knows whether the job was cancelled, or only this
                    // attempt at it.
                    Outcome::Cancelled => RouteError::Cancelled,
                }
            }
            Err(error) => {
                self.router.metrics.failed(&error);
                error
            }
        };
        tracing::debug!(request_id = %self.id, attempt, %error, "a job's delivery ended in an error");
        let settled = match job::fate(&error, attempts) {
            Fate::Delayed => return self.delay(&error.to_string()),
            Fate::HandedOver => return self.end("handed_over", Ack::Again(Duration::ZERO)),
            Fate::Final => self.store_error(attempt, &error).await.map(|()| "error"),
            Fate::Failed => self.fail(attempt, &error).await,
        };
        match settled {
            Ok(end) => self.end(end, Ack::Done),
            Err(problem) => self.delay(&problem.to_string()),
        }
    }

    /// The worker says that it is done. A result that does not stand would be lost with the acknowledgement.
    async fn finished(&self, attempt: u32) {
        let error = RouteError::NoWorker("the worker said that the job is finished, and had stored no result".into());
        let settled = match self.is_done().await {
            Ok(true) => Ok("finished"),
            Ok(false) => self.fail(attempt, &error).await,
            Err(problem) => Err(problem),
        };
        match settled {
            Ok(end) => self.end(end, Ack::Done),
            Err(problem) => self.delay(&problem.to_string()),
        }
    }

    fn end(&self, end: &'static str, ack: Ack) {
        self.router.metrics.jobs.ended(end);
        self.jobs.answer(self.delivery, ack);
    }

    /// It has failed once more: it is published again, or it is dead.
    async fn fail(&self, attempt: u32, error: &RouteError) -> Result<&'static str, JetStreamError> {
        // A worker that is taken for lost may have stored its result all the same.
        if self.is_done().await? {
            return Ok("already_done");
        }
        // Whoever forges a message id may have written any number there.
        let failures = self.tried.failures.saturating_add(1);
        let dead = failures >= MAX_FAILURES;
        let mut headers: Headers = self.headers().iter().filter(|(name, _)| header::stays_on_job(name)).collect();
        headers.set(header::REQUEST_ID, self.id.as_str());
        headers.set(header::FAILURES, &failures.to_string());
        headers.set(header::ATTEMPT, &attempt.to_string());
        if !dead {
            self.publish_again(failures, headers).await?;
            tracing::debug!(request_id = %self.id, failures, attempt, %error, "a job has failed and is published again");
            return Ok("failed");
        }
        headers.set(header::MSG_ID, &format!("{}.dead.{}", self.id, self.delivery.sequence));
        headers.set(header::SERVICE_ERROR_CODE, &error.status().to_string());
        headers.set(header::SERVICE_ERROR, error.code());
        headers.set(header::DEAD_REASON, &error.to_string());
        let token = self.router.subjects.parse_job(self.message.subject()).unwrap_or_default();
        // First the dead letter: once the result stands, a job that is delivered again is not looked at any more.
        self.store(&self.router.subjects.dead(token), headers).await?;
        self.store_error(attempt, error).await?;
        tracing::warn!(request_id = %self.id, failures, %error, "a job is dead: it has failed too often");
        Ok("dead")
    }

    /// Publishes it again, once: where the router was killed between this and the acknowledgement, the stream knows the
    /// message id. It also knows that of an earlier life of the job, before it was dead and sent again: then the message of
    /// that id is gone.
    async fn publish_again(&self, failures: u32, mut headers: Headers) -> Result<(), JetStreamError> {
        let subject = self.message.subject();
        headers.set(header::MSG_ID, &message_id(&self.id, failures));
        let stored = self.store(subject, headers.clone()).await?;
        if stored.duplicate {
            let stream = self.router.subjects.jobs_stream();
            let stands = retried(|| self.jobs.api.get(&stream, Get::Sequence(stored.sequence))).await?;
            if stands.is_none() {
                headers.set(header::MSG_ID, &message_id_in_place_of(&self.id, failures, self.delivery.sequence));
                self.store(subject, headers).await?;
            }
        }
        Ok(())
    }

    async fn store(&self, subject: &str, headers: Headers) -> Result<Stored, JetStreamError> {
        let payload = self.message.payload_bytes();
        retried(|| self.jobs.api.store(subject, headers.clone(), payload.clone())).await
    }

    /// The error becomes the job's result, where it has none.
    async fn store_error(&self, attempt: u32, error: &RouteError) -> Result<(), JetStreamError> {
        let mut headers = Headers::new();
        headers.set(header::REQUEST_ID, self.id.as_str());
        headers.set(header::ATTEMPT, &attempt.to_string());
        headers.set(header::FINAL, "true");
        headers.set(header::SERVICE_ERROR_CODE, &error.status().to_string());
        headers.set(header::SERVICE_ERROR, error.code());
        headers.set(header::CONTENT_TYPE, Encoding::Json.media_type());
        if let Some(seconds) = error.retry_after_s() {
            headers.set(header::RETRY_AFTER, &seconds.to_string());
        }
        let body = Encoding::Json.encode(&ErrorBody::of(error));
        self.jobs.store_result(&self.router.subjects.result(&self.id), headers, body.into()).await
    }

    fn headers(&self) -> Block<'_> {
        self.message.headers().unwrap_or(Block::NONE)
    }
}

impl Jobs {
    /// Stores a final result where there is none; another one that stands there is as good.
    pub async fn store_result(&self, subject: &str, headers: Headers, payload: Bytes) -> Result<(), JetStreamError> {
        match retried(|| self.api.store_at(subject, headers.clone(), payload.clone(), 0)).await {
            Ok(_) | Err(JetStreamError::Lost) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Does it again where the server did not, or did not say so.
async fn retried<T, F>(what: impl Fn() -> F) -> Result<T, JetStreamError>
where
    F: Future<Output = Result<T, JetStreamError>>,
{
    let mut tries = 1;
    loop {
        match what().await {
            Ok(done) => return Ok(done),
            Err(error @ JetStreamError::Lost) => return Err(error),
            Err(_) if tries < STORE_TRIES => tries += 1,
            Err(error) => return Err(error),
        }
        tokio::time::sleep(STORE_PAUSE).await;
    }
}
