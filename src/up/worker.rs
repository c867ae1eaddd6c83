//! The worker: in front of an engine's server, or with a simulated engine.

use std::time::Duration;

use super::{Stop, UpError};
use crate::bridge::{self, BaseUrl, BridgeOptions, EngineKind, Patience};
use crate::core::id::{Model, Namespace, Pool, RankRange, WorkerId};
use crate::nats::LinkOptions;
use crate::sim::{SimEngine, SimOptions};
use crate::worker::{Worker, WorkerOptions};

/// The worker's name.
const WORKER: &str = "local";
/// How long running requests may take to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The worker.
#[derive(Debug)]
pub enum WorkerPart {
    /// In front of an engine's servers.
    Bridge {
        /// What the engine is.
        engine: EngineKind,
        /// Where its servers are.
        urls: Vec<BaseUrl>,
        /// What is shown to it.
        key: Option<String>,
        /// The models served; empty: those that it lists.
        models: Vec<Model>,
        /// How many ranks it has; `None`: as many as it says.
        dp_size: Option<u32>,
    },
    /// With a simulated engine.
    Simulated(Simulated),
}

/// A simulated engine.
#[derive(Debug)]
pub struct Simulated {
    /// The models that it is taken for.
    pub models: Vec<Model>,
    /// How many ranks it has, 1 to 65,536.
    pub dp_size: u32,
}

impl WorkerPart {
    /// What is waited for, in words.
    pub(super) fn engine(&self) -> String {
        match self {
            Self::Bridge { urls, .. } => urls.iter().map(BaseUrl::to_string).collect::<Vec<_>>().join(", "),
            Self::Simulated(_) => "simulated".to_owned(),
        }
    }

    /// Runs it until it is told to stop.
    pub(super) async fn run(self, nats: String, stop: Stop) -> Result<(), UpError> {
        let link = LinkOptions::new(&nats, &format!("rankpin-worker-{WORKER}"));
        let worker = WorkerId::new(WORKER).expect("a valid name");
        match self {
            Self::Bridge { engine, urls, key, models, dp_size } => {
                let options = BridgeOptions {
                    link,
                    namespace: namespace(),
                    worker,
                    engine,
                    urls,
                    key,
                    models,
                    dp_start: 0,
                    dp_size,
                    pool: Pool::new("default").expect("a valid name"),
                    device: "local".to_owned(),
                    weight: 1.0,
                    max_inflight: None,
                    patience: Patience::DEFAULT,
                    kv_events: true,
                    drain_timeout: DRAIN_TIMEOUT,
                };
                Ok(bridge::run(options, stop).await?)
            }
            Self::Simulated(simulated) => simulate(simulated, link, worker, stop).await,
        }
    }
}

async fn simulate(simulated: Simulated, link: LinkOptions, worker: WorkerId, mut stop: Stop) -> Result<(), UpError> {
    let ranks = RankRange::new(0, simulated.dp_size);
    let ranks =
        ranks.ok_or_else(|| UpError::Simulated(format!("{} ranks, allowed are 1 to 65536", simulated.dp_size)))?;
    let simulation = SimOptions::new(ranks);
    let engine = SimEngine::new(simulation).map_err(UpError::Simulated)?;
    let mut options = WorkerOptions::new(link, namespace(), worker, simulated.models, ranks);
    options.device = "cpu".to_owned();
    options.block_size = Some(simulation.block_size);
    options.kv_blocks = Some(simulation.kv_blocks);
    // Dropping a start leaves nothing behind; the other arms are only waits.
    let mut worker = tokio::select! {
        started = Worker::start(options, engine) => started?,
        () = &mut stop => return Ok(()),
    };
    let asked = worker.drain_asked();
    tokio::select! {
        error = worker.failed() => return Err(error.into()),
        () = stop => (),
        () = asked => (),
    }
    worker.drain(DRAIN_TIMEOUT).await?;
    Ok(())
}

fn namespace() -> Namespace {
    Namespace::new("rankpin").expect("a valid name")
}
