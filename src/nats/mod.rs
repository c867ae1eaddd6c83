//! The only place that names the NATS client library.

pub mod access;
pub mod ask;
pub mod bucket;
pub mod feed;
pub mod headers;
pub mod jetstream;
pub mod lane;
pub mod link;
pub mod login;
pub mod objects;
pub mod pins;
pub mod registry;
pub mod subscription;
pub mod tls;
pub mod writes;

pub use access::{Access, AccessError};
pub use async_nats::{PublishError, Subject};
pub use headers::Headers;
pub use jetstream::{JetStream, JetStreamError};
pub use lane::{Block, Lane, Lines, Message, Payload, Unsent, Unsound};
pub use link::{ConnectError, Link, LinkOptions, LinkState};
pub use subscription::Subscription;

use bytes::Bytes;

/// One message as it came in.
#[derive(Debug, Clone)]
pub struct Inbound {
    /// Where it was published.
    pub subject: Subject,
    /// The reply subject, if it has one.
    pub reply: Option<Subject>,
    /// Its headers.
    pub headers: Headers,
    /// Its payload, not copied.
    pub payload: Bytes,
    /// The server's status: 503 means that nobody listens on the subject published to.
    pub status: Option<u16>,
}

impl From<async_nats::Message> for Inbound {
    fn from(message: async_nats::Message) -> Self {
        Self {
            subject: message.subject,
            reply: message.reply,
            headers: message.headers.as_ref().map(Headers::of_map).unwrap_or_default(),
            payload: message.payload,
            status: message.status.map(|status| status.as_u16()),
        }
    }
}

/// The status with which a server answers a message that nobody listens for.
pub const NO_RESPONDERS: u16 = 503;
