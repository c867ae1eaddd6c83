//! One request, from its placement to its end: a straight line.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use super::alias::Alias;
use super::answers::Answers;
use super::claiming::Claiming;
use super::derived::Continued;
use super::jobs::JobPart;
use super::later::Later;
use super::live::{Mail, Resting, Seq};
use super::permits::Decide;
use super::pinning::{Claim, Claimed, Pinned};
use super::queue_metrics::LeftQueue;
use super::state::{Asked, Asking, Basis, Keys, Router};
use crate::core::ask::{Ask, Failure};
use crate::core::decide::{Decision, NoPlacement};
use crate::core::error::RouteError;
use crate::core::id::RequestId;
use crate::core::mode::AffinityMode;
use crate::core::partition::Partition;
use crate::core::queue::Priority;
use crate::core::session::derived::Prefixes;
use crate::nats::{Block, Lines, Message};
use crate::telemetry::trace::Span;
use crate::wire::event::{Finished, Outcome, Rejection};
use crate::wire::header;

/// Most placements that may fail one request: enough for every rank of a small fleet, and a bound for a large one.
const MAX_FAILED_PLACEMENTS: usize = 64;

/// Who waits for mail has a task.
const HAS_TASK: &str = "only requests with a task wait for mail";

/// A request under way. It ends with this value: dropping it gives back what it holds.
pub struct Request {
    pub(super) router: Arc<Router>,
    pub(super) seq: Seq,
    pub(super) id: RequestId,
    pub(super) ask: Ask,
    /// The partition in which its pins stand.
    pub(super) partition: Partition,
    pub(super) keys: Keys,
    pub(super) prefixes: Option<Prefixes>,
    pub(super) message: Message,
    /// Whom it is answered to.
    pub(super) answers: Answers,
    /// Whether what it says of its tenant and priority is believed.
    pub(super) trusted: bool,
    /// The alias that it has named.
    pub(super) alias: Option<Alias>,
    pub(super) priority: Priority,
    pub(super) accept_until: Instant,
    pub(super) deadline: Option<(Instant, u64)>,
    /// What it has besides, where it is a durable job.
    pub(super) job: Option<JobPart>,
    /// What it has besides, where its frontend sends the body.
    pub(super) decide: Option<Decide>,
    /// Where its mail comes, once it has a task.
    pub(super) mail: Option<UnboundedReceiver<Mail>>,
    pub(super) attempt: u32,
    /// What its last placement went by.
    pub(super) basis: Basis,
    /// Of a derived session: the pin that it continues.
    pub(super) continued: Option<Continued>,
    /// The right to place the session, while nobody of this router may.
    pub(super) claim: Option<Claim>,
    /// The pin that this request has written before its dispatch.
    pub(super) claimed: Option<Claimed>,
    /// The pins that it has written at its acceptance.
    pub(super) later: Vec<Later>,
    /// Whether the worker that accepted it has given it back, and no other has accepted it since.
    pub(super) given_back: bool,
    /// Lost races for the pin.
    pub(super) contested: u32,
    /// Whether the leader was asked while the mirror was behind.
    pub(super) rechecked: bool,
    pub(super) last_failure: Option<RouteError>,
    pub(super) cancelled: bool,
    /// What named its session.
    pub(super) source: &'static str,
    /// The span of the attempt that is made at the moment.
    pub(super) span: Span,
}

/// How far a request has come.
pub enum Stage {
    /// It wants a placement; or has asked for one already, and this is the answer.
    Placing(Option<Asked>),
    /// Its pin is being put, after which it is sent.
    Claiming(Box<Claiming>),
    /// It has a placement, and its pin stands.
    Placed(Decision),
    /// It was sent, and its worker has until then to say something.
    Sent(Decision, Instant),
    /// Its worker has it.
    Accepted(Decision),
}

/// How an attempt went.
pub(super) enum Attempted {
    /// The worker has the request.
    Accepted,
    /// The request has ended, in this way.
    Ended(Finished),
    /// The worker has not taken it; with the error that its frontend is told where nobody else takes it, if that is known.
    Failed(Failure, Option<RouteError>),
    /// The worker refuses it for good.
    Refused(Rejection),
}

