//! `/v1/batches`: many requests in a file, done as durable jobs.
//!
//! A batch is a [`record`] in a bucket. Some gateway's [`runner`] takes it, reads its [`lines`], submits them as jobs, waits
//! for their results and writes them down ([`output`]). Gateways may come and go meanwhile.

mod lines;
mod output;
mod record;
mod runner;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

use self::record::{Counts, Record, Records, Status, now_s, unreachable};
pub use self::runner::Runner;
use super::api::Api;
use super::files::Files;
use super::problem::Problem;
use crate::client::jobs::Jobs;
use crate::nats::bucket::{Bucket, CasError};

/// Shortest and longest time that a batch may be given. Results of jobs are kept for a day.
const WINDOW: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));
/// Most pairs that a client may keep with a batch, and bytes of each.
const MAX_METADATA: (usize, usize) = (16, 512);
/// Most races for a record that are run again.
const MAX_RACES: u32 = 8;

/// Batches and their files.
#[derive(Debug)]
pub struct Batches {
    /// The files.
    pub files: Files,
    records: Records,
    runner: Arc<Runner>,
}

#[derive(Deserialize)]
// What is not done here is refused rather than left out.
#[serde(deny_unknown_fields)]
struct Wanted {
    input_file_id: String,
    endpoint: String,
    completion_window: String,
    metadata: Option<BTreeMap<String, String>>,
}

impl Batches {
    /// Over these files, records and jobs.
    pub fn new(files: Files, records: Records, jobs: Jobs) -> Self {
        let runner = Arc::new(Runner {
            own: uuid::Uuid::now_v7().simple().to_string(),
            records: records.clone(),
            files: files.clone(),
            jobs,
            wake: Notify::new(),
            running: Mutex::new(HashSet::new()),
        });
        Self { files, records, runner }
    }

    /// Records in this bucket, which is made so where it is missing.
    pub fn records(bucket: Bucket, max_age: Duration, replicas: usize) -> Records {
        Records::new(bucket, max_age, replicas)
    }

    /// What works on the batches.
    pub fn runner(&self) -> Arc<Runner> {
        Arc::clone(&self.runner)
    }

    /// Makes a batch.
    pub async fn create(&self, tenant: &str, body: &[u8]) -> Result<Value, Problem> {
        // An array would be read as the fields in their order.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::invalid("the body is no JSON object of a batch"));
        }
        let wanted: Wanted = serde_json::from_slice(body)
            .map_err(|error| Problem::invalid(format!("the body is none of a batch: {error}")))?;
        let takes_batches = |api: Api| api != Api::CountTokens;
        if !Api::of_path(&wanted.endpoint).is_some_and(takes_batches) {
            let paths: Vec<&str> = Api::ALL.into_iter().filter(|api| takes_batches(*api)).map(Api::path).collect();
            return Err(Problem::invalid(format!(
                "the endpoint is {:?}; batches are for {}",
                wanted.endpoint,
                paths.join(", ")
            )));
        }
        let window = humantime::parse_duration(&wanted.completion_window).ok();
        let window = window.filter(|window| (WINDOW.0..=WINDOW.1).contains(window)).ok_or_else(|| {
            Problem::invalid(format!("the completion_window is {:?}; allowed is 1m to 24h", wanted.completion_window))
        })?;
        let metadata = wanted.metadata.unwrap_or_default();
        let (most, longest) = MAX_METADATA;
        if metadata.len() > most || metadata.iter().any(|(key, value)| key.len().max(value.len()) > longest) {
            return Err(Problem::invalid(format!("metadata is at most {most} pairs of at most {longest} bytes each")));
        }
        self.files.has(tenant, &wanted.input_file_id).await?;
        let created_at = now_s();
        let record = Record {
            v: 1,
            id: format!("batch_{}", uuid::Uuid::now_v7().simple()),
            tenant: tenant.to_owned(),
            endpoint: wanted.endpoint,
            input_file_id: wanted.input_file_id,
            completion_window: wanted.completion_window,
            status: Status::Validating,
            out_of_time: false,
            output_file_id: None,
            error_file_id: None,
            errors: Vec::new(),
            created_at,
            expires_at: created_at + window.as_secs(),
            times: BTreeMap::new(),
            request_counts: Counts::default(),
            metadata,
            lease: None,
        };
        self.records.create(&record).await?;
        self.runner.wake.notify_one();
        Ok(record.show())
    }

    async fn find(&self, tenant: &str, id: &str) -> Result<(Record, u64), Problem> {
        let found = self.records.get(id).await.map_err(|error| unreachable(&error))?;
        found
            .filter(|(record, _)| record.tenant == tenant)
            .ok_or_else(|| Problem::not_found("unknown_batch", format!("there is no batch {id:?}, or no longer")))
    }

    /// How far a batch has come.
    pub async fn show(&self, tenant: &str, id: &str) -> Result<Value, Problem> {
        Ok(self.find(tenant, id).await?.0.show())
    }

    /// A tenant's batches, the newest first.
    pub async fn list(&self, tenant: &str) -> Result<Vec<Value>, Problem> {
        let all = self.records.all().await.map_err(|error| unreachable(&error))?;
        let mut own: Vec<Record> =
            all.into_iter().map(|(record, _)| record).filter(|record| record.tenant == tenant).collect();
        own.sort_by(|a, b| b.id.cmp(&a.id));
        Ok(own.iter().map(Record::show).collect())
    }

    /// Cancels a batch. What has no result yet gets none.
    pub async fn cancel(&self, tenant: &str, id: &str) -> Result<Value, Problem> {
        for _ in 0..MAX_RACES {
            let (mut record, revision) = self.find(tenant, id).await?;
            match record.status {
                Status::Cancelling => return Ok(record.show()),
                Status::Validating | Status::InProgress => record.enter(Status::Cancelling),
                status @ (Status::Finalizing
                | Status::Failed
                | Status::Completed
                | Status::Expired
                | Status::Cancelled) => {
                    let message = format!("the batch is {status:?} and can't be cancelled any more");
                    return Err(Problem::new(axum::http::StatusCode::CONFLICT, "batch_done", message));
                }
            }
            match self.records.put(&record, revision).await {
                Ok(_) => {
                    self.runner.wake.notify_one();
                    return Ok(record.show());
                }
                // Its runner has just said how far it is.
                Err(CasError::Lost) => {}
                Err(error @ (CasError::Unreachable(_) | CasError::Refused(_))) => return Err(unreachable(&error)),
            }
        }
        Err(unreachable(&"its record is changed all the time"))
    }
}
