//! Durable jobs from the frontend's side (protocol section 6.2): submitted into a stream, and their results read from
//! another, by anybody, any time later.
//!
//! ```no_run
//! use rankpin::client::Request;
//! use rankpin::client::jobs::{Jobs, JobsOptions};
//! use rankpin::core::id::{Model, RequestId};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let jobs = Jobs::connect(JobsOptions::new("nats://127.0.0.1:4222")).await?;
//! let request = Request::new(Model::new("llama")?, r#"{"model":"llama","messages":[]}"#);
//! let submitted = jobs.submit(&request.request_id(RequestId::new("nightly-1")?)).await?;
//! while jobs.result(&submitted.id).await?.is_none() {
//!     tokio::time::sleep(std::time::Duration::from_secs(1)).await;
//! }
//! # Ok(())
//! # }
//! ```

mod dead;
mod result;
mod status;

use std::sync::Arc;
use std::time::Duration;

use crate::core::error::RouteError;
use crate::core::id::{Namespace, RequestId};
use crate::nats::{ConnectError, Headers, JetStream, JetStreamError, Link, LinkOptions};
use crate::wire::Encoding;
use crate::wire::header;
use crate::wire::reply::ErrorBody;
use crate::wire::subject::Subjects;

pub use dead::{DeadLetter, Requeued};
pub use result::{JobFailure, JobResult};
pub use status::{Overview, Status};

use super::bodies::Bodies;
use super::{HEADROOM, LargeBodies, Request};

/// Times that one message is sent at most where the server does not answer. It has an id, so it is taken once.
const TRIES: u32 = 5;
/// Pause between them.
const PAUSE: Duration = Duration::from_millis(500);

/// How to connect.
#[derive(Debug, Clone)]
pub struct JobsOptions {
    /// Where and as whom.
    pub link: LinkOptions,
    /// The namespace of the routers.
    pub namespace: Namespace,
    /// How bodies travel that a message can't hold; `None` refuses them.
    pub large_bodies: Option<LargeBodies>,
}

impl JobsOptions {
    /// Options for servers at `urls` (commas between), namespace `rankpin`, no large bodies.
    pub fn new(urls: &str) -> Self {
        Self {
            link: LinkOptions::new(urls, "rankpin jobs"),
            namespace: Namespace::new("rankpin").expect("the default is valid"),
            large_bodies: None,
        }
    }
}

/// Why nothing is known of a job, or nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// A job's subject names its model, so it needs one.
    #[error("a job needs a model: Request::new names one")]
    NoModel,
    /// The job is larger than the server takes; it was not published.
    #[error("the job is {size} bytes with its headers, the NATS server takes {max} (max_payload)")]
    TooLarge {
        /// Bytes of headers and payload.
        size: usize,
        /// The server's limit.
        max: usize,
    },
    /// Its body is too large for a message, and could not be stored elsewhere; it was not published.
    #[error("the job's body could not be stored: {0}")]
    Body(String),
    /// The server did not do it, or did not say so.
    #[error(transparent)]
    Server(#[from] JetStreamError),
}

/// A job that was submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// Its id.
    pub id: RequestId,
    /// Its place in the stream.
    pub sequence: u64,
    /// Whether a job of this id had been submitted lately: then this one was not taken a second time.
    pub duplicate: bool,
}

/// Whether a job could be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// Its result is that it was cancelled; a worker that runs it is told.
    Yes,
    /// It has a result already.
    TooLate,
}

/// A connection to the streams of jobs; cheap to clone.
#[derive(Debug, Clone)]
pub struct Jobs {
    api: JetStream,
    subjects: Subjects,
    bodies: Option<Arc<Bodies>>,
}

impl Jobs {
    /// Connects.
    pub async fn connect(options: JobsOptions) -> Result<Self, ConnectError> {
        let subjects = Subjects::new(options.namespace);
        let bodies = match options.large_bodies {
            Some(large) => Some(Arc::new(Bodies::open(large, options.link.clone(), &subjects).await?)),
            None => None,
        };
        let link = Link::open(options.link).await?;
        Ok(Self { api: JetStream::new(link), subjects, bodies })
    }

