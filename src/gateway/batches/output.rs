//! The files that a batch leaves: a line for each request, answers in one, errors in the other.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt as _, DuplexStream};

use super::super::files::Files;
use super::record::{Record, Status};
use super::runner::{Entry, Stopped};
use crate::client::jobs::{JobResult, Jobs};

/// Bytes that are between the results and the object store.
const PIPE: usize = 1024 * 1024;
/// What a job's result says where it was cancelled.
const CANCELLED: u16 = 499;

#[derive(Serialize)]
struct Written<'r> {
    id: String,
    custom_id: &'r str,
    response: Option<Response<'r>>,
    error: Option<Value>,
}

#[derive(Serialize)]
struct Response<'r> {
    status_code: u16,
    request_id: &'r str,
    body: Body<'r>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Body<'r> {
    Raw(&'r RawValue),
    Text(std::borrow::Cow<'r, str>),
    Made(Value),
}

/// Ids of the files that were written; none of one that would be empty.
pub struct Outputs {
    /// Answers.
    pub output: Option<String>,
    /// Errors.
    pub errors: Option<String>,
}

/// Writes both files.
pub async fn write(jobs: &Jobs, files: &Files, record: &Record, entries: &[Entry]) -> Result<Outputs, Stopped> {
    let ids = ["output", "error"].map(|kind| format!("file-{}-{kind}", record.id));
    let names = ["output", "error"].map(|kind| format!("{}_{kind}.jsonl", record.id));
    let (answers, from_answers) = tokio::io::duplex(PIPE);
    let (errors, from_errors) = tokio::io::duplex(PIPE);
    let (poured, wrote, wrote_errors) = tokio::join!(
        pour(jobs, record, entries, answers, errors),
        files.write(&record.tenant, &ids[0], &names[0], from_answers),
        files.write(&record.tenant, &ids[1], &names[1], from_errors),
    );
    poured?;
    let sizes = [wrote?, wrote_errors?];
    let [output, errors] = ids;
    let mut written = Outputs { output: Some(output), errors: Some(errors) };
    for (size, id) in sizes.into_iter().zip([&mut written.output, &mut written.errors]) {
        if size == 0
            && let Some(empty) = id.take()
        {
            files.drop_file(&empty).await?;
        }
    }
    Ok(written)
}

async fn pour(
    jobs: &Jobs,
    record: &Record,
    entries: &[Entry],
    mut answers: DuplexStream,
    mut errors: DuplexStream,
) -> Result<(), Stopped> {
    for entry in entries {
        let mut result = match &entry.refused {
            Some(_) => None,
            None => jobs.result(&entry.job).await?,
        };
        // An answer that one message can't hold stands in several.
        if let Some(result) = result.as_mut().filter(|result| result.parts > 0)
            && let [whole] = &jobs.replies(result).await?[..]
        {
            result.payload = whole.clone();
        }
        let is_answer = result.as_ref().is_some_and(|result| result.failure.is_none());
        let mut line = serde_json::to_vec(&written(record, entry, result.as_ref())).expect("a line is plain data");
        line.push(b'\n');
        let into = if is_answer { &mut answers } else { &mut errors };
        into.write_all(&line).await.map_err(|error| Stopped::Later(error.to_string()))?;
    }
    for mut file in [answers, errors] {
        file.shutdown().await.map_err(|error| Stopped::Later(error.to_string()))?;
    }
    Ok(())
}

fn written<'r>(record: &Record, entry: &'r Entry, result: Option<&'r JobResult>) -> Written<'r> {
    let line = |response, error| Written {
        id: format!("batch_req_{}", entry.job),
        custom_id: &entry.custom_id,
        response,
        error,
    };
    let error = |code: &str, message: &str| json!({"code": code, "message": message});
    if let Some((status_code, code, message)) = &entry.refused {
        let body = Body::Made(json!({"error": {"message": message, "type": "invalid_request_error", "code": code}}));
        return line(Some(Response { status_code: *status_code, request_id: entry.job.as_str(), body }), None);
    }
    let Some(result) = result else {
        return line(
            None,
            Some(match record.status {
                _ if record.out_of_time => {
                    error("batch_expired", "the batch's time was up before this request was done")
                }
                Status::Cancelling | Status::Cancelled => error("batch_cancelled", "the batch was cancelled"),
                Status::Validating
                | Status::Failed
                | Status::InProgress
                | Status::Finalizing
                | Status::Completed
                | Status::Expired => error("result_lost", "the result of this request was not kept long enough"),
            }),
        );
    };
    match &result.failure {
        Some(failure) if failure.status == CANCELLED && record.out_of_time => {
            line(None, Some(error("batch_expired", "the batch's time was up before this request was done")))
        }
        Some(failure) if failure.status == CANCELLED => {
            line(None, Some(error("batch_cancelled", "the batch was cancelled before this request was done")))
        }
        failure => {
            let status_code = failure.as_ref().map_or(200, |failure| failure.status);
            let body = match (failure, serde_json::from_slice::<&RawValue>(&result.payload)) {
                // A redirect, or an error without a word.
                (Some(failure), _) if result.payload.is_empty() => Body::Made(
                    json!({"error": {"message": failure.message, "type": "server_error", "code": failure.code}}),
                ),
                (_, Ok(raw)) => Body::Raw(raw),
                (_, Err(_)) => Body::Text(String::from_utf8_lossy(&result.payload)),
            };
            line(Some(Response { status_code, request_id: entry.job.as_str(), body }), None)
        }
    }
}
