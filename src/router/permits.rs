//! Requests whose frontend sends the body itself (protocol section 6.4): it is told each placement, which is its permit to
//! publish there, in place of a dispatch. All else is as with any other request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::answers::Answers;
use super::live::{Mail, Once, Seq};
use super::route::Request;
use super::state::Router;
use crate::config::DecideMode;
use crate::core::decide::Decision;
use crate::core::error::RouteError;
use crate::nats::{Block, Lines, Message, NO_RESPONDERS, Payload};
use crate::wire::event;
use crate::wire::header;
use crate::wire::identity::{Identity, Sessions, Source};

/// Most requests whose frontend sends the body, in one router and neither accepted nor ended; one more is sent the usual way.
pub const MAX_PERMITS: i64 = 4096;
/// How long a frontend may take to say whether it has sent the body.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// When a probe of a rank was to be accepted by, in ms since 1970: every worker drops it as too late.
const LONG_AGO: u64 = 1;

/// What is counted of permits.
#[derive(Debug)]
pub struct PermitMetrics {
    open: Gauge,
    given: Counter,
    expired: Counter,
}

impl PermitMetrics {
    /// All at zero.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self { open: Gauge::default(), given: Counter::default(), expired: Counter::default() };
        let open = "Requests whose frontend sends the body, and which no worker has accepted yet";
        registry.register("permits_open", open, metrics.open.clone());
        registry.register("permits", "Placements told to frontends that send the body", metrics.given.clone());
        registry.register(
            "permits_expired",
            "Of these, placements that were not used in time",
            metrics.expired.clone(),
        );
        metrics
    }
}

/// What a request has besides, whose frontend sends the body.
pub struct Decide {
    /// Given back once a worker has the request.
    permit: Option<Permit>,
    /// The attempt of which the frontend was asked whether it has sent the body.
    asked: u32,
}

/// One of [`MAX_PERMITS`].
struct Permit(Arc<Router>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.metrics.permits.open.dec();
    }
}

impl Decide {
    /// Takes one of the permits, where one is left.
    pub(super) fn begin(router: &Arc<Router>) -> Result<Self, RouteError> {
        let before = router.metrics.permits.open.inc();
        let permit = Some(Permit(Arc::clone(router)));
        if before >= MAX_PERMITS {
            return Err(RouteError::Undecided("as many placements wait for their bodies as may"));
        }
        Ok(Self { permit, asked: 0 })
    }
}

/// Why a request can't be placed without its body.
pub(super) fn check(router: &Router, answers: &Answers, identity: &Identity, aliased: bool) -> Result<(), RouteError> {
    if answers.reply.is_none() {
        return Err(RouteError::InvalidRequest("a request without its body needs a reply subject".into()));
    }
    if aliased && identity.prefixes.is_some() {
        return Err(RouteError::Undecided("under an alias the keys of a text depend on the model that is chosen"));
    }
    let named = matches!(identity.source, Source::Header | Source::FurtherHeader(_));
    match router.sessions() {
        Sessions::On(sources) if !named && !sources.body_fields.is_empty() => {
            Err(RouteError::Undecided("a field of the body may name the session"))
        }
        Sessions::On(_) | Sessions::Off => Ok(()),
    }
}

impl Router {
    /// Where requests come in.
    pub(super) fn intake_subjects(&self) -> Vec<String> {
        let mut subjects = self.subjects.intake().to_vec();
        match self.config.decide {
            DecideMode::Off => {}
            DecideMode::On => subjects.push(self.subjects.decides()),
        }
        subjects
    }

    /// The server says whether anybody listens at the rank of an attempt.
    pub(super) fn hear_of_rank(&self, seq: Seq, attempt: u32, message: &Message) {
        if message.status() == Some(NO_RESPONDERS) {
            self.mail_once(seq, attempt, Once::NoResponders, Mail::NoResponders);
        }
    }

