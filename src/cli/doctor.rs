//! `rankpin doctor`: what is wrong with a deployment, and what to do.

use serde_json::json;

use super::{output, router};
use crate::config::RouterConfig;
use crate::nats::{ConnectError, Link, LinkOptions};
use crate::ops::doctor::{self, Finding, Health};
use crate::telemetry::logging::LogFormat;
use crate::wire::subject::Subjects;

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

    /// Prefix of this client's inboxes [default: the first of _INBOX, _INBOX.USER and that of routers that the user may
    /// subscribe to]
    #[arg(long, env = "RANKPIN_INBOX_PREFIX", value_name = "PREFIX")]
    inbox_prefix: Option<String>,

    #[command(flatten)]
    router: router::Flagged,
}

const EXAMPLES: &str = "\
Examples:
  rankpin doctor
  rankpin doctor --config rankpin.toml
  NATS_USER=router NATS_PASSWORD=… rankpin doctor
  rankpin doctor --json | jq 'select(.health != \"ok\")'";

/// Prefix of the inboxes of whoever may subscribe to all.
const ANY_INBOX: &str = "_INBOX";

/// Examines, and tells.
pub(super) async fn run(args: Args, log_format: Option<LogFormat>) -> anyhow::Result<()> {
    let config = args.router.resolve(log_format)?;
    let options = config.access.link("rankpin doctor")?;
    let given = args.inbox_prefix.or_else(|| (options.inbox_prefix != ANY_INBOX).then(|| options.inbox_prefix.clone()));
    let prefixes = given.map_or_else(|| usual_inboxes(&config), |prefix| vec![prefix]);
    let findings = match open(options, prefixes).await {
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

/// Where answers may come to whoever this is: an operator or anybody who may everything, a user that `rankpin nats-permissions`
/// wrote, a router.
fn usual_inboxes(config: &RouterConfig) -> Vec<String> {
    let own = config.access.user.as_ref().map(|user| format!("_INBOX.{user}"));
    let routers = Subjects::new(config.namespace.clone()).router_inbox_prefix();
    [Some(ANY_INBOX.to_owned()), own, Some(routers)].into_iter().flatten().collect()
}

/// Connects, with the first of these prefixes of inboxes that the user may subscribe to; where it may to none, with the first.
async fn open(options: LinkOptions, prefixes: Vec<String>) -> Result<Link, ConnectError> {
    let mut first = None;
    for inbox_prefix in prefixes {
        let link = Link::open(LinkOptions { inbox_prefix, ..options.clone() }).await?;
        let denied = match link.barrier().await {
            Err(ConnectError::Permissions(words)) => words.to_lowercase().contains("subscription"),
            Ok(()) | Err(_) => false,
        };
        if !denied {
            return Ok(link);
        }
        first.get_or_insert(link);
    }
    Ok(first.expect("there is a prefix"))
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
