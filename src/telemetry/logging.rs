//! Log lines on stderr.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal as _;
use std::panic::PanicHookInfo;

use tracing_subscriber::EnvFilter;

/// Variables that say what is logged; the first that is set counts.
const FILTER_VARIABLES: [&str; 2] = ["RANKPIN_LOG", "RUST_LOG"];
/// What is logged where none of them is set. The NATS client's own state changes are logged by `nats::link`, in
/// our words and with the connection's name.
const DEFAULT_FILTER: &str = "info,async_nats=warn";
/// The same for a command whose result is what it prints.
const QUIET_FILTER: &str = "error,async_nats=off";

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// Each format with its name.
    pub const NAMED: [(&'static str, Self); 2] = [("text", Self::Text), ("json", Self::Json)];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Logging can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The variable holds no filter.
    #[error("{variable}={value:?} is no log filter ({problem}); write a level such as debug, or warn,rankpin=debug")]
    Filter {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The process logs already.
    #[error("logging is set up already")]
    Twice,
}

/// Sends log lines to stderr from now on, panics included. To be called once.
pub fn init(format: LogFormat) -> Result<(), LoggingError> {
    init_with(format, DEFAULT_FILTER)
}

/// The same for a command whose result is what it prints: only errors are logged where no variable says more.
pub fn init_quietly(format: LogFormat) -> Result<(), LoggingError> {
    init_with(format, QUIET_FILTER)
}

fn init_with(format: LogFormat, default: &str) -> Result<(), LoggingError> {
    let builder = tracing_subscriber::fmt().with_env_filter(filter(default)?).with_writer(std::io::stderr);
    let set = match format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(colours).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    set.map_err(|_| LoggingError::Twice)?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

fn filter(default: &str) -> Result<EnvFilter, LoggingError> {
    let value_of = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let set = FILTER_VARIABLES.iter().find_map(|name| Some((*name, value_of(*name)?)));
    let Some((variable, value)) = set else {
        return Ok(EnvFilter::new(default));
    };
    EnvFilter::try_new(&value).map_err(|e| LoggingError::Filter { variable, problem: e.to_string(), value })
}

/// A panic ends one task, not the process: it has to be found in the same place as everything else.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or("no message");
    let location = panic.location().map(ToString::to_string);
    let thread = std::thread::current();
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(&backtrace);
    tracing::error!(
        location,
        thread = thread.name(),
        backtrace = backtrace.map(tracing::field::display),
        "panic: {message}"
    );
}
