//! Asking a worker to drain, and waiting until it is gone.

use std::time::Duration;

use tokio::time::Instant;

use super::{OpsError, PATIENCE};
use crate::core::id::WorkerId;
use crate::nats::Link;
use crate::nats::ask::AskError;
use crate::nats::bucket::Bucket;
use crate::wire::drain::DrainAnswer;
use crate::wire::registration::Registration;
use crate::wire::subject::Subjects;

/// How long a worker may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two looks at its registration.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Asks a worker to drain. It has begun when this returns: routers send it nothing new.
pub async fn ask(link: &Link, subjects: &Subjects, worker: &WorkerId) -> Result<DrainAnswer, OpsError> {
    let subject = subjects.worker_drain(worker);
    match link.ask(&subject, ANSWER_TIMEOUT).await {
        Ok(answer) => DrainAnswer::parse(&answer)
            .map_err(|problem| OpsError::refused(format!("worker {worker} answers what can't be read: {problem}"))),
        Err(AskError::NoResponders) => Err(match registered(link, subjects, worker).await? {
            Some(_) => OpsError::refused(format!(
                "worker {worker} is registered, but does not listen on {subject}: it has died within the last seconds, or \
                 its library is older; stop its process (SIGTERM) instead"
            )),
            None => {
                OpsError::refused(format!("there is no worker {worker}; `rankpin workers` lists those that there are"))
            }
        }),
        Err(AskError::NoAnswer) => Err(OpsError::refused(format!(
            "worker {worker} did not answer within 5 s; may this user publish to {subject} and subscribe to its inbox?"
        ))),
        Err(AskError::Connect(error)) => Err(error.into()),
    }
}

/// Waits until the process that was asked is no longer registered. False where it still is when the time is up.
pub async fn wait(link: &Link, subjects: &Subjects, answer: &DrainAnswer, timeout: Duration) -> Result<bool, OpsError> {
    let worker = WorkerId::new(&answer.worker).map_err(|e| OpsError::refused(format!("worker: {e}")))?;
    let until = Instant::now() + timeout;
    loop {
        if registered(link, subjects, &worker).await?.is_none_or(|instance| instance != answer.instance) {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The process that is registered under a name.
async fn registered(link: &Link, subjects: &Subjects, worker: &WorkerId) -> Result<Option<String>, OpsError> {
    let bucket = Bucket::new(link.clone(), &subjects.workers_bucket()).patient(PATIENCE);
    let stored = bucket.read_leader(worker.as_str()).await.map_err(OpsError::unreadable(&bucket))?;
    let value = stored.and_then(|stored| stored.value);
    let spec = value.and_then(|value| Registration::parse(worker.as_str(), &value).ok());
    Ok(spec.map(|spec| spec.instance.as_str().to_owned()))
}
