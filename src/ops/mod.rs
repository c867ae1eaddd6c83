//! What an operator does to a cluster that runs: looks at its workers and pins, moves sessions, drains workers, and has
//! it examined. Everything goes over NATS, with the rights of whoever asks; nothing needs a router's address.

pub mod doctor;
pub mod drain;
pub mod fleet;
pub mod permissions;
pub mod pins;
pub mod routers;
pub mod stores;

use crate::nats::bucket::Unreachable;
use crate::nats::{AccessError, ConnectError, JetStreamError};

/// Why something can't be told or done.
#[derive(Debug, thiserror::Error)]
pub enum OpsError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It is not clear where or as whom to connect.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A bucket can't be read.
    #[error(
        "the bucket {bucket} can't be {verb}: {problem}; has a router of this namespace ever run there, and may this user \
         do that? `rankpin doctor` tells"
    )]
    Bucket {
        /// Its name.
        bucket: String,
        /// What was tried.
        verb: &'static str,
        /// What the server says.
        problem: String,
    },
    /// JetStream refuses.
    #[error(transparent)]
    JetStream(#[from] JetStreamError),
    /// What was asked can't be done, and why.
    #[error("{0}")]
    Refused(String),
}

impl OpsError {
    fn unreadable(bucket: &str) -> impl Fn(Unreachable) -> Self {
        move |error| Self::Bucket { bucket: bucket.to_owned(), verb: "read", problem: error.0 }
    }

    /// What was asked can't be done.
    pub fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }
}
