//! `rankpin jobs`: durable jobs from the command line.

mod dead;
mod file;
mod results;
mod status;
mod submit;

use std::io::IsTerminal as _;

use anyhow::anyhow;
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::connection::Connection;
use super::output;
use crate::client::jobs::{Jobs, JobsOptions};
use crate::core::id::RequestId;
use crate::nats::access::DEFAULT_URL;

/// Submit durable jobs, and see to them: they survive crashes of routers, workers and servers
///
/// A job is a request that nobody waits for. It stands in a JetStream stream until a worker has done it, and its result
/// in another for a day. Every command may be given again: nothing is run twice for it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,

    /// Print JSON, one value a line
    #[arg(long, global = true)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

const EXAMPLES: &str = "\
Examples:
  rankpin jobs submit batch.jsonl --wait 10m
  rankpin jobs status
  rankpin jobs results --of batch.jsonl > results.jsonl
  rankpin jobs dead
  rankpin jobs requeue --all";

#[derive(Debug, Subcommand)]
enum Command {
    Submit(submit::Args),
    Status(status::Args),
    Results(results::Args),
    Cancel(status::CancelArgs),
    Dead(dead::Args),
    Requeue(dead::RequeueArgs),
}

/// Runs the command.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let jobs = open(&args.connection).await?;
    let json = args.json;
    match args.command {
        Command::Submit(args) => submit::run(&jobs, args, json).await,
        Command::Status(args) => status::run(&jobs, args, json).await,
        Command::Results(args) => results::run(&jobs, args, json).await,
        Command::Cancel(args) => status::cancel(&jobs, args, json).await,
        Command::Dead(args) => dead::run(&jobs, args, json).await,
        Command::Requeue(args) => dead::requeue(&jobs, args, json).await,
    }
}

async fn open(connection: &Connection) -> anyhow::Result<Jobs> {
    let mut options = JobsOptions::new(DEFAULT_URL);
    options.namespace = connection.namespace.clone();
    options.link = connection.link("rankpin jobs")?;
    Ok(Jobs::connect(options).await?)
}

fn id(text: &str) -> anyhow::Result<RequestId> {
    RequestId::new(text).map_err(|e| anyhow!("the job id {text:?} {e}"))
}

fn ids(texts: &[String]) -> anyhow::Result<Vec<RequestId>> {
    texts.iter().map(|text| id(text)).collect()
}

/// Writes one line to stdout; a JSON value, or words. Whether anybody still reads it.
fn print(json: bool, value: &Value, words: &str) -> anyhow::Result<bool> {
    output::is_read(&if json { output::json_line(value) } else { format!("{words}\n") })
}

/// A bar on a terminal; nothing elsewhere.
fn bar(length: usize, what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{msg} {bar:40} {pos} of {len}, {eta} to go").expect("the template is a constant");
    let bar = ProgressBar::new(length as u64).with_style(style);
    bar.set_message(what);
    bar
}
