//! `docker-compose.yml` as it stands, up for one test: its containers can be killed, restarted and cut off.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rankpin::local::http;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::eventually;

/// How long containers may take to start, stop or become healthy; it only counts when a test fails.
pub const LONG: Duration = Duration::from_secs(120);
/// Lines of each container's log that are shown when a test fails.
const LOG_LINES: &str = "60";
/// How long workers may take to accept: on a busy machine a worker may be slow, and a session would move for nothing.
const ACCEPT_TIMEOUT: &str = "15s";
/// Seconds that a container may take to end by itself, as in the file.
const GRACE_S: &str = "40";

/// How the file is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As it is.
    Single,
    /// With `deploy/compose/cluster.env`.
    Cluster,
    /// With the profile `monitoring`.
    Monitoring,
}

/// The running containers; taken down when dropped.
pub struct Stack {
    project: String,
    kind: Kind,
    ports: Vec<(&'static str, String)>,
}

/// Where the file is.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `docker compose`, or the older command of its own.
fn compose_command() -> Command {
    static PLUGIN: OnceLock<bool> = OnceLock::new();
    let plugin = *PLUGIN.get_or_init(|| {
        let version = Command::new("docker").args(["compose", "version"]).output();
        version.is_ok_and(|output| output.status.success())
    });
    if plugin {
        let mut command = Command::new("docker");
        command.arg("compose");
        command
    } else {
        Command::new("docker-compose")
    }
}

/// Runs a command to its end; the test fails where it does.
fn run(command: &mut Command) -> String {
    let output = output(command);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed:\n{out}\n{err}");
    out.into_owned()
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}; run these tests with make test-compose"))
}

/// `docker` with these arguments.
pub fn docker(args: &[&str]) -> String {
    run(Command::new("docker").args(args))
}

impl Stack {
    /// Starts services of the file, all where none is named, and waits until they are healthy. The test's name becomes
    /// part of the containers' names.
    pub async fn up(test: &str, kind: Kind, services: &[&str]) -> Self {
        let ports = ["NATS_PORT", "NATS_2_PORT", "NATS_3_PORT", "GATEWAY_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT"];
        let mut ports: Vec<_> =
            ports.into_iter().zip(free_ports()).map(|(name, port)| (name, port.to_string())).collect();
        // Any free one for each router.
        ports.push(("ROUTER_PORTS", String::new()));
        let stack = Self { project: format!("rankpin-{test}-{}", std::process::id()), kind, ports };
        run(stack.compose().args(["up", "--detach", "--no-build"]).args(services));
        for container in stack.containers("") {
            stack.healthy(&container).await;
        }
        stack
    }

