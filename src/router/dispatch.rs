//! Messages that a router sends: requests to workers, cancels, and errors to frontends.

use std::time::{Duration, Instant};

use super::route::{Request, note, plain_reply};
use super::state::{Router, unix_ms};
use crate::core::decide::{Cause, Decision};
use crate::core::error::RouteError;
use crate::core::fleet::Worker;
use crate::core::id::{Model, Origin, Placement, RequestId, WorkerId};
use crate::core::worker::WorkerKind;
use crate::nats::{Block, Lines, Message, Payload, Unsent};
use crate::telemetry::trace::TRACEPARENT;
use crate::wire::header;
use crate::wire::reply::ErrorBody;
use crate::wire::subject::encode_model;

/// Room for the headers that the router writes itself, in bytes.
pub(super) const OWN_HEADERS: usize = 512;

impl Request {
    /// Sends the request to its placement. Returns until when the worker may take to accept it.
    pub(super) fn dispatch(&mut self, decision: &Decision) -> Result<Instant, RouteError> {
        self.attempt = self.attempt.saturating_add(1);
        self.note_dispatch(decision);
        let now = Instant::now();
        self.allow_for_acceptance(now);
        let (subject, until, plain) = {
            let mut state = self.router.state();
            state.live.begin_attempt(self.seq, self.attempt, now);
            let worker = state.fleet.get(decision.slot);
            let plain = worker.is_some_and(|worker| worker.spec.kind == WorkerKind::Plain);
            let soon = now + self.router.config.accept_timeout;
            let until = if plain { self.accept_until } else { soon.min(self.accept_until) };
            (self.router.subject(worker, &decision.placement, &self.ask.model), until, plain)
        };
        let within = until.saturating_duration_since(now);
        if self.decide.is_some() {
            return self.send_permit(decision, &subject, plain, within).map(|()| until);
        }
        let headers =
            if self.router.is_global() { self.headers_for_pool(within)? } else { self.headers_for(decision, within) };
        let payload = self.message.sent_on();
        let size = headers.wire_len() + payload.len();
        let max = self.router.dispatch.max_payload();
        if size > max {
            return Err(RouteError::PayloadTooLarge { size, max });
        }
        let inbox = self.router.inbox_of(self.seq, self.attempt);
        self.router.metrics.dispatched.inc();
        match self.router.dispatch.publish(&subject, Some(&inbox), &headers, payload) {
            // Nobody would say that it never left: its worker would be taken for lost.
            Err(Unsent::Full) => {
                self.router.metrics.unsent.inc();
                Err(self.overloaded("the router has more to send than its connection takes; try again later"))
            }
            sent => {
                self.router.note_unsent(&subject, sent);
                Ok(until)
            }
        }
    }

    /// While the connection is lost nothing is sent: it would be delivered late, and stale.
    pub(super) async fn wait_for_connection(&mut self) -> Result<(), RouteError> {
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

    fn headers_for(&self, decision: &Decision, within: Duration) -> Lines {
        let theirs = self.message.headers().unwrap_or(Block::NONE);
        let mut headers = Lines::with_capacity(theirs.len() + OWN_HEADERS);
        // Keys are for routers, and may be many.
        let ours = self.span.carried();
        let stays = |name: &str| {
            name.eq_ignore_ascii_case(header::PREFIX_KEYS) || (ours.is_some() && name.eq_ignore_ascii_case(TRACEPARENT))
        };
        headers.extend(theirs, |name| header::goes_to_worker(name) && !stays(name));
        if let Some(traceparent) = &ours {
            headers.push(TRACEPARENT, traceparent);
        }
        self.push_own(&mut headers, decision, within);
        headers
    }

    /// The headers that the router writes.
    pub(super) fn push_own(&self, headers: &mut Lines, decision: &Decision, within: Duration) {
        headers.push(header::REQUEST_ID, self.id.as_str());
        match self.job {
            Some(_) => headers.push(header::REPLY_TO, &self.router.subjects.result_part(&self.id, self.attempt)),
            None => self.answers.reply.iter().for_each(|reply| headers.push(header::REPLY_TO, reply)),
        }
        headers.push(header::WORKER, decision.placement.worker.as_str());
        if let Some(rank) = decision.placement.rank {
            headers.push_number(header::DP_RANK, rank.0.into());
        }
        self.push_alias(headers);
        match &self.ask.session {
            Some(session) if session.origin == Origin::Named => headers.push(header::SESSION, session.id.as_str()),
            Some(session) => headers.push(header::SESSION, self.root(session)),
            None => {}
        }
        let within = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        headers.push_number(header::ACCEPT_BY, unix_ms().saturating_add(within));
        headers.push_number(header::ATTEMPT, self.attempt.into());
        headers.push_words(header::DECISION, decision.reason.word(), decision.cause.map(Cause::word));
    }

    /// Names the model and the alias that led to it. Both come from a configuration, which has seen to it that a header can
    /// carry them.
    pub(super) fn push_alias(&self, headers: &mut Lines) {
        if let Some(alias) = self.alias.as_ref().filter(|_| header::is_value(self.ask.model.as_str())) {
            headers.push(header::MODEL, self.ask.model.as_str());
            headers.push(header::ALIAS, alias.name.as_str());
        }
    }

    /// Gives an attempt up: its worker is told, now and again should it accept late.
    pub(super) fn give_up(&mut self, decision: &Decision) {
        let worker = decision.placement.worker.clone();
        self.router.give_up_at(&worker, &self.id, self.attempt);
        self.router.state().live.give_up(self.seq, self.attempt, self.id.clone(), worker);
    }

    /// Tells the worker that the request is cancelled.
    pub(super) fn cancel_at_worker(&self, decision: &Decision) {
        self.router.cancel_at(&decision.placement.worker, &self.id, self.attempt);
    }

    /// Relays a plain responder's answer to the frontend.
    pub(super) fn relay(&self, decision: &Decision, answer: &Message) -> Result<(), RouteError> {
        let Some(reply) = self.answers.reply.as_deref() else { return Ok(()) };
        let headers = plain_reply(self, decision, answer);
        let payload = answer.sent_on();
        let size = headers.wire_len() + payload.len();
        let max = self.router.dispatch.max_payload();
        if size > max {
            return Err(RouteError::PayloadTooLarge { size, max });
        }
        self.router.send_assured(reply, &headers, payload);
        Ok(())
    }
}

/// The headers of an error, and its payload (protocol section 6.1).
pub(super) fn error_head(headers: &mut Lines, error: &RouteError) -> Vec<u8> {
    headers.push_number(header::SERVICE_ERROR_CODE, error.status().into());
    headers.push(header::SERVICE_ERROR, error.code());
    headers.push(header::CONTENT_TYPE, "application/json");
    if let Some(seconds) = error.retry_after_s() {
        headers.push_number(header::RETRY_AFTER, seconds.into());
    }
    crate::wire::Encoding::Json.encode(&ErrorBody::of(error))
}

impl Router {
    fn subject(&self, worker: Option<&Worker>, placement: &Placement, model: &Model) -> String {
        if let Some(subject) = worker.and_then(|worker| worker.spec.subject.as_deref()) {
            if self.is_global() {
                return format!("{subject}.{}", encode_model(model.as_str()));
            }
            let rank = placement.rank.map_or_else(|| "any".to_owned(), |rank| rank.to_string());
            return subject.replace("{rank}", &rank);
        }
        match placement.rank {
            Some(rank) => self.subjects.rank(&placement.worker, rank),
            None => self.subjects.any(&placement.worker),
        }
    }

