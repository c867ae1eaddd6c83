//! Child processes that never outlive their owner.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::LocalError;

/// How much of a log is shown where a process fails, in bytes from its end.
const LOG_SHOWN_BYTES: usize = 4096;

/// A running child; killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    guard: Option<Guard>,
}

impl Process {
    /// Starts a command. What it says goes to `{name}.log` in `dir`.
    pub fn start(name: &str, mut command: Command, dir: &Path) -> Result<Self, LocalError> {
        let log = dir.join(format!("{name}.log"));
        let output = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // A key that stops the owner in a terminal reaches its whole process group; the children end by the owner's
        // hand instead, in order.
        command.process_group(0);
        let child = command.spawn().map_err(|source| LocalError::Start { name: name.to_owned(), source })?;
        let guard = Guard::over(child.id());
        Ok(Self { name: name.to_owned(), child, log, guard })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        // A child that can't be waited for is no longer there to be watched.
        let ended = self.child.try_wait().ok().flatten();
        if ended.is_some() {
            self.guard = None;
        }
        ended
    }

    /// Kills it at once (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        // First, because the id of a child that is gone may be another's.
        self.guard = None;
        // A child that has ended already can't be killed, and needn't be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The end of what it has said.
    pub fn log_end(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let start = log.len().saturating_sub(LOG_SHOWN_BYTES);
        String::from_utf8_lossy(&log[start..]).trim_end().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Kills a child whose owner has died without doing so: killed itself, or told to end at once. It waits for the end of a
/// pipe that the owner holds open.
#[derive(Debug)]
struct Guard(Child);

impl Guard {
    /// A system without a shell goes without.
    fn over(child: u32) -> Option<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", "read -r _; kill -9 \"$1\"", "sh", &child.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        command.spawn().ok().map(Self)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Before its pipe is closed, or it would do what it is there for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This very program with other arguments. Settings of the environment do not reach it, except what is logged: they
/// are meant for whoever runs the owner.
pub fn ourselves() -> Result<Command, LocalError> {
    let program = std::env::current_exe().map_err(|source| LocalError::Start { name: "rankpin".to_owned(), source })?;
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if (text.starts_with("RANKPIN_") && text != "RANKPIN_LOG") || text.starts_with("NATS_") {
            command.env_remove(&name);
        }
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_process_is_gone_and_its_words_are_kept_until_then() {
        let dir = tempfile::tempdir().expect("a temp directory can be made");
        let mut command = Command::new("sh");
        command.args(["-c", "echo hello; exec sleep 600"]);
        let mut process = Process::start("child", command, dir.path()).expect("sh is everywhere");
        let until = std::time::Instant::now() + super::super::START_TIMEOUT;
        while process.log_end() != "hello" && std::time::Instant::now() < until {
            std::thread::sleep(super::super::LOOK_AGAIN);
        }
        assert_eq!(process.log_end(), "hello");
        assert!(process.ended().is_none());
        let alive =
            |id: u32| Command::new("kill").args(["-0", &id.to_string()]).output().expect("kill").status.success();
        let id = process.id();
        assert!(alive(id));
        drop(process);
        assert!(!alive(id));
    }
}
