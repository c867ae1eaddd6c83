//! One request at the worker, from dispatch to `finished` (protocol section 6).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval_at};
use tracing::{debug, error};

use super::bodies::Bodies;
use super::cancel::{CancelReason, Cancels, Held};
use super::dispatch::{Dispatch, LATE_HOLD, Lateness, lateness};
use super::engine::{Acceptance, Engine, EngineRequest, Failure, Refusal};
use super::outlet::Outlet;
use super::registration::Phase;
use super::replies::{Events, ReplyError, ReplyStream};
use super::slots::{Slot, Slots};
use crate::core::id::WorkerId;
use crate::nats::{Headers, Link, Subject};
use crate::telemetry::trace::{Kind, Span, TRACEPARENT};
use crate::wire::drain::DrainAnswer;
use crate::wire::event::{Finished, Outcome};
use crate::wire::subject::Subjects;
use crate::wire::{Encoding, header};

/// How long an engine may go on after its request was given up; then it is dropped where it stands.
pub const CANCEL_GRACE: Duration = Duration::from_secs(1);
/// How often a router hears that a long request is still worked on; it wants to at least every 10 s.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Code word of an error that is the engine's own.
const ENGINE_ERROR: &str = "engine_error";
/// Code word and words where an engine stops in the middle of an answer.
const IDLE: &str = "stream_idle";
const SILENT: &str = "the engine stopped in the middle of its answer, and the worker gave the request up";

/// What every request of a worker shares.
#[derive(Debug)]
pub(super) struct Service<E> {
    pub engine: E,
    pub bodies: Bodies,
    pub subjects: Subjects,
    pub worker: WorkerId,
    /// The connection for the registration, load reports and results of jobs.
    pub store: Link,
    /// The connection for events and replies.
    pub outlet: Outlet,
    /// How long an engine may be silent in the middle of an answer.
    pub stream_idle_timeout: Duration,
    pub slots: Arc<Slots>,
    pub cancels: Arc<Cancels>,
    pub instance: String,
    pub phase: watch::Sender<Phase>,
    /// Told once an operator has asked for a drain.
    pub drain_asked: watch::Sender<bool>,
}

/// How the engine's work ended.
enum Ended {
    Returned(Result<Finished, Failure>),
    Panicked,
    /// It did not return within [`CANCEL_GRACE`].
    Dropped,
}

impl<E: Engine> Service<E> {
    /// Takes an attempt in; `None` where it is dropped unaccepted, without a word: the router gave it up.
    pub(super) fn enter(&self, dispatch: &Dispatch) -> Option<(Held, Lateness)> {
        let late = lateness(dispatch.accept_by_ms, unix_ms());
        if late == Lateness::Expired {
            debug!(request_id = %dispatch.id, attempt = dispatch.attempt, "dropped a request that came too late");
            return None;
        }
        let held = self.cancels.enter((dispatch.id.clone(), dispatch.attempt), Instant::now())?;
        Some((held, late))
    }

    /// An operator asks for a drain: it begins at once, whatever the host of the worker then does.
    pub(super) async fn answer_drain(&self, reply: Option<Subject>) {
        self.slots.drain();
        self.phase.send_if_modified(|phase| {
            let begins = *phase == Phase::Ready;
            if begins {
                *phase = Phase::Draining;
            }
            begins
        });
        self.drain_asked.send_replace(true);
        let Some(reply) = reply else { return };
        let (worker, instance) = (self.worker.as_str().to_owned(), self.instance.clone());
        let answer = DrainAnswer { v: 1, worker, instance, held: self.slots.held() as u64 };
        let mut headers = Headers::new();
        headers.set(header::CONTENT_TYPE, Encoding::Json.media_type());
        if let Err(problem) = self.store.publish(reply, None, headers, Encoding::Json.encode(&answer).into()).await {
            debug!(%problem, "the answer to a drain was not sent");
        }
    }

    /// Serves one attempt.
    pub(super) async fn serve(&self, mut dispatch: Dispatch, held: Held, late: Lateness) {
        if late == Lateness::Late && tokio::time::timeout(LATE_HOLD, held.token().cancelled()).await.is_ok() {
            return;
        }
        let mut span = self.span(&mut dispatch);
        let events = Events::new(self.outlet.clone(), dispatch.events_to.take());
        let slot = match self.slots.take(dispatch.rank) {
            Ok(slot) => slot,
            Err(refusal) => {
                span.fail(&refusal.code);
                return events.rejected(&refusal).await;
            }
        };
        match self.engine.acceptance() {
            Acceptance::AtOnce => events.accepted().await,
            Acceptance::WithFinish => (),
        }
        let token = held.token().clone();
        let ways = (self.outlet.clone(), &self.store);
        let mut replies = ReplyStream::new(ways, self.worker.clone(), &mut dispatch, token, &self.subjects);
        let ended = self.work(dispatch, &held, &mut replies, &events).await;
        conclude(ended, &held, &mut replies, &events, slot, &mut span).await;
    }

