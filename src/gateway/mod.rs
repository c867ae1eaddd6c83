//! OpenAI- and Anthropic-compatible HTTP in, NATS out.
//!
//! The way of a request: [`server`] reads it off a connection, [`routes`] finds its API, [`forward`] checks whose it is
//! ([`keys`]), looks into its body for the model ([`body`]), carries what headers are to be carried ([`headers`]), sends it
//! as any frontend would ([`crate::client`]), and answers: at once where the answer is one message, else as [`events`].
//! What goes wrong is told in the words of the API ([`problem`]). Who goes away has their request cancelled, because the
//! reply stream is dropped with the connection.

pub mod api;
mod batches;
mod body;
mod cors;
mod events;
mod files;
mod forward;
mod headers;
mod keys;
mod metrics;
mod models;
mod pace;
mod problem;
mod routes;
mod server;
mod store_routes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use self::batches::Batches;
use self::files::Files;
use self::headers::AllowList;
use self::keys::{Keys, KeysError};
use self::metrics::Metrics;
use self::models::Models;
use self::server::Server;
use crate::client::jobs::{Jobs, JobsOptions};
use crate::client::{self, Client, ClientOptions};
use crate::config::gateway::{self as config, GatewayConfig, LargeBodies};
use crate::nats::bucket::Bucket;
use crate::nats::objects::{Making, Objects};
use crate::nats::{AccessError, ConnectError, Link, LinkOptions};
use crate::wire::subject::Subjects;

/// Messages of one answer that wait for a client which reads slowly; beyond, its stream ends in an error.
const STREAM_CAPACITY: usize = 8192;
/// Most bytes of large bodies in memory at a time; further ones are read once there is room.
const MAX_BODIES: usize = 1 << 30;
/// How long the last cancels may take to reach the server when a gateway stops.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a gateway does not run.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// No connection, or missing permissions.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Where and as whom to connect can't be made out.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The API keys can't be had.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The certificate or its key can't be used.
    #[error("cannot serve TLS with {path}: {problem}")]
    Tls {
        /// The file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The HTTP address can't be listened on.
    #[error("cannot listen on {address}: {problem}; choose another with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        problem: std::io::Error,
    },
}

/// What the requests of a gateway share.
#[derive(Debug)]
pub struct Gateway {
    config: GatewayConfig,
    client: Client,
    keys: Option<Keys>,
    carried: AllowList,
    models: Models,
    batches: Option<Batches>,
    metrics: Arc<Metrics>,
    stopping: watch::Receiver<bool>,
    /// Room for bodies in memory, in KiB.
    room: Semaphore,
}

impl Gateway {
    /// Why no requests should be sent here at the moment.
    fn why_not_ready(&self) -> Option<&'static str> {
        if *self.stopping.borrow() {
            return Some("it is stopping");
        }
        (!self.client.is_connected()).then_some("there is no connection to NATS")
    }
}

/// Runs a gateway until `stop`, then lets its requests end.
pub async fn run(config: GatewayConfig, stop: impl Future<Output = ()>) -> Result<(), GatewayError> {
    let mut stop = std::pin::pin!(stop);
    // Cancel-safe: a gateway that is told to stop while it starts holds nothing yet.
    let running = tokio::select! {
        started = start(config) => started?,
        () = &mut stop => return Ok(()),
    };
    stop.await;
    running.drain().await;
    Ok(())
}

struct Running {
    gateway: Arc<Gateway>,
    stop: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<JoinSet<()>>,
    /// What works on batches. Dropped, it leaves them to another gateway.
    working: JoinSet<()>,
}

