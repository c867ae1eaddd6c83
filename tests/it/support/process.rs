//! Child processes that never outlive their test, and show what they logged when it fails.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Most of a log that is shown when a test fails, in bytes from its end.
const LOG_SHOWN_BYTES: usize = 16 * 1024;

/// A running child; killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// Signals that tests send.
#[derive(Debug, Clone, Copy)]
pub enum Signal {
    /// Freezes the process; it can't notice.
    Stop,
    /// Lets it go on.
    Continue,
    /// Asks it to end.
    Terminate,
    /// The same, as from a keyboard.
    Interrupt,
    /// Tells a NATS server that it is about to stop.
    LameDuck,
}

impl Process {
    /// Starts a command. Its output goes to `{name}.log` in `dir`, appended where that is there.
    pub fn start(name: &str, mut command: Command, dir: &Path) -> Self {
        let log = dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).expect("a temp directory takes files");
        let stdout = file.try_clone().expect("a file handle can be cloned");
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(file)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {name} ({command:?}): {e}"));
        Self { name: name.to_owned(), child, log }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let name = match signal {
            Signal::Stop => "-STOP",
            Signal::Continue => "-CONT",
            Signal::Terminate => "-TERM",
            Signal::Interrupt => "-INT",
            Signal::LameDuck => "-USR2",
        };
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(status.expect("every system has kill").success(), "kill {name} {} failed", self.name);
        if matches!(signal, Signal::Stop) {
            self.wait_until_stopped();
        }
    }

    /// All threads have to be stopped before a test goes on; on a busy machine that takes a moment. Where there is no
    /// `/proc` to see it in, it is taken for done.
    fn wait_until_stopped(&self) {
        let tasks = format!("/proc/{}/task", self.child.id());
        let all_stopped = || {
            std::fs::read_dir(&tasks).into_iter().flatten().flatten().all(|task| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('T'))
            })
        };
        let end = std::time::Instant::now() + super::PATIENCE;
        while !all_stopped() {
            assert!(std::time::Instant::now() < end, "{} does not stop", self.name);
            std::thread::sleep(super::LOOK_AGAIN);
        }
    }

    /// Its resident memory in KiB; `None` where the system does not tell.
    pub fn resident_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().trim_end_matches(" kB").trim().parse().ok()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Waits for its end; the test fails where it is still there after `deadline`.
    pub async fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let what = format!("{} ends", self.name);
        super::eventually(&what, deadline, async || self.ended()).await
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        // A child that has ended already can't be killed, and needn't be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = std::fs::read(&self.log).unwrap_or_default();
            let shown = &log[log.len().saturating_sub(LOG_SHOWN_BYTES)..];
            eprintln!("--- log of {}\n{}\n---", self.name, String::from_utf8_lossy(shown));
        }
    }
}

#[tokio::test]
async fn a_child_takes_signals_and_its_output_is_kept() {
    let server = super::NatsServer::start_with(super::server::Options { jetstream: false, ..Default::default() });
    let mut command = Command::new("sh");
    command.args(["-c", "echo ready; exec sleep 600"]);
    let mut child = Process::start("child", command, server.dir());
    super::eventually("the child speaks", super::PATIENCE, async || child.log().contains("ready").then_some(())).await;
    assert!(child.ended().is_none());
    child.signal(Signal::Terminate);
    assert!(!child.wait(super::PATIENCE).await.success());
}