    /// Sends a message. One that can't be sent is dropped: whoever waits for its effect has a timeout.
    pub(super) fn send(&self, subject: &str, reply: Option<&str>, headers: &Lines, payload: Payload<'_>) {
        self.note_unsent(subject, self.dispatch.publish(subject, reply, headers, payload));
    }

    /// The same for the end of a request, which nobody would miss in time (see [`crate::nats::Lane::publish_assured`]).
    fn send_assured(&self, subject: &str, headers: &Lines, payload: Payload<'_>) {
        self.note_unsent(subject, self.dispatch.publish_assured(subject, headers, payload));
    }

    fn note_unsent(&self, subject: &str, sent: Result<(), Unsent>) {
        if let Err(error) = sent {
            self.metrics.unsent.inc();
            tracing::debug!(subject, %error, "a message could not be sent");
        }
    }

    /// Tells a worker to stop an attempt, and to end its reply stream.
    pub(super) fn cancel_at(&self, worker: &WorkerId, id: &RequestId, attempt: u32) {
        self.stop_at(worker, id, attempt, Lines::new());
    }

    /// Tells a worker to stop an attempt without a word: another attempt or this router says how the request goes on.
    pub(super) fn give_up_at(&self, worker: &WorkerId, id: &RequestId, attempt: u32) {
        let mut headers = Lines::new();
        headers.push(header::GIVEN_UP, "1");
        self.stop_at(worker, id, attempt, headers);
    }

    fn stop_at(&self, worker: &WorkerId, id: &RequestId, attempt: u32, mut headers: Lines) {
        if let Some(pool) = self.subjects_of_pool(worker) {
            return self.send(&pool.cancel(id), None, &Lines::new(), Payload::EMPTY);
        }
        headers.push(header::REQUEST_ID, id.as_str());
        headers.push_number(header::ATTEMPT, attempt.into());
        self.send(&self.subjects.worker_cancel(worker), None, &headers, Payload::EMPTY);
    }

    /// Ends a request with an error; one without a reply subject is only counted.
    pub(super) fn answer(&self, id: &RequestId, reply: Option<&str>, error: &RouteError) {
        tracing::trace!(request_id = %id, code = error.code(), %error, "a request ended in an error");
        let Some(reply) = reply else { return };
        let mut headers = Lines::new();
        headers.push(header::REQUEST_ID, id.as_str());
        headers.push(header::FINAL, "true");
        let body = error_head(&mut headers, error);
        self.send_assured(reply, &headers, body.as_slice().into());
    }

    /// Whether the dispatching connection came to stand again within the last while.
    pub(super) fn reconnected_within(&self, grace: Duration) -> bool {
        let state = self.dispatch.state();
        let state = state.borrow();
        state.connects > 1 && state.since.elapsed() < grace
    }
}
