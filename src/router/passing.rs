//! A request in passing: most wait for nothing but their worker, and are handled where their messages are read,
//! without a task of their own. It is the same straight line as in [`super::route`], as far as it goes without
//! waiting: whatever else happens gives the request a task, which goes on from there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admit::{Refused, admit};
use super::live::Resting;
use super::route::{self, Request, Stage};
use super::state::{Asked, Router};
use crate::core::decide::Decision;
use crate::core::error::RouteError;
use crate::nats::Message;
use crate::nats::bucket::CasError;
use crate::wire::event::Finished;

/// How exactly the times of requests at rest are kept.
const WAKE_STEP: Duration = Duration::from_millis(10);

/// Takes a message that should be a request.
pub fn take(router: &Arc<Router>, message: Message) {
    match admit(router, message) {
        Ok(Some(request)) => {
            request.tell_taken();
            begin(request);
        }
        Ok(None) => {}
        Err(Refused { id, answers, error }) => router.end_in_error(&id, None, &answers, &error),
    }
}

fn begin(mut request: Box<Request>) {
    match request.place_in_passing() {
        Ok(stage) => rest_or_start(Box::new(Resting { request, stage })),
        Err(error) => request.fail_at_once(&error),
    }
}

/// The bucket has answered to the pin of a request at rest.
pub fn put(mut resting: Box<Resting>, answer: Result<u64, CasError>) {
    resting.stage = match std::mem::replace(&mut resting.stage, Stage::Placing(None)) {
        Stage::Claiming(mut claiming) => match answer {
            Ok(revision) => {
                let decision = resting.request.claim_stands(*claiming, revision);
                match resting.request.send_in_passing(decision) {
                    Ok(stage) => stage,
                    Err(error) => {
                        // Its pin is to be given back.
                        tokio::spawn(async move { resting.request.fail(&error).await });
                        return;
                    }
                }
            }
            Err(_) => {
                claiming.answer = Some(answer);
                Stage::Claiming(claiming)
            }
        },
        stage @ (Stage::Placing(_) | Stage::Placed(_) | Stage::Sent(..) | Stage::Accepted(_)) => stage,
    };
    rest_or_start(resting);
}

/// The worker of a request at rest has accepted it.
pub fn accepted(mut resting: Box<Resting>) {
    resting.stage = match std::mem::replace(&mut resting.stage, Stage::Placing(None)) {
        Stage::Sent(decision, _) => {
            resting.request.settle(&decision);
            Stage::Accepted(decision)
        }
        stage @ (Stage::Placing(_) | Stage::Claiming(_) | Stage::Placed(_) | Stage::Accepted(_)) => stage,
    };
    rest_or_start(resting);
}

/// The worker of a request at rest is done.
pub fn finished(resting: Resting, finished: &Finished) {
    let Resting { mut request, stage } = resting;
    match stage {
        Stage::Placing(_) | Stage::Claiming(_) | Stage::Placed(_) => {}
        // A worker may leave `accepted` out where `finished` follows at once.
        Stage::Sent(decision, _) => {
            request.settle(&decision);
            request.keep_response(&decision, finished);
        }
        Stage::Accepted(decision) => request.keep_response(&decision, finished),
    }
    request.router.metrics.finished_tokens(finished);
    request.router.metrics.requests.finished(&request.ask.model, finished);
    request.tell_finished(finished);
}

impl Request {
    fn fail_at_once(&mut self, error: &RouteError) {
        self.span.fail(error.code());
        self.router.end_in_error(&self.id, Some(&self.ask.model), &self.answers, error);
    }

    /// Places and sends the request, as far as that goes without waiting. How far it went.
    fn place_in_passing(&mut self) -> Result<Stage, RouteError> {
        self.begin_span();
        if self.deadline.is_some() || self.accept_until <= Instant::now() || !self.router.dispatch.is_connected() {
            return Ok(Stage::Placing(None));
        }
        let asked = self.ask_now();
        let Asked::Decided(decision, basis) = &asked else { return Ok(Stage::Placing(Some(asked))) };
        self.basis = *basis;
        self.continued = self.find_continued();
        let new = self.pin_to_put(decision);
        let Asked::Decided(decision, basis) = asked else { return Ok(Stage::Placing(Some(asked))) };
        let Some(new) = new else { return self.send_in_passing(decision) };
        Ok(match self.begin_claim(decision, new) {
            Ok(claiming) => Stage::Claiming(claiming),
            Err(decision) => Stage::Placing(Some(Asked::Decided(decision, basis))),
        })
    }

    /// Sends the request to its placement, where the connection stands.
    fn send_in_passing(&mut self, decision: Decision) -> Result<Stage, RouteError> {
        if !self.router.dispatch.is_connected() {
            return Ok(Stage::Placed(decision));
        }
        self.router.metrics.decided(&decision);
        let until = self.dispatch(&decision)?;
        Ok(Stage::Sent(decision, until))
    }
}

/// Lets a request rest where only the worker is waited for; where not, it goes on in a task of its own.
fn rest_or_start(mut resting: Box<Resting>) {
    let (router, seq) = (Arc::clone(&resting.request.router), resting.request.seq());
    let (rests, wake_at) = match &resting.stage {
        Stage::Placing(_) | Stage::Placed(_) => (false, None),
        // An answer that says no is dealt with in a task.
        Stage::Claiming(claiming) => (claiming.answer.is_none(), Some(claiming.until)),
        // A plain responder may take as long as the request may wait: others' times would stand behind its.
        Stage::Sent(_, until) => (*until <= Instant::now() + router.config.accept_timeout, Some(*until)),
        Stage::Accepted(_) => (true, None),
    };
    let mut state = router.state();
    if rests {
        let first = state.live.next_wake().is_none();
        match state.live.rest(resting, wake_at) {
            Ok(()) => {
                drop(state);
                if first && wake_at.is_some() {
                    router.wake_up.notify_one();
                }
                return;
            }
            Err(back) => resting = back,
        }
    }
    let mail = state.live.give_task(seq);
    drop(state);
    route::start(*resting, mail);
}

/// Gives a task to requests at rest whose worker has said nothing in time; for ever.
pub async fn watch(router: Arc<Router>) {
    loop {
        let next = router.state().live.next_wake();
        match next {
            // Those of requests that have long ended are many, so they are looked at together.
            Some(at) => tokio::time::sleep_until(at.max(Instant::now() + WAKE_STEP).into()).await,
            None => router.wake_up.notified().await,
        }
        router.state().live.wake(Instant::now());
    }
}
