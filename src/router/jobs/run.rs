//! One delivery of a job: checked, sent the way of a request, and kept from being delivered again meanwhile.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;

use super::delivery::{Ack, Delivery};
use super::settle::Job;
use super::{JobPart, Jobs, Place};
use crate::core::decide::Decision;
use crate::core::error::RouteError;
use crate::core::id::RequestId;
use crate::core::job::{self, ATTEMPTS_PER_DELIVERY, Attempts, MAX_UNREADABLE};
use crate::nats::{Block, Headers, Message};
use crate::router::admit::{Refused, check, read_whose, take};
use crate::router::answers::Answers;
use crate::router::live::{Seq, Word};
use crate::router::route::{Request, Stage, plain_reply};
use crate::router::state::Router;
use crate::wire::header::Known;
use crate::wire::job::Tried;
use crate::wire::request;
use crate::wire::subject::RequestSubject;

/// Parts of the ack wait after which the router looks whether it has to be renewed, and after which a worker that has
/// said nothing is taken for lost: before the job is delivered again.
const LOOKS: u32 = 6;
const SILENT_LOOKS: u32 = 4;
/// Body from which on reading it would hold up other tasks.
const LARGE: usize = 256 * 1024;

/// Runs one delivery to its end.
pub async fn run(router: Arc<Router>, jobs: Arc<Jobs>, message: Message, delivery: Delivery, place: Place) {
    let serving = AssertUnwindSafe(serve(&router, &jobs, message, &delivery)).catch_unwind();
    if Box::pin(serving).await.is_err() {
        router.metrics.faults.inc();
        tracing::error!(
            sequence = delivery.sequence,
            "a job is tried again later because of a fault in rankpin; please report what stands above"
        );
        jobs.answer(&delivery, Ack::Again(job::delay(delivery.delivered)));
    }
    drop(place);
}

async fn serve(router: &Arc<Router>, jobs: &Arc<Jobs>, message: Message, delivery: &Delivery) {
    let Ok(headers) = message.headers() else {
        return unreadable(router, jobs, delivery).await;
    };
    let known = Known::read(headers.iter());
    let made = || RequestId::new(&format!("job-{}", delivery.sequence)).expect("letters, a dash and digits are an id");
    let (id, refused) = match request::request_id(&known) {
        Ok(Some(id)) => (id, None),
        Ok(None) => (made(), None),
        Err(error) => (made(), Some(error)),
    };
    let tried = Tried::read(headers.iter(), &id);
    let job = Job { router, jobs, message: message.clone(), delivery, id, tried };
    match job.is_done().await {
        Ok(false) => {}
        Ok(true) => return job.already_done(),
        Err(problem) => return job.delay(&problem.to_string()),
    }
    let cancelled = jobs.was_cancelled(&job.id, delivery).then_some(RouteError::Cancelled);
    let admitted = match cancelled.or(refused) {
        Some(error) => Err(error),
        None => admit(router, message, &job).await,
    };
    match admitted {
        Ok(request) => follow(request, &job).await,
        Err(error) => job.settle((tried.attempt, Attempts::NoneFailed), None, Err(error)).await,
    }
}

/// A job is admitted as a request is; only its subject is another.
async fn admit(router: &Arc<Router>, message: Message, job: &Job<'_>) -> Result<Box<Request>, RouteError> {
    let (router, id) = (Arc::clone(router), job.id.clone());
    let part = JobPart::new(job.tried, job.delivery.delivered);
    let large = message.size() >= LARGE;
    let admitting = move || {
        let headers = message.headers().unwrap_or(Block::NONE);
        let known = Known::read(headers.iter());
        let token = router.subjects.parse_job(message.subject());
        let subject =
            token.map(|token| RequestSubject { model: Some(token), trusted: false, decide: false, handed_over: false });
        let answers = Answers::default();
        let mut read = read_whose(&router, &message, headers, &known, subject)?;
        read.find_partition(&router);
        let checked = check(&router, read, &answers)?;
        // A job is not handed over: whoever has pulled it acknowledges it.
        checked.forget_unwatched(&router);
        let taken = take(&router, message, id, (checked, answers), Some(part), Instant::now());
        taken.map_err(|Refused { error, .. }| error)
    };
    if !large {
        return admitting();
    }
    let admitted = tokio::task::spawn_blocking(admitting).await;
    admitted.unwrap_or_else(|fault| std::panic::resume_unwind(fault.into_panic()))
}

