//! Messages that a router sends: requests to workers, cancels, and errors to frontends.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::route::{Request, note, plain_reply};
use super::state::{Router, unix_ms};
use crate::core::decide::Decision;
use crate::core::error::RouteError;
use crate::core::fleet::Worker;
use crate::core::id::{Origin, Placement, RequestId, WorkerId};
use crate::core::worker::WorkerKind;
use crate::nats::{Headers, Inbound, Subject};
use crate::wire::header;
use crate::wire::reply::ErrorBody;

/// How long handing a message to the client may take; while it is disconnected its buffer fills up and blocks.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

impl Request {
    /// Sends the request to its placement. Returns until when the worker may take to accept it.
    pub(super) async fn dispatch(&mut self, decision: &Decision) -> Result<Instant, RouteError> {
        if !self.router.dispatch.is_connected() {
            Box::pin(self.wait_for_connection()).await?;
        }
        let now = Instant::now();
        let (subject, until) = {
            let mut state = self.router.state();
            state.live.begin_attempt(self.seq, self.attempt);
            let worker = state.fleet.get(decision.slot);
            let plain = worker.is_some_and(|worker| worker.spec.kind == WorkerKind::Plain);
            let soon = now + self.router.config.accept_timeout;
            let until = if plain { self.accept_until } else { soon.min(self.accept_until) };
            (self.router.subject(worker, &decision.placement), until)
        };
        let headers = self.headers_for(decision, until.saturating_duration_since(now));
        let size = headers.wire_len() + self.payload.len();
        let max = self.router.dispatch.max_payload();
        if size > max {
            return Err(RouteError::PayloadTooLarge { size, max });
        }
        let inbox = Subject::from(format!("{}{:x}-{}", self.router.inbox, self.seq, self.attempt));
        self.router.metrics.dispatched.inc();
        self.router.send(subject, Some(inbox), headers, self.payload.clone()).await;
        Ok(until)
    }

    /// While the connection is lost nothing is sent: it would be delivered late, and stale.
    async fn wait_for_connection(&mut self) -> Result<(), RouteError> {
        let mut state = self.router.dispatch.state();
        while !state.borrow().connected {
            let until = self.accept_until;
            // Cancel-safe: state is looked at anew in each round.
            tokio::select! {
                _ = state.changed() => {}
                mail = self.next_mail(until) => match mail? {
                    Some(mail) => note(&mail)?,
                    None => return Err(RouteError::AcceptTimeout("the router has no connection to NATS".into())),
                },
            }
        }
        Ok(())
    }

    fn headers_for(&self, decision: &Decision, within: Duration) -> Headers {
        let mut headers = self.headers.filtered(header::goes_to_worker);
        headers.set(header::REQUEST_ID, self.id.as_str());
        if let Some(reply) = &self.reply {
            headers.set(header::REPLY_TO, reply);
        }
        headers.set(header::WORKER, decision.placement.worker.as_str());
        if let Some(rank) = decision.placement.rank {
            headers.set(header::DP_RANK, &rank.to_string());
        }
        match &self.ask.session {
            Some(session) if session.origin == Origin::Named => headers.set(header::SESSION, session.id.as_str()),
            Some(session) => headers.set(header::SESSION, self.root(session)),
            None => {}
        }
        let within = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        headers.set(header::ACCEPT_BY, &unix_ms().saturating_add(within).to_string());
        headers.set(header::ATTEMPT, &self.attempt.to_string());
        headers.set(header::DECISION, &decision.header());
        headers
    }

    /// Gives an attempt up: its worker is told, now and again should it accept late.
    pub(super) async fn give_up(&mut self, decision: &Decision) {
        let worker = decision.placement.worker.clone();
        self.router.state().live.give_up(self.seq, self.attempt, self.id.clone(), worker);
        self.cancel_at_worker(decision).await;
    }

    /// Tells the worker that the request is cancelled.
    pub(super) async fn cancel_at_worker(&self, decision: &Decision) {
        self.router.cancel_at(&decision.placement.worker, &self.id, self.attempt).await;
    }

    /// Relays a plain responder's answer to the frontend.
    pub(super) async fn relay(&self, decision: &Decision, answer: Inbound) -> Result<(), RouteError> {
        let Some(reply) = &self.reply else { return Ok(()) };
        let headers = plain_reply(self, decision, &answer);
        let size = headers.wire_len() + answer.payload.len();
        let max = self.router.dispatch.max_payload();
        if size > max {
            return Err(RouteError::PayloadTooLarge { size, max });
        }
        self.router.send(reply.clone(), None, headers, answer.payload).await;
        Ok(())
    }
}

impl Router {
    fn subject(&self, worker: Option<&Worker>, placement: &Placement) -> Subject {
        if let Some(subject) = worker.and_then(|worker| worker.spec.subject.as_deref()) {
            let rank = placement.rank.map_or_else(|| "any".to_owned(), |rank| rank.to_string());
            return subject.replace("{rank}", &rank).into();
        }
        match placement.rank {
            Some(rank) => self.subjects.rank(&placement.worker, rank).into(),
            None => self.subjects.any(&placement.worker).into(),
        }
    }

    /// Hands a message to the dispatching client. A message that can't be handed over is dropped: whoever waits for
    /// its effect has a timeout.
    pub(super) async fn send(&self, subject: Subject, reply: Option<Subject>, headers: Headers, payload: Bytes) {
        let sent = self.dispatch.publish(subject, reply, headers, payload);
        match tokio::time::timeout(SEND_TIMEOUT, sent).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.metrics.unsent.inc();
                tracing::debug!(%error, "a message could not be sent");
            }
            Err(_) => {
                self.metrics.unsent.inc();
            }
        }
    }

    /// Tells a worker to stop an attempt.
    pub(super) async fn cancel_at(&self, worker: &WorkerId, id: &RequestId, attempt: u32) {
        let mut headers = Headers::new();
        headers.set(header::REQUEST_ID, id.as_str());
        headers.set(header::ATTEMPT, &attempt.to_string());
        self.send(self.subjects.worker_cancel(worker).into(), None, headers, Bytes::new()).await;
    }

    /// Ends a request with an error; one without a reply subject is only counted.
    pub(super) async fn answer(&self, id: &RequestId, reply: Option<&Subject>, error: &RouteError) {
        self.metrics.failed(error);
        tracing::trace!(request_id = %id, code = error.code(), %error, "a request ended in an error");
        let Some(reply) = reply else { return };
        let mut headers = Headers::new();
        headers.set(header::REQUEST_ID, id.as_str());
        headers.set(header::FINAL, "true");
        headers.set(header::SERVICE_ERROR_CODE, &error.status().to_string());
        headers.set(header::SERVICE_ERROR, error.code());
        headers.set(header::CONTENT_TYPE, "application/json");
        if let Some(seconds) = error.retry_after_s() {
            headers.set(header::RETRY_AFTER, &seconds.to_string());
        }
        let body = crate::wire::Encoding::Json.encode(&ErrorBody::of(error));
        self.send(reply.clone(), None, headers, body.into()).await;
    }

    /// Whether the dispatching connection came to stand again within the last while.
    pub(super) fn reconnected_within(&self, grace: Duration) -> bool {
        let state = self.dispatch.state();
        let state = state.borrow();
        state.connects > 1 && state.since.elapsed() < grace
    }
}
