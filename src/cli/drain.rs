//! `rankpin drain`: a worker finishes what it has, and leaves.

use std::time::Duration;

use anyhow::{anyhow, bail};
use serde_json::json;

use super::connection::Connection;
use super::{output, signals};
use crate::core::id::WorkerId;
use crate::ops::drain;

/// Have a worker finish its requests and leave
///
/// The worker is asked over NATS and answers that it has begun: from then on routers send it nothing new, sessions that
/// are pinned to it move with their next turn, and what it has runs to its end. Then it deletes its registration and its
/// process ends with code 0. Where something starts it again at once (systemd, Kubernetes), it comes back as a new one.
/// Waits until it is gone.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The worker
    #[arg(value_name = "WORKER", required = true)]
    worker: String,

    /// Come back as soon as it has begun
    #[arg(long)]
    no_wait: bool,

    /// How long to wait until it is gone; what is still running then goes on
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = humantime::parse_duration)]
    timeout: Duration,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

const EXAMPLES: &str = "\
Examples:
  rankpin drain gpu-3
  rankpin drain gpu-3 --timeout 20m && systemctl stop vllm
  rankpin drain gpu-3 --no-wait --json";

/// Asks, and waits.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let worker = WorkerId::new(&args.worker).map_err(|e| anyhow!("the worker {:?} {e}", args.worker))?;
    let link = args.connection.open("rankpin drain").await?;
    let subjects = args.connection.subjects();
    let answer = drain::ask(&link, &subjects, &worker).await?;
    if !args.json {
        output::line(&format!("worker {worker} drains; it has {} requests", answer.held))?;
    }
    let gone = if args.no_wait {
        false
    } else {
        // Both arms may be dropped: waiting changes nothing.
        tokio::select! {
            gone = drain::wait(&link, &subjects, &answer, args.timeout) => gone?,
            () = signals::stop()? => bail!("stopped waiting; worker {worker} goes on draining"),
        }
    };
    if args.json {
        output::json(
            &json!({ "worker": answer.worker, "instance": answer.instance, "held": answer.held, "gone": gone }),
        )?;
    } else if gone {
        output::line(&format!("worker {worker} is gone"))?;
    }
    if !gone && !args.no_wait {
        let timeout = humantime::format_duration(args.timeout);
        bail!("worker {worker} is still there after {timeout}; it goes on draining");
    }
    Ok(())
}