async fn start(config: GatewayConfig) -> Result<Running, GatewayError> {
    let keys = config.api_keys.as_deref().map(Keys::read).transpose()?;
    let tls = config.tls.as_ref().map(server::acceptor).transpose()?;
    let listening = |problem| GatewayError::Listen { address: config.listen, problem };
    let listener = TcpListener::bind(config.listen).await.map_err(listening)?;
    let address = listener.local_addr().map_err(listening)?;
    let client = Client::connect(client_options(&config)?).await?;
    let subjects = Subjects::new(config.namespace.clone());
    let store = Link::open(link_options(&config, "store")?).await?;
    let batches = batches(&config, &subjects, &store).await?;
    let runner = batches.as_ref().map(Batches::runner);
    let (stop, stopping) = watch::channel(false);
    let metrics = Arc::new(Metrics::default());
    let gateway = Arc::new(Gateway {
        client,
        keys,
        carried: AllowList::new(&config),
        models: Models::new(Bucket::new(store, &subjects.workers_bucket()), config.namespace.clone()),
        batches,
        metrics: Arc::clone(&metrics),
        stopping: stopping.clone(),
        room: Semaphore::new(MAX_BODIES >> 10),
        config,
    });
    let server = Server { routes: routes::routes(&gateway), tls, stopping, metrics };
    let accepting = tokio::spawn(server.accept(listener));
    let mut working = JoinSet::new();
    if let Some(runner) = runner {
        working.spawn(runner.run());
    }
    info!(%address, "the gateway is ready");
    Ok(Running { gateway, stop, accepting, working })
}

impl Running {
    /// Takes no more connections, lets requests end, and cancels those that don't in time.
    async fn drain(mut self) {
        info!("draining");
        self.working.shutdown().await;
        self.stop.send_replace(true);
        let Ok(mut connections) = self.accepting.await else { return };
        let all = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(self.gateway.config.drain_timeout, all).await.is_err() {
            warn!(cut_off = connections.len(), "requests did not end in time and are cancelled");
        }
        // Dropped, they cancel what they serve.
        connections.shutdown().await;
        if tokio::time::timeout(LEAVE_TIMEOUT, self.gateway.client.flush_cancels()).await.is_err() {
            warn!("the NATS server did not answer at the end; some requests may not have been cancelled");
        }
        info!("drained");
    }
}

async fn batches(config: &GatewayConfig, subjects: &Subjects, store: &Link) -> Result<Option<Batches>, GatewayError> {
    let (max_file, max_age) = match config.batches {
        config::Batches::Off => return Ok(None),
        config::Batches::On { max_file, max_age } => (max_file, max_age),
    };
    let jobs = JobsOptions {
        link: link_options(config, "jobs")?,
        namespace: config.namespace.clone(),
        large_bodies: large_bodies(config),
    };
    let jobs = Jobs::connect(jobs).await?;
    // Over a connection of their own: files would hold up what is asked of the bucket.
    let link = Link::open(link_options(config, "files")?).await?;
    let files = Files::new(
        Objects::made_with(link, &subjects.files_bucket(), Making { max_age, replicas: config.replicas }),
        max_file,
    );
    let records = Batches::records(Bucket::new(store.clone(), &subjects.batches_bucket()), max_age, config.replicas);
    Ok(Some(Batches::new(files, records, jobs)))
}

fn link_options(config: &GatewayConfig, role: &str) -> Result<LinkOptions, AccessError> {
    config.access.link(&format!("rankpin gateway {role}"))
}

fn large_bodies(config: &GatewayConfig) -> Option<client::LargeBodies> {
    match config.large_bodies {
        LargeBodies::ObjectStore { max_age } => Some(client::LargeBodies { max_age, replicas: config.replicas }),
        LargeBodies::Refused => None,
    }
}

fn client_options(config: &GatewayConfig) -> Result<ClientOptions, AccessError> {
    let link = link_options(config, "requests")?;
    Ok(ClientOptions {
        namespace: config.namespace.clone(),
        max_open: config.max_requests,
        stream_capacity: STREAM_CAPACITY,
        large_bodies: large_bodies(config),
        decide_from: config.decide_from,
        ..ClientOptions::of(link)
    })
}
