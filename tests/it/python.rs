//! The examples for Python, as a reader would run them: a worker and a frontend that know nothing but nats-py and the
//! protocol.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::process::{Process, Signal};
use crate::support::{NatsServer, PATIENCE, RouterProcess, eventually};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Lines of an example, at most: a longer one is not read.
const MAX_LINES: usize = 99;

/// Where nats-py is; none, loudly, where it can't be brought.
fn packages() -> Option<PathBuf> {
    let output = Command::new(Path::new(ROOT).join("scripts/python-packages")).output().expect("the script runs");
    if !output.status.success() {
        println!("SKIPPED, nats-py can't be had: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(String::from_utf8_lossy(&output.stdout).trim().into())
}

fn example(name: &str, packages: &Path, server: &NatsServer) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
    command.arg(Path::new(ROOT).join("examples/python").join(name)).args(["--nats-url", &server.url()]);
    command
}

/// What the frontend prints for these turns; what it says where it fails.
fn ask(
    packages: &Path,
    server: &NatsServer,
    model: &str,
    session: &str,
    turns: &[&str],
) -> Result<Vec<String>, String> {
    let mut command = example("frontend.py", packages, server);
    let output = command.args(["--model", model, "--session", session]).args(turns).output().expect("python3 runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        return Err(text(&output.stderr));
    }
    Ok(text(&output.stdout).lines().map(str::to_owned).collect())
}

/// `w rank 1` and the reason of a line such as `[w rank 1, placed] words`.
fn placement(line: &str) -> (&str, &str) {
    let inside = line.strip_prefix('[').and_then(|rest| rest.split(']').next()).expect("a placement stands first");
    inside.split_once(", ").expect("a reason follows")
}

#[test]
fn examples_are_short() {
    for name in ["frontend.py", "worker.py"] {
        let text = std::fs::read_to_string(Path::new(ROOT).join("examples/python").join(name)).expect("it is there");
        assert!(text.lines().count() <= MAX_LINES, "{name} has {} lines", text.lines().count());
    }
}

#[tokio::test]
async fn a_worker_and_a_frontend_in_plain_python() {
    let Some(packages) = packages() else { return };
    let server = NatsServer::start();
    let _router = RouterProcess::start("router", &server, &["--drain-timeout", "1s"]).await;
    let worker = |name: &str, start: &str| {
        let mut command = example("worker.py", &packages, &server);
        command.args(["--worker", name, "--model", "my/model.1", "--dp-start", start, "--dp-size", "2"]);
        Process::start(name, command, server.dir())
    };
    let mut workers = [worker("py-1", "0"), worker("py-2", "2")];
    let client = server.client().await;
    let bucket = async_nats::jetstream::new(client).get_key_value("rankpin_workers").await.expect("the router made it");
    for name in ["py-1", "py-2"] {
        eventually("it is registered", PATIENCE, async || bucket.get(name).await.expect("it answers")).await;
    }
    for session in ["chat-1", "chat-2", ""] {
        let said = eventually("the router knows them", PATIENCE, async || {
            ask(&packages, &server, "my/model.1", session, &["Hello", "Once more"]).ok()
        })
        .await;
        let [(first, why), (second, then)] = [placement(&said[0]), placement(&said[1])];
        assert_eq!(first, second, "{said:?}");
        assert!(why.starts_with("placed") && then.starts_with("pinned"), "{said:?}");
        let rank = first.split("rank ").nth(1).expect("it names a rank");
        assert!(said[1].ends_with(&format!("rank {rank} heard: Once more")), "{said:?}");
    }
    let refused = ask(&packages, &server, "other", "s", &["Hello"]).expect_err("nobody serves it");
    assert!(refused.contains("404 unknown_model"), "{refused}");
    let mut second = worker("py-1", "0");
    assert!(!second.wait(PATIENCE).await.success());
    assert!(second.log().contains("runs elsewhere"), "{}", second.log());
    for worker in &mut workers {
        worker.signal(Signal::Terminate);
        assert!(worker.wait(PATIENCE).await.success(), "{}", worker.log());
    }
    assert!(bucket.get("py-1").await.expect("it answers").is_none());
    let refused = ask(&packages, &server, "my/model.1", "chat-1", &["Hello"]).expect_err("nobody is left");
    assert!(refused.contains("503 no_worker"), "{refused}");
}
