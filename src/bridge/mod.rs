//! A worker whose engine is an HTTP server: vLLM, SGLang, TensorRT-LLM, or anything with an OpenAI-compatible API.
//!
//! The way of a request: [`carry`] finds its path and headers, [`targets`] the server of its rank, [`serve`] posts the
//! body and passes the answer on, event by event ([`sse`]), with what [`answer`] reads of it. Each server is looked
//! after by [`watch`]: while none works, the worker is not registered.

mod answer;
mod body;
mod carry;
mod discover;
pub mod engines;
mod figures;
pub mod http;
mod kv;
mod serve;
mod sse;
mod targets;
mod watch;
mod zmtp;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::{info, warn};

pub use self::discover::DiscoverError;
use self::discover::Facts;
pub use self::engines::EngineKind;
pub use self::http::BaseUrl;
use self::http::Http;
use self::serve::HttpEngine;
pub use self::serve::Patience;
use self::targets::Targets;
use crate::core::id::{MAX_RANKS, Model, Namespace, Pool, RankRange, WorkerId};
use crate::nats::LinkOptions;
use crate::worker::{Worker, WorkerError, WorkerOptions};

/// Pause between two looks for an engine that does not work yet.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Looks between two lines that say so.
const LOOKS_PER_LINE: u32 = 60;
/// How much longer than this bridge the worker library waits for an engine that is silent in the middle of an answer.
const IDLE_ON_TOP: Duration = Duration::from_secs(5);

/// What a bridge is.
#[derive(Debug, Clone)]
pub struct BridgeOptions {
    /// Where and as whom to connect.
    pub link: LinkOptions,
    /// The namespace.
    pub namespace: Namespace,
    /// The worker's name.
    pub worker: WorkerId,
    /// What the engine is.
    pub engine: EngineKind,
    /// Its servers, each with as many of the ranks, in order.
    pub urls: Vec<BaseUrl>,
    /// What is shown to it as a bearer's token.
    pub key: Option<String>,
    /// The models served; empty: those that the engine lists.
    pub models: Vec<Model>,
    /// The first rank.
    pub dp_start: u32,
    /// How many ranks; `None`: as many as the engine has.
    pub dp_size: Option<u32>,
    /// The group of workers it belongs to.
    pub pool: Pool,
    /// Kind of device.
    pub device: String,
    /// Share of traffic relative to other workers.
    pub weight: f64,
    /// Most requests in flight per rank.
    pub max_inflight: Option<u32>,
    /// How long the engine is waited for.
    pub patience: Patience,
    /// Whether the engine's own cache events are passed on to routers, where it has any.
    pub kv_events: bool,
    /// How long running requests may take to end at the end.
    pub drain_timeout: Duration,
}

/// Why a bridge does not run.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// Options that contradict each other or the engine.
    #[error("{0}")]
    Invalid(String),
    /// The engine can't be asked for what no option says.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The worker does not run.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// Why serving an engine came to an end.
enum End {
    /// It was told to stop.
    Stopped,
    /// The engine that came back is another one.
    Changed,
}

/// Runs until told to stop, or until there is a reason not to. An engine that is not there is waited for.
pub async fn run(options: BridgeOptions, stop: impl Future<Output = ()>) -> Result<(), BridgeError> {
    let http = Http::new(options.key.as_deref()).map_err(BridgeError::Invalid)?;
    let mut stop = std::pin::pin!(stop);
    loop {
        let facts = tokio::select! {
            facts = wait_for_engine(&options, &http) => facts?,
            () = &mut stop => return Ok(()),
        };
        match serve(&options, &facts, &http, stop.as_mut()).await? {
            End::Stopped => return Ok(()),
            End::Changed => info!("the engine has come back as another one; registering anew"),
        }
    }
}

