//! A NATS server of our own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{LocalError, Process, ready};

/// Names a server's binary, before all other ways to find one.
const BINARY_VARIABLE: &str = "RANKPIN_NATS_SERVER";
/// Finds or brings a server, in the repository.
const SCRIPT: &str = "scripts/nats-server";

/// A running NATS server with JetStream on free ports of 127.0.0.1.
#[derive(Debug)]
pub struct NatsServer {
    process: Process,
    url: String,
    monitor: SocketAddr,
}

impl NatsServer {
    /// Starts one that keeps its store, its log and its ports in `dir`.
    pub async fn start(dir: &Path) -> Result<Self, LocalError> {
        let ports = dir.join("ports");
        std::fs::create_dir(&ports)?;
        let mut command = Command::new(find()?);
        command.args(["--addr", "127.0.0.1", "--port", "-1", "--http_port", "-1", "--jetstream"]);
        command.arg("--store_dir").arg(dir.join("store")).arg("--ports_file_dir").arg(&ports);
        let mut process = Process::start("nats-server", command, dir)?;
        // The server writes the file once it takes connections.
        let (url, monitor) = ready(&mut [&mut process], async || read_ports(&ports)).await?;
        Ok(Self { process, url, monitor })
    }

    /// Where clients connect.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.process.ended()
    }

    /// The end of what it has said.
    pub fn log_end(&self) -> String {
        self.process.log_end()
    }

    /// How many messages clients have published to it.
    pub async fn messages_in(&self) -> Option<u64> {
        let body = super::http::get(self.monitor, "/varz").await.ok().filter(|answer| answer.status == 200)?.body;
        let stats: serde_json::Value = serde_json::from_slice(&body).ok()?;
        stats["in_msgs"].as_u64()
    }
}

fn read_ports(dir: &Path) -> Option<(String, SocketAddr)> {
    let file = std::fs::read_dir(dir).ok()?.next()?.ok()?.path();
    // A file that is only half written is no JSON yet.
    let listed: serde_json::Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let url = listed["nats"][0].as_str()?.to_owned();
    let monitor = listed["monitoring"][0].as_str()?.strip_prefix("http://")?.parse().ok()?;
    Some((url, monitor))
}

/// The server's binary: what [`BINARY_VARIABLE`] names, else what the repository's script finds or brings, else the
/// one on PATH.
fn find() -> Result<PathBuf, LocalError> {
    if let Some(path) = std::env::var_os(BINARY_VARIABLE) {
        return Ok(path.into());
    }
    if let Some(script) = script() {
        let name = script.display().to_string();
        let output =
            Command::new(&script).output().map_err(|source| LocalError::Start { name: name.clone(), source })?;
        if !output.status.success() {
            let output = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
            return Err(LocalError::Script { script: name, output });
        }
        return Ok(String::from_utf8_lossy(&output.stdout).trim().into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).map(|dir| dir.join("nats-server"));
    candidates.find(|candidate| candidate.is_file()).ok_or(LocalError::NoServer)
}

/// The script of the repository that we are in, or that we were built in.
fn script() -> Option<PathBuf> {
    let here = std::env::current_dir().ok();
    let program = std::env::current_exe().ok();
    let places = here.iter().flat_map(|dir| dir.ancestors()).chain(program.iter().flat_map(|path| path.ancestors()));
    // A script of this name in somebody else's directory is none of ours: ours has its pinned version beside it.
    let ours = |dir: &&Path| dir.join(SCRIPT).is_file() && dir.join(SCRIPT.to_owned() + "-requirements.txt").is_file();
    places.into_iter().find(ours).map(|dir| dir.join(SCRIPT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_has_a_script_that_is_found() {
        assert!(script().expect("tests run in the repository").ends_with(SCRIPT));
    }
}
