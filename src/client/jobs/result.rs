//! The result of a job, as it stands in the stream.

use std::time::SystemTime;

use bytes::{Bytes, BytesMut};

use super::{JobError, Jobs};
use crate::core::id::RequestId;
use crate::nats::jetstream::{Get, StoredMessage};
use crate::wire::reply::{ReplyHead, error_message};

/// Most parts of one answer that are read.
const MAX_PARTS: usize = 1_000_000;

/// The final result of a job.
#[derive(Debug, Clone)]
pub struct JobResult {
    /// The job.
    pub id: RequestId,
    /// The attempt that it is of; 0 where there was none.
    pub attempt: u32,
    /// Why there is no answer, where there is none.
    pub failure: Option<JobFailure>,
    /// Who answered: worker and rank.
    pub worker: Option<(String, Option<u16>)>,
    /// Media type of the answer.
    pub content_type: Option<String>,
    /// What its last message holds: the whole answer where there are no parts, else what is left of it, which may be nothing.
    /// [`Jobs::replies`] has all of it.
    pub payload: Bytes,
    /// Number of messages before the last one: the parts of an answer that is streamed, or that one message can't hold.
    pub parts: u64,
    /// When it was stored, by the server's clock.
    pub stored: SystemTime,
    /// Its sequence in the stream.
    pub sequence: u64,
}

/// Why a job has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFailure {
    /// Status, as in HTTP.
    pub status: u16,
    /// The code word.
    pub code: String,
    /// Words for people.
    pub message: String,
}

impl Jobs {
    /// The final result of a job, where it has one.
    pub async fn result(&self, id: &RequestId) -> Result<Option<JobResult>, JobError> {
        let (results, subject) = (self.results(), self.subjects.result(id));
        let stored = self.insistently(|| self.api.get(&results, Get::Last(&subject))).await?;
        Ok(stored.map(|message| read(id.clone(), message)))
    }

    /// The first final result in the stream from a sequence on, whosesoever it is.
    pub async fn next_result(&self, from: u64) -> Result<Option<JobResult>, JobError> {
        let (results, subject) = (self.results(), self.subjects.final_results());
        let mut from = from;
        loop {
            let stored = self.insistently(|| self.api.get(&results, Get::Next(from, &subject))).await?;
            let Some(message) = stored else { return Ok(None) };
            from = message.sequence + 1;
            let id = message.subject.rsplit_once('.').and_then(|(_, id)| RequestId::new(id).ok());
            // Somebody else's message under a name that no job can have.
            let Some(id) = id else { continue };
            return Ok(Some(read(id, message)));
        }
    }

    /// The replies of an answer, in order: of a streamed one each server-sent event's data, of any other the whole, in however
    /// many messages it came.
    pub async fn replies(&self, result: &JobResult) -> Result<Vec<Bytes>, JobError> {
        let mut replies = Vec::new();
        let mut begun = BytesMut::new();
        for (payload, continues) in self.messages(result).await? {
            if begun.is_empty() && !continues {
                replies.push(payload);
                continue;
            }
            begun.extend_from_slice(&payload);
            if !continues {
                replies.push(begun.split().freeze());
            }
        }
        if !begun.is_empty() {
            begun.extend_from_slice(&result.payload);
            replies.push(begun.freeze());
        } else if !result.payload.is_empty() || replies.is_empty() {
            replies.push(result.payload.clone());
        }
        Ok(replies)
    }

    /// The messages before the last one, in order, and whether each goes on in the next.
    async fn messages(&self, result: &JobResult) -> Result<Vec<(Bytes, bool)>, JobError> {
        let subject = self.subjects.result_part(&result.id, result.attempt);
        let results = self.results();
        let mut parts = Vec::new();
        let mut from = 1;
        while (parts.len() as u64) < result.parts && parts.len() < MAX_PARTS {
            let stored = self.insistently(|| self.api.get(&results, Get::Next(from, &subject))).await?;
            let Some(message) = stored else { break };
            from = message.sequence + 1;
            let Ok(headers) = message.headers() else { continue };
            let head = ReplyHead::read(headers.iter());
            if let Some(seq) = head.seq {
                parts.push((seq, message.payload, head.continues));
            }
        }
        // They were acknowledged one by one, so this is how they stand; a worker of another make may not wait.
        parts.sort_by_key(|(seq, ..)| *seq);
        Ok(parts.into_iter().map(|(_, payload, continues)| (payload, continues)).collect())
    }

    pub(super) fn results(&self) -> String {
        self.subjects.results_stream()
    }
}

fn read(id: RequestId, message: StoredMessage) -> JobResult {
    let head = message.headers().map(|headers| ReplyHead::read(headers.iter())).unwrap_or_default();
    let failure = head.error.map(|(status, code)| {
        let words = error_message(&message.payload).unwrap_or_else(|| code.clone());
        JobFailure { status, code, message: words }
    });
    JobResult {
        id,
        attempt: head.attempt.unwrap_or(0),
        worker: head.worker.map(|worker| (worker, head.dp_rank)),
        content_type: head.content_type,
        // An error may come after some parts, which are worth nothing without their end.
        parts: if failure.is_none() { head.seq.unwrap_or(0) } else { 0 },
        failure,
        payload: message.payload,
        stored: message.time,
        sequence: message.sequence,
    }
}
