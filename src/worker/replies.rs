//! What a worker says while it serves a request: events to the router (protocol section 6), replies to the frontend
//! (section 6.1).

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::cancel::{CancelReason, CancelToken};
use super::dispatch::Dispatch;
use super::engine::Refusal;
use super::interest::Listener;
use super::outlet::Outlet;
use super::results::Results;
use crate::core::id::{DpRank, RequestId, WorkerId};
use crate::nats::{Lines, Link, Subject};
use crate::wire::Encoding;
use crate::wire::event::{self, Finished};
use crate::wire::header;
use crate::wire::reply::{ErrorBody, MAX_REPLY_BYTES};
use crate::wire::subject::Subjects;

/// Seconds after which a frontend may try again, with 429 and 503.
const RETRY_AFTER_S: u64 = 1;
/// Room for the headers of most replies, in bytes.
const HEAD: usize = 256;
/// Room that is left for headers in a message that holds as much of a reply as it can, in bytes.
const HEADROOM: usize = 8 * 1024;

/// Why a reply was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The request is to be given up: stop working on it.
    #[error("the request was given up")]
    GivenUp(CancelReason),
    /// The reply is larger than replies may be, or with its headers, where it can't be divided, larger than the server takes.
    #[error("the reply is {size} bytes, at most {max} can be sent")]
    TooLarge {
        /// Its bytes.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// The final reply was sent already.
    #[error("the reply stream has ended")]
    Ended,
    /// NATS can't be reached.
    #[error("the reply could not be sent: {0}")]
    Unreachable(String),
}

/// The reply stream of one request, in order. Each send waits until there is room for the message, so a fast engine is held
/// back by a slow connection.
#[derive(Debug)]
pub struct ReplyStream {
    outlet: Outlet,
    /// Whether anybody listens; asked from the first part on.
    listener: Option<Listener>,
    pulse: Pulse,
    to: To,
    id: RequestId,
    attempt: u32,
    worker: WorkerId,
    rank: Option<DpRank>,
    decision: Option<Box<str>>,
    /// The model that the alias asked for led to.
    model: Option<Box<str>>,
    content_type: Option<Cow<'static, str>>,
    first: Lines,
    cancel: CancelToken,
    seq: u64,
    ended: bool,
}

/// Where replies go.
#[derive(Debug)]
enum To {
    /// Nobody wants them.
    Nobody,
    /// A frontend's inbox.
    Inbox(Subject),
    /// The stream of results: it is a durable job.
    Results(Box<Results>),
}

/// Whether a reply message is the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Middle,
    Last,
}

impl ReplyStream {
    pub(super) fn new(
        (outlet, store): (Outlet, &Link),
        worker: WorkerId,
        dispatch: &mut Dispatch,
        cancel: CancelToken,
        subjects: &Subjects,
    ) -> Self {
        let to = match Results::of(dispatch, subjects, store) {
            Some(results) => To::Results(Box::new(results)),
            None => dispatch.reply_to.take().map_or(To::Nobody, To::Inbox),
        };
        Self {
            outlet,
            listener: None,
            pulse: Pulse::default(),
            to,
            id: dispatch.id.clone(),
            attempt: dispatch.attempt,
            worker,
            rank: dispatch.rank,
            decision: dispatch.decision.take(),
            model: dispatch.model.clone(),
            content_type: None,
            first: Lines::new(),
            cancel,
            seq: 0,
            ended: false,
        }
    }

    /// Names the media type of what follows; it stands on the first message.
    pub fn set_content_type(&mut self, media_type: impl Into<Cow<'static, str>>) {
        self.content_type = Some(media_type.into());
    }

    /// Adds a header of the engine's own to the first message.
    pub fn set_header(&mut self, name: &'static str, value: &str) {
        self.first.push(name, value);
    }

    /// Sends one part. For a streaming body that is the data of one server-sent event.
    pub async fn send(&mut self, payload: Bytes) -> Result<(), ReplyError> {
        self.reply(payload, None, Place::Middle).await
    }

    /// Sends the data of one server-sent event that has a name.
    pub async fn send_event(&mut self, name: &str, payload: Bytes) -> Result<(), ReplyError> {
        self.reply(payload, Some(name), Place::Middle).await
    }

    /// Sends the last part, or the whole answer. It may be empty.
    pub async fn finish(&mut self, payload: Bytes) -> Result<(), ReplyError> {
        self.reply(payload, None, Place::Last).await
    }

