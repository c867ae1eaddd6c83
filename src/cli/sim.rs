//! `rankpin sim`: a worker with a simulated engine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use tracing::info;

use super::connection::Connection;
use super::signals;
use crate::core::id::{Model, Pool, RankRange, WorkerId};
use crate::sim::{Echo, Script, SimEngine, SimOptions};
use crate::worker::{Acceptance, Engine, Worker, WorkerOptions};

/// Run a worker with a simulated engine: every rank has a prefix cache of its own
///
/// The engine queues, prefills what a rank's cache does not hold, decodes at a rate and streams, and says honestly
/// how many tokens came from the cache. SIGTERM and `rankpin drain` drain it: running requests end, new ones are refused.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Name of this worker
    #[arg(long, value_name = "NAME", default_value = "sim")]
    worker: String,

    /// Model that it serves; may be given several times
    #[arg(long, value_name = "NAME", default_value = "sim")]
    model: Vec<String>,

    /// First data-parallel rank that it hosts
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    dp_start: u32,

    /// Number of data-parallel ranks that it hosts
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    dp_size: u32,

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
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    device: String,

    /// How long running requests may take to end when the worker is told to stop
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    drain_timeout: Duration,

    /// What answers: a simulated engine, or an echo of the request's body, to measure what is around it
    #[arg(long, value_enum, value_name = "ENGINE", default_value = "sim")]
    engine: EngineKind,

    /// Leave out the event `accepted`: `finished`, which follows at once, counts as both (echo only)
    #[arg(long)]
    no_accept: bool,

    /// Messages of each answer, the last of which is the echo (echo only) [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    parts: Option<u32>,

    /// Bytes of the echo at most: prompts are longer than their answers (echo only) [default: all]
    #[arg(long, value_name = "BYTES")]
    answer_bytes: Option<usize>,

    #[command(flatten)]
    simulation: Simulation,

    #[command(flatten)]
    connection: Connection,
}

/// Which engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EngineKind {
    /// The simulated engine.
    Sim,
    /// The echo.
    Echo,
}

/// Flags of the simulated engine. They have no default of their own, so that one given to the echo is noticed.
#[derive(Debug, clap::Args)]
struct Simulation {
    /// Tokens per block of the prefix cache [default: 16]
    #[arg(long, value_name = "TOKENS")]
    block_size: Option<u32>,

    /// Blocks in each rank's prefix cache [default: 8192]
    #[arg(long, value_name = "COUNT")]
    kv_blocks: Option<u64>,

    /// By how much faster than life the engine is [default: 1]
    #[arg(long, value_name = "FACTOR")]
    speed: Option<f64>,

    /// Prompt tokens a second that a rank prefills [default: 20000]
    #[arg(long, value_name = "TOKENS")]
    prefill_rate: Option<f64>,

    /// Tokens a second that are generated for each request [default: 100]
    #[arg(long, value_name = "TOKENS")]
    decode_rate: Option<f64>,

    /// How long the engine may be silent in the middle of an answer; then the request ends in an error [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    stream_idle_timeout: Option<Duration>,

    /// Longest answer; a request may ask for a shorter one [default: 64]
    #[arg(long, value_name = "TOKENS")]
    output_tokens: Option<u64>,

    /// What it says in place of made-up words: a JSON array of steps, {"text": "…"} or {"calls": [{"name": "…",
    /// "arguments": {…}}]}, the first for what the user says, each further one for the result of a tool call
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  rankpin sim --worker gpu-0 --model my-model --dp-size 4
  rankpin sim --worker gpu-1 --model my-model --dp-start 4 --dp-size 4 --speed 10
  rankpin sim --engine echo --no-accept";

/// Runs the worker until it is told to stop.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let stop = signals::stop().context("cannot listen for signals")?;
    let mut options = args.worker_options()?;
    match args.engine {
        EngineKind::Echo => {
            args.simulation.refuse_all()?;
            let acceptance = if args.no_accept { Acceptance::WithFinish } else { Acceptance::AtOnce };
            let echo = Echo { acceptance, parts: args.parts.unwrap_or(1), most: args.answer_bytes };
            serve(options, echo, args.drain_timeout, stop).await
        }
        EngineKind::Sim => {
            if args.no_accept {
                bail!("--no-accept can have no effect: only --engine echo answers at once");
            }
            if args.parts.is_some() {
                bail!("--parts can have no effect: only --engine echo has so many; see --output-tokens");
            }
            if args.answer_bytes.is_some() {
                bail!("--answer-bytes can have no effect: only --engine echo answers with bytes; see --output-tokens");
            }
            let simulation = args.simulation.options(options.ranks);
            let engine = SimEngine::new(simulation).map_err(|problem| anyhow!(problem))?;
            let engine = engine.with_script(args.simulation.script()?);
            options.block_size = Some(simulation.block_size);
            options.kv_blocks = Some(simulation.kv_blocks);
            if let Some(timeout) = args.simulation.stream_idle_timeout {
                options.stream_idle_timeout = timeout;
            }
            serve(options, engine, args.drain_timeout, stop).await
        }
    }
}

