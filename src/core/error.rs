//! Why a request can't be routed: every failure a frontend can see, each with its wire code.

/// A request's final error. `Display` is the message that the frontend reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// A header or the body breaks the protocol.
    #[error("{0}")]
    InvalidRequest(String),
    /// A session id that no session may have.
    #[error("{0}")]
    InvalidSessionId(String),
    /// A rank hint that is no number, or that no eligible worker declares.
    #[error("{0}")]
    RankOutOfRange(String),
    /// Nothing served the model within the last ten minutes.
    #[error("model {0:?} is served by no worker, and was not in the last 10 minutes")]
    UnknownModel(String),
    /// Nothing served any of the models that an alias leads to within the last ten minutes.
    #[error("{alias:?} is an alias of {models}: none of them is served by a worker, nor was in the last 10 minutes")]
    UnknownAlias {
        /// The alias asked for.
        alias: String,
        /// The models, in quotes, with commas between.
        models: String,
    },
    /// The hinted worker is not registered, not ready, or does not serve the model.
    #[error("worker {worker:?} is not ready to serve model {model:?}")]
    UnknownWorker {
        /// The hint, as it came.
        worker: String,
        /// The model asked for.
        model: String,
    },
    /// None of the workers that serve the model is in the pool.
    #[error("no worker of pool {pool:?} is ready to serve model {model:?}")]
    UnknownPool {
        /// The pool asked for.
        pool: String,
        /// The model asked for.
        model: String,
    },
    /// A hint or pool against a hard pin. It names neither the pin's worker nor its rank.
    #[error("the session is pinned elsewhere than {0} asks for; leave the hint out, or end the session")]
    PinConflict(&'static str),
    /// The request with its headers is larger than the server takes.
    #[error("the request is {size} bytes with its headers, the NATS server takes {max} (max_payload)")]
    PayloadTooLarge {
        /// Bytes of headers and payload.
        size: usize,
        /// The server's `max_payload`.
        max: usize,
    },
    /// The frontend wants to send the body itself, which is not possible for this request.
    #[error("{0}; publish the request with its body")]
    Undecided(&'static str),
    /// The frontend had a placement for its body, and has not sent it.
    #[error("the request was placed, and its body was not sent in time")]
    PermitExpired,
    /// No room within the request's timeout, or the worker said so.
    #[error("{why}")]
    Overloaded {
        /// Why there is no room.
        why: String,
        /// Seconds after which another try is worth it, at the pace at which the queue drains.
        retry_after_s: u32,
    },
    /// The frontend cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// No worker is ready.
    #[error("{0}")]
    NoWorker(String),
    /// The worker went away after it had accepted.
    #[error(
        "worker {0:?} was lost after it accepted the request; what it did is unknown, send it again if that is safe"
    )]
    WorkerLost(String),
    /// The router is stopping and could not place the request any more.
    #[error("the router is shutting down; send the request again")]
    ShuttingDown,
    /// No worker accepted in time.
    #[error("no worker accepted the request in time ({0})")]
    AcceptTimeout(String),
    /// The request's own deadline passed.
    #[error("the request's deadline of {0} ms passed")]
    Deadline(u64),
    /// A worker's own refusal, relayed as it came.
    #[error("{message}")]
    Relayed {
        /// The worker's code, 400 or 404.
        status: u16,
        /// The worker's code word.
        code: String,
        /// The worker's words.
        message: String,
        /// Seconds after which another try is worth it, where it says so.
        retry_after_s: Option<u32>,
    },
}

impl RouteError {
    /// Status (protocol section 6.1).
    pub fn status(&self) -> u16 {
        match self {
            Self::InvalidRequest(_) | Self::InvalidSessionId(_) | Self::RankOutOfRange(_) => 400,
            Self::UnknownModel(_)
            | Self::UnknownAlias { .. }
            | Self::UnknownWorker { .. }
            | Self::UnknownPool { .. } => 404,
            Self::PinConflict(_) => 409,
            Self::PayloadTooLarge { .. } => 413,
            Self::Undecided(_) => 421,
            Self::Overloaded { .. } => 429,
            Self::Cancelled => 499,
            Self::NoWorker(_) | Self::WorkerLost(_) | Self::ShuttingDown => 503,
            Self::AcceptTimeout(_) | Self::Deadline(_) | Self::PermitExpired => 504,
            Self::Relayed { status, .. } => *status,
        }
    }

    /// Code word (protocol section 6.1).
    pub fn code(&self) -> &str {
        match self {
            Self::Relayed { code, .. } => code,
            own => own.own_code().expect("only a relayed error has a code of somebody else"),
        }
    }

    /// The code word, unless it is a worker's: a bounded set.
    pub fn own_code(&self) -> Option<&'static str> {
        Some(match self {
            Self::InvalidRequest(_) => "invalid_request",
            Self::InvalidSessionId(_) => "invalid_session_id",
            Self::RankOutOfRange(_) => "rank_out_of_range",
            Self::UnknownModel(_) | Self::UnknownAlias { .. } => "unknown_model",
            Self::UnknownWorker { .. } => "unknown_worker",
            Self::UnknownPool { .. } => "unknown_pool",
            Self::PinConflict(_) => "pin_conflict",
            Self::PayloadTooLarge { .. } => "payload_too_large",
            Self::Undecided(_) => "undecided",
            Self::PermitExpired => "permit_expired",
            Self::Overloaded { .. } => "overloaded",
            Self::Cancelled => "cancelled",
            Self::NoWorker(_) => "no_worker",
            Self::WorkerLost(_) => "worker_lost",
            Self::ShuttingDown => "shutting_down",
            Self::AcceptTimeout(_) => "accept_timeout",
            Self::Deadline(_) => "deadline",
            Self::Relayed { .. } => return None,
        })
    }

    /// Seconds after which a frontend may try again; 429 and 503 carry it.
    pub fn retry_after_s(&self) -> Option<u32> {
        match (self, self.status()) {
            (Self::Overloaded { retry_after_s, .. }, _) => Some(*retry_after_s),
            (Self::Relayed { retry_after_s: Some(seconds), .. }, 429 | 503) => Some(*seconds),
            (_, 429 | 503) => Some(1),
            _ => None,
        }
    }
}