/// Lets a job go the way of a request, and settles how it ended.
async fn follow(mut request: Box<Request>, job: &Job<'_>) {
    let seq = request.seq();
    request.mail = Some(job.router.state().live.give_task(seq));
    let outcome = {
        let running = async {
            request.rest(job::backoff(job.tried.failures)).await?;
            request.run(Stage::Placing(None)).await
        };
        // Either may be dropped: `keep` has no state of its own, and never ends.
        tokio::select! {
            outcome = Box::pin(running) => outcome,
            () = keep(job, seq) => Err(RouteError::ShuttingDown),
        }
    };
    if outcome.is_err() {
        request.give_back_pin().await;
    }
    // Others get its room; it is counted as held until it is settled.
    job.router.vacate(seq, Instant::now());
    let attempts = request.job.as_ref().map_or(Attempts::NoneFailed, |part| part.attempts);
    job.settle((request.attempt, attempts), Some(&request.ask.model), outcome).await;
}

/// Renews the ack wait: while the router itself still waits, and as long as the worker says that it works on it. A worker
/// that no longer does is lost.
async fn keep(job: &Job<'_>, seq: Seq) {
    let wait = job.jobs.ack_wait();
    let step = (wait / LOOKS).max(Duration::from_millis(1));
    let mut renewed = None;
    loop {
        tokio::time::sleep(step).await;
        let word = job.router.state().live.word(seq);
        let Some(word) = word else { return std::future::pending().await };
        match word {
            Word::NotAccepted => job.jobs.answer(job.delivery, Ack::InProgress),
            Word::Accepted { heard, .. } if renewed != Some(heard) || job.router.was_cut_off_within(wait) => {
                renewed = Some(heard);
                job.jobs.answer(job.delivery, Ack::InProgress);
            }
            Word::Accepted { heard, slot, attempt } if heard.elapsed() >= step * SILENT_LOOKS => {
                let mut state = job.router.state();
                let worker = state.fleet.get(slot).map(|worker| worker.spec.id.clone());
                state.live.lose_one(seq);
                drop(state);
                if let Some(worker) = worker {
                    tracing::warn!(request_id = %job.id, %worker, "the worker of a job says nothing of it any more");
                    job.router.give_up_at(&worker, &job.id, attempt);
                }
            }
            Word::Accepted { .. } => {}
        }
    }
}

/// A message whose headers can't be read has no id, and so no result: after some deliveries it is deleted.
async fn unreadable(router: &Router, jobs: &Jobs, delivery: &Delivery) {
    let sequence = delivery.sequence;
    if delivery.delivered < MAX_UNREADABLE {
        return jobs.answer(delivery, Ack::Again(job::delay(1)));
    }
    router.metrics.malformed("job");
    let stream = router.subjects.jobs_stream();
    match jobs.api.delete(&stream, sequence).await {
        Ok(()) => {
            router.metrics.jobs.ended("unreadable");
            tracing::warn!(stream, sequence, "a job whose headers can't be read was deleted");
        }
        Err(error) => {
            tracing::warn!(stream, sequence, %error, "a job whose headers can't be read can't be deleted");
            jobs.answer(delivery, Ack::Again(job::delay(delivery.delivered)));
        }
    }
}

impl Request {
    /// Whether this delivery of a job has used up its attempts.
    pub(in crate::router) fn has_no_attempts_left(&self) -> bool {
        self.job.as_ref().is_some_and(|part| self.attempt - part.attempts_before() >= ATTEMPTS_PER_DELIVERY)
    }

    /// A job may have waited long for room; its worker gets the time to accept it nevertheless.
    pub(in crate::router) fn allow_for_acceptance(&mut self, now: Instant) {
        if self.job.is_some() {
            let config = &self.router.config;
            self.accept_until = self.accept_until.max(now + config.request_timeout.max(config.accept_timeout));
        } else if self.accept_until <= now && self.last_failure.is_none() {
            // It had no time to wait for room, and needed none.
            self.accept_until = now + self.router.config.accept_timeout;
        }
    }

    /// A plain responder's answer becomes the job's result.
    pub(in crate::router) async fn store_answer(
        &mut self,
        decision: &Decision,
        answer: &Message,
    ) -> Result<(), RouteError> {
        let lines = plain_reply(self, decision, answer).block();
        let (block, _) = Block::read(lines.as_bytes()).expect("it was just written");
        let headers: Headers = block.iter().collect();
        let jobs = self.router.jobs.clone().expect("there are no jobs without it");
        let stored = jobs.store_result(&self.router.subjects.result(&self.id), headers, answer.payload_bytes()).await;
        stored.map_err(|problem| {
            let error = RouteError::NoWorker(format!("the result could not be stored: {problem}"));
            self.job.as_mut().expect("it is a job").attempt_failed(error)
        })
    }
}

impl Router {
    /// Whether what workers say may not have been heard within the last while.
    fn was_cut_off_within(&self, while_: Duration) -> bool {
        !self.dispatch.is_connected() || self.reconnected_within(while_)
    }
}
