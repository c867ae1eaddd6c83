//! The intake: requests, cancels and load reports, on a connection of its own, since anybody may send there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::admit::{Refused, admit};
use super::route;
use super::state::Router;
use crate::nats::{ConnectError, Inbound, Subscriptions};
use crate::wire::Encoding;
use crate::wire::header;
use crate::wire::load::LoadReport;
use crate::wire::subject::QUEUE;

/// Pause between tries to subscribe anew.
pub const RESUBSCRIBE_PAUSE: Duration = Duration::from_millis(200);
/// Messages a leaving router still takes on each subject, beyond those read.
const LEAVE_AFTER: u64 = 500;
/// A leaving router stays until nothing came for this long.
const LEAVE_IDLE: Duration = Duration::from_millis(300);

/// Subscribes to what every router hears: cancels and load reports.
pub async fn subscribe_control(router: &Router) -> Result<Subscriptions, ConnectError> {
    let wanted = [(router.subjects.cancels(), None), (router.subjects.loads(), None)];
    Subscriptions::open(&router.intake, &wanted).await
}

/// Subscribes to requests, in the routers' queue group.
pub async fn subscribe_requests(router: &Router) -> Result<Subscriptions, ConnectError> {
    let wanted = router.subjects.intake().map(|subject| (subject, Some(QUEUE)));
    Subscriptions::open(&router.intake, &wanted).await
}

/// Reads requests until told to stop, then leaves the queue group without losing what is on its way.
pub async fn read_requests(router: Arc<Router>, mut requests: Subscriptions, mut stop: oneshot::Receiver<()>) {
    loop {
        // Cancel-safe: a message is either returned or stays in its subscription.
        tokio::select! {
            biased;
            _ = &mut stop => break,
            next = requests.next() => match next {
                Some((_, message)) => take(&router, message),
                None => requests = resubscribe(&router, &requests).await,
            },
        }
    }
    requests.leave_after(LEAVE_AFTER).await;
    let mut drained = false;
    loop {
        match tokio::time::timeout(LEAVE_IDLE, requests.next()).await {
            Ok(Some((_, message))) => take(&router, message),
            Ok(None) => return,
            Err(_) if drained => return,
            Err(_) => {
                requests.drain().await;
                drained = true;
            }
        }
    }
}

async fn resubscribe(router: &Router, dead: &Subscriptions) -> Subscriptions {
    router.metrics.rebuilt.inc();
    loop {
        router.intake.rebuild(dead.generation()).await;
        match subscribe_requests(router).await {
            Ok(requests) => return requests,
            Err(error) => tracing::warn!(%error, "cannot subscribe to requests anew, trying on"),
        }
        tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
    }
}

fn take(router: &Arc<Router>, message: Inbound) {
    match admit(router, message) {
        Ok(Some(request)) => {
            tokio::spawn(route::serve(request));
        }
        Ok(None) => {}
        Err(Refused { id, reply, error }) => {
            let router = Arc::clone(router);
            tokio::spawn(async move { router.answer(&id, reply.as_ref(), &error).await });
        }
    }
}

/// Reads cancels and load reports for ever.
pub async fn read_control(router: Arc<Router>, mut control: Subscriptions) {
    loop {
        while let Some((index, message)) = control.next().await {
            match index {
                0 => cancel(&router, &message),
                _ => router.take_report(&message),
            }
        }
        control = loop {
            router.intake.rebuild(control.generation()).await;
            match subscribe_control(&router).await {
                Ok(control) => break control,
                Err(error) => tracing::warn!(%error, "cannot subscribe to cancels anew, trying on"),
            }
            tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
        };
        router.outage_ended();
    }
}

fn cancel(router: &Router, message: &Inbound) {
    if let Some((_, id)) = message.subject.rsplit_once('.') {
        router.state().live.cancel(id);
    }
}

impl Router {
    fn take_report(&self, message: &Inbound) {
        let encoding = Encoding::of(message.headers.find(header::CONTENT_TYPE));
        match LoadReport::parse(encoding, &message.payload) {
            Ok(report) => {
                let now = Instant::now();
                let worker = report.worker.clone();
                let taken = self.state().fleet.handle_report(report, now);
                if taken {
                    self.settle_idle(&worker, now);
                    self.pump(now);
                }
            }
            Err(problem) => {
                self.metrics.malformed("load");
                tracing::debug!(subject = %message.subject, problem, "a load report is refused");
            }
        }
    }

    /// A connection came to stand again: silence until now says nothing of the workers.
    pub(super) fn outage_ended(&self) {
        self.state().fleet.handle_outage_end(Instant::now());
    }
}
