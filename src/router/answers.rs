//! Whom a request is answered to: its frontend, and where a router at the global level has sent it here, that router,
//! which hears of it what it would hear of a worker (protocol section 6.3).

use std::sync::Arc;
use std::time::Duration;

use super::route::Request;
use super::state::{Router, unix_ms};
use crate::core::error::RouteError;
use crate::core::id::{Model, RequestId};
use crate::nats::{Block, Lines, Message, Payload};
use crate::wire::Encoding;
use crate::wire::event::{self, Finished, Outcome};
use crate::wire::header::{self, Known};
use crate::wire::subject::Subjects;

/// Most routers at the global level that a request may pass; beyond, their pools lead in a circle.
pub const MAX_HOPS: u32 = 4;
/// Attempts at workers for each attempt of the router above, so that all of them count up for the frontend.
const ATTEMPTS_EACH: u32 = 1 << 16;
/// Clock skew between routers that is allowed for.
const SKEW: Duration = Duration::from_secs(2);

/// Whom a request is answered to.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// The frontend's reply subject.
    pub reply: Option<Box<str>>,
    /// The router at the global level that has sent it here.
    pub above: Option<Box<Above>>,
}

/// A router at the global level.
#[derive(Debug, Clone)]
pub struct Above {
    /// Its inbox for this attempt.
    pub events_to: Arc<str>,
    /// How many such routers the request has passed.
    pub hops: u32,
    /// Its attempt, from 1.
    attempt: u32,
    /// The alias that the frontend has asked it for.
    pub alias: Option<Model>,
    /// Whether it was told that a worker has the request.
    accepted: bool,
}

/// A message that must not be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// It asks for replies where none may go.
    Reply,
    /// It comes after the router above has given it up.
    Late,
}

impl Answers {
    /// Whom a message is answered to. `known`: its headers, where they can be read.
    pub fn read(router: &Router, message: &Message, known: Option<(&Known<'_>, Block<'_>)>) -> Result<Self, Dropped> {
        let above = known.and_then(|(known, headers)| Some((above(router, message, known, headers)?, headers)));
        let reply = match &above {
            Some((_, headers)) => headers.find(header::REPLY_TO),
            None => message.reply(),
        };
        if reply.is_some_and(|reply| !router.may_reply_to(reply)) {
            return Err(Dropped::Reply);
        }
        if let Some((_, headers)) = &above
            && is_late(headers)
        {
            return Err(Dropped::Late);
        }
        Ok(Self { reply: reply.map(Into::into), above: above.map(|(above, _)| Box::new(above)) })
    }

    /// Whom a request was to be answered to that was handed over, by its reply subject alone. `None` where nothing may go
    /// there.
    pub fn at(router: &Router, reply: &str) -> Option<Self> {
        if Subjects::is_router_inbox(reply) && !reply.starts_with(&router.inbox_prefix) {
            let above = Above { events_to: reply.into(), hops: 1, attempt: 1, alias: None, accepted: false };
            return Some(Self { reply: None, above: Some(Box::new(above)) });
        }
        router.may_reply_to(reply).then(|| Self { reply: Some(reply.into()), above: None })
    }

    /// The number of the attempt before the first one here.
    pub fn first_attempt(&self) -> u32 {
        self.above.as_ref().map_or(0, |above| above.attempt.saturating_sub(1).saturating_mul(ATTEMPTS_EACH))
    }
}

/// The router that has sent this, where it is one at the global level: it says so, is believed here, and wants to hear on
/// a router's inbox.
fn above(router: &Router, message: &Message, known: &Known<'_>, headers: Block<'_>) -> Option<Above> {
    let hops = known.get("rankpin-hops")?.parse().ok().filter(|hops| *hops > 0)?;
    let inbox = message.reply().filter(|inbox| Subjects::is_router_inbox(inbox))?;
    if !router.trusts(message.subject()) || inbox.starts_with(&router.inbox_prefix) {
        return None;
    }
    let alias = headers.find(header::ALIAS).filter(|name| header::is_value(name));
    Some(Above {
        events_to: inbox.into(),
        hops,
        attempt: headers.find(header::ATTEMPT).and_then(|attempt| attempt.parse().ok()).unwrap_or(1),
        alias: alias.and_then(|name| Model::new(name).ok()),
        accepted: false,
    })
}

fn is_late(headers: &Block<'_>) -> bool {
    let accept_by: Option<u64> = headers.find(header::ACCEPT_BY).and_then(|ms| ms.parse().ok());
    let skew = u64::try_from(SKEW.as_millis()).unwrap_or(u64::MAX);
    accept_by.is_some_and(|accept_by| unix_ms() > accept_by.saturating_add(skew))
}

impl Router {
    /// Ends a request in an error. Until a worker has it, the router above hears of that as of a worker's refusal, and may
    /// try another pool.
    pub(super) fn end_in_error(&self, id: &RequestId, model: Option<&Model>, answers: &Answers, error: &RouteError) {
        self.note_failed(model, error);
        let reply = answers.reply.as_deref();
        match &answers.above {
            None => self.answer(id, reply, error),
            Some(above) if above.accepted => {
                self.answer(id, reply, error);
                self.tell_finished(above, &Finished::outcome(Outcome::Error));
            }
            Some(above) => {
                let mut headers = Lines::new();
                headers.push(header::EVENT, event::REJECTED);
                let body = super::dispatch::error_head(&mut headers, error);
                self.send(&above.events_to, None, &headers, body.as_slice().into());
            }
        }
    }

    /// Counts a request that has ended in an error.
    pub(super) fn note_failed(&self, model: Option<&Model>, error: &RouteError) {
        self.metrics.requests.failed(model, error, |model| self.state().fleet.serves(model));
    }

    fn tell(&self, above: &Above, kind: &'static str) {
        self.tell_at(&above.events_to, kind);
    }

    fn tell_at(&self, events_to: &str, kind: &'static str) {
        let mut headers = Lines::new();
        headers.push(header::EVENT, kind);
        self.send(events_to, None, &headers, Payload::EMPTY);
    }

    fn tell_finished(&self, above: &Above, finished: &Finished) {
        let mut headers = Lines::new();
        headers.push(header::EVENT, event::FINISHED);
        headers.push(header::CONTENT_TYPE, "application/json");
        self.send(&above.events_to, None, &headers, Encoding::Json.encode(finished).as_slice().into());
    }

    /// Tells routers above that what they have sent here is still worked on.
    pub(super) fn tell_progress(&self) {
        let all = self.state().live.events_to();
        for events_to in all {
            self.tell_at(&events_to, event::PROGRESS);
        }
    }
}

impl Request {
    /// The request is taken in: the router above has to wait no longer for a sign of life than for that.
    pub(super) fn tell_taken(&self) {
        if let Some(above) = &self.answers.above {
            self.router.tell(above, event::PROGRESS);
        }
    }

    /// A worker has the request.
    pub(super) fn tell_accepted(&mut self) {
        if let Some(above) = self.answers.above.as_mut().filter(|above| !above.accepted) {
            above.accepted = true;
            let events_to = Arc::clone(&above.events_to);
            self.router.tell_at(&events_to, event::ACCEPTED);
        }
    }

    /// The worker has given it back.
    pub(super) fn tell_given_back(&mut self) {
        if let Some(above) = &mut self.answers.above {
            above.accepted = false;
        }
    }

    /// The request has ended at its worker.
    pub(super) fn tell_finished(&self, finished: &Finished) {
        if let Some(above) = &self.answers.above {
            self.router.tell_finished(above, finished);
        }
    }
}
