//! `rankpin jobs results`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::submit::{Named, NamingArgs};
use super::{bar, file, ids, print};
use crate::cli::output;
use crate::client::jobs::{JobError, JobResult, Jobs};
use crate::core::id::RequestId;
use crate::nats::JetStreamError;

/// Jobs whose results are asked for one by one; of more, all results are read through.
const FEW: usize = 32;
/// Pause between two looks for results.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// Print results of jobs, or wait for them
///
/// One job's answer is printed as it is. Several are printed as lines of OpenAI's batch output: id, custom_id, response or
/// error. Where some have no result yet, that is told, and the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Ids of the jobs; none: all results that are kept
    #[arg(value_name = "ID", conflicts_with = "of")]
    ids: Vec<String>,

    /// The jobs of this file, as it was submitted (with the same --batch, --model and headers)
    #[arg(long, value_name = "FILE")]
    of: Option<PathBuf>,

    #[command(flatten)]
    naming: NamingArgs,

    /// Wait so long for results that are not there yet
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
}

const EXAMPLES: &str = "\
Examples:
  rankpin jobs results nightly-report --wait 5m
  rankpin jobs results --of batch.jsonl > results.jsonl
  rankpin jobs results --of batch.jsonl | jq -r .custom_id";

/// Prints what is wanted.
pub(super) async fn run(jobs: &Jobs, args: Args, json: bool) -> anyhow::Result<()> {
    let wanted = match &args.of {
        Some(path) => named(&file::read(path, &args.naming.read()?)?),
        None => ids(&args.ids)?.into_iter().map(|id| (id, None)).collect(),
    };
    if wanted.is_empty() {
        if args.wait.is_some() {
            bail!("--wait can have no effect: name the jobs, or their file with --of");
        }
        return print_all(jobs).await;
    }
    wait_and_print(jobs, &wanted, args.wait.unwrap_or_default(), json).await
}

/// Ids and names of a file's jobs.
pub(super) fn named(jobs: &[file::Job]) -> Named {
    jobs.iter().map(|job| (job.id.clone(), job.custom_id.clone())).collect()
}

async fn print_all(jobs: &Jobs) -> anyhow::Result<()> {
    let mut from = 1;
    while let Some(result) = jobs.next_result(from).await? {
        from = result.sequence + 1;
        if !print(true, &line(jobs, &result, None).await?, "")? {
            return Ok(());
        }
    }
    if from == 1 {
        // There are none, or there is no place for any.
        jobs.overview().await?;
    }
    Ok(())
}

/// Waits for results and prints each as it is found.
pub(super) async fn wait_and_print(jobs: &Jobs, wanted: &Named, wait: Duration, json: bool) -> anyhow::Result<()> {
    let until = Instant::now().checked_add(wait);
    let bar = bar(wanted.len(), "results");
    let mut missing: HashMap<&RequestId, Option<&str>> =
        wanted.iter().map(|(id, name)| (id, name.as_deref())).collect();
    let all = missing.len();
    let mut seen = 1;
    loop {
        for result in found_by(until, jobs, &missing, &mut seen).await? {
            let Some(name) = missing.remove(&result.id) else { continue };
            match (all, json) {
                (1, false) => print_one(jobs, &result).await?,
                _ if !print(true, &line(jobs, &result, name).await?, "")? => return Ok(()),
                _ => {}
            }
            bar.inc(1);
        }
        if missing.is_empty() {
            bar.finish_and_clear();
            return Ok(());
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            bar.finish_and_clear();
            let some = missing.keys().next().map(|id| RequestId::as_str(id)).unwrap_or_default();
            bail!("{} of {all} job(s) have no result yet, such as {some}", missing.len());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The same as [`found`], and nothing for now where there is no server: whoever waits longer may wait for that too.
async fn found_by(
    until: Option<Instant>,
    jobs: &Jobs,
    wanted: &HashMap<&RequestId, Option<&str>>,
    seen: &mut u64,
) -> anyhow::Result<Vec<JobResult>> {
    match found(jobs, wanted, seen).await {
        Err(JobError::Server(JetStreamError::Disconnected | JetStreamError::NoAnswer(_)))
            if until.is_none_or(|until| Instant::now() < until) =>
        {
            Ok(Vec::new())
        }
        found => Ok(found?),
    }
}

/// Results of these jobs that are there; `seen` is how far the stream was read.
async fn found(
    jobs: &Jobs,
    wanted: &HashMap<&RequestId, Option<&str>>,
    seen: &mut u64,
) -> Result<Vec<JobResult>, JobError> {
    let mut results = Vec::new();
    if wanted.len() <= FEW {
        for id in wanted.keys() {
            results.extend(jobs.result(id).await?);
        }
        return Ok(results);
    }
    while let Some(result) = jobs.next_result(*seen).await? {
        *seen = result.sequence + 1;
        if wanted.contains_key(&result.id) {
            results.push(result);
        }
    }
    Ok(results)
}

/// The answer as it is; parts of a streamed one as lines.
async fn print_one(jobs: &Jobs, result: &JobResult) -> anyhow::Result<()> {
    if let Some(failure) = &result.failure {
        bail!("job {} has failed: {} {}: {}", result.id, failure.status, failure.code, failure.message);
    }
    for message in jobs.replies(result).await? {
        if !output::is_read_raw(&[&message, b"\n"])? {
            break;
        }
    }
    Ok(())
}

/// A line of OpenAI's batch output.
async fn line(jobs: &Jobs, result: &JobResult, custom_id: Option<&str>) -> anyhow::Result<Value> {
    let mut line = json!({ "id": result.id.as_str(), "custom_id": custom_id, "response": null, "error": null });
    if let Some((worker, rank)) = &result.worker {
        line["worker"] = json!(worker);
        line["dp_rank"] = json!(rank);
    }
    line["attempt"] = json!(result.attempt);
    match &result.failure {
        Some(failure) => {
            line["error"] = json!({ "status": failure.status, "code": failure.code, "message": failure.message });
        }
        None => {
            let replies: Vec<Value> = jobs.replies(result).await?.iter().map(|reply| body(reply)).collect();
            line["response"] = match &replies[..] {
                [whole] => json!({ "status_code": 200, "body": whole }),
                parts => json!({ "status_code": 200, "parts": parts }),
            };
        }
    }
    Ok(line)
}

/// JSON as it is, any other text as a string.
fn body(payload: &[u8]) -> Value {
    serde_json::from_slice(payload).unwrap_or_else(|_| String::from_utf8_lossy(payload).into())
}