    /// Whether something was published that the caller has seen, so that the request can no longer be rejected. The parts
    /// of a job stand under their attempt alone, until its final message says that they count.
    pub(super) fn has_begun(&self) -> bool {
        match self.to {
            To::Nobody => false,
            To::Inbox(_) => self.seq > 0,
            To::Results(_) => self.ended,
        }
    }

    /// When the engine last sent a part of its answer.
    pub(super) fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Whether it is a durable job.
    pub(super) fn is_job(&self) -> bool {
        matches!(self.to, To::Results(_))
    }

    /// Whether the last message was sent.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Ends the stream in an error.
    pub(super) async fn fail(&mut self, status: u16, code: &str, message: &str) -> Result<(), ReplyError> {
        let body = Encoding::Json.encode(&ErrorBody::new(code, message));
        self.fail_with(status, code, Encoding::Json.media_type(), body.into()).await
    }

    /// Ends the stream in an error that has a body of its own.
    pub(super) async fn fail_with(
        &mut self,
        status: u16,
        code: &str,
        media_type: &str,
        body: Bytes,
    ) -> Result<(), ReplyError> {
        let mut headers = self.head(Place::Last);
        put_error(&mut headers, status, code, media_type);
        self.publish(headers, body, Place::Last).await
    }

    /// Ends a stream whose engine did not, with an empty message.
    pub(super) async fn close(&mut self) -> Result<(), ReplyError> {
        self.publish(self.head(Place::Last), Bytes::new(), Place::Last).await
    }

    /// Sends a reply, in several messages where one can't hold it.
    async fn reply(&mut self, mut payload: Bytes, event: Option<&str>, place: Place) -> Result<(), ReplyError> {
        let (size, max) = (payload.len(), MAX_REPLY_BYTES);
        if size > max {
            return Err(ReplyError::TooLarge { size, max });
        }
        let max = self.outlet.max_payload();
        let room = max - HEADROOM.min(max / 2);
        let mut event = event;
        while payload.len() > room {
            let mut headers = self.reply_head(event.take(), Place::Middle)?;
            headers.push(header::CONTINUES, "true");
            self.publish(headers, payload.split_to(room), Place::Middle).await?;
        }
        let headers = self.reply_head(event, place)?;
        self.publish(headers, payload, place).await
    }

    fn reply_head(&self, event: Option<&str>, place: Place) -> Result<Lines, ReplyError> {
        if let Some(reason) = self.cancel.reason() {
            return Err(ReplyError::GivenUp(reason));
        }
        let mut headers = self.head(place);
        // As the head has it: a job's final message stands for all.
        if self.seq == 0 || (self.is_job() && place == Place::Last) {
            headers.append(&self.first);
            if let Some(media_type) = &self.content_type {
                headers.push(header::CONTENT_TYPE, media_type);
            }
        }
        if let Some(event) = event {
            headers.push(header::SSE_EVENT, event);
        }
        Ok(headers)
    }

    fn head(&self, place: Place) -> Lines {
        let mut headers = Lines::with_capacity(HEAD);
        headers.push(header::REQUEST_ID, self.id.as_str());
        headers.push_number(header::SEQ, self.seq);
        headers.push_number(header::ATTEMPT, self.attempt.into());
        // Who reads a job's result reads its final message first.
        if self.seq == 0 || (self.is_job() && place == Place::Last) {
            headers.push(header::WORKER, self.worker.as_str());
            if let Some(rank) = self.rank {
                headers.push_number(header::DP_RANK, rank.0.into());
            }
            if let Some(decision) = &self.decision {
                headers.push(header::DECISION, decision);
            }
            if let Some(model) = &self.model {
                headers.push(header::MODEL, model);
            }
        }
        if place == Place::Last {
            headers.push(header::FINAL, "true");
        }
        headers
    }

