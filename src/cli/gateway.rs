//! `rankpin gateway`: its flags, made from the one table of its settings.

use anyhow::Context as _;
use clap::{ArgMatches, Command, FromArgMatches};

use super::router::{arg, refuse_unknown_variables};
use super::signals;
use crate::config::gateway::{self, GatewayConfig, SETTINGS};
use crate::config::{CONFIG, Flags, Setting};
use crate::telemetry::logging::LogFormat;

/// The flags of `rankpin gateway`, as they were given.
#[derive(Debug)]
pub struct Args {
    flags: Flags,
}

const ABOUT: &str = "Serve the OpenAI and Anthropic APIs over HTTP, and send their requests to the routers";

const LONG_ABOUT: &str = "\
Serve the OpenAI and Anthropic APIs over HTTP, and send their requests to the routers.

Bodies go to the workers byte for byte, and answers come back as they are made. Any number of gateways may run side \
by side. Each setting is a flag, an environment variable and a key of the --config file; the first of these that is \
given counts.";

const EXAMPLES: &str = "\
Examples:
  rankpin gateway
  rankpin gateway --nats-url nats://nats-1:4222,nats://nats-2:4222 --listen 0.0.0.0:8080
  rankpin gateway --api-keys keys.txt --https-cert cert.pem --https-key key.pem --listen 0.0.0.0:8443
  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"model\": \"my-model\", \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}'

A file of API keys (--api-keys) has a line for each key, and holds no key itself:
  echo \"sha256:$(printf %s \"$KEY\" | sha256sum | cut -d ' ' -f 1) my-tenant\" >> keys.txt";

impl Args {
    /// The configuration from the flags, the environment and the file.
    pub(super) fn resolve(mut self, log_format: Option<LogFormat>) -> anyhow::Result<GatewayConfig> {
        if let Some(format) = log_format {
            self.flags.insert("log_format", format.name().to_owned());
        }
        refuse_unknown_variables("gateway")?;
        Ok(gateway::resolve(&self.flags, &|name| std::env::var(name).ok())?)
    }
}

/// Runs the gateway until it is told to stop, then drains it.
pub(super) async fn run(config: GatewayConfig) -> anyhow::Result<()> {
    let stop = signals::stop().context("cannot take signals")?;
    Ok(crate::gateway::run(config, stop).await?)
}

fn flags() -> impl Iterator<Item = &'static Setting> {
    std::iter::once(&CONFIG).chain(SETTINGS).filter(|setting| setting.key != "log_format")
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
