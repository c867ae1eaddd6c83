//! The command line, one file per subcommand.

mod bench;
mod bridge;
mod completions;
mod config;
mod connection;
mod demo;
mod doctor;
mod drain;
mod explain;
mod gateway;
mod health;
mod jobs;
mod output;
mod permissions;
mod pins;
mod provision;
mod replay;
mod router;
mod schema;
mod signals;
mod sim;
mod top;
mod up;
mod workers;

use clap::{Parser, Subcommand};

use crate::telemetry::logging::{self, LogFormat};
use crate::telemetry::trace;

/// Keeps every conversation with a language model on the worker and data-parallel rank that has its prefix cached.
///
/// Frontends publish requests to NATS; routers choose a worker and rank for each and remember the choice per
/// session; workers answer straight to the frontend.
#[derive(Debug, Parser)]
#[command(name = "rankpin", version, max_term_width = 100, after_long_help = ENVIRONMENT)]
pub struct Cli {
    /// How log lines are written to stderr [default: text]
    #[arg(long, global = true, value_enum, env = "RANKPIN_LOG_FORMAT", value_name = "FORMAT", display_order = 100)]
    log_format: Option<LogFormat>,

    #[command(subcommand)]
    command: Command,
}

const ENVIRONMENT: &str = "\
Environment:
  RANKPIN_LOG  what is logged: a level (error, warn, info, debug, trace), or levels per module
               such as warn,rankpin::router=debug [default: RUST_LOG, else info]";

#[derive(Debug, Subcommand)]
enum Command {
    Router(router::Args),
    Gateway(gateway::Args),
    Bridge(Box<bridge::Args>),
    Up(Box<up::Args>),
    Workers(Box<workers::Args>),
    Pins(Box<pins::Args>),
    Drain(Box<drain::Args>),
    Top(Box<top::Args>),
    Doctor(Box<doctor::Args>),
    Config(config::Args),
    Provision(provision::Args),
    NatsPermissions(permissions::Args),
    Schema(schema::Args),
    Demo(demo::Args),
    Explain(Box<explain::Args>),
    Health(health::Args),
    Replay(replay::Args),
    Jobs(Box<jobs::Args>),
    Bench(bench::Args),
    #[command(hide = true)]
    BenchForwarder(bench::ForwarderArgs),
    Sim(Box<sim::Args>),
    Completions(completions::Args),
    Man(completions::ManArgs),
}

/// What a command writes to the log.
#[derive(Debug, Clone, Copy)]
enum Logs {
    /// What its own settings say, or nothing.
    Own,
    /// Warnings alone: whoever typed it reads its output.
    Quiet,
    /// As a service.
    Service,
}

impl Command {
    fn logs(&self) -> Logs {
        match self {
            Self::Router(_)
            | Self::Gateway(_)
            | Self::Health(_)
            | Self::Config(_)
            | Self::NatsPermissions(_)
            | Self::Completions(_)
            | Self::Man(_) => Logs::Own,
            Self::Workers(_)
            | Self::Pins(_)
            | Self::Up(_)
            | Self::Drain(_)
            | Self::Top(_)
            | Self::Doctor(_)
            | Self::Bench(_)
            | Self::Demo(_)
            | Self::Explain(_)
            | Self::Replay(_)
            | Self::Jobs(_) => Logs::Quiet,
            Self::Bridge(_) | Self::Provision(_) | Self::BenchForwarder(_) | Self::Schema(_) | Self::Sim(_) => {
                Logs::Service
            }
        }
    }
}

impl Cli {
    /// Runs the subcommand to its end.
    pub async fn run(self) -> anyhow::Result<()> {
        let format = self.log_format;
        match self.command.logs() {
            Logs::Own => {}
            Logs::Quiet => logging::init_quietly(format.unwrap_or_default())?,
            Logs::Service => logging::init(format.unwrap_or_default())?,
        }
        match self.command {
            Command::Router(args) => {
                let config = args.resolve(format)?;
                logging::init(config.log_format)?;
                traced("rankpin-router", Box::pin(router::run(config))).await
            }
            Command::Gateway(args) => {
                let config = args.resolve(format)?;
                logging::init(config.log_format)?;
                traced("rankpin-gateway", Box::pin(gateway::run(config))).await
            }
            Command::Bridge(args) => traced("rankpin-bridge", Box::pin(bridge::run(*args))).await,
            Command::Up(args) => traced("rankpin", Box::pin(up::run(*args))).await,
            Command::Health(args) => health::run(&args).await,
            Command::Workers(args) => workers::run(*args).await,
            Command::Pins(args) => pins::run(*args).await,
            Command::Drain(args) => drain::run(*args).await,
            Command::Top(args) => top::run(*args).await,
            Command::Doctor(args) => doctor::run(*args, format).await,
            Command::Config(args) => config::run(args, format),
            Command::Provision(args) => provision::run(args, format).await,
            Command::NatsPermissions(args) => permissions::run(&args),
            Command::Bench(args) => bench::run(args).await,
            Command::BenchForwarder(args) => bench::run_forwarder(args).await,
            Command::Demo(args) => demo::run(args).await,
            Command::Explain(args) => explain::run(*args).await,
            Command::Replay(args) => replay::run(&args),
            Command::Jobs(args) => jobs::run(*args).await,
            Command::Schema(args) => schema::run(&args),
            Command::Sim(args) => traced("rankpin-sim", Box::pin(sim::run(*args))).await,
            Command::Completions(args) => completions::run(&args),
            Command::Man(args) => completions::man(&args),
        }
    }
}

/// Runs a service whose spans are exported under this name, where the environment wants them and has no other.
async fn traced(service: &'static str, running: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let traces = trace::init(service)?;
    let ended = running.await;
    traces.finish().await;
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_help_text_shows_an_example() {
        use clap::CommandFactory as _;

        Cli::command().debug_assert();
        let of = |command: &clap::Command| command.get_subcommands().cloned().collect::<Vec<_>>();
        let commands = of(&Cli::command());
        for mut command in commands.iter().flat_map(of).chain(commands.clone()) {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{} --help shows none", command.get_name());
        }
    }
}
