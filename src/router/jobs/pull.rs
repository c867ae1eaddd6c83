//! Jobs are pulled, no more than there is room for: what a router has pulled comes back only after the ack wait where
//! the router is killed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

use super::delivery::{Ack, Delivery};
use super::provide::{self, JobsOff};
use super::{Jobs, run};
use crate::nats::{Lines, Message};
use crate::router::state::Router;
use crate::wire::subject::JOBS_CONSUMER;

/// Most jobs that are asked for at once: several routers share a short queue evenly.
const MAX_BATCH: usize = 32;
/// How long the server keeps a pull, and how often it says so meanwhile, in seconds.
const EXPIRES_S: u64 = 60;
const HEARTBEAT_S: u64 = 5;
/// A pull of which nothing was heard for so long is gone: with its server, or with the consumer's leader.
const SILENCE: Duration = Duration::from_secs(2 * HEARTBEAT_S + 2);
/// Pause after a pull that was refused.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// First and longest pause before streams that can't be had are looked for again.
const OFF_PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Statuses with which the server ends a pull.
mod status {
    /// The consumer or its server goes away, or has too many pulls.
    pub const CONFLICT: u16 = 409;
    /// Nobody listens: there is no such consumer.
    pub const NOBODY: u16 = 503;
    /// The pull stands still.
    pub const HEARTBEAT: u16 = 100;
}

/// What the task that pulls is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// A job came.
    Came,
    /// A job is no longer held.
    Ended,
    /// The server says this of the pull of this number.
    Status(u64, u16),
    /// The router stops.
    Stop,
}

/// How pulling ended.
enum Ended {
    /// The router stops.
    Stopped,
    /// The consumer may be gone.
    Refused,
}

/// Takes one message of a pull's inbox: a job, or the server's word on the pull.
pub fn take(router: &Arc<Router>, jobs: &Arc<Jobs>, message: Message) {
    if let Some(status) = message.status() {
        let number = message.subject().strip_prefix(&jobs.inbox).and_then(|number| number.parse().ok());
        jobs.tell(Signal::Status(number.unwrap_or(0), status));
        return;
    }
    let Some(delivery) = message.reply().and_then(Delivery::parse) else {
        router.metrics.malformed("job_delivery");
        return;
    };
    if jobs.is_stopping() {
        return jobs.answer(&delivery, Ack::Again(Duration::ZERO));
    }
    let place = jobs.place();
    router.runtime.spawn(run::run(Arc::clone(router), Arc::clone(jobs), message, delivery, place));
}

/// Pulls as long as the router runs; `provided` is what was found at the start.
pub async fn pull(
    router: Arc<Router>,
    jobs: Arc<Jobs>,
    heard: UnboundedReceiver<Signal>,
    mut provided: Result<(), JobsOff>,
) {
    let mut puller = Puller { jobs: Arc::clone(&jobs), max: router.config.jobs.max, heard, pulls: 0, open: 0 };
    let (mut told, mut pause) = (None, OFF_PAUSE.0);
    while !jobs.is_stopping() {
        match provided {
            Ok(()) => {
                (told, pause) = (None, OFF_PAUSE.0);
                if !jobs.on.swap(true, Ordering::Relaxed) {
                    tracing::info!(stream = router.subjects.jobs_stream(), max = puller.max, "durable jobs are taken");
                }
                match puller.run(&router).await {
                    Ended::Stopped => return,
                    Ended::Refused => tokio::time::sleep(REFUSED_PAUSE).await,
                }
            }
            Err(why) => {
                jobs.on.store(false, Ordering::Relaxed);
                if told.as_ref() != Some(&why) {
                    tracing::warn!(
                        %why,
                        "no durable jobs are taken until this is mended (max_jobs 0 where none are wanted); requests are routed as ever"
                    );
                }
                told = Some(why);
                puller.wait(pause).await;
                pause = (pause * 2).min(OFF_PAUSE.1);
            }
        }
        provided = provide::provide(&router, &jobs).await;
    }
}

struct Puller {
    jobs: Arc<Jobs>,
    max: usize,
    heard: UnboundedReceiver<Signal>,
    /// Number of the last pull.
    pulls: u64,
    /// Jobs that the pull that stands may still bring.
    open: usize,
}

impl Puller {
    async fn run(&mut self, router: &Router) -> Ended {
        loop {
            if self.jobs.is_stopping() {
                return Ended::Stopped;
            }
            let room = self.max.saturating_sub(self.jobs.held());
            if room == 0 || !self.jobs.lane.is_connected() {
                self.wait(REFUSED_PAUSE).await;
                continue;
            }
            self.send(router, room.min(MAX_BATCH));
            match self.follow().await {
                None => {}
                Some(status::CONFLICT | status::NOBODY) => return Ended::Refused,
                Some(status) => tracing::trace!(status, "a pull has ended"),
            }
        }
    }

    fn send(&mut self, router: &Router, batch: usize) {
        self.pulls += 1;
        self.open = batch;
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{JOBS_CONSUMER}", router.subjects.jobs_stream());
        let ns = |seconds: u64| seconds * 1_000_000_000;
        let ask = serde_json::json!({
            "batch": batch, "expires": ns(EXPIRES_S), "idle_heartbeat": ns(HEARTBEAT_S),
        });
        let ask = ask.to_string();
        let inbox = format!("{}{}", self.jobs.inbox, self.pulls);
        if let Err(error) = self.jobs.lane.publish(&subject, Some(&inbox), &Lines::new(), ask.as_bytes().into()) {
            tracing::debug!(%error, "jobs could not be asked for");
        }
    }

    /// Waits until the pull has brought all that it may, or has ended otherwise: with this status, where the server
    /// says so.
    async fn follow(&mut self) -> Option<u16> {
        let (mut until, connects) = (Instant::now() + SILENCE, self.jobs.lane.connects());
        let mut state = self.jobs.lane.state();
        while self.open > 0 && !self.jobs.is_stopping() {
            // Cancel-safe: signals and state stay where they are until they are taken.
            tokio::select! {
                signal = self.heard.recv() => match signal {
                    Some(Signal::Came) => {
                        self.open -= 1;
                        until = Instant::now() + SILENCE;
                    }
                    Some(Signal::Status(number, status::HEARTBEAT)) if number == self.pulls => {
                        until = Instant::now() + SILENCE;
                    }
                    Some(Signal::Status(number, status)) if number == self.pulls => return Some(status),
                    Some(Signal::Ended | Signal::Status(..) | Signal::Stop) => {}
                    None => return None,
                },
                // The server forgets a pull with the connection that it came on.
                _ = state.changed() => if self.jobs.lane.connects() != connects { return None },
                () = tokio::time::sleep_until(until) => return None,
            }
        }
        None
    }

    /// Waits for anything to happen.
    async fn wait(&mut self, longest: Duration) {
        let _ = tokio::time::timeout(longest, self.heard.recv()).await;
    }
}
