//! Where the replies of a durable job go: into the stream of results, acknowledged by it (protocol section 6.2).

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use uuid::Uuid;

use super::dispatch::Dispatch;
use crate::nats::{Headers, JetStream, JetStreamError, Link};
use crate::wire::header;
use crate::wire::subject::Subjects;

/// How long one message is tried to be stored: servers restart, and a replicated stream elects a leader in that time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// The results of one attempt at a job.
#[derive(Debug)]
pub(super) struct Results {
    api: JetStream,
    /// `{ns}.result.{id}`.
    whole: String,
    /// `{ns}.result.{id}.{attempt}`.
    parts: String,
    /// What message ids of parts begin with: nobody else's, not even those of this attempt in an earlier life of the job.
    message_id: Uuid,
}

impl Results {
    /// Those of a dispatch, where it is a job's: its replies go to its own subject of the stream.
    pub fn of(dispatch: &Dispatch, subjects: &Subjects, link: &Link) -> Option<Self> {
        let parts = subjects.result_part(&dispatch.id, dispatch.attempt);
        if dispatch.reply_to.as_ref()?.as_str() != parts {
            return None;
        }
        Some(Self {
            api: JetStream::new(link.clone()),
            whole: subjects.result(&dispatch.id),
            parts,
            message_id: Uuid::now_v7(),
        })
    }

    /// Stores a part; the same one once, however often it is sent.
    pub async fn part(&self, seq: u64, mut headers: Headers, payload: Bytes) -> Result<(), String> {
        headers.set(header::MSG_ID, &format!("{}.{seq}", self.message_id));
        patiently(|| self.api.store(&self.parts, headers.clone(), payload.clone())).await
    }

    /// Stores the final message, where the job has none. Where it has one, by another attempt or because the server's
    /// answer was lost, the job is done all the same.
    pub async fn last(&self, headers: Headers, payload: Bytes) -> Result<(), String> {
        patiently(|| self.api.store_at(&self.whole, headers.clone(), payload.clone(), 0)).await
    }
}

async fn patiently<T, F>(store: impl Fn() -> F) -> Result<(), String>
where
    F: Future<Output = Result<T, JetStreamError>>,
{
    let until = Instant::now() + PATIENCE;
    loop {
        match store().await {
            Ok(_) | Err(JetStreamError::Lost) => return Ok(()),
            Err(problem) if Instant::now() >= until => return Err(problem.to_string()),
            Err(problem) => tracing::debug!(%problem, "a job's result can't be stored, trying on"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
