//! The project's own binary, as processes.

use std::net::SocketAddr;
use std::process::Command;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::cluster::metric_in;
use super::process::Process;
use super::{NatsServer, PATIENCE, eventually};

/// `rankpin` with these arguments, and without the variables of whoever runs the tests: they must not decide them.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankpin"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RANKPIN_") || name.starts_with("NATS_")) {
        command.env_remove(name);
    }
    command.env_remove("RUST_LOG").args(args);
    command
}

/// A simulated worker of model `m`, as a process.
pub fn sim(server: &NatsServer, name: &str, args: &[&str]) -> Process {
    let mut command = command(&["sim", "--worker", name, "--model", "m", "--nats-url", &server.url()]);
    command.args(args);
    Process::start(&format!("sim-{name}"), command, server.dir())
}

/// A router; killed when dropped.
#[derive(Debug)]
pub struct RouterProcess {
    /// The process, with its log.
    pub process: Process,
    http: SocketAddr,
}

impl RouterProcess {
    /// Starts a router with further arguments, and waits until it is ready. The name is that of its log.
    pub async fn start(name: &str, server: &NatsServer, args: &[&str]) -> Self {
        Self::start_at(name, &server.url(), server.dir(), args).await
    }

    /// The same with URLs of servers, and a directory for its log.
    pub async fn start_at(name: &str, urls: &str, dir: &std::path::Path, args: &[&str]) -> Self {
        let mut command = command(&["router", "--nats-url", urls, "--listen", "127.0.0.1:0"]);
        command.args(["--log-format", "json"]).args(args);
        let mut process = Process::start(name, command, dir);
        let ready = async || {
            assert!(process.ended().is_none(), "the router ended at its start");
            let log = process.log();
            log.contains("router is ready").then_some(log)
        };
        let log = eventually("the router is ready", PATIENCE, ready).await;
        let http = address_in(&log).expect("the log says where HTTP is served");
        Self { process, http }
    }

    /// Where it serves HTTP.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// The sum over one of its metrics, by name without the prefix `rankpin_router_`.
    pub async fn metric(&self, name: &str) -> f64 {
        metric_in(&self.get("/metrics").await.1, name, "")
    }

    /// The same over the series whose labels hold this text.
    pub async fn metric_where(&self, name: &str, label: &str) -> f64 {
        metric_in(&self.get("/metrics").await.1, name, label)
    }

    /// Status and body of a GET.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.http).await.expect("the router serves HTTP");
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("the connection stands");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("the answer is UTF-8");
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("an HTTP answer");
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        (status, body)
    }
}

fn address_in(log: &str) -> Option<SocketAddr> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.into_iter().find_map(|line| line["address"].as_str()?.parse().ok())
}
