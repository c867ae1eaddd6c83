//! The streams of jobs, and the consumer: made where they are missing, never changed where they are there.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Jobs;
use crate::config::JobsConfig;
use crate::core::id::{Model, RequestId};
use crate::core::mode::{Provision, StreamStorage};
use crate::nats::JetStreamError;
use crate::nats::jetstream::{AckPolicy, ConsumerConfig, Discard, Retention, Storage, StreamConfig};
use crate::router::state::Router;
use crate::wire::subject::{JOBS_CONSUMER, Subjects};

/// How long a job that nobody acknowledges stays with its router (protocol section 2).
const ACK_WAIT: Duration = Duration::from_secs(30);
/// Most jobs that are delivered and not acknowledged, over all routers; those that are only delayed count too. Beyond,
/// no more are delivered.
const MAX_ACK_PENDING: i64 = 65_536;
/// Most dead letters; beyond, the oldest go.
const MAX_DEAD: i64 = 1 << 20;
/// How long the other streams remember message ids.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// Differences that the log tells of.
const MAX_TOLD: usize = 64;

/// Why there are no jobs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobsOff {
    /// Something is missing and may not be made.
    #[error("{what} is missing, and provision is never: docs/jobs.md has the command that makes it")]
    Missing {
        /// What.
        what: String,
    },
    /// Something can't be read or made.
    #[error("{what} can't be {verb}: {problem}")]
    Server {
        /// What.
        what: String,
        /// What was tried.
        verb: &'static str,
        /// What the server says.
        problem: String,
    },
    /// The consumer is of another kind.
    #[error("{what} does not need explicit acknowledgement: every job in it would be lost once it is delivered")]
    NoAcks {
        /// What.
        what: String,
    },
    /// The server takes long.
    #[error("the server took more than 5 s to show the streams")]
    Slow,
}

/// Finds or makes all of it.
pub async fn provide(router: &Router, jobs: &Jobs) -> Result<(), JobsOff> {
    let mode = router.config.provision;
    for wanted in streams(&router.subjects, &router.config.jobs) {
        provide_stream(jobs, &wanted, mode).await?;
    }
    let stream = router.subjects.jobs_stream();
    let found = provide_consumer(jobs, &stream, &consumer(&router.subjects), mode).await?;
    check_permissions(router, jobs).await?;
    let ack_wait = u64::try_from(found.ack_wait.as_millis()).unwrap_or(u64::MAX);
    jobs.ack_wait_ms.store(ack_wait, Ordering::Relaxed);
    Ok(())
}

/// Asks for what stands under subjects to which the router will have to publish: nothing is stored by that, and a
/// missing permission shows before jobs are taken that could not be settled.
async fn check_permissions(router: &Router, jobs: &Jobs) -> Result<(), JobsOff> {
    let (subjects, nobody) = (&router.subjects, "rankpin-permission-check");
    let id = RequestId::new(nobody).expect("letters and dashes are an id");
    let model = Model::new(nobody).expect("letters and dashes are a name");
    for subject in [subjects.result(&id), subjects.job(&model), subjects.dead(nobody)] {
        // Other errors are no matter: a stream that is full refuses too.
        if let Err(error @ (JetStreamError::NoAnswer(_) | JetStreamError::NoStream(_))) =
            jobs.api.last_sequence(&subject).await
        {
            return Err(off(jobs, &subject, "published to", &error));
        }
    }
    Ok(())
}

/// The three streams as they should be (protocol section 2).
pub fn streams(subjects: &Subjects, config: &JobsConfig) -> [StreamConfig; 3] {
    let limit = |limit: Option<u64>| limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(-1);
    let base = |name: String, subject: String| StreamConfig {
        name,
        subjects: vec![subject],
        retention: Retention::Limits,
        storage: match config.storage {
            StreamStorage::File => Storage::File,
            StreamStorage::Memory => Storage::Memory,
        },
        num_replicas: config.replicas,
        max_age: Duration::ZERO,
        max_msgs: -1,
        max_bytes: -1,
        discard: Discard::Old,
        duplicate_window: DUPLICATE_WINDOW,
    };
    [
        StreamConfig {
            retention: Retention::WorkQueue,
            max_msgs: limit(config.max_messages),
            max_bytes: limit(config.max_bytes),
            // Whoever submits one too many hears of it; no job that was taken is ever dropped.
            discard: Discard::New,
            duplicate_window: config.duplicate_window,
            ..base(subjects.jobs_stream(), subjects.jobs())
        },
        StreamConfig { max_age: config.results_max_age, ..base(subjects.results_stream(), subjects.results()) },
        StreamConfig { max_msgs: MAX_DEAD, ..base(subjects.dead_stream(), subjects.all_dead()) },
    ]
}

/// The consumer of the stream of jobs as it should be.
pub fn consumer(subjects: &Subjects) -> ConsumerConfig {
    ConsumerConfig {
        name: JOBS_CONSUMER.into(),
        durable_name: JOBS_CONSUMER.into(),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_deliver: -1,
        max_ack_pending: MAX_ACK_PENDING,
        filter_subject: subjects.jobs(),
        deliver_policy: "all".into(),
        replay_policy: "instant".into(),
    }
}

