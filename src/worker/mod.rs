//! What an engine's host runs: registration, rank subscriptions, the life of each request, load reports, drain
//! (protocol sections 6, 6.1 and 7). Usable by anybody who hosts an engine: implement [`Engine`], call
//! [`Worker::start`].
//!
//! The way of a request: [`intake`] reads it off a rank's subject, [`serve`] accepts it, lets the [`Engine`] work and
//! ends it; what goes out, goes through [`replies`].

mod bodies;
mod caches;
pub mod cancel;
mod dispatch;
pub mod engine;
mod intake;
mod interest;
mod outlet;
mod registration;
pub mod replies;
mod reports;
mod results;
mod serve;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};
use uuid::Uuid;

pub use caches::Caches;
pub use cancel::{CancelReason, CancelToken};
pub use engine::{Acceptance, Engine, EngineRequest, Failure, Refusal};
pub use replies::{ReplyError, ReplyStream};
pub use serve::CANCEL_GRACE;
pub use slots::MAX_HELD;

use self::bodies::Bodies;
use self::cancel::Cancels;
use self::intake::Intake;
use self::outlet::Outlet;
use self::registration::{Keeper, Phase};
use self::serve::Service;
use self::slots::Slots;
use crate::core::id::{Model, Namespace, Pool, RankRange, WorkerId};
use crate::nats::registry::Registry;
use crate::nats::{ConnectError, Link, LinkOptions};
use crate::wire::registration::Registration;
use crate::wire::subject::Subjects;

/// How long a drained worker goes on refusing, so that every router has seen that it drains.
const LINGER: Duration = Duration::from_millis(500);
/// How long an engine may be silent in the middle of an answer, where nothing is said.
pub const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long deleting the key and sending out what is left may take at the end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a worker is.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Where and as whom to connect.
    pub link: LinkOptions,
    /// The namespace.
    pub namespace: Namespace,
    /// The worker's name.
    pub worker: WorkerId,
    /// The models served.
    pub models: Vec<Model>,
    /// The ranks hosted.
    pub ranks: RankRange,
    /// The group of workers it belongs to.
    pub pool: Pool,
    /// Kind of device.
    pub device: String,
    /// Share of traffic relative to other workers, above 0.
    pub weight: f64,
    /// Most requests in flight per rank; beyond, requests are rejected.
    pub max_inflight: Option<u32>,
    /// Tokens per block of the prefix cache.
    pub block_size: Option<u32>,
    /// Blocks in each rank's prefix cache.
    pub kv_blocks: Option<u64>,
    /// How long an engine that has begun an answer may send no part of it; then the request is given up and ends in an
    /// error.
    pub stream_idle_timeout: Duration,
}

impl WorkerOptions {
    /// A worker with the defaults of protocol section 7.
    pub fn new(
        link: LinkOptions,
        namespace: Namespace,
        worker: WorkerId,
        models: Vec<Model>,
        ranks: RankRange,
    ) -> Self {
        let defaults = Registration::new(worker.as_str(), "", &[], 0, 1);
        Self {
            link,
            namespace,
            worker,
            models,
            ranks,
            pool: Pool::new(&defaults.pool).expect("the default pool is a name"),
            device: defaults.device,
            weight: defaults.weight,
            max_inflight: None,
            block_size: None,
            kv_blocks: None,
            stream_idle_timeout: STREAM_IDLE_TIMEOUT,
        }
    }

    fn registration(&self, instance: &str) -> Registration {
        let models: Vec<&str> = self.models.iter().map(Model::as_str).collect();
        let (start, size) = (self.ranks.start().0.into(), self.ranks.size());
        Registration {
            pool: self.pool.as_str().into(),
            device: self.device.clone(),
            weight: self.weight,
            max_inflight: self.max_inflight,
            block_size: self.block_size,
            kv_blocks: self.kv_blocks,
            ..Registration::new(self.worker.as_str(), instance, &models, start, size)
        }
    }
}