async fn serve(
    options: WorkerOptions,
    engine: impl Engine,
    drain_timeout: Duration,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut stop = std::pin::pin!(stop);
    // Dropping a start leaves nothing behind; the other arms are only waits.
    let mut worker = tokio::select! {
        started = Worker::start(options, engine) => started?,
        () = &mut stop => return Ok(()),
    };
    let asked = worker.drain_asked();
    tokio::select! {
        error = worker.failed() => return Err(error.into()),
        () = stop => (),
        () = asked => info!("an operator has asked for a drain"),
    }
    let drained = worker.drain(drain_timeout).await?;
    info!(cut_off = drained.cut_off, "stopped");
    Ok(())
}

impl Args {
    fn worker_options(&self) -> anyhow::Result<WorkerOptions> {
        let namespace = self.connection.namespace.clone();
        let worker = WorkerId::new(&self.worker).map_err(|e| anyhow!("--worker {e}"))?;
        let models = self.model.iter().map(|name| Model::new(name).map_err(|e| anyhow!("--model {e}")));
        let ranks = RankRange::new(self.dp_start, self.dp_size).ok_or_else(|| {
            anyhow!(
                "--dp-start {} and --dp-size {}: ranks are 0 to 65535, and at least one is needed",
                self.dp_start,
                self.dp_size
            )
        })?;
        let link = self.connection.link(&format!("rankpin-worker-{worker}"))?;
        let mut options = WorkerOptions::new(link, namespace, worker, models.collect::<Result<_, _>>()?, ranks);
        options.pool = Pool::new(&self.pool).map_err(|e| anyhow!("--pool {e}"))?;
        options.device = self.device.clone();
        options.weight = self.weight;
        options.max_inflight = self.max_inflight;
        Ok(options)
    }
}

impl Simulation {
    fn options(&self, ranks: RankRange) -> SimOptions {
        let default = SimOptions::new(ranks);
        SimOptions {
            ranks,
            block_size: self.block_size.unwrap_or(default.block_size),
            kv_blocks: self.kv_blocks.unwrap_or(default.kv_blocks),
            prefill_rate: self.prefill_rate.unwrap_or(default.prefill_rate),
            decode_rate: self.decode_rate.unwrap_or(default.decode_rate),
            output_tokens: self.output_tokens.unwrap_or(default.output_tokens),
            speed: self.speed.unwrap_or(default.speed),
        }
    }

    fn script(&self) -> anyhow::Result<Script> {
        let Some(path) = &self.script else { return Ok(Script::default()) };
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the script {shown}"))?;
        Script::parse(&text).map_err(|problem| anyhow!("the script {shown} is none: {problem}"))
    }

    /// A setting that can have no effect is an error.
    fn refuse_all(&self) -> anyhow::Result<()> {
        let given = [
            ("--block-size", self.block_size.is_some()),
            ("--kv-blocks", self.kv_blocks.is_some()),
            ("--speed", self.speed.is_some()),
            ("--prefill-rate", self.prefill_rate.is_some()),
            ("--decode-rate", self.decode_rate.is_some()),
            ("--stream-idle-timeout", self.stream_idle_timeout.is_some()),
            ("--output-tokens", self.output_tokens.is_some()),
            ("--script", self.script.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(anyhow!("{flag} can have no effect: the echo simulates nothing")),
            None => Ok(()),
        }
    }
}
