//! `rankpin doctor`: what is wrong with a deployment, and what to do.

use serde_json::json;

use super::{output, router};
use crate::nats::Link;
use crate::ops::doctor::{self, Finding, Health};
use crate::telemetry::logging::LogFormat;

/// Examine a deployment: server, buckets and streams, permissions, clocks, routers, workers
///
/// Takes the flags, variables and file of `rankpin router`, connects as they say, and changes nothing. Ends with code 1
/// where something does not work; warnings alone end with 0. To examine the permissions of a role, connect as its user: what
/// that role may not look at is not examined.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Print JSON, one finding a line
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
  rankpin doctor
  rankpin doctor --config rankpin.toml
  NATS_USER=router NATS_PASSWORD=… rankpin doctor --inbox-prefix _INBOX_rankpin_router
  rankpin doctor --json | jq 'select(.health != \"ok\")'";

/// Examines, and tells.
pub(super) async fn run(args: Args, log_format: Option<LogFormat>) -> anyhow::Result<()> {
    let config = args.router.resolve(log_format)?;
    let mut options = config.access.link("rankpin doctor")?;
    options.inbox_prefix = args.inbox_prefix.unwrap_or(options.inbox_prefix);
    let findings = match Link::open(options).await {
        Ok(link) => doctor::examine(&link, &config).await,
        Err(error) => vec![Finding {
            check: "connection",
            health: Health::Fail,
            found: error.to_string(),
            advice: "nothing else can be examined".into(),
        }],
    };
    if args.json {
        findings.iter().try_for_each(output::json)?;
    } else {
        output::text(&shown(&findings))?;
    }
    match findings.iter().filter(|one| one.health == Health::Fail).count() {
        0 => Ok(()),
        failed => {
            if args.json {
                output::json(&json!({ "failed": failed }))?;
            }
            anyhow::bail!("{failed} of {} checks failed", findings.len())
        }
    }
}

fn shown(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { check, health, found, advice } in findings {
        let word = match health {
            Health::Ok => "ok  ",
            Health::Note => "note",
            Health::Warn => "WARN",
            Health::Fail => "FAIL",
        };
        text.push_str(&format!("{word}  {check:<12} {found}\n"));
        if !advice.is_empty() {
            text.push_str(&format!("                    -> {advice}\n"));
        }
    }
    text
}
