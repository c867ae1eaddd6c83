//! What becomes of a durable job whose delivery did not end with `finished` (protocol section 6.2), and how its
//! attempts, failures and pauses are counted.

use std::time::Duration;

use super::error::RouteError;

/// Failures after which a job is dead.
pub const MAX_FAILURES: u32 = 5;
/// Deliveries after which a message that can't be read is deleted.
pub const MAX_UNREADABLE: u64 = 5;
/// Attempts that one delivery may make. The next delivery's begin behind them, so that attempts go up whichever
/// router made the earlier ones, and whatever became of it.
pub const ATTEMPTS_PER_DELIVERY: u32 = 16;
/// First and longest pause of a job that is only delayed.
const DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Pause before a job that has failed twice is placed again, and how many times as long each further one is: its failures
/// lie at least 21 s apart in all, longer than a cluster takes to choose new leaders, so that no such fault alone uses them up.
const BACKOFF: (Duration, u32) = (Duration::from_secs(1), 4);

/// What becomes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The error is its result.
    Final,
    /// It has failed once more.
    Failed,
    /// It is tried again later, and that counts for nothing.
    Delayed,
    /// Another router gets it at once.
    HandedOver,
}

/// Whether one of the delivery's attempts has failed: was answered by nobody, was silent, or was refused with 503.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempts {
    /// None has; the error is about something else.
    NoneFailed,
    /// One has, and the error is about it.
    OneFailed,
}

/// What becomes of a job whose delivery ends in this error.
pub fn fate(error: &RouteError, attempts: Attempts) -> Fate {
    match error {
        RouteError::InvalidRequest(_)
        | RouteError::InvalidSessionId(_)
        | RouteError::RankOutOfRange(_)
        | RouteError::UnknownWorker { .. }
        | RouteError::UnknownPool { .. }
        | RouteError::PinConflict(_)
        | RouteError::PayloadTooLarge { .. }
        | RouteError::Cancelled
        | RouteError::Deadline(_)
        // No job is without its body.
        | RouteError::Undecided(_)
        | RouteError::PermitExpired => Fate::Final,
        RouteError::UnknownModel(_) | RouteError::UnknownAlias { .. } | RouteError::Overloaded { .. } => Fate::Delayed,
        // The same errors tell of a worker that failed, and of none that could be found.
        RouteError::NoWorker(_) | RouteError::AcceptTimeout(_) => match attempts {
            Attempts::OneFailed => Fate::Failed,
            Attempts::NoneFailed => Fate::Delayed,
        },
        RouteError::WorkerLost(_) => Fate::Failed,
        RouteError::ShuttingDown => Fate::HandedOver,
        RouteError::Relayed { status: 429, .. } => Fate::Delayed,
        RouteError::Relayed { status: 400..=499, .. } => Fate::Final,
        RouteError::Relayed { .. } => Fate::Failed,
    }
}

/// How long a job is delayed that was delivered so many times, from 1: 1 s doubling to 30 s.
pub fn delay(delivered: u64) -> Duration {
    doubling(DELAY, delivered.saturating_sub(1))
}

/// How long a job waits before it is placed that has failed so many times. The first failure costs no time: it is
/// mostly a worker that is gone. A worker that refuses at once would else have used up all failures within milliseconds.
pub fn backoff(failures: u32) -> Duration {
    let (first, factor) = BACKOFF;
    match failures.min(MAX_FAILURES - 1) {
        0 | 1 => Duration::ZERO,
        more => first * factor.pow(more - 2),
    }
}

fn doubling((first, longest): (Duration, Duration), times: u64) -> Duration {
    let factor = u32::try_from(times).ok().and_then(|times| 1u32.checked_shl(times)).unwrap_or(u32::MAX);
    first.saturating_mul(factor.max(1)).min(longest)
}

/// The number after which a delivery's attempts are counted, by the last attempt that the job itself names (0: none)
/// and how often this message was delivered, from 1.
pub fn attempts_before(named: u32, delivered: u64) -> u32 {
    let earlier = u32::try_from(delivered.saturating_sub(1)).unwrap_or(u32::MAX);
    let before = named.saturating_add(earlier.saturating_mul(ATTEMPTS_PER_DELIVERY));
    // This delivery's attempts are numbers too.
    before.min(u32::MAX - ATTEMPTS_PER_DELIVERY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_fate() {
        use Attempts::{NoneFailed, OneFailed};
        let relayed =
            |status| RouteError::Relayed { status, code: "c".into(), message: "m".into(), retry_after_s: None };
        for (error, attempts, expected) in [
            (RouteError::InvalidRequest("x".into()), NoneFailed, Fate::Final),
            (RouteError::UnknownPool { pool: "p".into(), model: "m".into() }, NoneFailed, Fate::Final),
            (RouteError::PinConflict("a pool"), NoneFailed, Fate::Final),
            (RouteError::Cancelled, OneFailed, Fate::Final),
            (RouteError::Deadline(5), OneFailed, Fate::Final),
            (RouteError::UnknownModel("m".into()), NoneFailed, Fate::Delayed),
            (RouteError::Overloaded { why: "x".into(), retry_after_s: 1 }, OneFailed, Fate::Delayed),
            (RouteError::NoWorker("x".into()), NoneFailed, Fate::Delayed),
            (RouteError::NoWorker("x".into()), OneFailed, Fate::Failed),
            (RouteError::AcceptTimeout("x".into()), NoneFailed, Fate::Delayed),
            (RouteError::AcceptTimeout("x".into()), OneFailed, Fate::Failed),
            (RouteError::WorkerLost("w".into()), NoneFailed, Fate::Failed),
            (RouteError::ShuttingDown, OneFailed, Fate::HandedOver),
            (relayed(429), OneFailed, Fate::Delayed),
            (relayed(404), NoneFailed, Fate::Final),
            (relayed(503), NoneFailed, Fate::Failed),
        ] {
            assert_eq!(fate(&error, attempts), expected, "{error:?}, {attempts:?}");
        }
    }

    #[test]
    fn pauses_grow_to_their_end() {
        let seconds = |delivered| delay(delivered).as_secs();
        assert_eq!([0, 1, 2, 3, 5, 6, 7, 33, u64::MAX].map(seconds), [1, 1, 2, 4, 16, 30, 30, 30, 30]);
        assert_eq!([0, 1, 2, 3, 4, 5, u32::MAX].map(|n| backoff(n).as_secs()), [0, 0, 1, 4, 16, 16, 16]);
    }

    #[test]
    fn attempts_of_a_later_delivery_are_higher_than_all_of_an_earlier_one() {
        assert_eq!(attempts_before(0, 1), 0);
        for (named, delivered) in [(0, 1), (3, 2), (7, 1000)] {
            let last = attempts_before(named, delivered) + ATTEMPTS_PER_DELIVERY;
            assert!(attempts_before(named, delivered + 1) + 1 > last);
        }
        assert_eq!(attempts_before(u32::MAX, u64::MAX), u32::MAX - ATTEMPTS_PER_DELIVERY);
    }
}
