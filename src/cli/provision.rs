//! `rankpin provision`: the buckets and streams, made once by an operator.

use serde_json::json;

use super::{output, router};
use crate::telemetry::logging::LogFormat;

/// Make the buckets and streams that routers need, where they are missing
///
/// Routers make them by themselves when they start (--provision auto). Where their user may not, as with the users of
/// `rankpin nats-permissions`, an operator makes them once with this, with the same configuration. What is there is
/// never changed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Prefix of this client's inboxes, where its user may not subscribe to all [default: _INBOX]
    #[arg(long, env = "RANKPIN_INBOX_PREFIX", value_name = "PREFIX")]
    inbox_prefix: Option<String>,

    #[command(flatten)]
    router: router::Flagged,
}

const EXAMPLES: &str = "\
Examples:
  rankpin provision
  rankpin provision --config rankpin.toml --context operator --inbox-prefix _INBOX.operator
  rankpin provision --jobs-replicas 3";

/// Makes them.
pub(super) async fn run(args: Args, log_format: Option<LogFormat>) -> anyhow::Result<()> {
    let mut config = args.router.resolve(log_format)?;
    config.access.inbox_prefix = args.inbox_prefix;
    let told = crate::router::provision(&config).await?;
    if args.json {
        return output::json(&json!({ "provisioned": told }));
    }
    told.iter().try_for_each(|line| output::line(line))
}
