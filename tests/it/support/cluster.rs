//! A cluster of its own for each test: a NATS server, routers as tasks of the test, and a client that plays frontends.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use async_nats::jetstream::{self, kv};
use async_nats::{Client, Subscriber};
use rankpin::config;
use rankpin::core::hash::PinKey;
use rankpin::local::http;
use rankpin::router::{self, RouterError};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::frontend::{Answer, Ask, Sent};
use super::worker::WorkerBuilder;
use super::{NatsServer, PATIENCE, eventually};

/// Settings of a router, as the keys of its file.
pub type Settings<'s> = &'s [(&'static str, &'s str)];

/// Tests wait out an accept timeout only where they say so: on a busy machine a worker may be slow to accept.
const ACCEPT_TIMEOUT: &str = "15s";

/// A server, routers, and a connected client.
pub struct Cluster {
    pub server: NatsServer,
    pub client: Client,
    pub routers: Vec<RouterTask>,
    login: Option<(&'static str, &'static str)>,
}

impl Cluster {
    /// One router with the defaults.
    pub async fn start() -> Self {
        Self::with(1, &[]).await
    }

    /// Routers with these settings.
    pub async fn with(routers: usize, settings: Settings<'_>) -> Self {
        Self::on(NatsServer::start(), routers, settings).await
    }

    /// The same, on a server that is there.
    pub async fn on(server: NatsServer, routers: usize, settings: Settings<'_>) -> Self {
        let client = server.client().await;
        let mut cluster = Self { server, client, routers: Vec::new(), login: None };
        for _ in 0..routers {
            cluster.add_router(settings).await;
        }
        cluster
    }

    /// A router that runs already, on a server whose users need a login.
    pub async fn of(server: NatsServer, router: RouterTask, user: &'static str, password: &'static str) -> Self {
        let client = server.client_as(user, password).await;
        Self { server, client, routers: vec![router], login: Some((user, password)) }
    }

    /// A connection of its own, for a worker.
    pub async fn another_client(&self) -> Client {
        match self.login {
            Some((user, password)) => self.server.client_as(user, password).await,
            None => self.server.client().await,
        }
    }

    /// Another router; returns once it takes requests.
    pub async fn add_router(&mut self, settings: Settings<'_>) {
        self.routers.push(RouterTask::start(&self.server.url(), settings).await);
    }

    /// A worker of model `m` with one rank, 0, to be changed before it starts.
    pub fn worker(&self, id: &str) -> WorkerBuilder<'_> {
        WorkerBuilder::new(self, id)
    }

    /// Sends a request and waits for the end of its reply stream.
    pub async fn ask(&self, ask: Ask) -> Answer {
        self.send(ask).await.end().await
    }

    /// Sends a request.
    pub async fn send(&self, ask: Ask) -> Sent {
        ask.send(&self.client).await
    }

    /// Sends a turn of a session of model `m`.
    pub async fn turn(&self, session: &str) -> Answer {
        self.ask(Ask::new().session(session)).await
    }

    /// Where a turn of a session goes: `worker/rank`, `worker` without a rank, or status and code word of an error.
    pub async fn at(&self, session: &str) -> String {
        self.turn(session).await.at()
    }

    pub async fn cancel(&self, request: &str) {
        self.client.publish(format!("rankpin.cancel.{request}"), "".into()).await.expect("is published");
    }

    pub async fn subscribe(&self, subject: &str) -> Subscriber {
        let subscriber = self.client.subscribe(subject.to_owned()).await.expect("subscribes");
        super::settle(&self.client).await;
        subscriber
    }

    pub async fn bucket(&self, name: &str) -> kv::Store {
        jetstream::new(self.client.clone()).get_key_value(name).await.expect("a router has made the bucket")
    }

    /// The pin of a session of model `m`: its value and its revision.
    pub async fn pin(&self, session: &str) -> Option<(Value, u64)> {
        self.pin_of("", "m", session).await
    }

    pub async fn pin_of(&self, tenant: &str, model: &str, session: &str) -> Option<(Value, u64)> {
        let key = PinKey::of(tenant, model, session).to_string();
        let entry = self.bucket("rankpin_pins").await.entry(key).await.expect("the bucket answers")?;
        let put = entry.operation == kv::Operation::Put;
        put.then(|| (serde_json::from_slice(&entry.value).expect("a pin is JSON"), entry.revision))
    }

    /// Where a session is pinned, as [`Cluster::at`] writes it.
    pub async fn pinned_at(&self, session: &str) -> Option<String> {
        let (pin, _) = self.pin(session).await?;
        Some(placement(pin["worker"].as_str().expect("a worker"), pin["dp_rank"].as_u64()))
    }

    /// Stores a pin as another router would, and waits until every router has seen it. Returns its revision.
    pub async fn put_pin(&self, session: &str, worker: &str, rank: Option<u16>) -> u64 {
        self.put_pin_value(session, pin_value(session, worker, rank).to_string().as_bytes()).await
    }

    /// Stores any bytes as the pin of a session of model `m`.
    pub async fn put_pin_value(&self, session: &str, value: &[u8]) -> u64 {
        let key = PinKey::of("", "m", session).to_string();
        let revision = self.bucket("rankpin_pins").await.put(key, value.to_vec().into()).await.expect("is stored");
        self.mirrors_pins().await;
        revision
    }

    /// Waits until every router mirrors as many pins as there are.
    pub async fn mirrors_pins(&self) {
        let context = jetstream::new(self.client.clone());
        let equal = async || {
            // Counted anew each time: a pin that is being written stands in the mirror first.
            let stream = context.get_stream("KV_rankpin_pins").await.expect("a router has made the bucket");
            let count = stream.cached_info().state.messages;
            for router in &self.routers {
                if router.metric("pin_keys_mirrored").await != count as f64 {
                    return None;
                }
            }
            Some(())
        };
        eventually("every router mirrors what is stored", PATIENCE, equal).await;
    }

    /// Waits until every router knows so many workers.
    pub async fn knows_workers(&self, count: u32) {
        for router in &self.routers {
            router.reaches("workers", f64::from(count)).await;
        }
    }
}