    async fn publish(&mut self, headers: Lines, payload: Bytes, place: Place) -> Result<(), ReplyError> {
        if self.ended {
            return Err(ReplyError::Ended);
        }
        // While it waits for room, or for a stream to store it, it is not the engine that is silent.
        self.pulse.pause();
        let (size, max) = (headers.wire_len() + payload.len(), self.outlet.max_payload());
        let fits = if size > max { Err(ReplyError::TooLarge { size, max }) } else { Ok(()) };
        let sent = match &self.to {
            To::Nobody => Ok(()),
            To::Inbox(to) => {
                fits?;
                match place {
                    Place::Middle => {
                        let listener = self.listener.get_or_insert_with(|| self.outlet.listener(self.cancel.clone()));
                        let question = listener.ask(Instant::now());
                        self.outlet.publish(to, question.as_deref(), &headers, &payload).await
                    }
                    // A part that is lost is missed when the next one comes. After the last one nothing comes.
                    Place::Last => self.outlet.publish_assured(to, &headers, &payload).await,
                }
            }
            To::Results(results) => {
                fits?;
                let headers = headers.to_headers();
                // Boxed, because it is rare and every request would hold room for it.
                match place {
                    Place::Middle => Box::pin(results.part(self.seq, headers, payload)).await,
                    Place::Last => Box::pin(results.last(headers, payload)).await,
                }
            }
        };
        sent.map_err(ReplyError::Unreachable)?;
        self.seq += 1;
        self.ended = place == Place::Last;
        self.pulse.beat(place);
        Ok(())
    }
}

/// When a reply stream last grew, told to whoever watches over it.
#[derive(Debug, Clone)]
pub(super) struct Pulse {
    start: Instant,
    /// Milliseconds from `start` to the last part; [`Pulse::SILENT`] where there is none, or nothing is to come.
    at: Arc<AtomicU64>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { start: Instant::now(), at: Arc::new(AtomicU64::new(Self::SILENT)) }
    }
}

impl Pulse {
    const SILENT: u64 = u64::MAX;

    fn pause(&self) {
        self.at.store(Self::SILENT, Ordering::Relaxed);
    }

    fn beat(&self, place: Place) {
        let at = match place {
            Place::Middle => u64::try_from(self.start.elapsed().as_millis()).unwrap_or(Self::SILENT),
            Place::Last => Self::SILENT,
        };
        self.at.store(at, Ordering::Relaxed);
    }

    /// Returns once an answer has begun and then not grown for so long. Dropping the future loses nothing.
    pub async fn stopped(&self, limit: Duration) {
        loop {
            let at = self.at.load(Ordering::Relaxed);
            let until = match at {
                Self::SILENT => Instant::now() + limit,
                at => self.start + Duration::from_millis(at) + limit,
            };
            if at != Self::SILENT && until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until.into()).await;
        }
    }
}

/// The router's inbox for one attempt. A worker whose events don't arrive looks lost, which is what it then is; so
/// failures are only logged.
#[derive(Debug)]
pub(super) struct Events {
    outlet: Outlet,
    to: Option<Subject>,
}

impl Events {
    pub(super) fn new(outlet: Outlet, to: Option<Subject>) -> Self {
        Self { outlet, to }
    }

    pub(super) async fn accepted(&self) {
        self.tell(event::ACCEPTED, Lines::new(), Bytes::new()).await;
    }

    pub(super) async fn progress(&self) {
        self.tell(event::PROGRESS, Lines::new(), Bytes::new()).await;
    }

    pub(super) async fn finished(&self, finished: &Finished) {
        self.tell(event::FINISHED, Lines::new(), Encoding::Json.encode(finished).into()).await;
    }

    pub(super) async fn rejected(&self, refusal: &Refusal) {
        let mut headers = Lines::new();
        put_error(&mut headers, refusal.status, &refusal.code, Encoding::Json.media_type());
        let body = Encoding::Json.encode(&ErrorBody::new(&refusal.code, &refusal.message));
        self.tell(event::REJECTED, headers, body.into()).await;
    }

    async fn tell(&self, kind: &str, mut headers: Lines, payload: Bytes) {
        let Some(to) = &self.to else { return };
        headers.push(header::EVENT, kind);
        if let Err(problem) = self.outlet.publish_assured(to, &headers, &payload).await {
            tracing::debug!(event = kind, %problem, "the router could not be told");
        }
    }
}

fn put_error(headers: &mut Lines, status: u16, code: &str, media_type: &str) {
    headers.push_number(header::SERVICE_ERROR_CODE, status.into());
    headers.push(header::SERVICE_ERROR, code);
    headers.push(header::CONTENT_TYPE, media_type);
    if matches!(status, 429 | 503) {
        headers.push_number(header::RETRY_AFTER, RETRY_AFTER_S);
    }
}
