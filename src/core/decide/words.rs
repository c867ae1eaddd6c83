//! Decisions in the words of `Rankpin-Decision` (protocol section 6).

use super::{Cause, Decision, Reason};

impl Decision {
    /// The value of `Rankpin-Decision`: the reason, and after a comma what led to it.
    pub fn header(&self) -> String {
        match self.cause {
            None => self.reason.word().to_owned(),
            Some(cause) => format!("{},{}", self.reason.word(), cause.word()),
        }
    }
}

impl Reason {
    /// As it stands on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Placed => "placed",
            Self::Repinned => "repinned",
            Self::Hinted => "hinted",
            Self::Unpinned => "unpinned",
        }
    }
}

impl Cause {
    /// As it stands on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::WorkerLost => "worker-lost",
            Self::Draining => "draining",
            Self::Overload => "overload",
            Self::Completed => "completed",
            Self::BucketUnreachable => "bucket-unreachable",
            Self::Derived => "derived",
            Self::NotThere => "not-there",
            Self::Siblings => "siblings",
            Self::Balance => "balance",
            Self::Cold => "cold",
        }
    }
}
