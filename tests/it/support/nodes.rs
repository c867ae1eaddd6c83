//! NATS servers that form a cluster.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use rankpin::local::http;

use super::server::Options;
use super::{NatsServer, eventually};

/// How long a cluster may take to elect whoever leads it.
const FORMED_WITHIN: Duration = Duration::from_secs(60);

/// Three servers with JetStream that know each other.
#[derive(Debug)]
pub struct Nodes {
    pub servers: Vec<NatsServer>,
}

impl Nodes {
    /// Starts them, and waits until streams can be kept by all three.
    pub async fn start() -> Self {
        Self::with("").await
    }

    /// The same with more text in each one's configuration.
    pub async fn with(more: &str) -> Self {
        let ports: Vec<u16> = (0..3).map(|_| http::free_port().expect("there are ports").port()).collect();
        let routes: Vec<String> = ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        let start = |(n, port): (usize, &u16)| {
            // Clients learn of no other server than those that they are told: a test decides who reaches which.
            let config = format!(
                "server_name: n{n}\n{more}\ncluster {{ name: c, listen: \"127.0.0.1:{port}\", no_advertise: true, \
                 routes: [{}] }}\n",
                routes.join(", ")
            );
            NatsServer::start_with(Options { config, ..Options::default() })
        };
        let nodes = Self { servers: ports.iter().enumerate().map(start).collect() };
        nodes.formed().await;
        nodes
    }

    /// Where all of them are.
    pub fn urls(&self) -> String {
        self.servers.iter().map(NatsServer::url).collect::<Vec<_>>().join(",")
    }

    /// A client that knows all of them.
    pub async fn client(&self) -> async_nats::Client {
        let urls: Vec<String> = self.servers.iter().map(NatsServer::url).collect();
        async_nats::ConnectOptions::new().connect(urls).await.expect("a server takes connections")
    }

    async fn formed(&self) {
        let client = self.servers[0].client().await;
        let context = jetstream::new(client);
        eventually("the servers are a cluster", FORMED_WITHIN, async || {
            let config = stream::Config {
                name: "formed".into(),
                subjects: vec!["formed".into()],
                num_replicas: 3,
                ..stream::Config::default()
            };
            context.get_or_create_stream(config).await.ok()
        })
        .await;
        let _ = context.delete_stream("formed").await;
    }

    /// Which server leads a stream.
    pub async fn leader(&self, stream: &str) -> usize {
        let context = jetstream::new(self.client().await);
        eventually("the stream has a leader", FORMED_WITHIN, async || {
            let info = context.get_stream(stream).await.ok()?.cached_info().clone();
            let leader = info.cluster?.leader?;
            leader.strip_prefix('n')?.parse().ok()
        })
        .await
    }
}