    /// The span of an attempt, under the router's; the engine gets it in place of that.
    fn span(&self, dispatch: &mut Dispatch) -> Span {
        let mut span = Span::begin(Kind::Generation, |name| dispatch.headers.find(name));
        span.note("rankpin.request_id", dispatch.id.as_str());
        span.note("rankpin.worker", self.worker.as_str());
        if let Some(rank) = dispatch.rank {
            span.note_number("rankpin.dp_rank", rank.0.into());
        }
        span.note_number("rankpin.attempt", dispatch.attempt.into());
        if let Some(ours) = span.carried() {
            dispatch.headers.replace(TRACEPARENT, &ours);
        }
        span
    }

    /// Lets the engine work, tells the router now and then, and sees to it that a cancel ends the work.
    async fn work(&self, dispatch: Dispatch, held: &Held, replies: &mut ReplyStream, events: &Events) -> Ended {
        let request = EngineRequest {
            id: dispatch.id,
            attempt: dispatch.attempt,
            rank: dispatch.rank,
            session: dispatch.session,
            model: dispatch.model,
            headers: dispatch.headers,
            payload: dispatch.payload,
            cancel: held.token().clone(),
        };
        // The engine is used by other requests after a panic in one: it has to keep its own state whole, as behind
        // a lock that is poisoned.
        let pulse = replies.pulse();
        let serving = async {
            // Boxed, because it is rare and every request would hold room for it.
            let request = match request.headers.find(header::BODY) {
                Some(_) => Box::pin(self.bodies.complete(request)).await?,
                None => request,
            };
            self.engine.serve(request, replies).await
        };
        let serving = AssertUnwindSafe(serving).catch_unwind();
        let mut serving = std::pin::pin!(serving);
        let mut stopped = std::pin::pin!(pulse.stopped(self.stream_idle_timeout));
        let mut progress = interval_at(tokio::time::Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Every arm may be dropped: `serving` and `stopped` are pinned outside, the others keep no state of their own.
            tokio::select! {
                biased;
                ended = &mut serving => return Ended::of(ended),
                _ = held.token().cancelled() => break,
                () = &mut stopped => {
                    held.token().cancel(CancelReason::Idle);
                    break;
                }
                // Boxed, because it is rare and every request would hold room for it.
                _ = progress.tick() => Box::pin(events.progress()).await,
            }
        }
        match tokio::time::timeout(CANCEL_GRACE, serving).await {
            Ok(ended) => Ended::of(ended),
            Err(_) => Ended::Dropped,
        }
    }
}

impl Ended {
    fn of(ended: std::thread::Result<Result<Finished, Failure>>) -> Self {
        match ended {
            Ok(returned) => Self::Returned(returned),
            Err(_) => Self::Panicked,
        }
    }
}

/// How a request ends on the wire.
enum Ending {
    /// The reply stream is whole.
    Whole(Finished),
    /// The engine refused before anything was published.
    Rejected(Refusal),
    /// The attempt was given up, or it is a job, of which only the router knows whether it was cancelled: nothing is published.
    Dropped(Finished),
    /// The reply stream ends in an error.
    Error { status: u16, code: String, message: String, finished: Finished },
    /// The reply stream ends in an error of the engine's own, with its words.
    Answered { status: u16, content_type: String, body: Bytes },
}

impl Ending {
    fn error(status: u16, code: &str, message: String) -> Self {
        let finished = Finished::outcome(if status == 499 { Outcome::Cancelled } else { Outcome::Error });
        Self::Error { status, code: code.to_owned(), message, finished }
    }

    fn given_up(reason: CancelReason, figures: Option<Finished>, replies: &ReplyStream) -> Self {
        if replies.is_job() {
            return match reason {
                CancelReason::Asked | CancelReason::GivenUp | CancelReason::Abandoned => {
                    let figures = figures.unwrap_or_else(|| Finished::outcome(Outcome::Cancelled));
                    Self::Dropped(Finished { outcome: Outcome::Cancelled, ..figures })
                }
                // Another worker runs it anew.
                CancelReason::Stopping => Self::Rejected(Refusal::draining()),
                CancelReason::Idle => {
                    Self::Rejected(Refusal { status: 503, code: IDLE.into(), message: SILENT.into() })
                }
            };
        }
        let (status, code, outcome, message) = match reason {
            // Another attempt may have begun: a word of this one would be taken for the request's end.
            CancelReason::GivenUp => {
                let figures = figures.unwrap_or_else(|| Finished::outcome(Outcome::Cancelled));
                return Self::Dropped(Finished { outcome: Outcome::Cancelled, ..figures });
            }
            CancelReason::Asked => (499, "cancelled", Outcome::Cancelled, "the request was cancelled"),
            // Whoever comes back to its inbox after all is told why there is no more.
            CancelReason::Abandoned => {
                (499, "cancelled", Outcome::Cancelled, "nobody listened to the replies for two seconds")
            }
            CancelReason::Idle => (504, IDLE, Outcome::Error, SILENT),
            CancelReason::Stopping => {
                (503, "shutting_down", Outcome::Error, "the worker stopped before the request had ended; send it again")
            }
        };
        let figures = figures.unwrap_or_else(|| Finished::outcome(outcome));
        Self::Error { status, code: code.into(), message: message.into(), finished: Finished { outcome, ..figures } }
    }

