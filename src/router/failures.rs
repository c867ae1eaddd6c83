//! What a failed attempt means for a request, and what its frontend is told.

use std::time::{Duration, Instant};

use super::route::{Attempted, Request};
use crate::core::ask::{Excluded, Failure};
use crate::core::decide::{Decision, PinStep, Reason};
use crate::core::error::RouteError;
use crate::core::mode::AffinityMode;
use crate::wire::event::Rejection;

/// After its own reconnect a router tries a silent placement again for this long: workers may come back after it.
const RECONNECT_GRACE: Duration = Duration::from_secs(3);
/// Pause before such a try.
const GRACE_PAUSE: Duration = Duration::from_millis(100);

impl Request {
    pub(super) fn overloaded(&self, why: &str) -> RouteError {
        self.router.overloaded(&self.ask, (self.partition, &self.keys), self.priority, why)
    }

    /// What a refusal means for the request.
    pub(super) fn refusal(&mut self, rejection: Rejection) -> Attempted {
        if let Some(job) = &mut self.job {
            job.note_refusal(&rejection);
        }
        if self.router.is_global() {
            return match Self::refused_by_pool(rejection) {
                Ok((failure, told)) => Attempted::Failed(failure, Some(told)),
                Err(rejection) => Attempted::Refused(rejection),
            };
        }
        match rejection.status {
            429 => Attempted::Failed(Failure::Overloaded, None),
            400..=499 => Attempted::Refused(rejection),
            _ => Attempted::Failed(Failure::Draining, None),
        }
    }

    /// Draws the consequence of a failed attempt for the next one.
    pub(super) async fn learn(
        &mut self,
        decision: &Decision,
        failure: Failure,
        told: Option<RouteError>,
    ) -> Result<(), RouteError> {
        self.span.fail(self.router.metrics.attempt_failed(failure));
        self.span.end();
        self.last_failure = told.or_else(|| Some(self.failure_at(decision.placement.worker.as_str(), failure)));
        match failure {
            Failure::NoResponders if self.router.reconnected_within(RECONNECT_GRACE) => {
                return self.rest(GRACE_PAUSE).await;
            }
            Failure::NoResponders => {
                self.router.state().fleet.mark_lost(decision.slot, decision.placement.rank, Instant::now());
            }
            Failure::Overloaded => {
                let now = Instant::now();
                self.router.state().fleet.note_refused(decision.slot, decision.placement.rank, now);
                if !self.router.is_global() && self.waits_for_pin(decision) {
                    // The rank counts as full for a moment: the request waits for it as for any that is.
                    return Ok(());
                }
            }
            Failure::Draining => self.router.state().fleet.note_leaving(decision.slot, Instant::now()),
            Failure::AcceptTimeout => self.warn_of_silence(decision),
            Failure::NotThere => {}
        }
        if failure != Failure::Overloaded
            && let Some(job) = &mut self.job
            && let Some(error) = self.last_failure.take()
        {
            // Counted on the job itself, and tried again from there.
            let worker = decision.placement.worker.as_str();
            let error = if failure == Failure::Draining { job.refused(worker, error) } else { error };
            return Err(job.attempt_failed(error));
        }
        let whole_worker = failure == Failure::Draining;
        self.ask.excluded.push(Excluded { placement: decision.placement.clone(), whole_worker, failure });
        Ok(())
    }

    /// Says that a session with a hard pin leaves it: its worker may live, and only be slower than is allowed.
    fn warn_of_silence(&self, decision: &Decision) {
        let (AffinityMode::Hard, Some(session)) = (self.router.rules.mode, &self.ask.session) else { return };
        if decision.reason != Reason::Pinned {
            return;
        }
        if let Some(not_told) = self.router.metrics.left_silent.happened(Instant::now()) {
            tracing::warn!(
                session = session.id.as_str().trim_start_matches('\u{1}'),
                model = self.ask.model.as_str(),
                worker = decision.placement.worker.as_str(),
                dp_rank = decision.placement.rank.map(|rank| rank.0),
                accept_timeout = ?self.router.config.accept_timeout,
                not_told,
                "a session leaves the rank that it is pinned to: its worker has not accepted a request in time"
            );
        }
    }

    /// Whether an overloaded worker is waited for: a session that is known to be there, and not by this request.
    fn waits_for_pin(&self, decision: &Decision) -> bool {
        let pinned = match decision.pin {
            PinStep::Keep | PinStep::Complete => true,
            PinStep::None | PinStep::Claim | PinStep::AfterAccept => false,
        };
        pinned && self.ask.is_certain() && self.router.rules.mode == AffinityMode::Hard
    }

    /// What the frontend is told where this was the last attempt.
    pub(super) fn failure_at(&self, worker: &str, failure: Failure) -> RouteError {
        match failure {
            Failure::NoResponders => RouteError::NoWorker(format!("nobody listens at worker {worker:?} any more")),
            Failure::Draining => RouteError::NoWorker(format!("worker {worker:?} takes no new requests")),
            Failure::Overloaded => self.overloaded(&format!("worker {worker:?} is overloaded")),
            Failure::AcceptTimeout => RouteError::AcceptTimeout(format!("worker {worker:?} was silent")),
            Failure::NotThere => RouteError::NoWorker(format!("pool {worker:?} has not what the request asks for")),
        }
    }
}
