//! `rankpin router`: its flags, made from the one table of settings.

use std::ffi::OsString;

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command, FromArgMatches};

use super::signals;
use crate::config::{self, CONFIG, Flags, Given, RouterConfig, SETTINGS, Setting, gateway};
use crate::telemetry::logging::LogFormat;

/// The flags of `rankpin router`, as they were given.
#[derive(Debug)]
pub struct Args {
    flags: Flags,
}

const ABOUT: &str = "Take requests and place each on a worker and rank, the same one for every turn of a session";

const LONG_ABOUT: &str = "\
Take requests and place each on a worker and rank, the same one for every turn of a session.

Any number of routers may run side by side: they share requests and agree on every placement. Each setting is a \
flag, an environment variable and a key of the --config file; the first of these that is given counts.";

const EXAMPLES: &str = "\
Examples:
  rankpin router
  rankpin router --nats-url nats://nats-1:4222,nats://nats-2:4222 --listen 0.0.0.0:9464
  rankpin router --affinity off --policy random
  RANKPIN_PIN_TTL=30m rankpin router --config rankpin.toml
  rankpin router --level global --config global.toml

Pools below a router at the global level, in global.toml:
  [[pool]]
  name = \"eu\"
  namespace = \"eu\"          # of the pool's own routers
  max_inflight = 500        # these and weight, spill_over, models and trusted are optional

One name for several models, and workers that can't register themselves, in rankpin.toml:
  pin_ttl = \"30m\"

  [[alias]]
  model = \"chat\"
  to = [{ model = \"my-model\", weight = 9 }, { model = \"my-model-next\", weight = 1 }]

  [[worker]]
  id = \"legacy\"             # 1 to 64 of A-Z a-z 0-9 _ -
  models = [\"my-model\"]
  subject = \"svc.legacy\"    # any NATS service that answers requests there

  [[worker]]
  id = \"ranked\"
  models = [\"my-model\"]
  subject = \"svc.{rank}\"    # {rank} becomes the rank's number; \"any\" where no rank is wanted
  dp_start = 0              # these and pool, weight, max_inflight and device are optional
  dp_size = 4";

/// The same flags inside another command, which has words of its own.
#[derive(Debug)]
pub(super) struct Flagged(Args);

impl Flagged {
    /// The configuration that a router would run with.
    pub(super) fn resolve(&self, log_format: Option<LogFormat>) -> anyhow::Result<RouterConfig> {
        Args { flags: self.0.flags.clone() }.resolve(log_format)
    }

    /// Every setting with the value that counts.
    pub(super) fn effective(
        &self,
        log_format: Option<LogFormat>,
    ) -> anyhow::Result<Vec<(&'static Setting, Option<Given>)>> {
        let mut flags = self.0.flags.clone();
        flags.extend(log_format.map(|format| ("log_format", format.name().to_owned())));
        Ok(config::effective(&flags, &|name| std::env::var(name).ok())?)
    }
}

impl clap::Args for Flagged {
    fn augment_args(command: Command) -> Command {
        command.args(flags().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flagged {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Args::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl Args {
    /// The configuration from the flags, the environment and the file. The global `--log-format` is a setting of
    /// the router like any other.
    pub(super) fn resolve(mut self, log_format: Option<LogFormat>) -> anyhow::Result<RouterConfig> {
        if let Some(format) = log_format {
            self.flags.insert("log_format", format.name().to_owned());
        }
        refuse_unknown_variables("router")?;
        Ok(config::resolve(&self.flags, &|name| std::env::var(name).ok())?)
    }
}

/// Runs the router until it is told to stop, then drains it.
pub(super) async fn run(config: RouterConfig) -> anyhow::Result<()> {
    let stop = signals::stop().context("cannot take signals")?;
    Ok(crate::router::run(config, stop).await?)
}

/// A misspelt variable would be silently without effect. Those that Kubernetes sets for a service named rankpin are none
/// of ours, and a gateway may stand beside a router in one environment.
pub(super) fn refuse_unknown_variables(subcommand: &str) -> anyhow::Result<()> {
    const OTHERS: [&str; 6] = [
        "RANKPIN_LOG",
        "RANKPIN_NATS_SERVER",
        "RANKPIN_CONVERSATIONS",
        "RANKPIN_CHAOS_JOBS",
        // A bridge's, which may stand beside a router in one environment.
        "RANKPIN_ENGINE_KEY",
        "RANKPIN_INBOX_PREFIX",
    ];
    // The NATS server's, where it has the users of `rankpin nats-permissions`.
    let of_server = |name: &str| name.starts_with("RANKPIN_NATS_") && name.ends_with("_PASSWORD");
    let known = |name: &str| {
        OTHERS.contains(&name)
            || of_server(name)
            || std::iter::once(&CONFIG)
                .chain(SETTINGS)
                .chain(gateway::SETTINGS)
                .any(|setting| setting.variables().any(|own| own == name))
    };
    // Of a service that is called rankpin, or rankpin-something.
    let kubernetes = |name: &str, value: &str| {
        let is_address = || ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
        name.contains("_SERVICE_") || name.contains("_PORT_") || (name.ends_with("_PORT") && is_address())
    };
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned()));
    for (name, value) in std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("RANKPIN_")) {
        if !known(&name) && !kubernetes(&name, &value) {
            anyhow::bail!(
                "environment: {name} is no setting; `rankpin {subcommand} --help` lists those that there are"
            );
        }
    }
    Ok(())
}

/// The settings that are flags of this subcommand; `--log-format` is one of every subcommand.
fn flags() -> impl Iterator<Item = &'static Setting> {
    std::iter::once(&CONFIG).chain(SETTINGS).filter(|setting| setting.key != "log_format")
}

/// The flag of a setting.
pub(super) fn arg(setting: &'static Setting) -> Arg {
    let mut help = setting.help.to_owned();
    let variables: Vec<String> = setting.variables().collect();
    help.push_str(&format!(" [env: {}]", variables.join(", ")));
    if let Some(default) = setting.default {
        help.push_str(&format!(" [default: {default}]"));
    }
    let arg = Arg::new(setting.key).long(setting.flag()).value_name(setting.value).help(help);
    if setting.is_switch() { arg.num_args(0..=1).require_equals(true).default_missing_value("true") } else { arg }
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        command.about(ABOUT).long_about(LONG_ABOUT).after_long_help(EXAMPLES).args(flags().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |setting: &Setting| Some((setting.key, matches.get_one::<String>(setting.key)?.clone()));
        Ok(Self { flags: flags().filter_map(given).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.flags.extend(Self::from_arg_matches(matches)?.flags);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;
    use crate::config::Listen;

    fn parse(words: &[&str]) -> Args {
        let command = Args::augment_args(Command::new("router"));
        let matches = command.try_get_matches_from(["router"].iter().chain(words)).expect("known flags");
        Args::from_arg_matches(&matches).expect("flags are texts")
    }

    #[test]
    fn flags_come_from_the_table_of_settings() {
        let args = parse(&["--pin-ttl", "2h", "--untrusted-frontends", "--listen=off"]);
        let expected = [("listen", "off"), ("pin_ttl", "2h"), ("untrusted_frontends", "true")];
        assert!(args.flags.iter().map(|(key, text)| (*key, text.as_str())).eq(expected));
        let config = config::resolve(&args.flags, &|_| None).expect("valid");
        assert_eq!((config.pin_ttl.as_secs(), config.listen), (7200, Listen::Off));
        assert_eq!(parse(&["--untrusted-frontends=false"]).flags["untrusted_frontends"], "false");
    }
}