/// The value of a named session's pin.
pub fn pin_value(session: &str, worker: &str, rank: Option<u16>) -> Value {
    json!({
        "v": 1, "session": session, "model": "m", "tenant": "", "worker": worker, "dp_rank": rank, "origin": "named"
    })
}

/// A placement in one word: `worker/rank`, or the worker alone.
pub fn placement(worker: &str, rank: Option<u64>) -> String {
    rank.map_or_else(|| worker.to_owned(), |rank| format!("{worker}/{rank}"))
}

/// The sum over one metric of a router's page, by name without the prefix `rankpin_router_`, over the series whose
/// labels hold this text.
pub fn metric_in(page: &str, name: &str, label: &str) -> f64 {
    let names = [format!("rankpin_router_{name}"), format!("rankpin_router_{name}_total")];
    let series = page.lines().filter_map(|line| line.rsplit_once(' '));
    let wanted = series.filter(|(series, _)| {
        let (bare, labels) = series.split_once('{').unwrap_or((series, ""));
        names.iter().any(|name| name == bare) && labels.contains(label)
    });
    wanted.map(|(_, value)| value.parse::<f64>().expect("a number")).sum()
}

/// A router in a task of the test; it ends with this value.
pub struct RouterTask {
    http: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), RouterError>>,
}

impl RouterTask {
    /// Starts a router and waits until it takes requests.
    pub async fn start(url: &str, settings: Settings<'_>) -> Self {
        loop {
            let mut router = Self::spawn(url, settings);
            let started = eventually("the router is ready", PATIENCE, async || {
                if router.task.is_finished() { Some(false) } else { router.is_ready().await.then_some(true) }
            });
            if started.await {
                return router;
            }
            match (&mut router.task).await.expect("the router does not panic") {
                // Somebody else took the port in the meantime.
                Err(RouterError::Listen { .. }) => {}
                ended => panic!("the router ended at its start: {ended:?}"),
            }
        }
    }

    /// Starts a router without waiting.
    pub fn spawn(url: &str, settings: Settings<'_>) -> Self {
        let http = http::free_port().expect("there are ports");
        let mut flags = BTreeMap::from([
            ("nats_url", url.to_owned()),
            ("listen", http.to_string()),
            ("accept_timeout", ACCEPT_TIMEOUT.to_owned()),
        ]);
        flags.extend(settings.iter().map(|(key, text)| (*key, (*text).to_owned())));
        let config = config::resolve(&flags, &|_| None).unwrap_or_else(|e| panic!("the settings are valid: {e}"));
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(router::run(config, async {
            let _ = stopped.await;
        }));
        Self { http, stop: Some(stop), task }
    }

    /// Whether it says that it takes requests.
    pub async fn is_ready(&self) -> bool {
        http::get(self.http, "/readyz").await.is_ok_and(|answer| answer.status == 200)
    }

    /// The sum over one of its metrics, by name without the prefix `rankpin_router_`, whatever its labels.
    pub async fn metric(&self, name: &str) -> f64 {
        self.metric_where(name, "").await
    }

    /// The same over the series whose labels hold this text.
    pub async fn metric_where(&self, name: &str, label: &str) -> f64 {
        let answer = http::get(self.http, "/metrics").await.expect("the router serves its metrics");
        let text = String::from_utf8(answer.body).expect("metrics are text");
        metric_in(&text, name, label)
    }

    /// Waits until a metric has this value.
    pub async fn reaches(&self, name: &str, value: f64) {
        let what = format!("{name} reaches {value}");
        eventually(&what, PATIENCE, async || (self.metric(name).await == value).then_some(())).await;
    }

    /// Tells it to stop, as SIGTERM does.
    pub fn tell_to_stop(&mut self) {
        let _ = self.stop.take().expect("it is told once").send(());
    }

    /// Why it did not start.
    pub async fn refused(mut self) -> RouterError {
        let ended = tokio::time::timeout(PATIENCE, &mut self.task).await.expect("the router gives up in time");
        ended.expect("the router does not panic").expect_err("it does not start")
    }

    /// Waits until it has ended.
    pub async fn ended(mut self) {
        let ended = tokio::time::timeout(PATIENCE, &mut self.task).await.expect("the router ends in time");
        ended.expect("the router does not panic").expect("the router ends well");
    }
}

impl Drop for RouterTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}
