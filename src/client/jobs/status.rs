//! Where a job is.

use super::{JobError, Jobs};
use crate::core::id::RequestId;
use crate::nats::JetStreamError;
use crate::nats::jetstream::{Get, StoredMessage};
use crate::wire::header;
use crate::wire::job::Tried;
use crate::wire::subject::JOBS_CONSUMER;

/// Most messages of a stream that are looked through for one job.
const MAX_LOOKED_THROUGH: usize = 100_000;

/// Where one job is.
#[derive(Debug, Clone)]
pub enum Status {
    /// It waits to be taken by a router.
    Pending {
        /// How often it has failed.
        failures: u32,
    },
    /// A router has it, or had it and gave it back for a while.
    Running {
        /// How often it has failed.
        failures: u32,
    },
    /// It has its result.
    Done(Box<super::JobResult>),
    /// It was given up.
    Dead(Box<super::DeadLetter>),
    /// There is nothing of it, or no longer: results are kept for a while only.
    Unknown,
}

/// All jobs, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overview {
    /// They wait to be taken by a router.
    pub pending: u64,
    /// A router has them, or had them and gave them back for a while.
    pub running: u64,
    /// They have their result; those that are dead are among them.
    pub done: u64,
    /// They were given up.
    pub dead: u64,
}

impl Jobs {
    /// All jobs, in numbers.
    pub async fn overview(&self) -> Result<Overview, JobError> {
        let missing = |name: String| JetStreamError::NoStream(name);
        let (jobs, dead) = (self.subjects.jobs_stream(), self.subjects.dead_stream());
        let waiting = self.api.stream(&jobs).await?.ok_or_else(|| missing(self.subjects.jobs()))?.state.messages;
        let consumer = self.api.consumer(&jobs, JOBS_CONSUMER).await?;
        let running = consumer.map_or(0, |consumer| consumer.num_ack_pending).min(waiting);
        let done = self.api.subjects(&self.results(), &self.subjects.final_results(), 0).await?;
        let dead = self.api.stream(&dead).await?.map_or(0, |stream| stream.state.messages);
        let done = done.total.max(done.found.len()) as u64;
        Ok(Overview { pending: waiting - running, running, done, dead })
    }

    /// Where a job is. One without a result is looked for among those that wait, which takes time where these are many.
    pub async fn status(&self, id: &RequestId) -> Result<Status, JobError> {
        if let Some(result) = self.result(id).await? {
            if result.failure.is_some()
                && let Some(letter) = self.dead_letter_of(id).await?
            {
                return Ok(Status::Dead(Box::new(letter)));
            }
            return Ok(Status::Done(Box::new(result)));
        }
        let Some(message) = self.waiting(id).await? else {
            // It may have got its result since the first look.
            let result = self.result(id).await?;
            return Ok(result.map_or(Status::Unknown, |result| Status::Done(Box::new(result))));
        };
        let failures = message.headers().map(|headers| Tried::read(headers.iter(), id).failures).unwrap_or(0);
        let consumer = self.api.consumer(&self.subjects.jobs_stream(), JOBS_CONSUMER).await?;
        let delivered = consumer.is_some_and(|consumer| consumer.delivered.stream_seq >= message.sequence);
        Ok(if delivered { Status::Running { failures } } else { Status::Pending { failures } })
    }

    async fn waiting(&self, id: &RequestId) -> Result<Option<StoredMessage>, JobError> {
        let (stream, subject) = (self.subjects.jobs_stream(), self.subjects.jobs());
        let mut from = 1;
        for _ in 0..MAX_LOOKED_THROUGH {
            let stored = self.insistently(|| self.api.get(&stream, Get::Next(from, &subject))).await?;
            let Some(message) = stored else { break };
            from = message.sequence + 1;
            let is_it = match message.find(header::REQUEST_ID) {
                Some(named) => named == id.as_str(),
                None => id.as_str().strip_prefix("job-") == Some(message.sequence.to_string().as_str()),
            };
            if is_it {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    async fn dead_letter_of(&self, id: &RequestId) -> Result<Option<super::DeadLetter>, JobError> {
        let mut from = 1;
        for _ in 0..MAX_LOOKED_THROUGH {
            let Some(letter) = self.next_dead(from).await? else { break };
            from = letter.sequence + 1;
            if letter.id.as_ref() == Some(id) {
                return Ok(Some(letter));
            }
        }
        Ok(None)
    }
}