/// Gives a request a task of its own, in which it goes on from where it is.
pub fn start(resting: Resting, mail: UnboundedReceiver<Mail>) {
    let Resting { mut request, stage } = resting;
    request.mail = Some(mail);
    tokio::spawn(serve(request, stage));
}

/// Serves a request to its end; an error is what its frontend is told.
async fn serve(mut request: Box<Request>, stage: Stage) {
    let outcome = request.run(stage).await;
    match outcome {
        Ok(finished) => {
            request.router.metrics.requests.finished(&request.ask.model, &finished);
            request.tell_finished(&finished);
        }
        // What happens rarely is boxed here and below: each request's future stays small.
        Err(error) => Box::pin(request.fail(&error)).await,
    }
}

impl Request {
    /// Its number.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Goes on from a stage to the end.
    pub(super) async fn run(&mut self, mut stage: Stage) -> Result<Finished, RouteError> {
        loop {
            stage = match stage {
                Stage::Placing(asked) => Stage::Placed(self.place(asked).await?),
                Stage::Claiming(claiming) => {
                    let decision = Box::pin(self.finish_claim(*claiming)).await?;
                    decision.map_or(Stage::Placing(None), Stage::Placed)
                }
                Stage::Placed(decision) => {
                    self.router.metrics.decided(&decision);
                    if !self.router.dispatch.is_connected() {
                        Box::pin(self.wait_for_connection()).await?;
                    }
                    let until = self.dispatch(&decision)?;
                    Stage::Sent(decision, until)
                }
                Stage::Sent(decision, until) => match self.hear(&decision, until).await? {
                    Attempted::Accepted => {
                        self.settle(&decision);
                        Stage::Accepted(decision)
                    }
                    Attempted::Ended(finished) => {
                        self.settle(&decision);
                        self.keep_response(&decision, &finished);
                        return Ok(finished);
                    }
                    Attempted::Failed(failure, told) => {
                        Box::pin(self.learn(&decision, failure, told)).await?;
                        Stage::Placing(None)
                    }
                    Attempted::Refused(rejection) => return Err(relayed(rejection)),
                },
                Stage::Accepted(decision) => match self.follow(&decision).await? {
                    Some(finished) => {
                        self.keep_response(&decision, &finished);
                        return Ok(finished);
                    }
                    None => Stage::Placing(None),
                },
            };
        }
    }

    pub(super) async fn fail(&mut self, error: &RouteError) {
        self.span.fail(error.code());
        self.give_back_pin().await;
        self.router.end_in_error(&self.id, Some(&self.ask.model), &self.answers, error);
    }

    /// Finds a placement, and makes its pin where one is made before the dispatch. The request is counted there from
    /// then on.
    async fn place(&mut self, mut asked: Option<Asked>) -> Result<Decision, RouteError> {
        self.begin_span();
        if asked.is_none() {
            if self.ask.excluded.len() >= MAX_FAILED_PLACEMENTS || self.has_no_attempts_left() {
                let last = self.last_failure.take();
                return Err(last.unwrap_or_else(|| RouteError::NoWorker("every attempt failed".into())));
            }
            self.leave()?;
        }
        // A request that may not wait at all is still placed where there is room at once.
        let mut first = self.last_failure.is_none();
        loop {
            let answer = match asked.take() {
                Some(asked) => asked,
                None => self.ask_again(first).await?,
            };
            first = false;
            let Some((decision, basis)) = self.wait_for(answer).await? else { continue };
            self.basis = basis;
            self.continued = self.find_continued();
            let Some(new) = self.pin_to_put(&decision) else { return Ok(decision) };
            match Box::pin(self.pin_before_dispatch(&decision, new)).await {
                Pinned::Yes => return Ok(decision),
                Pinned::AskAgain => self.leave()?,
            }
        }
    }

    /// Asks for a placement, where the request still may; for the first time it always may.
    async fn ask_again(&mut self, first: bool) -> Result<Asked, RouteError> {
        if self.cancelled {
            return Err(RouteError::Cancelled);
        }
        if let Some((_, ms)) = self.deadline.filter(|(at, _)| Instant::now() >= *at) {
            return Err(RouteError::Deadline(ms));
        }
        if !first && Instant::now() >= self.accept_until {
            return Err(self.timed_out());
        }
        Ok(self.ask_now())
    }

