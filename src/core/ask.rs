//! What one request asks for, and what it has already tried.

use std::sync::Arc;

use super::id::{DpRank, Model, Origin, Placement, Pool, SessionId, Tenant, WorkerId};
use super::kv::Prompt;
use super::session::Session;

/// The rank a frontend asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankHint {
    /// A rank.
    Rank(DpRank),
    /// Text that is no rank; refused only when the checks before it pass (protocol section 5).
    Invalid(String),
}

/// Everything that a decision needs to know of a request.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The model.
    pub model: Model,
    /// Scope of the session.
    pub tenant: Tenant,
    /// The session, where there is one and affinity is on.
    pub session: Option<Session>,
    /// The session's parent, where subagents are grouped: sessions of one parent are placed beside each other.
    pub group: Option<SessionId>,
    /// The worker wanted, as it came.
    pub worker_hint: Option<Arc<str>>,
    /// The rank wanted.
    pub rank_hint: Option<RankHint>,
    /// The pool wanted, as it came.
    pub pool: Option<Arc<str>>,
    /// The pool in which the session is pinned, where its worker is gone.
    pub home: Option<Pool>,
    /// Placements that failed this request.
    pub excluded: Vec<Excluded>,
    /// How long its prompt is; with policy `kv` also where its prefixes end.
    pub prompt: Prompt,
}

/// A placement that failed a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excluded {
    /// Where.
    pub placement: Placement,
    /// Whether all of the worker is meant, whatever the rank.
    pub whole_worker: bool,
    /// How it failed.
    pub failure: Failure,
}

/// How an attempt failed before acceptance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nobody listens there.
    NoResponders,
    /// It was silent for the accept timeout.
    AcceptTimeout,
    /// It refused with 429.
    Overloaded,
    /// It refused with 503.
    Draining,
    /// A pool refused what another one may take: it does not serve the model, or has not the worker or rank asked for.
    NotThere,
}

impl Ask {
    /// The exclusion that covers a placement, if any.
    pub fn exclusion(&self, worker: &WorkerId, rank: Option<DpRank>) -> Option<&Excluded> {
        self.excluded.iter().find(|e| e.placement.worker == *worker && (e.whole_worker || e.placement.rank == rank))
    }

    /// Whether where the session is pinned is a fact, and no guess by its text: it is named, or continues a response.
    pub fn is_certain(&self) -> bool {
        self.named() || self.session.as_ref().is_some_and(|session| session.id.is_of_response())
    }

    /// Whether the session is named, by a header or by a field of the body.
    pub fn named(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.origin == Origin::Named)
    }
}