    fn compose(&self) -> Command {
        let mut command = compose_command();
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("NATS_") || name == "COMPOSE_FILE") {
            command.env_remove(name);
        }
        command.envs(self.ports.iter().map(|(name, port)| (name, port))).env("ACCEPT_TIMEOUT", ACCEPT_TIMEOUT);
        command.current_dir(root()).args(["--project-name", &self.project]);
        match self.kind {
            Kind::Single => &mut command,
            Kind::Cluster => command.args(["--env-file", "deploy/compose/cluster.env"]),
            Kind::Monitoring => command.args(["--profile", "monitoring"]),
        };
        command
    }

    /// Runs `docker compose` with these arguments.
    pub fn run(&self, args: &[&str]) -> String {
        run(self.compose().args(args))
    }

    /// The containers of a service by name, stopped ones too; of all services where it is empty.
    pub fn containers(&self, service: &str) -> Vec<String> {
        let project = format!("label=com.docker.compose.project={}", self.project);
        let service = format!("label=com.docker.compose.service={service}");
        let mut args = vec!["ps", "--all", "--format", "{{.Names}}", "--filter", &project];
        if !service.ends_with('=') {
            args.extend(["--filter", &service]);
        }
        let mut names: Vec<String> = docker(&args).lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    /// The only container of a service.
    pub fn container(&self, service: &str) -> String {
        let [container] = <[String; 1]>::try_from(self.containers(service)).expect("it has one container");
        container
    }

    /// Waits until a container's health check is content; without one, until it runs.
    pub async fn healthy(&self, container: &str) {
        let state = "{{if .State.Health}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}";
        let look = async || {
            let state = docker(&["inspect", "--format", state, container]);
            matches!(state.trim(), "healthy" | "running").then_some(())
        };
        eventually(&format!("{container} is healthy"), LONG, look).await;
    }

    /// Ends a container as it would be in a new rollout, starts it again, and waits until it is healthy.
    pub async fn restart(&self, container: &str) {
        let container_name = container.to_owned();
        let restarted = tokio::task::spawn_blocking(move || docker(&["restart", "--time", GRACE_S, &container_name]));
        restarted.await.expect("docker restarts it");
        self.healthy(container).await;
    }

    /// Takes a container off the network, as if a cable were pulled.
    pub fn cut_off(&self, container: &str) {
        docker(&["network", "disconnect", "--force", &format!("{}_default", self.project), container]);
    }

    /// Puts it back.
    pub fn put_back(&self, container: &str) {
        docker(&["network", "connect", &format!("{}_default", self.project), container]);
    }

    /// URLs of the NATS servers, with commas between.
    pub fn nats_urls(&self) -> String {
        let names: &[&str] = match self.kind {
            Kind::Cluster => &["NATS_PORT", "NATS_2_PORT", "NATS_3_PORT"],
            Kind::Single | Kind::Monitoring => &["NATS_PORT"],
        };
        let urls = names.iter().map(|name| format!("nats://127.0.0.1:{}", self.port(name)));
        urls.collect::<Vec<_>>().join(",")
    }

    /// A published port, by the variable that sets it.
    pub fn port(&self, variable: &str) -> &str {
        let (_, port) = self.ports.iter().find(|(name, _)| *name == variable).expect("one of the file's variables");
        port
    }

    /// Asks the gateway over HTTP, as any client of the API does, and says where the answer came from.
    pub async fn ask_gateway(&self, session: &str) -> String {
        let body = r#"{"model":"my-model","max_tokens":8,"messages":[{"role":"user","content":"hi"}]}"#;
        let head = format!(
            "POST /v1/chat/completions HTTP/1.0\r\nHost: test\r\nContent-Type: application/json\r\n\
             x-session-id: {session}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let address = format!("127.0.0.1:{}", self.port("GATEWAY_PORT"));
        let mut stream = TcpStream::connect(address).await.expect("the gateway's port is published");
        stream.write_all(format!("{head}{body}").as_bytes()).await.expect("the gateway reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer in UTF-8");
        let status = answer.split(' ').nth(1);
        assert_eq!(status, Some("200"), "{answer}");
        let header = |name: &str| {
            let line = answer.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
            line.and_then(|line| line.split_once(": ")).map(|(_, value)| value.to_owned())
        };
        let (worker, rank) = (header("x-rankpin-worker:"), header("x-rankpin-dp-rank:"));
        format!("{}/{}", worker.expect("the answer names it"), rank.expect("the answer names it"))
    }

    /// Where a router's HTTP is published; none while it does not run.
    pub fn http_of(&self, router: &str) -> Option<SocketAddr> {
        let port = output(Command::new("docker").args(["port", router, "9464/tcp"]));
        String::from_utf8_lossy(&port.stdout).lines().next()?.parse().ok()
    }

    /// The sum over a metric of one router, by its full name; none while the router does not answer.
    pub async fn metric(&self, router: &str, name: &str) -> Option<f64> {
        let page = http::get(self.http_of(router)?, "/metrics").await.ok()?;
        let text = String::from_utf8_lossy(&page.body).into_owned();
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            (series.split('{').next() == Some(name)).then(|| value.parse::<f64>().ok()).flatten()
        });
        Some(values.sum())
    }

    /// Waits until every router knows so many workers.
    pub async fn workers(&self, count: usize) {
        let count = f64::from(u32::try_from(count).expect("a handful"));
        for router in self.containers("router") {
            let known = async || {
                let workers = self.metric(&router, "rankpin_router_workers").await?;
                (workers == count).then_some(())
            };
            eventually(&format!("{router} knows {count} workers"), LONG, known).await;
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = output(self.compose().args(["logs", "--no-color", "--tail", LOG_LINES]));
            eprintln!("--- logs\n{}\n---", String::from_utf8_lossy(&logs.stdout));
        }
        // Whatever is left is told by its exit status to nobody: the next test has a project of its own.
        let _ = output(self.compose().args(["down", "--volumes", "--timeout", "1", "--remove-orphans"]));
    }
}

/// A script of the project.
pub fn script(name: &str) -> PathBuf {
    root().join("scripts").join(name)
}

/// Ports that are free, below those that the system and the engine give out by themselves: one of these may be taken for
/// another container before the one that it was meant for starts. Stacks begin at different places.
fn free_ports() -> impl Iterator<Item = u16> {
    const FROM: u16 = 20_000;
    const COUNT: u16 = 10_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % u32::from(COUNT)).expect("below it");
    std::iter::repeat_with(move || FROM + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .take(usize::from(COUNT))
        .filter(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
}