    pub(super) fn ask_now(&self) -> Asked {
        let asking = Asking {
            seq: self.seq,
            ask: &self.ask,
            partition: self.partition,
            keys: &self.keys,
            priority: self.priority,
            holds_claim: self.claim.is_some(),
            claimed: self.claimed.map_or(0, |claimed| claimed.revision()),
            unreachable: self.is_bucket_unreachable(),
            recheck: self.pin_to_recheck(),
        };
        self.router.ask(&asking, Instant::now())
    }

    /// Leaves where it is counted. What a worker has said of it there must not be taken for the next one's word.
    pub(super) fn leave(&mut self) -> Result<(), RouteError> {
        self.router.vacate(self.seq, Instant::now());
        while let Ok(mail) = self.mail().try_recv() {
            note(&mail)?;
        }
        Ok(())
    }

    /// Takes the answer of one ask, and waits where it has to. `None`: things have changed, ask again.
    async fn wait_for(&mut self, asked: Asked) -> Result<Option<(Decision, Basis)>, RouteError> {
        match asked {
            Asked::Decided(decision, basis) => Ok(Some((decision, basis))),
            Asked::Recheck(key) => {
                Box::pin(self.recheck_pin(key)).await;
                Ok(None)
            }
            Asked::Failed(NoPlacement::Refused(error)) => Err(self.final_error(error)),
            Asked::Failed(NoPlacement::Exhausted | NoPlacement::Wait(_)) => {
                Err(self.final_error(RouteError::NoWorker("no worker that may take the request is left".into())))
            }
            Asked::QueueFull => {
                self.router.metrics.queue.left(LeftQueue::Full);
                Err(self.overloaded("no worker has room, and as many requests wait for this model as may"))
            }
            Asked::Queued => Box::pin(self.wait_for_room()).await,
            Asked::Busy(claim) => Box::pin(self.wait_for_claim(claim)).await,
        }
    }

    async fn wait_for_room(&mut self) -> Result<Option<(Decision, Basis)>, RouteError> {
        let since = Instant::now();
        let mail = self.next_mail(self.accept_until).await;
        self.router.leave_queue(self.seq);
        let metrics = &self.router.metrics;
        match mail? {
            Some(Mail::Granted(granted)) => {
                metrics.queue.left(LeftQueue::Granted(since.elapsed()));
                Ok(Some(*granted))
            }
            Some(Mail::Displaced) => {
                metrics.queue.left(LeftQueue::Displaced);
                Err(self.overloaded("no worker has room, and requests that count more wait for this model"))
            }
            Some(mail) => note(&mail).map(|()| None),
            None => {
                metrics.queue.left(LeftQueue::TimedOut);
                Err(self.overloaded("no worker had room for the request within its timeout"))
            }
        }
    }

    /// Another request of this router is placing the session: asks again when it is done.
    async fn wait_for_claim(
        &mut self,
        mut claim: watch::Receiver<()>,
    ) -> Result<Option<(Decision, Basis)>, RouteError> {
        // Cancel-safe: a claim that ends while mail comes first is seen at the next ask.
        tokio::select! {
            _ = claim.changed() => Ok(None),
            mail = next_mail(self.mail.as_mut(), self.accept_until, self.deadline) => match mail? {
                Some(mail) => note(&mail).map(|()| None),
                None => Err(self.timed_out()),
            },
        }
    }

