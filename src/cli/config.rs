//! `rankpin config`: what a router would run with, and where each value comes from.

use clap::Subcommand;
use serde_json::json;

use super::{output, router};
use crate::config::Origin;
use crate::telemetry::logging::LogFormat;

/// Check a router's configuration, or show what it comes to
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  rankpin config check --config rankpin.toml
  rankpin config show --config rankpin.toml
  RANKPIN_PIN_TTL=30m rankpin config show --json";

#[derive(Debug, Subcommand)]
enum Command {
    /// Check flags, environment and file as `rankpin router` would, without connecting
    ///
    /// Takes the flags of `rankpin router`. Ends with code 1 and the first mistake, with the line where it stands; files
    /// that the configuration names (context, credentials, nkey, certificates) are read too.
    #[command(
        after_long_help = "Examples:\n  rankpin config check --config rankpin.toml\n  rankpin config check --policy kv --kv-temperature 0.2"
    )]
    Check(Settings),
    /// Show every setting: the value that counts, and the flag, variable or line of the file where it stands
    ///
    /// Takes the flags of `rankpin router`. Logins are never shown.
    #[command(
        after_long_help = "Examples:\n  rankpin config show --config rankpin.toml\n  rankpin config show --json | jq '.[] | select(.source != \"default\")'"
    )]
    Show(Settings),
}

#[derive(Debug, clap::Args)]
struct Settings {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    router: router::Flagged,
}

/// Runs the command.
pub(super) fn run(args: Args, log_format: Option<LogFormat>) -> anyhow::Result<()> {
    match args.command {
        Command::Check(Settings { json, router }) => check(&router, json, log_format),
        Command::Show(Settings { json, router }) => show(&router, json, log_format),
    }
}

fn check(router: &router::Flagged, json: bool, log_format: Option<LogFormat>) -> anyhow::Result<()> {
    let config = router.resolve(log_format)?;
    config.access.link("rankpin config")?.check()?;
    let (workers, pools) = (config.workers.len(), config.pools.targets.len());
    if json {
        return output::json(
            &json!({ "ok": true, "namespace": config.namespace.as_str(), "workers": workers, "pools": pools }),
        );
    }
    output::line(&format!(
        "the configuration is valid: namespace {}, {workers} [[worker]], {pools} [[pool]]",
        config.namespace
    ))
}

fn show(router: &router::Flagged, json: bool, log_format: Option<LogFormat>) -> anyhow::Result<()> {
    // What is wrong with it is told rather than half of it shown.
    router.resolve(log_format)?;
    let all = router.effective(log_format)?;
    if json {
        let values: Vec<_> = all
            .iter()
            .map(|(setting, given)| {
                let value = given.as_ref().map(crate::config::Given::shown);
                let source = given.as_ref().map_or_else(|| "unset".to_owned(), |given| given.origin.to_string());
                json!({ "key": setting.key, "value": value, "source": source })
            })
            .collect();
        return output::json(&values);
    }
    let rows = all.iter().map(|(setting, given)| match given {
        Some(given) => {
            let source = match &given.origin {
                Origin::Default => "default".to_owned(),
                other @ (Origin::Flag(_) | Origin::Variable(_) | Origin::File { .. }) => other.to_string(),
            };
            vec![setting.key.to_owned(), given.shown(), source]
        }
        None => vec![setting.key.to_owned(), "-".into(), "unset".into()],
    });
    output::text(&output::table(&["SETTING", "VALUE", "SOURCE"], rows))
}
