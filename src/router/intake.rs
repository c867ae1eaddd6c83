//! The intake: requests, cancels and load reports, on a connection of its own, since anybody may send there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::state::Router;
use super::{passing, service};
use crate::nats::{Block, ConnectError, Message};
use crate::wire::Encoding;
use crate::wire::header;
use crate::wire::identity;
use crate::wire::load::LoadReport;
use crate::wire::subject::QUEUE;

/// Number of the subscription to cancels.
const CANCELS: u64 = 0;
/// Number of the subscription to load reports.
const LOADS: u64 = 1;
/// Number of the subscription to what workers say of their caches.
const CACHES: u64 = 2;
/// Number of the subscription to what other routers dispatch.
const NOTES: u64 = 3;
/// Number of the first subscription to requests, in the order of their subjects.
const REQUESTS: u64 = 4;
/// Number of the first subscription to what other routers hand over, by partition.
const PARTS: u64 = 16;
/// Message from which on reading its body would hold up others: that is done elsewhere than on the hot thread. Where the
/// body is not read, its size costs no time.
const LARGE: usize = 256 * 1024;
/// Most that are read there at once; beyond, others are held up.
const MAX_READING: usize = 16;
/// Messages a leaving router still takes on each subject, beyond those read.
const LEAVE_AFTER: u64 = 500;
/// A leaving router stays until nothing came for this long.
const LEAVE_IDLE: Duration = Duration::from_millis(300);

/// Subscribes to what every router hears: cancels and load reports, and where it goes by them what is said of caches.
pub async fn subscribe_control(router: &Router) -> Result<(), ConnectError> {
    router.intake.subscribe(CANCELS, &router.subjects.cancels(), None);
    router.intake.subscribe(LOADS, &router.subjects.loads(), None);
    if router.weighs_caches() {
        router.intake.subscribe(CACHES, &router.subjects.caches(), None);
        router.intake.subscribe(NOTES, &router.subjects.router_kv(), None);
    }
    router.intake.barrier().await
}

/// Subscribes to requests, in the routers' queue group.
pub async fn subscribe_requests(router: &Router) -> Result<(), ConnectError> {
    for (number, subject) in request_subjects(router) {
        router.intake.subscribe(number, &subject, Some(QUEUE));
    }
    router.intake.barrier().await
}

/// Where requests come in, with the numbers of their subscriptions: from frontends, and where there are partitions from
/// other routers.
fn request_subjects(router: &Router) -> Vec<(u64, String)> {
    let mut subjects: Vec<_> = (REQUESTS..).zip(router.intake_subjects()).collect();
    if router.config.partitions.is_divided() {
        let parts = router.config.partitions.served();
        subjects.extend(parts.map(|partition| (PARTS + partition.index() as u64, router.subjects.part(partition))));
    }
    subjects
}

/// Takes one message of the intake.
pub fn take(router: &Arc<Router>, message: Message) {
    match message.subscription() {
        CANCELS => cancel(router, &message),
        LOADS => router.take_report(&message),
        CACHES => router.take_cache_events(&message),
        NOTES => router.take_notes(&message),
        number if service::NUMBERS.contains(&number) => service::take(router, message),
        _ if message.size() >= LARGE
            && router.reading.load(Ordering::Relaxed) < MAX_READING
            && router.reads_body(&message) =>
        {
            let router = Arc::clone(router);
            router.reading.fetch_add(1, Ordering::Relaxed);
            let runtime = router.runtime.clone();
            // Not among the tasks of the runtime either: these keep the bucket's deadlines.
            runtime.spawn_blocking(move || {
                router.outlive(|| passing::take(&router, message));
                router.reading.fetch_sub(1, Ordering::Relaxed);
            });
        }
        _ => passing::take(router, message),
    }
}

/// Leaves the queue group without losing what is on its way: leaving at once loses it (measured: 17 to 30 of a loaded
/// queue group's messages in 40 departures, none this way).
pub async fn leave(router: &Router) {
    router.taking.store(false, Ordering::Relaxed);
    let numbers: Vec<u64> = request_subjects(router).into_iter().map(|(number, _)| number).collect();
    for &number in &numbers {
        router.intake.leave_after(number, LEAVE_AFTER);
    }
    let received = || numbers.iter().map(|&number| router.intake.received(number)).sum::<u64>();
    let mut before = received();
    loop {
        tokio::time::sleep(LEAVE_IDLE).await;
        match received() {
            now if now == before => break,
            now => before = now,
        }
    }
    for &number in &numbers {
        router.intake.unsubscribe(number);
    }
    if let Err(error) = router.intake.barrier().await {
        tracing::debug!(%error, "the last requests may not have been read");
    }
}

fn cancel(router: &Router, message: &Message) {
    if let Some((_, id)) = message.subject().rsplit_once('.') {
        let found = router.state().live.cancel(id);
        if let (0, Some(jobs)) = (found, &router.jobs) {
            jobs.note_cancel(id);
        }
        if found == 0 && router.config.partitions.is_divided() {
            router.note_cancel(id);
        }
    }
}

impl Router {
    fn reads_body(&self, message: &Message) -> bool {
        let Ok(headers) = message.headers() else { return false };
        let has_model = self.subjects.parse_request(message.subject()).is_some_and(|subject| subject.model.is_some());
        identity::reads_body(headers.iter(), has_model, self.sessions(), self.prompts())
    }

    fn take_report(&self, message: &Message) {
        let headers = message.headers().unwrap_or(Block::NONE);
        let encoding = Encoding::of(headers.find(header::CONTENT_TYPE));
        match LoadReport::parse(encoding, message.payload()) {
            Ok(report) => {
                let now = Instant::now();
                let worker = report.worker.clone();
                let taken = self.state().fleet.handle_report(report, now);
                if taken {
                    self.settle_idle(&worker, now);
                    let slot = self.state().fleet.find(worker.as_str()).map(|(slot, _)| slot);
                    if let Some(slot) = slot {
                        self.pump_worker(slot, now);
                    }
                }
            }
            Err(problem) => {
                self.metrics.malformed("load");
                tracing::debug!(subject = message.subject(), problem, "a load report is refused");
            }
        }
    }

    /// A connection came to stand again: silence until now says nothing of the workers.
    pub(super) fn outage_ended(&self) {
        self.state().fleet.handle_outage_end(Instant::now());
    }
}
