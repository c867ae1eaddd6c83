//! `rankpin demo` and `rankpin bench` from end to end: real routers, real workers, and nothing left behind.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::process::{Process, Signal};
use crate::support::{eventually, server};

/// How long a demo or a bench may take; it only counts when something hangs.
const LONG: Duration = Duration::from_secs(120);

/// Everything that a command starts inherits this directory for its temporary files, and is known by it.
fn rankpin(args: &[&str], dir: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankpin"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("RANKPIN_") || text.starts_with("NATS_") {
            command.env_remove(&name);
        }
    }
    command.env("RANKPIN_NATS_SERVER", server::binary()).env("TMPDIR", temporary(dir)).args(args);
    command
}

fn temporary(dir: &TempDir) -> std::path::PathBuf {
    dir.path().join("tmp")
}

fn directory() -> TempDir {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    std::fs::create_dir(temporary(&dir)).expect("it takes directories");
    dir
}

/// Processes that were started with this directory for temporary files.
fn left_running(dir: &Path) -> Vec<u32> {
    let wanted = format!("TMPDIR={}\0", dir.display());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|id| {
            let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&wanted)
        })
        .collect()
}

fn nothing_is_left(dir: &TempDir) {
    assert_eq!(left_running(&temporary(dir)), [0; 0], "processes are left");
    let files: Vec<_> = std::fs::read_dir(temporary(dir)).expect("it is there").flatten().collect();
    assert!(files.is_empty(), "files are left: {files:?}");
}

#[tokio::test]
async fn the_demo_shows_that_affinity_holds_and_leaves_nothing_behind() {
    let dir = directory();
    let mut demo = Process::start("demo", rankpin(&["demo", "--limit", "6", "--speed", "8"], &dir), dir.path());
    let status = demo.wait(LONG).await;
    let log = demo.log();
    assert!(status.success(), "{log}");
    for title in ["Round 1: affinity off", "Round 2: hard affinity", "worker w1 killed"] {
        assert!(log.contains(title), "{title:?} is missing:\n{log}");
    }
    nothing_is_left(&dir);
}

#[tokio::test]
async fn a_demo_that_is_stopped_leaves_nothing_behind() {
    let dir = directory();
    let mut demo = Process::start("demo", rankpin(&["demo", "--speed", "0.1"], &dir), dir.path());
    // A server, two routers and two workers, each with a guard that outlives the demo to end it, and the demo itself: 11.
    let all = async || (left_running(&temporary(&dir)).len() >= 11).then_some(());
    eventually("all its processes run", LONG, all).await;
    demo.signal(Signal::Terminate);
    assert!(!demo.wait(LONG).await.success());
    nothing_is_left(&dir);
}

#[tokio::test]
async fn conversations_that_cannot_be_read_are_an_error_that_says_where() {
    let dir = directory();
    let path = dir.path().join("bad.jsonl");
    std::fs::write(&path, "{\"name\":\"n\"}\n").expect("a temp directory takes files");
    let args = ["demo", "--conversations", path.to_str().expect("UTF-8")];
    let mut demo = Process::start("demo", rankpin(&args, &dir), dir.path());
    assert!(!demo.wait(LONG).await.success());
    let log = demo.log();
    assert!(log.contains("bad.jsonl") && log.contains("turns"), "{log}");
}

/// What a bench with these arguments prints, which ends well.
async fn measured(args: &str, dir: &TempDir) -> serde_json::Value {
    let args: Vec<&str> = args.split_whitespace().collect();
    let mut bench = Process::start("bench", rankpin(&args, dir), dir.path());
    let status = bench.wait(LONG).await;
    let log = bench.log();
    assert!(status.success(), "{log}");
    serde_json::from_str(&log).expect("only JSON is printed")
}

#[tokio::test]
async fn a_pinned_request_costs_five_messages_and_four_without_accepted() {
    for (accept, least) in [("yes", 5.0), ("no", 4.0)] {
        let dir = directory();
        let args = format!(
            "bench --json --in-flight 4 --duration 100ms --warmup 0s --rounds 1 --sessions 50 --accept {accept}"
        );
        let result = measured(&args, &dir).await;
        let messages = result["messages_per_request"].as_f64().expect("our own server tells it");
        // Heartbeats and load reports fall into the time of the count too, some dozens a second.
        assert!(messages >= least && messages < least + 0.9, "{messages} messages a request");
        for way in ["direct", "null_forwarder", "router"] {
            let way = &result["levels"][0]["ways"][way];
            assert_eq!((way["failed"].as_u64(), way["lost"].as_u64()), (Some(0), Some(0)), "{way}");
            assert!(way["requests_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{way}");
        }
        nothing_is_left(&dir);
    }
}

#[tokio::test]
async fn sessions_from_the_text_are_measured_beside_named_ones() {
    let dir = directory();
    let args = "bench --json --sessions-from both --payload 8192 --in-flight 4 --duration 200ms --warmup 0s --rounds 1 \
                --sessions 20";
    let level = &measured(args, &dir).await["levels"][0];
    assert!(level["router_by_text_of_router"].as_f64().is_some_and(|ratio| ratio > 0.0), "{level}");
    for way in ["router", "router_by_text"] {
        let way = &level["ways"][way];
        assert_eq!((way["failed"].as_u64(), way["lost"].as_u64()), (Some(0), Some(0)), "{way}");
        assert_eq!(way["pinned_share"].as_f64(), Some(1.0), "every request continues its session: {way}");
    }
    nothing_is_left(&dir);
}

#[tokio::test]
async fn durable_jobs_are_measured() {
    let dir = directory();
    let args = "bench --json --jobs --in-flight 4 --duration 200ms --warmup 0s --rounds 1 --sessions 20";
    let level = &measured(args, &dir).await["levels"][0];
    assert!(level["durable_jobs_of_router"].as_f64().is_some_and(|ratio| ratio > 0.0), "{level}");
    let jobs = &level["ways"]["durable_jobs"];
    assert_eq!((jobs["failed"].as_u64(), jobs["lost"].as_u64()), (Some(0), Some(0)), "{jobs}");
    assert_eq!(jobs["pinned_share"].as_f64(), Some(1.0), "a job has its session's pin");
    nothing_is_left(&dir);
}

#[tokio::test]
async fn first_turns_are_measured_beside_a_forwarder_that_stores_and_by_several_routers() {
    let dir = directory();
    let args =
        "bench --json --first-turns --routers 2 --in-flight 4 --duration 200ms --warmup 0s --rounds 1 --sessions 20";
    let level = &measured(args, &dir).await["levels"][0];
    assert!(level["first_turns_of_storing_forwarder"].as_f64().is_some_and(|ratio| ratio > 0.0), "{level}");
    for way in ["storing_forwarder", "router_first_turns"] {
        let way = &level["ways"][way];
        assert_eq!((way["failed"].as_u64(), way["lost"].as_u64()), (Some(0), Some(0)), "{way}");
    }
    assert_eq!(level["ways"]["router_first_turns"]["pinned_share"].as_f64(), Some(0.0), "each session is new");
    nothing_is_left(&dir);
}
