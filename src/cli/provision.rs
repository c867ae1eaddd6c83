//! `rankpin provision`: the buckets and streams, made once by an operator.

use std::time::Duration;

use serde_json::json;

use super::{output, router};
use crate::nats::Link;
use crate::ops::stores;
use crate::telemetry::logging::LogFormat;

/// Make the buckets and streams that routers and gateways need, where they are missing
///
/// Routers make theirs by themselves when they start (--provision auto), gateways when they first need them. Where their
/// users may not, as with those of `rankpin nats-permissions`, an operator makes them once with this, with the routers'
/// configuration. What is there is never changed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Prefix of this client's inboxes, where its user may not subscribe to all [default: _INBOX]
    #[arg(long, env = "RANKPIN_INBOX_PREFIX", value_name = "PREFIX")]
    inbox_prefix: Option<String>,

    /// How long a body that a message can't hold may lie in the object store (the gateways' bodies_max_age)
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = humantime::parse_duration)]
    bodies_max_age: Duration,

    /// How long files and batches are kept (the gateways' files_max_age)
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = humantime::parse_duration)]
    files_max_age: Duration,

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
    let mut told = crate::router::provision(&config).await?;
    let link = Link::open(config.access.link("rankpin provision")?).await?;
    let ages = stores::Ages { bodies: args.bodies_max_age, files: args.files_max_age };
    told.extend(stores::provision(&link, &config.namespace, ages, config.replicas).await?);
    if args.json {
        return output::json(&json!({ "provisioned": told }));
    }
    told.iter().try_for_each(|line| output::line(line))
}
