//! Jobs that were given up, and how they are tried once more.

use std::time::SystemTime;

use super::{JobError, Jobs};
use crate::core::id::RequestId;
use crate::nats::jetstream::{Get, StoredMessage};
use crate::nats::{Headers, JetStreamError};
use crate::wire::header;
use crate::wire::job::message_id_of_letter;

/// A job that was given up.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// Its sequence among the dead letters.
    pub sequence: u64,
    /// The job's id.
    pub id: Option<RequestId>,
    /// How often it failed.
    pub failures: u32,
    /// The last failure: status and code word.
    pub error: Option<(u16, String)>,
    /// The last failure in words.
    pub reason: String,
    /// When it was given up, by the server's clock.
    pub time: SystemTime,
    message: StoredMessage,
}

/// What became of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requeued {
    /// It is a job again.
    Yes,
    /// It was not needed: the job has an answer, of an attempt that was taken for lost. The letter is gone.
    Answered,
}

impl DeadLetter {
    /// The job's subject token of the model.
    pub fn model_token(&self) -> &str {
        self.message.subject.splitn(3, '.').nth(2).unwrap_or_default()
    }

    /// The job's body.
    pub fn payload(&self) -> &bytes::Bytes {
        &self.message.payload
    }

    /// The job's headers, as (name, value).
    pub fn headers(&self) -> Vec<(String, String)> {
        let block = self.message.headers().ok();
        let pairs = block.into_iter().flat_map(|block| block.iter());
        pairs.filter(|(name, _)| header::stays_on_job(name)).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
    }
}

impl Jobs {
    /// The first dead letter from a sequence on.
    pub async fn next_dead(&self, from: u64) -> Result<Option<DeadLetter>, JobError> {
        let (stream, subject) = (self.subjects.dead_stream(), self.subjects.all_dead());
        let stored = self.insistently(|| self.api.get(&stream, Get::Next(from, &subject))).await?;
        Ok(stored.map(read))
    }

    /// Makes a dead letter a job again, with no failures; its attempts go on being counted. Its error is no longer its result, and its letter is gone.
    /// Done again after it was interrupted, it makes no second job.
    pub async fn requeue(&self, letter: &DeadLetter) -> Result<Requeued, JobError> {
        let subject = self.subjects.job_of_dead(&letter.message.subject);
        let (Some(subject), Some(id)) = (subject, &letter.id) else {
            return Err(
                JetStreamError::Refused("the letter names no job: it was not written by a router".into()).into()
            );
        };
        let answered = self.result(id).await?.is_some_and(|result| result.failure.is_none());
        if !answered {
            // A job whose result is final is not run, and parts of its earlier attempts would mix with the new ones.
            let results = self.results();
            let (whole, parts) = (self.subjects.result(id), self.subjects.result_parts(id));
            self.insistently(|| self.api.purge(&results, &whole)).await?;
            self.insistently(|| self.api.purge(&results, &parts)).await?;
            let mut headers: Headers = letter.headers().iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            headers.set(header::REQUEST_ID, id.as_str());
            headers.set(header::FAILURES, "0");
            headers.set(header::ATTEMPT, letter.message.find(header::ATTEMPT).unwrap_or("0"));
            headers.set(header::MSG_ID, &message_id_of_letter(id, letter.sequence));
            let payload = letter.message.payload.clone();
            self.insistently(|| self.api.store(&subject, headers.clone(), payload.clone())).await?;
        }
        let stream = self.subjects.dead_stream();
        match self.insistently(|| self.api.delete(&stream, letter.sequence)).await {
            // Somebody else has requeued it at the same time.
            Ok(()) | Err(JetStreamError::Missing) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(if answered { Requeued::Answered } else { Requeued::Yes })
    }
}

fn read(message: StoredMessage) -> DeadLetter {
    let number = |name| message.find(name).and_then(|text| text.parse().ok());
    let code = message.find(header::SERVICE_ERROR).map(str::to_owned);
    let status = message.find(header::SERVICE_ERROR_CODE).and_then(|text| text.parse().ok());
    DeadLetter {
        sequence: message.sequence,
        id: message.find(header::REQUEST_ID).and_then(|id| RequestId::new(id).ok()),
        failures: number(header::FAILURES).unwrap_or(0),
        error: status.zip(code),
        reason: message.find(header::DEAD_REASON).unwrap_or_default().to_owned(),
        time: message.time,
        message,
    }
}
