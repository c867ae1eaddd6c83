//! The command line: arguments → configuration → logging → run → exit code.

use std::process::ExitCode;

use clap::Parser as _;
use rankpin::cli::Cli;

/// Each request makes some hundred small allocations, most of them inside the NATS client; this allocator is cheaper at
/// them than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Logging may not stand yet, and whoever typed the command reads this line, not a log.
            eprintln!("rankpin: {error:#}");
            ExitCode::FAILURE
        }
    }
}