/// Waits until one of the servers works, and asks it what it is.
async fn wait_for_engine(options: &BridgeOptions, http: &Http) -> Result<Facts, DiscoverError> {
    let dialect = options.engine.dialect();
    let mut looks = 0;
    loop {
        for url in &options.urls {
            match http.page(url, dialect.health).await {
                Ok(_) => match facts(options, url, http).await {
                    // It went away between the two.
                    Err(DiscoverError::Page { problem, .. }) => info!(%url, %problem, "the engine says no more yet"),
                    asked => return asked,
                },
                Err(problem) if looks % LOOKS_PER_LINE == 0 => {
                    info!(%url, %problem, "waiting for the engine");
                }
                Err(_) => (),
            }
        }
        looks += 1;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What a server is, with what the options say of it instead.
async fn facts(options: &BridgeOptions, url: &BaseUrl, http: &Http) -> Result<Facts, DiscoverError> {
    let asked = discover::discover(url, options.engine.dialect(), http).await;
    let known = !options.models.is_empty();
    match asked {
        Ok(facts) if known => Ok(Facts { models: options.models.clone(), ..facts }),
        // A server that does not list its models can be served all the same.
        Err(_) if known => Ok(Facts { models: options.models.clone(), ..Facts::default() }),
        asked => asked,
    }
}

async fn serve(
    options: &BridgeOptions,
    facts: &Facts,
    http: &Http,
    mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
) -> Result<End, BridgeError> {
    let dialect = options.engine.dialect();
    let ranks = options.ranks(facts)?;
    let targets = Arc::new(Targets::new(ranks, &options.urls).map_err(BridgeError::Invalid)?);
    let mut watches = JoinSet::new();
    for index in 0..options.urls.len() {
        watches.spawn(watch::look_after(Arc::clone(&targets), index, dialect, http.clone()));
    }
    let mut changes = targets.changes();
    let engine = HttpEngine {
        dialect,
        targets: Arc::clone(&targets),
        http: http.clone(),
        kv_blocks: facts.kv_blocks,
        patience: options.patience,
    };
    let mut up = tokio::select! {
        () = wait_until_up(&targets) => true,
        () = &mut stop => return Ok(End::Stopped),
    };
    // Dropping a start leaves nothing behind; the other arms are only waits.
    let mut worker = tokio::select! {
        started = Worker::start(options.worker_options(facts, ranks), engine) => started?,
        () = &mut stop => return Ok(End::Stopped),
    };
    if options.kv_events {
        kv::follow_all(&mut watches, &targets, dialect, http, &worker);
    }
    let mut asked = std::pin::pin!(worker.drain_asked());
    let end = loop {
        let before = std::mem::replace(&mut up, targets.is_up());
        if before && !up {
            warn!(worker = %options.worker, "no server of the engine works; the worker is no longer registered");
            worker.set_available(false);
        } else if !before && up {
            match came_back(options, facts, &targets, http).await {
                Some(true) => worker.set_available(true),
                Some(false) => break End::Changed,
                None => up = false,
            }
        }
        if up {
            worker.serve_ranks(targets.ranks_up());
        }
        let retry = async { if up { std::future::pending().await } else { tokio::time::sleep(LOOK_EVERY).await } };
        // Every arm may be dropped; a change that was not read yet is still marked as one.
        tokio::select! {
            error = worker.failed() => return Err(error.into()),
            () = &mut stop => break End::Stopped,
            () = &mut asked => break End::Stopped,
            _ = changes.changed() => (),
            () = retry => (),
        }
    };
    let drained = worker.drain(options.drain_timeout).await?;
    info!(cut_off = drained.cut_off, "stopped");
    Ok(end)
}

async fn wait_until_up(targets: &Targets) {
    let mut changes = targets.changes();
    while !targets.is_up() {
        // The sender is a field of the targets, so the channel can't end.
        let _ = changes.changed().await;
    }
}

/// Whether an engine that is there again is the one that is registered; `None` where it can't be asked yet.
async fn came_back(options: &BridgeOptions, before: &Facts, targets: &Targets, http: &Http) -> Option<bool> {
    let up = targets.endpoints().iter().find(|endpoint| endpoint.health() == targets::Health::Up)?;
    match facts(options, &up.base, http).await {
        Ok(facts) => Some(facts == *before),
        Err(problem) => {
            info!(%problem, "the engine can't be asked yet");
            None
        }
    }
}

impl BridgeOptions {
    /// The declared ranks: what the options say and what the engine says must be the same.
    fn ranks(&self, facts: &Facts) -> Result<RankRange, BridgeError> {
        let invalid = |text: String| Err(BridgeError::Invalid(text));
        let servers = u32::try_from(self.urls.len()).unwrap_or(u32::MAX);
        let size = match self.dp_size {
            Some(size) => size,
            None => servers.saturating_mul(facts.ranks.filter(|_| self.engine.dialect().takes_ranks()).unwrap_or(1)),
        };
        let Some(ranks) = RankRange::new(self.dp_start, size) else {
            return invalid(format!(
                "--dp-start {} and --dp-size {size}: ranks are 0 to {}, and at least one is needed",
                self.dp_start,
                MAX_RANKS - 1
            ));
        };
        if servers == 0 || !size.is_multiple_of(servers) {
            return invalid(format!("--dp-size {size}: it is no multiple of the {servers} given --engine-url"));
        }
        let (each, dialect) = (size / servers, self.engine.dialect());
        if each > 1 && !dialect.takes_ranks() {
            return invalid(format!(
                "--dp-size {size}: {} takes no rank over HTTP; give one --engine-url for each rank",
                dialect.name
            ));
        }
        match facts.ranks {
            Some(has) if has != each && dialect.takes_ranks() => invalid(format!(
                "--dp-size {size} over {servers} --engine-url: each server would have {each} ranks, but {} has {has}; \
                 sessions would not stay on one rank",
                self.urls[0]
            )),
            _ => Ok(ranks),
        }
    }

    fn worker_options(&self, facts: &Facts, ranks: RankRange) -> WorkerOptions {
        let mut options = WorkerOptions::new(
            self.link.clone(),
            self.namespace.clone(),
            self.worker.clone(),
            facts.models.clone(),
            ranks,
        );
        options.pool = self.pool.clone();
        options.device = self.device.clone();
        options.weight = self.weight;
        options.max_inflight = self.max_inflight;
        options.kv_blocks = facts.kv_blocks;
        options.block_size = facts.block_size;
        // The engine's own patience ends first, and says which setting it was.
        options.stream_idle_timeout = self.patience.idle.saturating_add(IDLE_ON_TOP);
        options
    }
}