/// Why a worker does not run.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The options break a rule of section 7; the text names the field.
    #[error("the worker cannot be registered: {0}")]
    Invalid(String),
    /// There is no connection, or not with the rights needed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The name belongs to another process that is alive.
    #[error("worker {worker:?} is registered by {by}, which is alive; choose another name, or stop that one")]
    NameTaken {
        /// The name.
        worker: String,
        /// Who has it.
        by: String,
    },
    /// Another process has taken the name over; requests go there now.
    #[error("worker {worker:?} lost its name to {to}; this one has stopped")]
    NameLost {
        /// The name.
        worker: String,
        /// Who has it now.
        to: String,
    },
    /// A part of the worker ended by itself.
    #[error("a part of the worker ended: {0}")]
    Broken(String),
}

/// A worker that runs. Dropped without [`Worker::drain`] it stops at once, as a killed one would.
#[derive(Debug)]
pub struct Worker {
    instance: String,
    worker: WorkerId,
    subjects: Subjects,
    phase: watch::Sender<Phase>,
    served: watch::Sender<Vec<bool>>,
    slots: Arc<Slots>,
    cancels: Arc<Cancels>,
    asked: watch::Receiver<bool>,
    store: Link,
    outlet: Outlet,
    tasks: JoinSet<Result<(), WorkerError>>,
    /// Drives the outlet. It ends after everything that speaks.
    _driver: JoinSet<()>,
}

/// How a drain went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Requests that did not end in time; each was ended with 503 `shutting_down`.
    pub cut_off: usize,
}

impl Worker {
    /// Starts a worker: connects, waits for its bucket and for its name, listens, and only then registers. May take
    /// as long as the bucket or the name does; dropping the future leaves nothing behind.
    pub async fn start<E: Engine>(options: WorkerOptions, engine: E) -> Result<Self, WorkerError> {
        let instance = Uuid::now_v7().to_string();
        let registration = options.registration(&instance);
        registration.check().map_err(WorkerError::Invalid)?;
        let subjects = Subjects::new(options.namespace);
        let store = Link::open(options.link.clone()).await?;
        let (outlet, driver) = Outlet::open(options.link.clone()).await?;
        let registry = Registry::new(store.clone(), subjects.workers_bucket(), options.worker.as_str().into());
        let mut keeper = Keeper::wait_for_name(registry, registration).await?;
        let (worker, ranks) = (options.worker.clone(), options.ranks);
        let intake = Intake::open(options.link, subjects.clone(), worker, ranks).await?;

        let (ask, asked) = watch::channel(false);
        let (phase, told) = watch::channel(Phase::Ready);
        let service = Arc::new(Service {
            engine,
            bodies: Bodies::new(store.clone(), &subjects),
            subjects: subjects.clone(),
            worker: options.worker.clone(),
            store: store.clone(),
            outlet: outlet.clone(),
            stream_idle_timeout: options.stream_idle_timeout,
            slots: Arc::new(Slots::new(options.ranks, options.max_inflight)),
            cancels: Arc::default(),
            instance: instance.clone(),
            phase: phase.clone(),
            drain_asked: ask,
        });
        let (slots, cancels) = (Arc::clone(&service.slots), Arc::clone(&service.cancels));
        let mut tasks = JoinSet::new();
        let (served, changes) = watch::channel(vec![true; ranks.size() as usize]);
        tasks.spawn(intake.clone().read(Arc::clone(&service), told.clone(), changes).map(Ok));
        intake.listen().await?;
        keeper.register().await?;
        info!(worker = %options.worker, instance, "registered");
        tasks.spawn(keeper.keep(told));
        tasks.spawn(reports::report(service, instance.clone(), subjects.load(&options.worker)).map(Ok));
        Ok(Self {
            instance,
            worker: options.worker,
            subjects,
            phase,
            served,
            slots,
            cancels,
            asked,
            store,
            outlet,
            tasks,
            _driver: driver,
        })
    }

