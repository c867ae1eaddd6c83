//! Durable jobs (protocol section 6.2): pulled from the stream, run as requests are, and acknowledged once their result
//! stands.
//!
//! [`pull`] takes as many as there is room for, on a connection of its own whose messages can't break anything: a job
//! with a header block that would kill the NATS library is only unreadable. [`run`] checks one, lets it go the straight
//! line of [`super::route`], and keeps its ack wait from passing; [`settle`] draws the consequence. [`provide`] makes
//! the streams. Where that can't be done, there are no jobs, and requests are routed as ever.

pub(super) mod cancels;
mod delivery;
mod metrics;
mod provide;
mod pull;
mod run;
mod settle;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use self::cancels::Cancels;
use self::delivery::{Ack, Delivery};
pub use self::metrics::JobMetrics;
pub use self::provide::{consumer, streams};
use self::pull::Signal;
use super::state::{Router, unix_ms};
use crate::core::error::RouteError;
use crate::core::id::RequestId;
use crate::core::job::{self, Attempts};
use crate::nats::{JetStream, Lane, Lines};
use crate::wire::event::Rejection;
use crate::wire::job::Tried;

/// How long the streams may take to be made or found before the router starts without jobs, and tries on.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of the subscription on which jobs come.
const PULLED: u64 = 0;

/// What the jobs of a router share.
pub struct Jobs {
    /// The connection on which jobs are pulled and acknowledged.
    lane: Lane,
    /// The streams.
    api: JetStream,
    /// Prefix of the inboxes of pulls, with the final dot.
    inbox: String,
    /// Tells the task that pulls of jobs that came and ended.
    signals: UnboundedSender<Signal>,
    /// The other end, until that task runs. It needs no bound of its own: the jobs held are bounded.
    heard: Mutex<Option<UnboundedReceiver<Signal>>>,
    /// Whether jobs are taken: the streams are there.
    on: AtomicBool,
    /// Whether no more are taken, because the router stops.
    stopping: AtomicBool,
    /// Jobs held.
    held: AtomicUsize,
    /// Ack wait of the consumer, in ms.
    ack_wait_ms: AtomicU64,
    /// Cancels of what this router does not have.
    cancels: Mutex<Cancels>,
    /// Differences of streams that the log has told of.
    told: Mutex<HashSet<String>>,
}

/// What a request has besides where it is a job.
pub struct JobPart {
    tried: Tried,
    delivered: u64,
    attempts: Attempts,
    /// What the worker said that refused the last attempt.
    refusal: Option<String>,
}

/// A place among the jobs that a router holds; given back when it is dropped.
struct Place(Arc<Jobs>);

impl Jobs {
    /// Over a lane that is driven elsewhere; `router_inbox` is the prefix of the router's own inboxes.
    pub fn new(lane: Lane, api: JetStream, router_inbox: &str) -> Self {
        let (signals, heard) = unbounded_channel();
        Self {
            lane,
            api,
            // Two tokens behind the prefix: the dispatching connection hears one.
            inbox: format!("{router_inbox}pull."),
            signals,
            heard: Mutex::new(Some(heard)),
            on: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            ack_wait_ms: AtomicU64::new(0),
            cancels: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// The connection on which jobs are pulled and acknowledged.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Whether jobs are taken.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// How many are held.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Something was cancelled that this router does not have.
    pub fn note_cancel(&self, id: &str) {
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner).note(id, unix_ms());
    }

    fn was_cancelled(&self, id: &RequestId, delivery: &Delivery) -> bool {
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner).hit(id.as_str(), delivery.stored_ms)
    }

    fn ack_wait(&self) -> Duration {
        Duration::from_millis(self.ack_wait_ms.load(Ordering::Relaxed))
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn answer(&self, delivery: &Delivery, ack: Ack) {
        let sent = self.lane.publish(delivery.ack_subject(), None, &Lines::new(), ack.text().as_bytes().into());
        if let Err(error) = sent {
            // The job is delivered again after the ack wait, and found to have its result.
            tracing::debug!(%error, "a job could not be acknowledged");
        }
    }

    fn place(self: &Arc<Self>) -> Place {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.tell(Signal::Came);
        Place(Arc::clone(self))
    }

    fn tell(&self, signal: Signal) {
        // Without the task that pulls, nobody needs to know.
        let _ = self.signals.send(signal);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
        self.0.tell(Signal::Ended);
    }
}

impl JobPart {
    fn new(tried: Tried, delivered: u64) -> Self {
        Self { tried, delivered, attempts: Attempts::NoneFailed, refusal: None }
    }

    /// The number after which this delivery's attempts are counted.
    pub fn attempts_before(&self) -> u32 {
        job::attempts_before(self.tried.attempt, self.delivered)
    }

    /// A worker has refused an attempt.
    pub fn note_refusal(&mut self, rejection: &Rejection) {
        self.refusal = Some(rejection.message.clone());
    }

    /// An attempt has failed: that is what the delivery ends with.
    pub fn attempt_failed(&mut self, error: RouteError) -> RouteError {
        self.attempts = Attempts::OneFailed;
        error
    }

    /// The error of a worker that has refused, in its own words where it has said why.
    pub fn refused(&mut self, worker: &str, error: RouteError) -> RouteError {
        match self.refusal.take() {
            Some(words) => RouteError::NoWorker(format!("worker {worker:?} refused it: {words}")),
            None => error,
        }
    }
}

/// Finds or makes the streams, and takes jobs from then on, in tasks of `tasks`. Where they can't be had soon, the router
/// starts without jobs, and tries on.
pub async fn start(router: &Arc<Router>, tasks: &mut JoinSet<()>) {
    let Some(jobs) = router.jobs.clone() else { return };
    let heard = jobs.heard.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(heard) = heard else { return };
    let driven = (Arc::clone(router), Arc::clone(&jobs));
    tasks.spawn(async move {
        let (router, jobs) = driven;
        jobs.lane.drive(|message| router.outlive(|| pull::take(&router, &jobs, message))).await;
    });
    jobs.lane.subscribe(PULLED, &format!("{}*", jobs.inbox), None);
    let provided = tokio::time::timeout(START_TIMEOUT, provide::provide(router, &jobs)).await;
    let provided = provided.unwrap_or(Err(provide::JobsOff::Slow));
    tasks.spawn(pull::pull(Arc::clone(router), jobs, heard, provided));
}

/// Takes no more jobs, and hands over those that no worker has: other routers can take them at once.
pub fn stop(router: &Router) {
    let Some(jobs) = &router.jobs else { return };
    jobs.stopping.store(true, Ordering::Relaxed);
    jobs.tell(Signal::Stop);
    jobs.lane.unsubscribe(PULLED);
    router.state().live.hand_jobs_over();
}

/// Whether the router holds no jobs.
pub fn has_none(router: &Router) -> bool {
    router.jobs.as_ref().is_none_or(|jobs| jobs.held() == 0)
}

/// Waits until what was acknowledged has reached the server.
pub async fn settled(router: &Router) {
    let Some(jobs) = &router.jobs else { return };
    if let Err(error) = jobs.lane.barrier().await {
        tracing::debug!(%error, "the last jobs may not have been acknowledged");
    }
}
