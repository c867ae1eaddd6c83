//! What a router at the global level does otherwise: it places requests on pools and sends them to their routers, as if
//! each pool were one worker (protocol section 6.3).

use std::time::{Duration, Instant};

use super::answers::MAX_HOPS;
use super::live::{Mail, Once};
use super::route::Request;
use super::state::{Router, State, unix_ms};
use crate::config::Level;
use crate::core::ask::Failure;
use crate::core::error::RouteError;
use crate::core::id::WorkerId;
use crate::nats::{Block, Lines};
use crate::telemetry::trace::TRACEPARENT;
use crate::wire::event::{Finished, Outcome, Rejection};
use crate::wire::header;
use crate::wire::subject::Subjects;

/// How long the routers of a pool may be silent about a request that a worker has: then it counts as ended. They speak
/// every [`super::ticks::PROGRESS_EVERY`].
const SILENT_AFTER: Duration = Duration::from_secs(30);
/// The same about a request that they have taken in and no worker has: then it is tried elsewhere.
const SILENT_WAITING: Duration = Duration::from_secs(12);
/// Refusals of one pool that say nothing of another.
const NOT_THERE: [&str; 4] = ["unknown_model", "unknown_worker", "unknown_pool", "rank_out_of_range"];

impl Router {
    /// Whether requests are placed on pools.
    pub(super) fn is_global(&self) -> bool {
        self.config.pools.level == Level::Global
    }

    /// The subjects of a pool's own routers.
    pub(super) fn subjects_of_pool(&self, pool: &WorkerId) -> Option<Subjects> {
        let targets = &self.config.pools.targets;
        let target = targets.iter().find(|target| target.spec.id == *pool)?;
        Some(Subjects::new(target.namespace.clone()))
    }
}

impl State {
    /// Ends what pools have been silent about for too long: their routers may have died, and nobody else tells.
    pub(super) fn end_silent(&mut self, now: Instant) {
        self.live.for_each(|live| {
            let silent = live
                .at
                .as_ref()
                .is_some_and(|at| at.pool && at.accepted && now.saturating_duration_since(at.heard) > SILENT_AFTER);
            if silent && live.first(Once::Ended) {
                live.send(Mail::Finished(Box::new(Finished::outcome(Outcome::Error))));
            }
            // The router that had it in its queue may have died: nobody would tell before the request's timeout.
            let forgotten = live.was_taken()
                && live
                    .at
                    .as_ref()
                    .is_some_and(|at| !at.accepted && now.saturating_duration_since(at.heard) > SILENT_WAITING);
            if forgotten && live.first(Once::Lost) {
                live.send(Mail::WorkerLost);
            }
        });
    }
}

impl Request {
    /// The headers for a pool's routers: the frontend's, and what a dispatch carries. What is left of its times is told,
    /// and what is not believed here must not be believed there.
    pub(super) fn headers_for_pool(&self, within: Duration) -> Result<Lines, RouteError> {
        let hops = self.answers.above.as_ref().map_or(0, |above| above.hops) + 1;
        if hops > MAX_HOPS {
            return Err(RouteError::NoWorker(format!(
                "the request has passed {MAX_HOPS} routers at the global level; their pools lead in a circle"
            )));
        }
        let theirs = self.message.headers().unwrap_or(Block::NONE);
        let mut headers = Lines::with_capacity(theirs.len() + super::dispatch::OWN_HEADERS);
        let ours = self.span.carried();
        let stays = |name: &str| ours.is_some() && name.eq_ignore_ascii_case(TRACEPARENT);
        headers.extend(theirs, |name| goes_to_pool(name, self.trusted) && !stays(name));
        if let Some(traceparent) = &ours {
            headers.push(TRACEPARENT, traceparent);
        }
        headers.push(header::REQUEST_ID, self.id.as_str());
        if let Some(reply) = self.answers.reply.as_deref() {
            headers.push(header::REPLY_TO, reply);
        }
        headers.push_number(header::HOPS, hops.into());
        headers.push_number(header::ATTEMPT, self.attempt.into());
        headers.push_number(header::ACCEPT_BY, unix_ms().saturating_add(millis(within)));
        let now = Instant::now();
        let left = |until: Instant| millis(until.saturating_duration_since(now)).min(u64::from(u32::MAX));
        headers.push_number(header::TIMEOUT_MS, left(self.accept_until));
        if let Some((deadline, _)) = self.deadline {
            headers.push_number(header::DEADLINE_MS, left(deadline));
        }
        self.push_alias(&mut headers);
        Ok(headers)
    }

    /// What a pool's refusal means for the request, and what its frontend is told where no other pool takes it.
    pub(super) fn refused_by_pool(rejection: Rejection) -> Result<(Failure, RouteError), Rejection> {
        let failure = match rejection.status {
            429 => Failure::Overloaded,
            500..=503 => Failure::Draining,
            504 => Failure::AcceptTimeout,
            _ if NOT_THERE.contains(&rejection.code.as_str()) => Failure::NotThere,
            _ => return Err(rejection),
        };
        Ok((failure, super::route::relayed(rejection)))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn goes_to_pool(name: &str, trusted: bool) -> bool {
    let is = |other: &[&str]| other.iter().any(|other| name.eq_ignore_ascii_case(other));
    header::goes_to_worker(name)
        && !is(&[header::POOL, header::TIMEOUT_MS, header::DEADLINE_MS])
        && (trusted || !is(&[header::TENANT, header::PRIORITY, header::PREFIX_KEYS]))
}
