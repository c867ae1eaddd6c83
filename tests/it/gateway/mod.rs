//! The gateway against a real server, routers and workers; the test is a client over HTTP.

mod access;
mod answers;
mod batches;
mod bodies;
mod ends;
mod errors;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rankpin::config::gateway as config;
use rankpin::gateway::{self, GatewayError};
use rankpin::local::http::free_port;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::cluster::Settings;
use crate::support::http::{self, Answer, Headers, Open};
use crate::support::process::Process;
use crate::support::rankpin::command;
use crate::support::{Cluster, PATIENCE, eventually};

/// A gateway in a task of the test; it ends with this value.
pub struct Gateway {
    pub address: SocketAddr,
    _stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), GatewayError>>,
}

impl Gateway {
    /// One with these settings, on a cluster's server. Returns once it takes requests.
    pub async fn start(cluster: &Cluster, settings: Settings<'_>) -> Self {
        loop {
            let mut gateway = Self::spawn(cluster, settings);
            let ready = eventually("the gateway is ready", PATIENCE, async || {
                if gateway.task.is_finished() { Some(false) } else { gateway.is_ready().await.then_some(true) }
            });
            if ready.await {
                return gateway;
            }
            match (&mut gateway.task).await.expect("the gateway does not panic") {
                // Somebody else took the port in the meantime.
                Err(GatewayError::Listen { .. }) => {}
                ended => panic!("the gateway ended at its start: {ended:?}"),
            }
        }
    }

    fn spawn(cluster: &Cluster, settings: Settings<'_>) -> Self {
        let address = free_port().expect("there are ports");
        let mut flags = BTreeMap::from([("nats_url", cluster.server.url()), ("listen", address.to_string())]);
        flags.extend(settings.iter().map(|(key, text)| (*key, (*text).to_owned())));
        let config = config::resolve(&flags, &|_| None).unwrap_or_else(|e| panic!("the settings are valid: {e}"));
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(gateway::run(config, async {
            let _ = stopped.await;
        }));
        Self { address, _stop: stop, task }
    }

    /// Whether it says that it takes requests; with TLS, whether it takes connections.
    async fn is_ready(&self) -> bool {
        match rankpin::local::http::get(self.address, "/readyz").await {
            Ok(answer) => answer.status == 200,
            Err(error) => error.kind() == std::io::ErrorKind::InvalidData,
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    pub async fn get_with(&self, path: &str, headers: Headers<'_>) -> Answer {
        http::send(self.address, "GET", path, headers, b"").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, &[], body).await
    }

    pub async fn post_with(&self, path: &str, headers: Headers<'_>, body: &Value) -> Answer {
        http::send(self.address, "POST", path, headers, body.to_string().as_bytes()).await
    }

    pub async fn open(&self, path: &str, body: &Value) -> Open {
        http::open(self.address, path, &[], &body.to_string()).await
    }

    /// The value of a metric's line.
    pub async fn metric(&self, line: &str) -> f64 {
        let page = self.get("/metrics").await.text();
        let found = page.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
        found.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {line} in\n{page}"))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A simulated worker `w` of model `m`, as a process, with further arguments. Returns once the routers know it.
async fn sim(cluster: &Cluster, args: &[&str]) -> Process {
    let url = cluster.server.url();
    let mut command = command(&["sim", "--worker", "w", "--model", "m", "--nats-url", &url]);
    command.args(args);
    let process = Process::start("sim", command, cluster.server.dir());
    cluster.knows_workers(1).await;
    process
}

/// A chat of one message.
fn chat(words: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": words}], "max_tokens": 4})
}

/// The same body with a field.
fn with(mut body: Value, field: &str, value: impl Into<Value>) -> Value {
    body[field] = value.into();
    body
}