    /// Whether a request's body would travel through the object store: with what routers add to it, a message could not
    /// hold it.
    pub fn stores_body_of(&self, request: &Request) -> bool {
        let size = request.headers.wire_len() + request.body.len();
        self.bodies.is_some() && size + HEADROOM > self.api.link().max_payload()
    }

    /// Deletes the body of a job that has its result, where it lies in the object store. Until then it lies there for as
    /// long as the store keeps things, and no longer: a job that waits for more than that is answered 404 `body_missing`.
    pub async fn forget_body(&self, id: &RequestId) {
        if let Some(bodies) = &self.bodies {
            bodies.forget_job(id).await;
        }
    }

    /// Submits a job under the request's id. The same id again is not run again: within the stream's duplicate window it
    /// is not taken, and after that found to have its result, as long as results are kept. Timeout and deadline of the
    /// request count anew with each delivery.
    pub async fn submit(&self, request: &Request) -> Result<Submitted, JobError> {
        let model = request.model.as_ref().ok_or(JobError::NoModel)?;
        let mut headers = request.headers.clone();
        headers.set(header::REQUEST_ID, request.id.as_str());
        headers.set(header::MSG_ID, request.id.as_str());
        let mut body = request.body.clone();
        if let Some(bodies) = self.bodies.as_ref().filter(|_| self.stores_body_of(request)) {
            let claim = bodies.store_job(&request.id, &body).await;
            for (name, value) in claim.map_err(|error| JobError::Body(error.to_string()))? {
                headers.set(name, &value);
            }
            body = bytes::Bytes::new();
        }
        let (size, max) = (headers.wire_len() + body.len(), self.api.link().max_payload());
        if size > max {
            return Err(JobError::TooLarge { size, max });
        }
        let subject = self.subjects.job(model);
        let stored = self.insistently(|| self.api.store(&subject, headers.clone(), body.clone())).await?;
        Ok(Submitted { id: request.id.clone(), sequence: stored.sequence, duplicate: stored.duplicate })
    }

    /// Cancels a job, wherever it is: its result becomes that it was cancelled, so that it is not run where it still
    /// waits, and whoever runs it is told.
    pub async fn cancel(&self, id: &RequestId) -> Result<Cancelled, JobError> {
        let error = RouteError::Cancelled;
        let mut headers = Headers::new();
        headers.set(header::REQUEST_ID, id.as_str());
        headers.set(header::FINAL, "true");
        headers.set(header::SERVICE_ERROR_CODE, &error.status().to_string());
        headers.set(header::SERVICE_ERROR, error.code());
        headers.set(header::CONTENT_TYPE, Encoding::Json.media_type());
        let body = Encoding::Json.encode(&ErrorBody::of(&error));
        let subject = self.subjects.result(id);
        let stored = self.insistently(|| self.api.store_at(&subject, headers.clone(), body.clone().into(), 0)).await;
        match stored {
            Ok(_) => {}
            Err(JetStreamError::Lost) => return Ok(Cancelled::TooLate),
            Err(error) => return Err(error.into()),
        }
        let told = self.api.link().publish(self.subjects.cancel(id), None, Headers::new(), bytes::Bytes::new()).await;
        if let Err(error) = told {
            tracing::debug!(%error, "routers could not be told of a cancelled job; its result stands all the same");
        }
        // The process may end right after this.
        if let Err(error) = self.api.link().barrier().await {
            tracing::debug!(%error, "routers may not have been told of a cancelled job");
        }
        Ok(Cancelled::Yes)
    }

    /// Asks again where the server did not answer: it may be restarting, or electing a leader.
    async fn insistently<T, F>(&self, what: impl Fn() -> F) -> Result<T, JetStreamError>
    where
        F: Future<Output = Result<T, JetStreamError>>,
    {
        let mut tries = 1;
        loop {
            match what().await {
                Err(JetStreamError::NoAnswer(_) | JetStreamError::Disconnected | JetStreamError::InFlight)
                    if tries < TRIES =>
                {
                    tries += 1;
                }
                done => return done,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