    /// A frontend says whether it has sent the body; or the server, that it is gone.
    pub(super) fn hear_of_frontend(&self, seq: Seq, attempt: u32, message: &Message) {
        if message.status() == Some(NO_RESPONDERS) {
            self.mail_once(seq, attempt, Once::Gone, Mail::FrontendGone);
        } else if message.headers().unwrap_or(Block::NONE).find(header::EVENT) == Some(event::SENT) {
            self.mail_once(seq, attempt, Once::Sent, Mail::Sent);
        }
    }

    fn mail_once(&self, seq: Seq, attempt: u32, once: Once, mail: Mail) {
        let mut state = self.state();
        if let Some(live) = state.live.current(seq, attempt)
            && live.first(once)
        {
            live.send(mail);
        }
    }
}

impl Request {
    /// Tells the frontend where the body goes.
    pub(super) fn send_permit(
        &self,
        decision: &Decision,
        subject: &str,
        plain: bool,
        within: Duration,
    ) -> Result<(), RouteError> {
        if plain {
            // Its answer would have to be told from one to the probe.
            return Err(RouteError::Undecided("the worker does not speak the protocol"));
        }
        let Some(reply) = self.answers.reply.as_deref() else { return Ok(()) };
        let mut headers = Lines::with_capacity(super::dispatch::OWN_HEADERS);
        headers.push(header::EVENT, event::PLACED);
        headers.push(header::SEND_TO, subject);
        self.push_own(&mut headers, decision, within);
        let router = &self.router;
        router.metrics.dispatched.inc();
        router.metrics.permits.given.inc();
        router.send(reply, Some(&router.inbox_of(self.seq, self.attempt)), &headers, Payload::EMPTY);
        // Of the body's own missing responders nobody would hear.
        let mut probe = Lines::new();
        probe.push(header::PROBE, "1");
        probe.push(header::REQUEST_ID, self.id.as_str());
        probe.push_number(header::ATTEMPT, self.attempt.into());
        probe.push_number(header::ACCEPT_BY, LONG_AGO);
        router.send(subject, Some(&router.rank_inbox(self.seq, self.attempt)), &probe, Payload::EMPTY);
        Ok(())
    }

    /// The worker said nothing in time. Where its frontend sends the body, it is asked whether it has, and may take until
    /// then to say so; without an answer the permit has expired.
    pub(super) fn ask_whether_sent(&mut self, decision: &Decision) -> Result<Option<Instant>, RouteError> {
        let Some(decide) = self.decide.as_mut().filter(|_| !self.cancelled) else { return Ok(None) };
        if decide.asked == self.attempt {
            return Err(self.expire(decision));
        }
        decide.asked = self.attempt;
        let Some(reply) = self.answers.reply.as_deref() else { return Ok(None) };
        let mut headers = Lines::new();
        headers.push(header::EVENT, event::UNACCEPTED);
        headers.push(header::REQUEST_ID, self.id.as_str());
        headers.push_number(header::ATTEMPT, self.attempt.into());
        let router = &self.router;
        router.send(reply, Some(&router.question_inbox(self.seq, self.attempt)), &headers, Payload::EMPTY);
        Ok(Some(Instant::now() + ANSWER_WITHIN))
    }

    /// Nobody listens where the frontend is told of its request.
    pub(super) fn frontend_gone(&mut self, decision: &Decision) -> RouteError {
        if self.decide.as_ref().is_some_and(|decide| decide.asked == self.attempt) {
            return self.expire(decision);
        }
        self.give_up(decision);
        RouteError::Cancelled
    }

    /// Another placement follows. The body may be on its way all the same, to a worker that has come back.
    pub(super) fn withdraw_permit(&mut self, decision: &Decision) {
        if self.decide.is_some() {
            self.give_up(decision);
        }
    }

    fn expire(&mut self, decision: &Decision) -> RouteError {
        self.give_up(decision);
        self.router.metrics.permits.expired.inc();
        RouteError::PermitExpired
    }

    /// A worker has the request.
    pub(super) fn release_permit(&mut self) {
        if let Some(decide) = &mut self.decide {
            decide.permit = None;
        }
    }
}
