//! `rankpin jobs status` and `rankpin jobs cancel`.

use anyhow::bail;
use serde_json::{Value, json};

use super::{ids, print};
use crate::client::jobs::{Cancelled, Jobs, Status};
use crate::core::id::RequestId;

/// Tell where jobs are: pending, running, done, dead
///
/// Running are those that a router has, or has given back for a while (no worker, no room). Without ids, all jobs in
/// numbers; those that are done and dead are of the last day, as long as results are kept. Ends with code 1 where an id is
/// unknown.
#[derive(Debug, clap::Args)]
#[command(after_long_help = STATUS_EXAMPLES)]
pub struct Args {
    /// Ids of the jobs; none: all, in numbers
    #[arg(value_name = "ID")]
    ids: Vec<String>,
}

const STATUS_EXAMPLES: &str = "\
Examples:
  rankpin jobs status
  rankpin jobs status nightly-report
  rankpin jobs status --json | jq .pending";

/// Cancel jobs, whether they wait or run
///
/// Their result becomes an error 499 cancelled. A job that has its result already is left alone, and told.
#[derive(Debug, clap::Args)]
#[command(after_long_help = CANCEL_EXAMPLES)]
pub struct CancelArgs {
    /// Ids of the jobs
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

const CANCEL_EXAMPLES: &str = "\
Examples:
  rankpin jobs cancel nightly-report";

/// Tells what is asked.
pub(super) async fn run(jobs: &Jobs, args: Args, json: bool) -> anyhow::Result<()> {
    if args.ids.is_empty() {
        let all = jobs.overview().await?;
        let value = json!({ "pending": all.pending, "running": all.running, "done": all.done, "dead": all.dead });
        let words =
            format!("pending  {}\nrunning  {}\ndone     {}\ndead     {}", all.pending, all.running, all.done, all.dead);
        return print(json, &value, &words).map(drop);
    }
    let mut unknown = 0;
    for id in ids(&args.ids)? {
        let status = jobs.status(&id).await?;
        unknown += usize::from(matches!(status, Status::Unknown));
        let (value, words) = told(&id, &status);
        print(json, &value, &words)?;
    }
    all_known(unknown)
}

fn all_known(unknown: usize) -> anyhow::Result<()> {
    if unknown > 0 {
        bail!("{unknown} of the jobs are not there");
    }
    Ok(())
}

fn told(id: &RequestId, status: &Status) -> (Value, String) {
    let waits = |word: &str, failures: u32| {
        let value = json!({ "id": id.as_str(), "status": word, "failures": failures });
        let failed = if failures > 0 { format!(", has failed {failures} time(s)") } else { String::new() };
        (value, format!("{id}  {word}{failed}"))
    };
    match status {
        Status::Pending { failures } => waits("pending", *failures),
        Status::Running { failures } => waits("running", *failures),
        Status::Done(result) => {
            let error =
                result.failure.as_ref().map(|f| json!({ "status": f.status, "code": f.code, "message": f.message }));
            let value = json!({ "id": id.as_str(), "status": "done", "attempt": result.attempt, "error": error });
            let words = match &result.failure {
                Some(failure) => {
                    format!("{id}  done, with error {} {}: {}", failure.status, failure.code, failure.message)
                }
                None => format!("{id}  done"),
            };
            (value, words)
        }
        Status::Dead(letter) => {
            let value = json!({
                "id": id.as_str(), "status": "dead", "failures": letter.failures, "reason": letter.reason,
            });
            (value, format!("{id}  dead after {} failures: {}", letter.failures, letter.reason))
        }
        Status::Unknown => (json!({ "id": id.as_str(), "status": "unknown" }), format!("{id}  unknown")),
    }
}

/// Cancels what is named.
pub(super) async fn cancel(jobs: &Jobs, args: CancelArgs, json: bool) -> anyhow::Result<()> {
    let mut unknown = 0;
    for id in ids(&args.ids)? {
        let word = match jobs.status(&id).await? {
            // A result under an id that no job has would keep one that is submitted later from running.
            Status::Unknown => {
                unknown += 1;
                "unknown"
            }
            Status::Done(_) | Status::Dead(_) => "too late, it has its result",
            Status::Pending { .. } | Status::Running { .. } => match jobs.cancel(&id).await? {
                Cancelled::Yes => "cancelled",
                Cancelled::TooLate => "too late, it has its result",
            },
        };
        print(json, &json!({ "id": id.as_str(), "cancelled": word == "cancelled" }), &format!("{id}  {word}"))?;
    }
    all_known(unknown)
}