    /// Waits for the worker's word.
    async fn hear(&mut self, decision: &Decision, mut until: Instant) -> Result<Attempted, RouteError> {
        loop {
            let Some(mail) = self.next_mail_dispatched(until, decision).await? else {
                match self.ask_whether_sent(decision)? {
                    Some(answer_by) => until = answer_by,
                    None => return self.silent(decision),
                }
                continue;
            };
            match mail {
                Mail::Accepted => {
                    if self.cancelled {
                        self.cancel_at_worker(decision);
                    }
                    return Ok(Attempted::Accepted);
                }
                Mail::Finished(finished) => {
                    // A worker may leave `accepted` out where `finished` follows at once.
                    self.router.metrics.finished_tokens(&finished);
                    return Ok(Attempted::Ended(*finished));
                }
                Mail::Answer(answer) => {
                    let headers = answer.headers().unwrap_or(Block::NONE);
                    let failed = headers.find(header::SERVICE_ERROR_CODE).is_some();
                    match self.job {
                        Some(_) => Box::pin(self.store_answer(decision, &answer)).await?,
                        None => self.relay(decision, &answer)?,
                    }
                    let outcome = if failed { Outcome::Error } else { Outcome::Ok };
                    return Ok(Attempted::Ended(Finished::outcome(outcome)));
                }
                Mail::NoResponders | Mail::WorkerLost if self.cancelled => return Err(RouteError::Cancelled),
                Mail::WorkerLost if self.router.is_global() => return self.silent(decision),
                Mail::NoResponders | Mail::WorkerLost => {
                    self.withdraw_permit(decision);
                    return Ok(Attempted::Failed(Failure::NoResponders, None));
                }
                Mail::Rejected(_) if self.cancelled => return Err(RouteError::Cancelled),
                Mail::Rejected(rejection) => return Ok(self.refusal(*rejection)),
                Mail::Taken => until = self.accept_until,
                Mail::Sent => return self.silent(decision),
                Mail::FrontendGone => return Err(self.frontend_gone(decision)),
                Mail::Cancelled => {
                    self.cancelled = true;
                    self.cancel_at_worker(decision);
                }
                Mail::ShuttingDown => {
                    self.give_up(decision);
                    return Err(RouteError::ShuttingDown);
                }
                Mail::Granted(_) | Mail::Displaced | Mail::AskAgain | Mail::Put(_) => {}
            }
        }
    }

    /// The worker said nothing in time.
    fn silent(&mut self, decision: &Decision) -> Result<Attempted, RouteError> {
        self.give_up(decision);
        if self.cancelled { Err(RouteError::Cancelled) } else { Ok(Attempted::Failed(Failure::AcceptTimeout, None)) }
    }

    /// Stays with an accepted request to its end. `None`: the worker has refused it after all, before any reply.
    async fn follow(&mut self, decision: &Decision) -> Result<Option<Finished>, RouteError> {
        loop {
            // That of a request in a pool is kept by the pool's router from now on.
            let mail = match self.deadline.filter(|_| !self.router.is_global()) {
                Some((at, _)) => self.next_mail_dispatched(at, decision).await?,
                None => self.mail().recv().await,
            };
            match mail {
                Some(Mail::Finished(finished)) => {
                    self.router.metrics.finished_tokens(&finished);
                    return Ok(Some(*finished));
                }
                Some(Mail::WorkerLost) => {
                    return Err(RouteError::WorkerLost(decision.placement.worker.as_str().to_owned()));
                }
                Some(Mail::Rejected(_)) if self.cancelled => return Err(RouteError::Cancelled),
                Some(Mail::Rejected(rejection)) => {
                    self.unsettle();
                    match self.refusal(*rejection) {
                        Attempted::Failed(failure, told) => Box::pin(self.learn(decision, failure, told)).await?,
                        Attempted::Refused(rejection) => return Err(relayed(rejection)),
                        Attempted::Accepted | Attempted::Ended(_) => {}
                    }
                    return Ok(None);
                }
                Some(Mail::Cancelled) => {
                    self.cancelled = true;
                    self.cancel_at_worker(decision);
                }
                Some(
                    Mail::Accepted
                    | Mail::Taken
                    | Mail::NoResponders
                    | Mail::Answer(_)
                    | Mail::Granted(_)
                    | Mail::Displaced
                    | Mail::AskAgain
                    | Mail::Sent
                    | Mail::FrontendGone
                    | Mail::Put(_)
                    | Mail::ShuttingDown,
                ) => {}
                None => return Err(RouteError::ShuttingDown),
            }
        }
    }

    /// Waits, unless mail comes.
    pub(super) async fn rest(&mut self, pause: Duration) -> Result<(), RouteError> {
        let until = (Instant::now() + pause).min(self.accept_until);
        match self.next_mail(until).await? {
            Some(mail) => note(&mail),
            None => Ok(()),
        }
    }

