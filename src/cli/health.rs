//! `rankpin health`: whether a process of this machine is ready, for a container's health check.

use std::net::SocketAddr;

use anyhow::{Context as _, bail};

use crate::local::http;

/// Ask a router or gateway on this machine whether it is ready; the exit status is the answer
///
/// Images without a shell or an HTTP client can use it as their health check.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Where it serves HTTP
    #[arg(value_name = "ADDRESS", default_value = "127.0.0.1:9464")]
    address: SocketAddr,

    /// The page to get: any answer but 200 is bad health
    #[arg(long, value_name = "PATH", default_value = "/readyz")]
    path: String,
}

const EXAMPLES: &str = "\
Examples:
  rankpin health
  rankpin health 127.0.0.1:8080 --path /healthz";

/// Prints the page's words, which say what is wrong where something is.
pub(super) async fn run(args: &Args) -> anyhow::Result<()> {
    let Args { address, path } = args;
    let answer =
        http::get(*address, path).await.with_context(|| format!("nothing answers at http://{address}{path}"))?;
    let words = String::from_utf8_lossy(&answer.body);
    match answer.status {
        200 => {
            println!("{}", words.trim_end());
            Ok(())
        }
        status => bail!("http://{address}{path} answers {status}: {}", words.trim_end()),
    }
}
