//! Real NATS servers, each with a directory, a port and a store of its own.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use tempfile::TempDir;

use super::PATIENCE;
use super::process::{Process, Signal};

/// A running NATS server on 127.0.0.1. Dropping it kills it and removes its directory.
#[derive(Debug)]
pub struct NatsServer {
    // Declared before the directory, so that the server is gone when the directory goes.
    process: Process,
    port: u16,
    options: Options,
    dir: TempDir,
}

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether it has JetStream.
    pub jetstream: bool,
    /// Text for its configuration file: `authorization { … }`, `max_payload: 4096`, …
    pub config: String,
    /// Its port; any free one where there is none.
    pub port: Option<u16>,
    /// Variables of its environment.
    pub environment: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self { jetstream: true, config: String::new(), port: None, environment: Vec::new() }
    }
}

impl NatsServer {
    /// A server with JetStream on a free port. The test fails with the server's log where it does not start.
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// A server set up so.
    pub fn start_with(options: Options) -> Self {
        let dir = tempfile::Builder::new().prefix("rankpin-test-").tempdir().expect("a temp directory can be made");
        let (process, port) = spawn(&dir, &options);
        Self { process, port, options, dir }
    }

    /// Where clients connect.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A directory for what the test starts beside it; it goes with the server.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Kills it. Its port and its store stay, for [`NatsServer::restart`].
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// The text for its configuration file.
    pub fn config(&self) -> &str {
        &self.options.config
    }

    /// Starts it again with another configuration, as [`NatsServer::restart`] does.
    pub fn restart_with(&mut self, config: String) {
        self.options.config = config;
        self.restart();
    }

    /// Starts it again on the same port and store; kills it first where it runs.
    pub fn restart(&mut self) {
        self.kill();
        let options = Options { port: Some(self.port), ..self.options.clone() };
        (self.process, self.port) = spawn(&self.dir, &options);
    }

    /// Freezes it: connections stand and nothing answers.
    pub fn freeze(&self) {
        self.process.signal(Signal::Stop);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.process.signal(Signal::Continue);
    }

    /// Tells it that it is about to stop: it takes no new connections, sends its clients away, and ends.
    pub fn lame_duck(&self) {
        self.process.signal(Signal::LameDuck);
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.process.ended().is_some()
    }

    /// A client, connected.
    pub async fn client(&self) -> async_nats::Client {
        async_nats::connect(self.url()).await.expect("the server takes connections")
    }

    /// A client, connected as a user of the configuration's `authorization`.
    pub async fn client_as(&self, user: &str, password: &str) -> async_nats::Client {
        async_nats::ConnectOptions::with_user_and_password(user.into(), password.into())
            .connect(self.url())
            .await
            .expect("the server takes this user")
    }

    /// The same, whose inboxes are its own alone: `_INBOX.{user}`.
    pub async fn client_with_inbox(&self, user: &str, password: &str) -> async_nats::Client {
        async_nats::ConnectOptions::with_user_and_password(user.into(), password.into())
            .custom_inbox_prefix(format!("_INBOX.{user}"))
            .connect(self.url())
            .await
            .expect("the server takes this user")
    }
}

fn spawn(dir: &TempDir, options: &Options) -> (Process, u16) {
    let path = |name: &str| dir.path().join(name);
    let ports = path("ports");
    // The file of an earlier run names the same port, and must not be taken for this run's sign of life.
    let _ = std::fs::remove_dir_all(&ports);
    std::fs::create_dir(&ports).expect("a temp directory takes directories");
    std::fs::write(path("server.conf"), &options.config).expect("a temp directory takes files");
    let mut command = Command::new(binary());
    command.arg("--config").arg(path("server.conf")).args(["--addr", "127.0.0.1"]);
    command.args(["--port", &options.port.map_or("-1".to_owned(), |port| port.to_string())]);
    command.arg("--ports_file_dir").arg(&ports);
    if options.jetstream {
        command.arg("--jetstream").arg("--store_dir").arg(path("store"));
    }
    command.envs(options.environment.iter().cloned());
    let mut process = Process::start("nats-server", command, dir.path());
    let end = Instant::now() + PATIENCE;
    loop {
        // The server writes the file once it takes connections.
        if let Some(port) = read_port(&ports) {
            return (process, port);
        }
        assert!(process.ended().is_none(), "the NATS server ended at its start");
        assert!(Instant::now() < end, "the NATS server is not ready within {PATIENCE:?}");
        std::thread::sleep(super::LOOK_AGAIN);
    }
}

fn read_port(ports: &std::path::Path) -> Option<u16> {
    let file = std::fs::read_dir(ports).ok()?.next()?.ok()?.path();
    // A file that is only half written is no JSON yet.
    let listed: serde_json::Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    listed["nats"][0].as_str()?.rsplit_once(':')?.1.parse().ok()
}

/// The server's binary: what `RANKPIN_NATS_SERVER` names, else what `scripts/nats-server` finds or brings.
pub fn binary() -> &'static PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        if let Some(path) = std::env::var_os("RANKPIN_NATS_SERVER") {
            return path.into();
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/nats-server");
        let output = Command::new(script).output().unwrap_or_else(|e| panic!("cannot run {script}: {e}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("a path in UTF-8").trim().into()
    })
}