    /// Id of this process, as it is registered.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Returns when the worker had to stop by itself, with the reason; everything it held has ended then. May be
    /// dropped and called again.
    pub async fn failed(&mut self) -> WorkerError {
        let error = match self.tasks.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(()))) | None => WorkerError::Broken("it ended without being told to".into()),
            Some(Err(error)) => WorkerError::Broken(error.to_string()),
        };
        self.tasks.shutdown().await;
        // Where the server does not answer, its connections end with the worker.
        let _ = tokio::time::timeout(LEAVE_TIMEOUT, self.settle()).await;
        error
    }

    /// Says whether what serves the requests works. While it does not, the worker is not registered and refuses what
    /// still comes; requests that are running go on, and so does the process's name.
    pub fn set_available(&self, available: bool) {
        self.slots.set_away(!available);
        self.phase.send_replace(if available { Phase::Ready } else { Phase::Away });
    }

    /// Says which of the ranks work, in order. Nobody listens on the subjects of the others, so that routers notice with
    /// the next request for one of them, and place its sessions on the ranks that are left.
    pub fn serve_ranks(&self, served: Vec<bool>) {
        self.served.send_if_modified(|before| {
            let changed = *before != served;
            *before = served;
            changed
        });
    }

    /// Where this worker's caches are told of.
    pub fn caches(&self) -> Caches {
        Caches::new(self.store.clone(), self.subjects.clone(), self.worker.clone(), self.instance.clone())
    }

    /// Returns once an operator has asked this worker to drain (`rankpin drain`); it has been answered that the worker
    /// does. From then on new requests are refused: whoever hosts the worker calls [`Worker::drain`] and ends, as after
    /// a SIGTERM. Never returns where nobody asks; may be dropped and called again.
    pub fn drain_asked(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut asked = self.asked.clone();
        async move {
            if asked.wait_for(|asked| *asked).await.is_err() {
                // The worker itself has ended; whoever waits for that hears of it elsewhere.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Leaves: registered as draining at once, new dispatches are refused, running requests end or, after `timeout`,
    /// are ended; then the key is deleted and the subscriptions end.
    pub async fn drain(mut self, timeout: Duration) -> Result<Drained, WorkerError> {
        info!(instance = self.instance, "draining");
        self.slots.drain();
        self.phase.send_replace(Phase::Draining);
        let linger = tokio::time::sleep(LINGER);
        let mut cut_off = 0;
        if tokio::time::timeout(timeout, self.slots.emptied()).await.is_err() {
            cut_off = self.cancels.stop_all();
            warn!(instance = self.instance, cut_off, "requests did not end in time and were cut off");
            // Each has this long to end; the time for its last messages is on top.
            let _ = tokio::time::timeout(CANCEL_GRACE + LEAVE_TIMEOUT, self.slots.emptied()).await;
        }
        linger.await;
        self.phase.send_replace(Phase::Leaving);
        self.leave().await?;
        info!(instance = self.instance, "drained");
        Ok(Drained { cut_off })
    }

    /// Waits until the key is deleted and what was published has reached the server.
    async fn leave(&mut self) -> Result<(), WorkerError> {
        // The reporter never ends by itself; the keeper and the intake do.
        let ended = async {
            for _ in 0..2 {
                match self.tasks.join_next().await {
                    Some(Ok(ended)) => ended?,
                    Some(Err(error)) => return Err(WorkerError::Broken(error.to_string())),
                    None => (),
                }
            }
            self.settle().await
        };
        let outcome = tokio::time::timeout(LEAVE_TIMEOUT, ended).await;
        self.tasks.shutdown().await;
        outcome.unwrap_or_else(|_| Err(WorkerError::Broken("the NATS server did not answer at the end".into())))
    }

    /// Waits until all messages are out.
    async fn settle(&self) -> Result<(), WorkerError> {
        let round_trips = [self.store.barrier().await, self.outlet.barrier().await];
        for round_trip in round_trips {
            match round_trip {
                // What the server did not allow was told of when it was tried; the round trip is what counts here.
                Ok(()) | Err(ConnectError::Permissions(_)) => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