    /// Judges what the engine did.
    fn of(ended: Ended, given_up: Option<CancelReason>, replies: &ReplyStream) -> Self {
        let returned = match ended {
            Ended::Returned(returned) => returned,
            // Only a request that was given up is ever dropped.
            Ended::Dropped => return Self::given_up(given_up.unwrap_or(CancelReason::Asked), None, replies),
            Ended::Panicked => return Self::error(500, "worker_error", "the engine failed on this request".into()),
        };
        // An answer that was whole before the cancel came stays one.
        if let (Some(reason), false) = (given_up, replies.has_ended()) {
            return Self::given_up(reason, returned.ok(), replies);
        }
        match returned {
            Ok(finished) => Self::Whole(finished),
            Err(Failure::Refused(refusal)) if !replies.has_begun() => Self::Rejected(refusal),
            Err(Failure::Refused(Refusal { status, code, message })) => Self::error(status, &code, message),
            Err(Failure::Failed { status, code, message }) => Self::error(status, &code, message),
            Err(Failure::Answered { status, content_type, body }) => Self::Answered { status, content_type, body },
            Err(Failure::Reply(ReplyError::GivenUp(reason))) => Self::given_up(reason, None, replies),
            Err(Failure::Reply(e @ ReplyError::TooLarge { .. })) => {
                Self::error(413, "payload_too_large", e.to_string())
            }
            Err(Failure::Reply(ReplyError::Unreachable(problem))) if replies.is_job() => {
                Self::Rejected(no_result(&problem))
            }
            Err(Failure::Reply(e @ (ReplyError::Ended | ReplyError::Unreachable(_)))) => {
                Self::error(500, "worker_error", e.to_string())
            }
        }
    }
}

/// Ends the reply stream and tells the router. The slot is free before the router hears of it: it may send the next
/// request at once.
async fn conclude(ended: Ended, held: &Held, replies: &mut ReplyStream, events: &Events, slot: Slot, span: &mut Span) {
    let (sent, finished) = match Ending::of(ended, held.token().reason(), replies) {
        Ending::Rejected(refusal) => {
            span.fail(&refusal.code);
            drop(slot);
            return events.rejected(&refusal).await;
        }
        Ending::Dropped(finished) => (Ok(()), finished),
        Ending::Whole(finished) if replies.has_ended() => (Ok(()), finished),
        Ending::Whole(finished) => (meanwhile(events, replies.close()).await, finished),
        Ending::Error { status, code, message, finished } => {
            span.fail(&code);
            if status >= 500 {
                error!(status, code, message, "a request failed at the engine");
            }
            (meanwhile(events, replies.fail(status, &code, &message)).await, finished)
        }
        Ending::Answered { status, content_type, body } => {
            span.fail(ENGINE_ERROR);
            let sent = meanwhile(events, replies.fail_with(status, ENGINE_ERROR, &content_type, body)).await;
            (sent, Finished::outcome(Outcome::Error))
        }
    };
    drop(slot);
    note_tokens(span, &finished);
    if let Err(problem) = sent {
        debug!(%problem, "the reply stream could not be ended");
        if replies.is_job() {
            // `finished` would make the router forget a job that has no result.
            return events.rejected(&no_result(&problem.to_string())).await;
        }
    }
    events.finished(&finished).await;
}

fn note_tokens(span: &mut Span, finished: &Finished) {
    let figures = [
        ("gen_ai.usage.input_tokens", finished.prompt_tokens),
        ("gen_ai.usage.cache_read.input_tokens", finished.cached_tokens),
        ("gen_ai.usage.output_tokens", finished.output_tokens),
    ];
    for (key, figure) in figures {
        if let Some(figure) = figure {
            span.note_number(key, figure);
        }
    }
}

/// A job's result could not be stored: it has to be run again.
fn no_result(problem: &str) -> Refusal {
    let message = format!("the job's result could not be stored: {problem}");
    Refusal { status: 503, code: "no_result".into(), message }
}

/// Does what may take long where the stream of results does, and tells the router meanwhile that it is worked on.
async fn meanwhile<T>(events: &Events, what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    let mut progress = interval_at(tokio::time::Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
    loop {
        // Both arms may be dropped: `what` is pinned outside, the other keeps no state of its own.
        tokio::select! {
            biased;
            done = &mut what => return done,
            _ = progress.tick() => Box::pin(events.progress()).await,
        }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
