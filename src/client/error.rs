//! Everything that can go wrong between a frontend and its reply, each with a type.

use std::time::Duration;

use bytes::Bytes;

use super::sequence::SequenceError;
use crate::nats::{ConnectError, Unsound};
use crate::wire::body::BodyError;

/// Why a request has no reply, or why its reply stream ended early. What was given out before stays valid as far as
/// it goes; nothing is ever given out twice.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no connection to NATS, and none could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection was lost while the request was under way, or does not stand. Messages published meanwhile are
    /// lost, so the stream can't be whole; whether the worker ran the request is unknown.
    #[error("the connection to NATS was lost; whether a worker ran the request is unknown")]
    Disconnected,
    /// The request is larger than the server takes; it was not published.
    #[error("the request is {size} bytes with its headers, the NATS server takes {max} (max_payload)")]
    TooLarge {
        /// Bytes of headers and payload.
        size: usize,
        /// The server's limit.
        max: usize,
    },
    /// The request's body, which a message can't hold, could not be stored; the request was not published.
    #[error("the body is too large for a message, and could not be stored for the worker: {0}")]
    LargeBody(String),
    /// The request's body, which was to be stored because a message can't hold it, is none; it was not published.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// This client has as many streams open as it may; the request was not published.
    #[error("{max} reply streams are open, the most that this client may have")]
    TooManyOpen {
        /// The limit, see [`super::ClientOptions::max_open`].
        max: usize,
    },
    /// No router listens on this namespace; the request went nowhere and may be sent again.
    #[error("no router listens for requests of this namespace")]
    NoResponders,
    /// Router or worker answered with an error (protocol section 6.1).
    #[error("{status} {code}: {message}")]
    Service {
        /// Status, as in HTTP.
        status: u16,
        /// The code word.
        code: String,
        /// Words for people.
        message: String,
        /// Seconds after which to try again, where the answer says so.
        retry_after_s: Option<u32>,
        /// The answer as it came.
        answer: Answer,
    },
    /// Nothing came for too long. A killed router can't say so: this is how one notices.
    #[error("no reply message came within {} ms", .0.as_millis())]
    Idle(Duration),
    /// The request's own deadline passed, and the router did not say so.
    #[error("the request's deadline of {} ms passed, and the router did not end it", .0.as_millis())]
    Deadline(Duration),
    /// A message was lost or repeated, or answers of two attempts met.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// One reply goes on and on.
    #[error("a reply is larger than {max} bytes")]
    ReplyTooLarge {
        /// The most that one may have, in however many messages.
        max: usize,
    },
    /// A message that is neither numbered nor an error: its sender does not speak the protocol.
    #[error("a reply message has neither Rankpin-Seq nor an error")]
    Unnumbered,
    /// The last message of an answer says that its reply goes on in the next one.
    #[error("the last reply message says that it goes on (Rankpin-Continues)")]
    CutShort,
    /// A message whose header block breaks clients: its sender does not speak the protocol.
    #[error("the headers of a reply message can't be read: {0}")]
    Unreadable(#[from] Unsound),
    /// The caller reads more slowly than the worker writes, and the stream's buffer is full.
    #[error("the reader is slower than the reply: {capacity} messages wait, the most that are kept")]
    Overflow {
        /// The limit, see [`super::ClientOptions::stream_capacity`].
        capacity: usize,
    },
}

/// Body of an error as it came: of an engine's own error (`engine_error`) what the engine said, verbatim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The payload.
    pub payload: Bytes,
    /// Its media type, where the answer says it.
    pub content_type: Option<String>,
}

impl ClientError {
    /// The code word of an error that router or worker sent.
    pub fn service_code(&self) -> Option<&str> {
        match self {
            Self::Service { code, .. } => Some(code),
            Self::Connect(_)
            | Self::Disconnected
            | Self::TooLarge { .. }
            | Self::LargeBody(_)
            | Self::Body(_)
            | Self::TooManyOpen { .. }
            | Self::NoResponders
            | Self::Idle(_)
            | Self::Deadline(_)
            | Self::Sequence(_)
            | Self::Unnumbered
            | Self::CutShort
            | Self::Unreadable(_)
            | Self::ReplyTooLarge { .. }
            | Self::Overflow { .. } => None,
        }
    }
}
