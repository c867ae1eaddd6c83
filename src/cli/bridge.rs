//! `rankpin bridge`: a worker whose engine is an HTTP server.

use std::time::Duration;

use anyhow::{Context as _, anyhow};

use super::connection::Connection;
use super::signals;
use crate::bridge::{self, BaseUrl, BridgeOptions, EngineKind, Patience};
use crate::core::id::{Model, Pool, WorkerId};

/// Run a worker in front of an engine's HTTP server: vLLM, SGLang, TensorRT-LLM or any OpenAI-compatible one
///
/// Requests for a rank reach that rank of the engine, the way it takes one; answers stream back event by
/// event. Models and ranks are asked of the engine where no flag says them. While the engine is gone the
/// worker is not registered; it comes back by itself. SIGTERM drains it: running requests end, new ones
/// are refused.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What the engine is
    #[arg(long, value_enum, value_name = "ENGINE")]
    engine: EngineKind,

    /// Where its server is; given several times, the ranks are spread over them in order, as many on each
    #[arg(long, value_name = "URL", required = true)]
    engine_url: Vec<String>,

    /// What is shown to the engine as `Authorization: Bearer`
    #[arg(long, env = "RANKPIN_ENGINE_KEY", value_name = "KEY", hide_env_values = true)]
    engine_key: Option<String>,

    /// Name of this worker
    #[arg(long, value_name = "NAME")]
    worker: String,

    /// Model that it serves; may be given several times [default: those that the engine lists]
    #[arg(long, value_name = "NAME")]
    model: Vec<String>,

    /// First data-parallel rank that it hosts
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    dp_start: u32,

    /// Number of data-parallel ranks over all URLs [default: as many as the engine has]
    #[arg(long, value_name = "COUNT")]
    dp_size: Option<u32>,

    /// Group of workers that it belongs to
    #[arg(long, value_name = "NAME", default_value = "default")]
    pool: String,

    /// Most requests in flight per rank; beyond, requests are refused
    #[arg(long, value_name = "COUNT")]
    max_inflight: Option<u32>,

    /// Share of traffic relative to other workers
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0)]
    weight: f64,

    /// Kind of device that it says it runs on
    #[arg(long, value_name = "NAME", default_value = "cuda")]
    device: String,

    /// Longest pause inside a stream; then it ends in an error
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    idle_timeout: Duration,

    /// Longest wait for a whole answer, or for the first event of a stream
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = humantime::parse_duration)]
    answer_timeout: Duration,

    /// Don't read the engine's cache events, by which routers know how much of a session a rank still holds
    #[arg(long)]
    no_kv_events: bool,

    /// How long running requests may take to end when the worker is told to stop
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    drain_timeout: Duration,

    #[command(flatten)]
    connection: Connection,
}

const EXAMPLES: &str = "\
Examples:
  rankpin bridge --engine vllm --engine-url http://127.0.0.1:8000 --worker gpu-0
  rankpin bridge --engine vllm --engine-url http://127.0.0.1:8000 --worker gpu-1 --dp-start 4 --dp-size 4
  rankpin bridge --engine openai --engine-url http://a:8000 --engine-url http://b:8000 --worker pair

How each engine takes a rank, and on which paths, is told in docs/engines.md.";

/// Runs the worker until it is told to stop.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let stop = signals::stop().context("cannot listen for signals")?;
    Ok(bridge::run(args.options()?, stop).await?)
}

impl Args {
    fn options(self) -> anyhow::Result<BridgeOptions> {
        let worker = WorkerId::new(&self.worker).map_err(|e| anyhow!("--worker {e}"))?;
        let models = self.model.iter().map(|name| Model::new(name).map_err(|e| anyhow!("--model {e}")));
        let urls = self.engine_url.iter().map(|url| BaseUrl::parse(url).map_err(|e| anyhow!("--engine-url: {e}")));
        for (flag, timeout) in [("--idle-timeout", self.idle_timeout), ("--answer-timeout", self.answer_timeout)] {
            anyhow::ensure!(!timeout.is_zero(), "{flag} is 0: nothing can be answered within no time");
        }
        Ok(BridgeOptions {
            link: self.connection.link(&format!("rankpin-worker-{worker}"))?,
            namespace: self.connection.namespace,
            worker,
            engine: self.engine,
            urls: urls.collect::<Result<_, _>>()?,
            key: self.engine_key.filter(|key| !key.is_empty()),
            models: models.collect::<Result<_, _>>()?,
            dp_start: self.dp_start,
            dp_size: self.dp_size,
            pool: Pool::new(&self.pool).map_err(|e| anyhow!("--pool {e}"))?,
            device: self.device,
            weight: self.weight,
            max_inflight: self.max_inflight,
            patience: Patience { answer: self.answer_timeout, idle: self.idle_timeout },
            kv_events: !self.no_kv_events,
            drain_timeout: self.drain_timeout,
        })
    }
}
