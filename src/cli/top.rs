//! `rankpin top`: the cluster live, in the terminal.

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::bail;

use super::connection::Connection;
use super::{output, signals};
use crate::ops::routers;
use crate::top;

/// Watch a cluster live: ranks by load, rates, decisions, queue, what happens
///
/// Asks every router over NATS ($SRV.STATS) and adds up what they say; no addresses are needed. The same is on each
/// router's page, at / of its --listen address.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Pause between two looks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    every: Duration,

    /// Print JSON instead, an array with every router's state a line; with --count, so often
    #[arg(long)]
    json: bool,

    /// How many lines are printed with --json; without it, until stopped
    #[arg(long, value_name = "COUNT", requires = "json")]
    count: Option<u64>,

    #[command(flatten)]
    connection: Connection,
}

const EXAMPLES: &str = "\
Examples:
  rankpin top
  rankpin top --context prod --every 5s
  rankpin top --json --count 1 | jq '.[].requests'";

/// How long routers may take to answer.
const ANSWER_WAIT: Duration = Duration::from_millis(400);

/// Shows, or prints.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let link = args.connection.open("rankpin top").await?;
    let namespace = &args.connection.namespace;
    let stop = signals::stop()?;
    if !args.json {
        if !std::io::stdout().is_terminal() {
            bail!("stdout is no terminal; --json prints what it would show");
        }
        return Ok(top::show(&link, namespace, args.every, stop).await?);
    }
    let mut stop = std::pin::pin!(stop);
    let mut left = args.count;
    while left != Some(0) {
        // Both arms may be dropped: a look changes nothing.
        let states = tokio::select! {
            states = routers::ask(&link, namespace, ANSWER_WAIT) => states?,
            () = &mut stop => return Ok(()),
        };
        if !output::is_read(&output::json_line(&states))? {
            return Ok(());
        }
        left = left.map(|left| left - 1);
        if left != Some(0) {
            tokio::select! {
                () = tokio::time::sleep(args.every) => {}
                () = &mut stop => return Ok(()),
            }
        }
    }
    Ok(())
}
