//! What an operator does to a cluster that runs: looks at its workers and pins, moves sessions, drains workers, and has
//! it examined. Everything goes over NATS, with the rights of whoever asks; nothing needs a router's address.

pub mod doctor;
pub mod drain;
pub mod fleet;
pub mod permissions;
pub mod pins;
pub mod routers;
pub mod stores;

use std::time::Duration;

use crate::nats::bucket::{Bucket, Unreachable, is_silence};
use crate::nats::{AccessError, ConnectError, JetStreamError};

/// How long a bucket may take to answer: a cluster that elects a leader needs some seconds.
const PATIENCE: Duration = Duration::from_secs(10);

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
    /// A bucket did not answer.
    #[error(
        "the bucket {bucket} could not be {verb}: {problem}. The NATS server is busy, or the bucket has no leader at the \
         moment{unsure}; try again, and `rankpin doctor` looks at both"
    )]
    Silent {
        /// Its name.
        bucket: String,
        /// What was tried.
        verb: &'static str,
        /// How long it was waited for.
        problem: String,
        /// What is not known for that.
        unsure: &'static str,
    },
    /// JetStream refuses.
    #[error(transparent)]
    JetStream(#[from] JetStreamError),
    /// What was asked can't be done, and why.
    #[error("{0}")]
    Refused(String),
}

impl OpsError {
    fn unreadable(bucket: &Bucket) -> impl Fn(Unreachable) -> Self {
        move |error| Self::of(bucket, "read", error.0)
    }

    fn unwritable(bucket: &Bucket, problem: String) -> Self {
        Self::of(bucket, "written", problem)
    }

    /// A server tells of a missing permission on the side, and answers nothing.
    fn of(bucket: &Bucket, verb: &'static str, problem: String) -> Self {
        if let Err(denied) = bucket.link().check_permissions() {
            return Self::Connect(denied);
        }
        let name = bucket.name().to_owned();
        match is_silence(&problem) {
            true => Self::Silent {
                bucket: name,
                verb,
                problem,
                unsure: if verb == "written" { ", so that it may have been done all the same" } else { "" },
            },
            false => Self::Bucket { bucket: name, verb, problem },
        }
    }

    /// What was asked can't be done.
    pub fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }
}
