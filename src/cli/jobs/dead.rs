//! `rankpin jobs dead` and `rankpin jobs requeue`.

use anyhow::bail;
use serde_json::json;

use super::{ids, print};
use crate::client::jobs::{DeadLetter, Jobs, Requeued};
use crate::core::id::RequestId;
use crate::wire::subject::decode_model;

/// List jobs that were given up after five failures, with the last one
#[derive(Debug, clap::Args)]
#[command(after_long_help = DEAD_EXAMPLES)]
pub struct Args {
    /// Most that are listed, the oldest first
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    limit: usize,
}

const DEAD_EXAMPLES: &str = "\
Examples:
  rankpin jobs dead
  rankpin jobs dead --json | jq -r .id";

/// Send dead jobs again, with no failures
///
/// What stands as the result of a dead job, its error, is taken away, and so is its dead letter.
#[derive(Debug, clap::Args)]
#[command(after_long_help = REQUEUE_EXAMPLES)]
pub struct RequeueArgs {
    /// Ids of the jobs
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,

    /// All that are dead
    #[arg(long)]
    all: bool,
}

const REQUEUE_EXAMPLES: &str = "\
Examples:
  rankpin jobs requeue nightly-report
  rankpin jobs requeue --all";

/// Lists them.
pub(super) async fn run(jobs: &Jobs, args: Args, json: bool) -> anyhow::Result<()> {
    let mut from = 1;
    for _ in 0..args.limit {
        let Some(letter) = jobs.next_dead(from).await? else { break };
        from = letter.sequence + 1;
        let id = letter.id.as_ref().map_or("?", RequestId::as_str);
        let (status, code) = letter.error.clone().unwrap_or_default();
        let time = humantime::format_rfc3339_seconds(letter.time).to_string();
        let value = json!({
            "id": letter.id.as_ref().map(RequestId::as_str),
            "model": model(&letter),
            "failures": letter.failures,
            "status": status,
            "code": code,
            "reason": letter.reason,
            "time": time,
            "sequence": letter.sequence,
        });
        print(json, &value, &format!("{time}  {id}  {}  {status} {code}: {}", model(&letter), letter.reason))?;
    }
    if from == 1 {
        // There are none, or there is no place for any.
        jobs.overview().await?;
    }
    Ok(())
}

fn model(letter: &DeadLetter) -> String {
    let token = letter.model_token();
    decode_model(token).map_or_else(|_| token.to_owned(), |model| model.to_string())
}

/// Sends them again.
pub(super) async fn requeue(jobs: &Jobs, args: RequeueArgs, json: bool) -> anyhow::Result<()> {
    let mut wanted = ids(&args.ids)?;
    let mut from = 1;
    while args.all || !wanted.is_empty() {
        let Some(letter) = jobs.next_dead(from).await? else { break };
        from = letter.sequence + 1;
        let Some(id) = &letter.id else { continue };
        if !args.all && !wanted.contains(id) {
            continue;
        }
        let word = match jobs.requeue(&letter).await? {
            Requeued::Yes => "requeued",
            Requeued::Answered => "has an answer already",
        };
        print(json, &json!({ "id": id.as_str(), "requeued": word == "requeued" }), &format!("{id}  {word}"))?;
        wanted.retain(|other| other != id);
    }
    if let Some(id) = wanted.first() {
        bail!("{} of the jobs are not dead, such as {id}", wanted.len());
    }
    Ok(())
}