async fn provide_stream(jobs: &Jobs, wanted: &StreamConfig, mode: Provision) -> Result<(), JobsOff> {
    let what = format!("stream {}", wanted.name);
    let look = || jobs.api.stream(&wanted.name);
    let mut found = look().await.map_err(|error| off(jobs, &what, "read", &error))?;
    if found.is_none() {
        if mode == Provision::Never {
            return Err(JobsOff::Missing { what });
        }
        let made = jobs.api.create_stream(wanted).await;
        // Another router may have made it at the same moment, with its own settings.
        found = match made {
            Ok(info) => Some(info),
            Err(error) => match look().await {
                Ok(Some(info)) => Some(info),
                Ok(None) | Err(_) => return Err(off(jobs, &what, "made", &error)),
            },
        };
    }
    for difference in found.into_iter().flat_map(|found| stream_differences(&found.config, wanted)) {
        if jobs.tells_first(&what, &difference) {
            tracing::warn!(stream = wanted.name, difference, "the stream is not as configured; it is left as it is");
        }
    }
    Ok(())
}

async fn provide_consumer(
    jobs: &Jobs,
    stream: &str,
    wanted: &ConsumerConfig,
    mode: Provision,
) -> Result<ConsumerConfig, JobsOff> {
    let what = format!("consumer {} of stream {stream}", wanted.name);
    let look = || jobs.api.consumer(stream, &wanted.name);
    let found = look().await.map_err(|error| off(jobs, &what, "read", &error))?;
    let found = match found {
        Some(info) => info.config,
        None if mode == Provision::Never => return Err(JobsOff::Missing { what }),
        None => match jobs.api.create_consumer(stream, wanted).await {
            Ok(info) => info.config,
            Err(error) => match look().await {
                Ok(Some(info)) => info.config,
                Ok(None) | Err(_) => return Err(off(jobs, &what, "made", &error)),
            },
        },
    };
    if found.ack_policy != AckPolicy::Explicit {
        return Err(JobsOff::NoAcks { what });
    }
    for difference in consumer_differences(&found, wanted) {
        tracing::warn!(
            stream,
            consumer = wanted.name,
            difference,
            "the consumer is not as wanted; it is left as it is"
        );
    }
    Ok(found)
}

impl Jobs {
    /// Whether the log has not told of this difference yet: streams are looked at again whenever a pull was refused.
    fn tells_first(&self, what: &str, difference: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.len() < MAX_TOLD && told.insert(format!("{what}: {difference}"))
    }
}

/// The server tells of a missing permission on the side, and does not answer.
fn off(jobs: &Jobs, what: &str, verb: &'static str, error: &JetStreamError) -> JobsOff {
    let problem = match jobs.api.link().check_permissions() {
        Ok(()) => error.to_string(),
        Err(permissions) => permissions.to_string(),
    };
    JobsOff::Server { what: what.to_owned(), verb, problem }
}

fn stream_differences(found: &StreamConfig, wanted: &StreamConfig) -> Vec<String> {
    let time = |duration: Duration| humantime::format_duration(duration).to_string();
    let mut differences = Differences::default();
    differences.compare("subjects", found.subjects.join(","), wanted.subjects.join(","));
    differences.compare("retention", format!("{:?}", found.retention), format!("{:?}", wanted.retention));
    differences.compare("storage", format!("{:?}", found.storage), format!("{:?}", wanted.storage));
    differences.compare("replicas", found.num_replicas.to_string(), wanted.num_replicas.to_string());
    differences.compare("max age", time(found.max_age), time(wanted.max_age));
    differences.compare("max messages", found.max_msgs.to_string(), wanted.max_msgs.to_string());
    differences.compare("max bytes", found.max_bytes.to_string(), wanted.max_bytes.to_string());
    differences.compare("discard", format!("{:?}", found.discard), format!("{:?}", wanted.discard));
    differences.compare("duplicate window", time(found.duplicate_window), time(wanted.duplicate_window));
    differences.0
}

fn consumer_differences(found: &ConsumerConfig, wanted: &ConsumerConfig) -> Vec<String> {
    let time = |duration: Duration| humantime::format_duration(duration).to_string();
    let mut differences = Differences::default();
    differences.compare("ack wait", time(found.ack_wait), time(wanted.ack_wait));
    differences.compare("max deliver", found.max_deliver.to_string(), wanted.max_deliver.to_string());
    differences.compare("max ack pending", found.max_ack_pending.to_string(), wanted.max_ack_pending.to_string());
    differences.compare("filter subject", found.filter_subject.clone(), wanted.filter_subject.clone());
    differences.0
}

#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn compare(&mut self, name: &str, found: String, wanted: String) {
        if found != wanted {
            self.0.push(format!("{name}: found {found}, wanted {wanted}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::core::id::Namespace;

    #[test]
    fn what_differs_is_named() {
        let config = config::resolve(&config::Flags::new(), &|_| None).expect("the defaults are valid");
        let subjects = Subjects::new(Namespace::new("ns").expect("valid"));
        let [wanted, ..] = streams(&subjects, &config.jobs);
        assert_eq!(stream_differences(&wanted, &wanted), Vec::<String>::new());
        let found = StreamConfig { num_replicas: 3, duplicate_window: Duration::from_secs(120), ..wanted.clone() };
        assert_eq!(
            stream_differences(&found, &wanted),
            ["replicas: found 3, wanted 1", "duplicate window: found 2m, wanted 1h"]
        );
        let wanted = consumer(&subjects);
        let found = ConsumerConfig { max_deliver: 5, ..wanted.clone() };
        assert_eq!(consumer_differences(&found, &wanted), ["max deliver: found 5, wanted -1"]);
    }
}
