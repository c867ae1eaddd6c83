//! Everything on one machine in one process: a NATS server of our own, a router, a gateway, and a worker in front of an
//! engine, which is simulated where none is given.

mod worker;

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

pub use self::worker::{Simulated, WorkerPart};
use crate::bridge::BridgeError;
use crate::config::gateway::{self as gateway_config, GatewayConfig};
use crate::config::{self, ConfigError, Flags, RouterConfig};
use crate::gateway::{self, GatewayError};
use crate::local::{self, LocalError, NatsServer};
use crate::router::{self, RouterError};
use crate::worker::WorkerError;

/// How often the NATS server is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a part may take to end; then the rest is ended without it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(40);

/// What is brought up.
#[derive(Debug)]
pub struct UpOptions {
    /// Where the gateway listens; port 0 is any that is free.
    pub listen: SocketAddr,
    /// Settings of the router, as flags.
    pub router: Flags,
    /// The worker.
    pub worker: WorkerPart,
}

/// What whoever started it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Gateway, router and NATS run; requests are answered once the engine is there.
    Waiting {
        /// Its servers.
        engine: String,
    },
    /// Requests are answered.
    Ready(Ready),
    /// An operator has drained its worker (`rankpin drain`): it ends.
    Drained,
}

/// Where everything is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// The gateway.
    pub gateway: SocketAddr,
    /// The NATS server.
    pub nats: String,
    /// The models served.
    pub models: Vec<String>,
}

/// Why it does not stand, or has come down by itself.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// The NATS server.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The router.
    #[error(transparent)]
    Router(#[from] RouterError),
    /// The gateway.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    /// The worker in front of an engine's server.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// The worker with the simulated engine.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The simulated engine's options.
    #[error("the simulated engine: {0}")]
    Simulated(String),
    /// The NATS server has ended.
    #[error("the NATS server has ended; it said:\n{0}")]
    Nats(String),
    /// A part ended without an error and without being told to.
    #[error("a part of it has ended without being told to: {0}")]
    Ended(String),
}

/// Runs until told to stop, or until a part ends. Everything that was started is gone then.
pub async fn run(options: UpOptions, tell: impl Fn(Event), stop: impl Future<Output = ()>) -> Result<(), UpError> {
    let dir = tempfile::tempdir().map_err(LocalError::Files)?;
    let mut server = NatsServer::start(dir.path()).await?;
    let listen = match options.listen.port() {
        0 => SocketAddr::new(options.listen.ip(), local::http::free_port().map_err(LocalError::Files)?.port()),
        _ => options.listen,
    };
    let (router, gateway) = configs(options.router, server.url(), listen)?;
    // In the order in which they end: who takes requests first, who serves them last.
    let mut parts = [Part::default(), Part::default(), Part::default()];
    let [gateways, workers, routers] = &mut parts;
    routers.start(|stop| async { Ok(router::run(router, stop).await?) });
    gateways.start(|stop| async { Ok(gateway::run(gateway, stop).await?) });
    let engine = options.worker.engine();
    let url = server.url().to_owned();
    workers.start(|stop| options.worker.run(url.clone(), stop));

    let outcome = {
        let watched = async {
            let models = ready(listen, &engine, &tell).await;
            tell(Event::Ready(Ready { gateway: listen, nats: url.clone(), models }));
            std::future::pending::<()>().await;
        };
        let [gateways, workers, routers] = &mut parts;
        let ended = async {
            loop {
                if let Some(log) = server_ended(&mut server) {
                    return Err(UpError::Nats(log));
                }
                // Every arm may be dropped: a part that has ended stays ended.
                let ended = tokio::select! {
                    ended = gateways.ended() => ended.and(Err(UpError::Ended("the gateway".into()))),
                    ended = workers.ended() => ended,
                    ended = routers.ended() => ended.and(Err(UpError::Ended("the router".into()))),
                    () = tokio::time::sleep(LOOK_EVERY) => continue,
                };
                // Without an error only a worker ends before it is told to, where an operator asks it to.
                return ended.inspect(|()| tell(Event::Drained));
            }
        };
        tokio::select! {
            () = watched => Ok(()),
            ended = ended => ended,
            () = stop => Ok(()),
        }
    };
    for part in &mut parts {
        part.end().await;
    }
    outcome
}

/// The configurations of router and gateway. Variables of the environment are for those that are started by hand.
fn configs(router: Flags, nats: &str, listen: SocketAddr) -> Result<(RouterConfig, GatewayConfig), ConfigError> {
    let mut router = router;
    router.insert("nats_url", nats.to_owned());
    router.insert("listen", "off".to_owned());
    let gateway = Flags::from([("nats_url", nats.to_owned()), ("listen", listen.to_string())]);
    Ok((config::resolve(&router, &|_| None)?, gateway_config::resolve(&gateway, &|_| None)?))
}

fn server_ended(server: &mut NatsServer) -> Option<String> {
    server.ended().map(|status| format!("({status}) {}", server.log_end()))
}

/// Waits until the gateway lists models, which are those that a worker is registered for.
async fn ready(gateway: SocketAddr, engine: &str, tell: &impl Fn(Event)) -> Vec<String> {
    let mut told = false;
    loop {
        let models = models(gateway).await;
        match models {
            Some(models) if !models.is_empty() => return models,
            // It answers: all that is missing is the engine.
            Some(_) if !std::mem::replace(&mut told, true) => tell(Event::Waiting { engine: engine.to_owned() }),
            Some(_) | None => (),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn models(gateway: SocketAddr) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Listed {
        data: Vec<Named>,
    }
    #[derive(Deserialize)]
    struct Named {
        id: String,
    }
    let answer = local::http::get(gateway, "/v1/models").await.ok().filter(|answer| answer.status == 200)?;
    let listed: Listed = serde_json::from_slice(&answer.body).ok()?;
    Some(listed.data.into_iter().map(|named| named.id).collect())
}

/// One part: a task that ends when it is told to.
#[derive(Debug)]
struct Part {
    stop: watch::Sender<bool>,
    task: JoinSet<Result<(), UpError>>,
}

impl Default for Part {
    fn default() -> Self {
        Self { stop: watch::Sender::new(false), task: JoinSet::new() }
    }
}

/// Returns when a part is to end.
async fn told(mut stop: watch::Receiver<bool>) {
    // Where nobody can tell any more, nobody waits for it either.
    let _ = stop.wait_for(|stop| *stop).await;
}

impl Part {
    fn start<F>(&mut self, run: impl FnOnce(Stop) -> F)
    where
        F: Future<Output = Result<(), UpError>> + Send + 'static,
    {
        self.task.spawn(run(Box::pin(told(self.stop.subscribe()))));
    }

    /// Returns when it has ended by itself. Dropping the future loses nothing.
    async fn ended(&mut self) -> Result<(), UpError> {
        match self.task.join_next().await {
            Some(Ok(Ok(()))) | None => Ok(()),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(error)) => Err(UpError::Ended(error.to_string())),
        }
    }

    /// Tells it to end, and waits for that.
    async fn end(&mut self) {
        self.stop.send_replace(true);
        match tokio::time::timeout(LEAVE_TIMEOUT, self.task.join_next()).await {
            Ok(Some(Ok(Err(problem)))) => warn!(%problem, "a part did not end in order"),
            Ok(Some(Err(problem))) => warn!(%problem, "a part did not end in order"),
            Ok(Some(Ok(Ok(()))) | None) => (),
            Err(_) => warn!("a part did not end in time"),
        }
        self.task.shutdown().await;
    }
}

/// What tells a part to end.
pub type Stop = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
