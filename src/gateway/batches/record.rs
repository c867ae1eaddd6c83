//! What is kept of a batch, in the bucket `{ns}_batches`: any gateway can show it, and go on with it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::problem::Problem;
use crate::nats::bucket::{Bucket, CasError, Look, Unreachable};

/// Largest number of errors that a batch tells.
pub const MAX_ERRORS: usize = 50;

/// How far a batch has come, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its file is looked at.
    Validating,
    /// Its file is wrong.
    Failed,
    /// Its requests run.
    InProgress,
    /// Its results are written.
    Finalizing,
    /// Its results are there.
    Completed,
    /// Its time was up; the results of what was done are there.
    Expired,
    /// It is being cancelled.
    Cancelling,
    /// It was cancelled; the results of what was done are there.
    Cancelled,
}

impl Status {
    /// Whether nothing more happens.
    pub fn is_final(self) -> bool {
        match self {
            Self::Failed | Self::Completed | Self::Expired | Self::Cancelled => true,
            Self::Validating | Self::InProgress | Self::Finalizing | Self::Cancelling => false,
        }
    }
}

/// One error of a batch's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineError {
    /// The code word.
    pub code: String,
    /// Words for people.
    pub message: String,
    /// The line, from 1.
    pub line: Option<u64>,
}

/// How many requests there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// In all.
    pub total: u64,
    /// With an answer.
    pub completed: u64,
    /// With an error.
    pub failed: u64,
}

/// Which gateway works on a batch, and until when nobody else does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The gateway's process.
    pub by: String,
    /// Unix time in ms.
    pub until_ms: u64,
}

/// A batch. Times are unix times in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this record.
    pub v: u32,
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub tenant: String,
    /// The path that its requests are for.
    pub endpoint: String,
    /// The file of its requests.
    pub input_file_id: String,
    /// How long it may take, as it was written.
    pub completion_window: String,
    /// How far it has come.
    pub status: Status,
    /// Whether its time was up before it was done.
    #[serde(default)]
    pub out_of_time: bool,
    /// The file of its answers.
    pub output_file_id: Option<String>,
    /// The file of its errors.
    pub error_file_id: Option<String>,
    /// What is wrong with its file.
    #[serde(default)]
    pub errors: Vec<LineError>,
    /// When it was made.
    pub created_at: u64,
    /// When its time is up.
    pub expires_at: u64,
    /// When it came to each of its other states, by their names.
    #[serde(default)]
    pub times: BTreeMap<String, u64>,
    /// How many requests there are.
    #[serde(default)]
    pub request_counts: Counts,
    /// What the client keeps with it.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Who works on it.
    pub lease: Option<Lease>,
}

impl Record {
    /// Takes it to a state, and notes when.
    pub fn enter(&mut self, status: Status) {
        let name = match status {
            Status::Validating => "validating_at",
            Status::Failed => "failed_at",
            Status::InProgress => "in_progress_at",
            Status::Finalizing => "finalizing_at",
            Status::Completed => "completed_at",
            Status::Expired => "expired_at",
            Status::Cancelling => "cancelling_at",
            Status::Cancelled => "cancelled_at",
        };
        self.status = status;
        self.times.entry(name.to_owned()).or_insert_with(now_s);
    }

    /// As OpenAI's API shows it.
    pub fn show(&self) -> Value {
        let errors = (!self.errors.is_empty()).then(|| {
            let shown = |error: &LineError| {
                json!({"code": error.code, "message": error.message, "line": error.line, "param": null})
            };
            json!({"object": "list", "data": self.errors.iter().map(shown).collect::<Vec<_>>()})
        });
        let time = |name: &str| self.times.get(name);
        json!({
            "id": self.id, "object": "batch", "endpoint": self.endpoint, "errors": errors,
            "input_file_id": self.input_file_id, "completion_window": self.completion_window, "status": self.status,
            "output_file_id": self.output_file_id, "error_file_id": self.error_file_id, "created_at": self.created_at,
            "in_progress_at": time("in_progress_at"), "expires_at": self.expires_at,
            "finalizing_at": time("finalizing_at"), "completed_at": time("completed_at"),
            "failed_at": time("failed_at"), "expired_at": time("expired_at"),
            "cancelling_at": time("cancelling_at"), "cancelled_at": time("cancelled_at"),
            "request_counts": self.request_counts, "metadata": self.metadata,
        })
    }
}

/// Unix time in seconds.
pub fn now_s() -> u64 {
    now_ms() / 1000
}

/// Unix time in ms.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The bucket of batches.
#[derive(Debug, Clone)]
pub struct Records {
    bucket: Bucket,
    max_age: Duration,
    replicas: usize,
}

impl Records {
    /// Batches in this bucket, which is made so where it is missing.
    pub fn new(bucket: Bucket, max_age: Duration, replicas: usize) -> Self {
        Self { bucket, max_age, replicas }
    }

    /// Keeps a new batch.
    pub async fn create(&self, record: &Record) -> Result<(), Problem> {
        if self.bucket.look().await == Look::Missing {
            // Another gateway may make it at the same moment: then this fails, and what comes next does not.
            let _ = self.bucket.create_on(self.replicas, 1, self.max_age, "").await;
        }
        self.put(record, 0).await.map(drop).map_err(|error| unreachable(&error))
    }

    /// Keeps what has become of a batch, where nobody else has since.
    pub async fn put(&self, record: &Record, revision: u64) -> Result<u64, CasError> {
        let value = serde_json::to_vec(record).expect("a record is plain data");
        self.bucket.put_at(&record.id, value.into(), revision).await
    }

    /// A batch with its revision.
    pub async fn get(&self, id: &str) -> Result<Option<(Record, u64)>, Unreachable> {
        let is_id = id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !is_id || self.bucket.look().await == Look::Missing {
            return Ok(None);
        }
        let stored = self.bucket.read_leader(id).await?;
        Ok(stored.and_then(|stored| Some((serde_json::from_slice(&stored.value?).ok()?, stored.revision))))
    }

    /// All batches with their revisions. What is no batch is somebody else's, and passed over.
    pub async fn all(&self) -> Result<Vec<(Record, u64)>, Unreachable> {
        if self.bucket.look().await == Look::Missing {
            return Ok(Vec::new());
        }
        let all = self.bucket.all().await?.into_iter().map(|change| change.stored);
        let read = |value: bytes::Bytes| serde_json::from_slice::<Record>(&value).ok();
        Ok(all.filter_map(|stored| Some((read(stored.value?)?, stored.revision))).collect())
    }
}

/// The bucket can't be used.
pub fn unreachable(error: &dyn std::fmt::Display) -> Problem {
    Problem::unavailable("batch_store", format!("batches can't be read or kept at the moment: {error}"))
}
