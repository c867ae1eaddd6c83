//! What an engine is to a worker: something that serves one request at a time, many at once.

use bytes::Bytes;

use super::cancel::CancelToken;
use super::replies::{ReplyError, ReplyStream};
use crate::core::id::{DpRank, RequestId};
use crate::nats::Headers;
use crate::wire::event::Finished;
use crate::wire::load::RankReport;

/// An engine. Requests are served concurrently, each in a task of its own; a panic ends the request that it
/// happened in and nothing else.
pub trait Engine: Send + Sync + 'static {
    /// Serves one request: sends its replies in order and says how it went. A reply stream that the engine did not
    /// end with [`ReplyStream::finish`] is ended by an empty message.
    ///
    /// An engine that keeps its answers, to be gone on from by `previous_response_id`, says the answer's id in
    /// [`Finished::response_id`]: the router sends requests that name it here (protocol section 4.1).
    ///
    /// When the request's cancel token fires, an engine has [`super::CANCEL_GRACE`] to return, after which this
    /// future is dropped. What it says of the tokens spent until then is passed on.
    fn serve(
        &self,
        request: EngineRequest,
        replies: &mut ReplyStream,
    ) -> impl Future<Output = Result<Finished, Failure>> + Send;

    /// When the router is told that a request was taken.
    fn acceptance(&self) -> Acceptance {
        Acceptance::AtOnce
    }

    /// Fills in what the engine knows better of its ranks than the worker, which counts the requests that named a
    /// rank (`inflight`) and knows nothing else. One entry per declared rank, in order.
    fn load(&self, ranks: &mut [RankReport]) {
        let _ = ranks;
    }
}

/// When the router is told that a request was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance {
    /// Before any work.
    AtOnce,
    /// With `finished`, which then counts as both: for engines whose whole answer is ready at once.
    WithFinish,
}

/// One request, as the engine gets it.
#[derive(Debug)]
pub struct EngineRequest {
    /// Its id.
    pub id: RequestId,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The rank that it was dispatched to; `None` leaves the choice to the engine's own balancer.
    pub rank: Option<DpRank>,
    /// The session that it belongs to, where the router knows one.
    pub session: Option<Box<str>>,
    /// The model to run, where the frontend has asked for an alias: then the body, which nobody changes, names that.
    pub model: Option<Box<str>>,
    /// The frontend's headers and the router's.
    pub headers: Headers,
    /// The body, as the frontend sent it.
    pub payload: Bytes,
    /// Fires when the request is to be given up.
    pub cancel: CancelToken,
}

/// Why a request was not served to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The engine does not take it. Where no reply was published yet, the router hears of a rejection and may place
    /// the request elsewhere; else the reply stream ends in this error.
    Refused(Refusal),
    /// It failed while it was served; the reply stream ends in this error.
    Failed {
        /// HTTP-like status.
        status: u16,
        /// Code word.
        code: String,
        /// Words for people.
        message: String,
    },
    /// It has answered with an error of its own, which the frontend gets as it stands (protocol section 6.1,
    /// `engine_error`).
    Answered {
        /// Its status.
        status: u16,
        /// Media type of the body.
        content_type: String,
        /// Its body.
        body: Bytes,
    },
    /// A reply could not be sent.
    Reply(ReplyError),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ReplyError> for Failure {
    fn from(error: ReplyError) -> Self {
        Self::Reply(error)
    }
}

/// Why an engine does not take a request (protocol section 6, `rejected`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub(super) status: u16,
    pub(super) code: String,
    pub(super) message: String,
}

impl Refusal {
    /// No room at the moment; the router tries another placement. Status 429.
    pub fn overloaded(message: impl Into<String>) -> Self {
        Self { status: 429, code: "overloaded".into(), message: message.into() }
    }

    /// The worker is about to stop; the router tries another placement. Status 503.
    pub fn draining() -> Self {
        Self { status: 503, code: "draining".into(), message: "the worker is draining".into() }
    }

    /// What serves the requests can't be reached or does not work at the moment; the router tries another placement.
    /// Status 503.
    pub fn unavailable(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status: 503, code: code.into(), message: message.into() }
    }

    /// Nobody can serve this request; the frontend gets the error. Status 400.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { status: 400, code: "invalid_request".into(), message: message.into() }
    }

    /// The engine does not serve what the request asks for; the frontend gets the error. Status 404.
    pub fn not_found(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status: 404, code: code.into(), message: message.into() }
    }
}