    pub(super) async fn next_mail(&mut self, until: Instant) -> Result<Option<Mail>, RouteError> {
        next_mail(self.mail.as_mut(), until, self.deadline).await
    }

    async fn next_mail_dispatched(&mut self, until: Instant, decision: &Decision) -> Result<Option<Mail>, RouteError> {
        let mail = self.next_mail(until).await;
        if let Err(RouteError::Deadline(_)) = mail {
            self.give_up(decision);
        }
        mail
    }

    pub(super) fn mail(&mut self) -> &mut UnboundedReceiver<Mail> {
        self.mail.as_mut().expect(HAS_TASK)
    }

    fn timed_out(&mut self) -> RouteError {
        self.last_failure.take().unwrap_or_else(|| {
            RouteError::AcceptTimeout("the request's timeout passed before it was sent to one".into())
        })
    }

    /// The error of the last attempt tells more than that nobody is left; a conflict with a pin tells something new.
    fn final_error(&mut self, error: RouteError) -> RouteError {
        match (&error, self.last_failure.take()) {
            (RouteError::PinConflict(_), _) | (_, None) => error,
            (_, Some(last)) => last,
        }
    }

    /// Whether the session is named: its first pin is made before the dispatch.
    pub(super) fn claims(&self) -> bool {
        self.router.rules.mode != AffinityMode::Off && self.ask.named()
    }
}

pub(super) fn relayed(Rejection { status, code, message, retry_after_s }: Rejection) -> RouteError {
    RouteError::Relayed { status, code, message, retry_after_s }
}

/// Mail that comes while the request is not dispatched.
pub(super) fn note(mail: &Mail) -> Result<(), RouteError> {
    match mail {
        Mail::Cancelled => Err(RouteError::Cancelled),
        Mail::ShuttingDown => Err(RouteError::ShuttingDown),
        Mail::AskAgain
        | Mail::Granted(_)
        | Mail::Displaced
        | Mail::NoResponders
        | Mail::Accepted
        | Mail::Taken
        | Mail::Rejected(_)
        | Mail::Finished(_)
        | Mail::Answer(_)
        | Mail::Sent
        | Mail::FrontendGone
        | Mail::Put(_)
        | Mail::WorkerLost => Ok(()),
    }
}

/// The next mail, `None` at `until`; an error once the request's deadline has passed.
async fn next_mail(
    mail: Option<&mut UnboundedReceiver<Mail>>,
    until: Instant,
    deadline: Option<(Instant, u64)>,
) -> Result<Option<Mail>, RouteError> {
    let mail = mail.expect(HAS_TASK);
    let end = deadline.map_or(until, |(at, _)| at.min(until));
    match tokio::time::timeout_at(end.into(), mail.recv()).await {
        Ok(Some(mail)) => Ok(Some(mail)),
        Ok(None) => Err(RouteError::ShuttingDown),
        Err(_) => match deadline {
            Some((at, ms)) if at <= end => Err(RouteError::Deadline(ms)),
            _ => Ok(None),
        },
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.claim = None;
        self.router.state().end(self.seq, self.router.rules, Instant::now());
    }
}

/// A plain responder's answer with what a reply message carries (protocol section 6).
pub(super) fn plain_reply(request: &Request, decision: &Decision, answer: &Message) -> Lines {
    let mut headers = Lines::new();
    headers.extend(answer.headers().unwrap_or(Block::NONE), header::goes_to_frontend);
    headers.push(header::REQUEST_ID, request.id.as_str());
    headers.push(header::WORKER, decision.placement.worker.as_str());
    if let Some(rank) = decision.placement.rank {
        headers.push_number(header::DP_RANK, rank.0.into());
    }
    if request.alias.is_some() {
        headers.push(header::MODEL, request.ask.model.as_str());
    }
    headers.push(header::DECISION, &decision.header());
    headers.push_number(header::ATTEMPT, request.attempt.into());
    headers.push(header::SEQ, "0");
    headers.push(header::FINAL, "true");
    headers
}
