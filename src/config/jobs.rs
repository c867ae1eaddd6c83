//! The settings of durable jobs.

use std::time::Duration;

use super::setting::{self, Sources};
use super::{ConfigError, Given, choice, duration};
use crate::core::mode::StreamStorage;

/// Most jobs that one router may be told to hold: they are in memory, bodies included.
pub const MAX_JOBS: u64 = 2_048;
/// Most servers that keep a stream or a bucket.
const MAX_REPLICAS: u64 = 5;
/// Highest limit of a stream.
const MAX_LIMIT: u64 = i64::MAX as u64;
/// Shortest and longest time that results are kept. A result has to outlast the job's own message.
pub const RESULTS_MAX_AGE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(30 * 24 * 3600));
/// Shortest and longest time in which the same message id is taken once. Below the ack wait, a failed job that is
/// published again by two routers would run twice.
pub const DUPLICATE_WINDOW: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));

/// What a router is told of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobsConfig {
    /// Most jobs that this router holds at a time; 0: it takes none.
    pub max: usize,
    /// Servers that keep the streams.
    pub replicas: usize,
    /// Where the streams are kept.
    pub storage: StreamStorage,
    /// Most jobs that wait; `None` is without a limit.
    pub max_messages: Option<u64>,
    /// Most bytes of jobs that wait; `None` is without a limit.
    pub max_bytes: Option<u64>,
    /// How long results are kept.
    pub results_max_age: Duration,
    /// How long the same message id is taken once.
    pub duplicate_window: Duration,
}

/// Settings that are about the streams alone.
pub(super) const OF_STREAMS: [&setting::Setting; 6] = [
    &setting::JOBS_REPLICAS,
    &setting::JOBS_STORAGE,
    &setting::JOBS_MAX_MESSAGES,
    &setting::JOBS_MAX_BYTES,
    &setting::JOBS_RESULTS_MAX_AGE,
    &setting::JOBS_DUPLICATE_WINDOW,
];

pub(super) fn read(sources: &Sources<'_>) -> Result<JobsConfig, ConfigError> {
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let limit = |number: u64| (number > 0).then_some(number);
    Ok(JobsConfig {
        max: size(whole(&sources.get(&setting::MAX_JOBS), 0, MAX_JOBS)?),
        replicas: replicas(&sources.get(&setting::JOBS_REPLICAS))?,
        storage: choice(&sources.get(&setting::JOBS_STORAGE), &StreamStorage::NAMED)?,
        max_messages: limit(whole(&sources.get(&setting::JOBS_MAX_MESSAGES), 0, MAX_LIMIT)?),
        max_bytes: limit(whole(&sources.get(&setting::JOBS_MAX_BYTES), 0, MAX_LIMIT)?),
        results_max_age: duration(&sources.get(&setting::JOBS_RESULTS_MAX_AGE), RESULTS_MAX_AGE)?,
        duplicate_window: duration(&sources.get(&setting::JOBS_DUPLICATE_WINDOW), DUPLICATE_WINDOW)?,
    })
}

/// How many servers keep a stream or a bucket.
pub(super) fn replicas(given: &Given) -> Result<usize, ConfigError> {
    Ok(usize::try_from(whole(given, 1, MAX_REPLICAS)?).unwrap_or(usize::MAX))
}

/// A router that takes no jobs makes no streams for them either.
pub(super) fn refuse_what_has_no_effect(sources: &Sources<'_>, config: &JobsConfig) -> Result<(), ConfigError> {
    for setting in OF_STREAMS {
        if let (0, Some(given)) = (config.max, sources.find(setting)) {
            return Err(given.no_effect("with max_jobs 0 there are no jobs; leave one of the two out"));
        }
    }
    Ok(())
}

fn whole(given: &Given, least: u64, most: u64) -> Result<u64, ConfigError> {
    let digits = given.text.bytes().all(|b| b.is_ascii_digit());
    let parsed = given.text.parse().ok().filter(|number| digits && (least..=most).contains(number));
    parsed.ok_or_else(|| given.refuse(format!("allowed is a whole number from {least} to {most}")))
}
