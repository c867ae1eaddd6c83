//! Processes of a small cluster on this machine: what `rankpin demo` and `rankpin bench` start, watch and tidy away.

pub mod cpu;
pub mod http;
pub mod process;
pub mod server;

pub use process::Process;
pub use server::NatsServer;

use std::time::Duration;

/// How long a process may take until it is ready.
pub const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two looks at whether it is.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Why a local cluster does not stand.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// There is no NATS server to start.
    #[error(
        "no nats-server was found: put one of version 2.11 or later on PATH, name it in RANKPIN_NATS_SERVER, \
         or run from the repository, whose scripts/nats-server brings one"
    )]
    NoServer,
    /// The script that brings a server failed.
    #[error("{script} failed: {output}")]
    Script {
        /// The script.
        script: String,
        /// What it said.
        output: String,
    },
    /// A process can't be started.
    #[error("cannot start {name}: {source}")]
    Start {
        /// Its name.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// A process ended before it was ready.
    #[error("{name} ended at its start ({status}); it said:\n{log}")]
    Ended {
        /// Its name.
        name: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// Processes are not ready in time.
    #[error("the local cluster is not ready within {} s; its processes said:\n{log}", START_TIMEOUT.as_secs())]
    NotReady {
        /// The ends of their logs.
        log: String,
    },
    /// A file or directory of the cluster can't be written.
    #[error("cannot set up the directory of the local cluster: {0}")]
    Files(#[from] std::io::Error),
}

/// Looks until there is what is looked for, one of the processes that it takes has ended, or [`START_TIMEOUT`] has
/// passed.
pub async fn ready<T>(
    processes: &mut [&mut Process],
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T, LocalError> {
    let end = tokio::time::Instant::now() + START_TIMEOUT;
    loop {
        if let Some(found) = look().await {
            return Ok(found);
        }
        for process in &mut *processes {
            if let Some(status) = process.ended() {
                return Err(LocalError::Ended { name: process.name().to_owned(), status, log: process.log_end() });
            }
        }
        if tokio::time::Instant::now() >= end {
            let logs = processes.iter().map(|process| format!("{}:\n{}", process.name(), process.log_end()));
            return Err(LocalError::NotReady { log: logs.collect::<Vec<_>>().join("\n") });
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
