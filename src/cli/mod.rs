//! The command line, one file per subcommand.

mod bench;
mod bridge;
mod completions;
mod config;
mod connection;
mod demo;
mod drain;
mod explain;
mod gateway;
mod health;
mod jobs;
mod output;
mod pins;
mod replay;
mod router;
mod schema;
mod signals;
mod sim;
mod up;
mod workers;

use clap::{Parser, Subcommand};

use crate::telemetry::logging::{self, LogFormat};

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
    Config(config::Args),
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

impl Cli {
    /// Runs the subcommand to its end.
    pub async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Router(args) => {
                let config = args.resolve(self.log_format)?;
                logging::init(config.log_format)?;
                router::run(config).await
            }
            Command::Gateway(args) => {
                let config = args.resolve(self.log_format)?;
                logging::init(config.log_format)?;
                gateway::run(config).await
            }
            Command::Workers(args) => {
                logging::init_quietly(self.log_format.unwrap_or_default())?;
                workers::run(*args).await
            }
            Command::Pins(args) => {
                logging::init_quietly(self.log_format.unwrap_or_default())?;
                pins::run(*args).await
            }
            Command::Drain(args) => {
                logging::init_quietly(self.log_format.unwrap_or_default())?;
                drain::run(*args).await
            }
            Command::Config(args) => config::run(args, self.log_format),
            Command::Completions(args) => completions::run(&args),
            Command::Man(args) => completions::man(&args),
            Command::Bench(args) => {
                logging::init_quietly(self.log_format.unwrap_or_default())?;
                bench::run(args).await
            }
            Command::Bridge(args) => {
                logging::init(self.log_format.unwrap_or_default())?;
                bridge::run(*args).await
            }
            Command::Up(args) => {
                logging::init_quietly(self.log_format.unwrap_or_default())?;
                up::run(*args).await
            }
            Command::BenchForwarder(args) => {
                logging::init(self.log_format.unwrap_or_default())?;
                bench::run_forwarder(args).await
            }
            Command::Demo(args) => {
                logging::init_quietly(self.log_format.unwrap_or_default())?;
                demo::run(args).await
            }
            Command::Explain(args) => {
                logging::init_quietly(self.log_format.unwrap_or_default())?;
                explain::run(*args).await
            }
            Command::Health(args) => health::run(&args).await,
            Command::Replay(args) => {
                logging::init_quietly(self.log_format.unwrap_or_default())?;
                replay::run(&args)
            }
            Command::Jobs(args) => {
                logging::init_quietly(self.log_format.unwrap_or_default())?;
                jobs::run(*args).await
            }
            Command::Schema(args) => {
                logging::init(self.log_format.unwrap_or_default())?;
                schema::run(&args)
            }
            Command::Sim(args) => {
                logging::init(self.log_format.unwrap_or_default())?;
                sim::run(*args).await
            }
        }
    }
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
