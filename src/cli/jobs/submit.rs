//! `rankpin jobs submit`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use futures_util::StreamExt as _;
use serde_json::json;

use super::file::{self, Job, Naming};
use super::{bar, print, results};
use crate::client::Request;
use crate::client::jobs::{JobError, Jobs, Submitted};
use crate::core::id::{Model, RequestId};
use crate::wire::header;

/// Jobs that are on their way into the stream at once.
const IN_FLIGHT: usize = 64;

/// Submit one body, or a file of many
///
/// A file holds one JSON body, one body a line (JSONL), or lines of OpenAI's batch format (custom_id and body). Each job
/// gets an id that is made of what it is, so that the same file submitted again runs nothing twice. Prints the id of each
/// job.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub(super) source: Source,

    /// Id of the job, 1 to 64 of A-Z a-z 0-9 _ -, where it is only one
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// Wait so long for the results, and print them
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
}

/// Where jobs come from, and what makes their ids.
#[derive(Debug, clap::Args)]
pub(super) struct Source {
    /// The file; - or nothing is standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    #[command(flatten)]
    naming: NamingArgs,
}

/// What makes the ids of a file's jobs, besides its lines.
#[derive(Debug, clap::Args)]
pub(super) struct NamingArgs {
    /// Name of the batch: the same file under another name is run anew
    #[arg(long, value_name = "NAME", default_value = "")]
    batch: String,

    /// The model; without it, the one that each body names
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// A header of each job, 'Name: value', such as a session; may be given several times
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    headers: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  rankpin jobs submit body.json --id nightly-report
  rankpin jobs submit batch.jsonl
  rankpin jobs submit batch.jsonl --batch second-try --wait 1h > results.jsonl
  echo '{\"model\":\"my-model\",\"messages\":[]}' | rankpin jobs submit -H 'Rankpin-Session-Id: chat-1'";

/// Submits what is given.
pub(super) async fn run(jobs: &Jobs, args: Args, json: bool) -> anyhow::Result<()> {
    let naming = args.source.naming.read()?;
    let path = args.source.file.unwrap_or_else(|| "-".into());
    let mut wanted = file::read(&path, &naming)?;
    if let Some(id) = &args.id {
        let [job] = &mut wanted[..] else {
            return Err(anyhow!("--id names one job, {} holds {}", path.display(), wanted.len()));
        };
        job.id = super::id(id)?;
    }
    let submitted = submit(jobs, &wanted, &naming).await?;
    let known = submitted.iter().filter(|submitted| submitted.duplicate).count();
    if let Some(wait) = args.wait {
        report(wanted.len(), known);
        return results::wait_and_print(jobs, &results::named(&wanted), wait, json).await;
    }
    for (job, submitted) in wanted.iter().zip(&submitted) {
        let value = json!({
            "id": job.id.as_str(),
            "custom_id": job.custom_id,
            "sequence": submitted.sequence,
            "duplicate": submitted.duplicate,
        });
        let words = match &job.custom_id {
            Some(name) => format!("{}\t{name}", job.id),
            None => job.id.to_string(),
        };
        print(json, &value, &words)?;
    }
    report(wanted.len(), known);
    Ok(())
}

fn report(all: usize, known: usize) {
    let known = if known > 0 { format!(", {known} of them had been submitted before") } else { String::new() };
    eprintln!("{all} job(s) submitted{known}");
}

/// Submits jobs; the answers come in their order.
async fn submit(jobs: &Jobs, wanted: &[Job], naming: &Naming) -> anyhow::Result<Vec<Submitted>> {
    let bar = bar(wanted.len(), "submitting");
    let sent = futures_util::stream::iter(wanted).map(|job| async move {
        let submitted = jobs.submit(&request(job, naming)).await;
        submitted.map_err(|error| {
            let advice = match error {
                JobError::Server(_) | JobError::Body(_) => "; submit the same again, nothing runs twice",
                JobError::TooLarge { .. } => "; batches of a gateway take larger bodies (POST /v1/batches)",
                JobError::NoModel => "",
            };
            anyhow!(error).context(format!("job {} can't be submitted{advice}", job.id))
        })
    });
    let mut sent = sent.buffered(IN_FLIGHT);
    let mut submitted = Vec::with_capacity(wanted.len());
    while let Some(one) = sent.next().await {
        submitted.push(one?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(submitted)
}

fn request(job: &Job, naming: &Naming) -> Request {
    let request = Request::new(job.model.clone(), job.body.clone()).request_id(job.id.clone());
    let is_path = |(name, _): &(String, String)| name.eq_ignore_ascii_case(header::PATH);
    let request = match job.api {
        Some(api) if !naming.headers.iter().any(is_path) => request.header(header::PATH, api.path()),
        Some(_) | None => request,
    };
    naming.headers.iter().fold(request, |request, (name, value)| request.header(name, value))
}

impl NamingArgs {
    pub(super) fn read(&self) -> anyhow::Result<Naming> {
        let model = self.model.as_deref().map(Model::new).transpose().map_err(|e| anyhow!("--model {e}"))?;
        let split = |header: &String| {
            let (name, value) = header.split_once(':').ok_or_else(|| anyhow!("-H {header:?}: write 'Name: value'"))?;
            let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
            let own = ["rankpin-request-id", "nats-msg-id"].iter().any(|own| name.eq_ignore_ascii_case(own));
            if own {
                Err(anyhow!("-H {header:?}: jobs get their ids from what they are, or with --id"))
            } else {
                Ok((name, value))
            }
        };
        let headers = self.headers.iter().map(split).collect::<anyhow::Result<_>>()?;
        Ok(Naming { batch: self.batch.clone(), model, headers })
    }
}

/// The ids of a file's jobs, with what the file calls them.
pub(super) type Named = Vec<(RequestId, Option<String>)>;
