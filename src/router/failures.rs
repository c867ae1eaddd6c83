//! What a failed attempt means for a request, and what its frontend is told.

use super::route::{Attempted, Request};
use crate::core::ask::Failure;
use crate::core::error::RouteError;
use crate::wire::event::Rejection;

impl Request {
    pub(super) fn overloaded(&self, why: &str) -> RouteError {
        self.router.overloaded(&self.ask, &self.keys, self.priority, why)
    }

    /// What a refusal means for the request.
    pub(super) fn refusal(&self, rejection: Rejection) -> Attempted {
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
