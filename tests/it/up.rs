//! `rankpin up`: everything on one machine, and nothing left of it.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::bridge::engine::Engine;
use crate::support::process::{Process, Signal};
use crate::support::rankpin::command;
use crate::support::{PATIENCE, eventually};

/// What runs, and where.
struct Up {
    process: Process,
    // Of its log.
    _dir: tempfile::TempDir,
    /// Where it keeps what it starts; empty again at its end.
    temp: tempfile::TempDir,
}

impl Up {
    fn start(args: &[&str]) -> Self {
        let [dir, temp] = [(); 2].map(|()| tempfile::tempdir().expect("a temp directory can be made"));
        let mut command = command(&["up", "--listen", "127.0.0.1:0"]);
        command.args(args).env("TMPDIR", temp.path()).env("RANKPIN_NATS_SERVER", crate::support::server::binary());
        Self { process: Process::start("up", command, dir.path()), _dir: dir, temp }
    }

    async fn says(&mut self, words: &str) -> String {
        let what = format!("it says {words:?}");
        eventually(&what, PATIENCE, async || {
            assert!(self.process.ended().is_none(), "it ended: {}", self.process.log());
            Some(self.process.log()).filter(|log| log.contains(words))
        })
        .await
    }

    /// The gateway and the NATS server, from what is said to be pasted.
    async fn ready(&mut self) -> (SocketAddr, SocketAddr) {
        let log = self.says("Ctrl-C ends all of it").await;
        let address = |start: &str| {
            let text = log.split(start).nth(1).expect("it is said");
            let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':').unwrap_or(text.len());
            text[..end].trim_end_matches('.').parse().expect("an address")
        };
        (address("curl http://"), address("nats://"))
    }

    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.temp.path()).expect("it is there");
        entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect()
    }
}

async fn post(gateway: SocketAddr, path: &str, session: &str, body: &Value) -> (String, Value) {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n\
         x-session-id: {session}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(gateway).await.expect("the gateway is there");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    (head.to_lowercase(), serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}")))
}

fn header(head: &str, name: &str) -> String {
    let line = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or_else(|| panic!("no {name} in {head}")).to_owned()
}

async fn is_gone(address: SocketAddr) {
    eventually("it is gone", PATIENCE, async || TcpStream::connect(address).await.is_err().then_some(())).await;
}

#[tokio::test]
async fn clients_are_answered_and_the_key_that_stops_it_leaves_nothing() {
    let mut up = Up::start(&[]);
    let (gateway, nats) = up.ready().await;
    let mut said = vec![json!({"role": "user", "content": "hello ".repeat(40)})];
    let mut ranks = Vec::new();
    for _ in 0..3 {
        let body = json!({"model": "sim", "messages": said, "max_tokens": 4});
        let (head, answer) = post(gateway, "/v1/chat/completions", "s", &body).await;
        ranks.push((header(&head, "x-rankpin-worker"), header(&head, "x-rankpin-dp-rank")));
        said.push(answer["choices"][0]["message"].clone());
        said.push(json!({"role": "user", "content": "and then?"}));
    }
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{ranks:?}");
    let body = json!({"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4});
    let (_, answer) = post(gateway, "/v1/messages", "t", &body).await;
    assert_eq!(answer["type"], "message");
    up.process.signal(Signal::Interrupt);
    assert!(up.process.wait(PATIENCE).await.success(), "{}", up.process.log());
    is_gone(nats).await;
    is_gone(gateway).await;
    assert_eq!(up.left(), Vec::<String>::new());
}

#[tokio::test]
async fn an_engine_is_waited_for() {
    let mut engine = Engine::start();
    engine.kill();
    let mut up = Up::start(&["--engine", "vllm", "--engine-url", &engine.url()]);
    up.says("waiting for the engine (http://127.0.0.1:").await;
    engine.restart();
    let (gateway, nats) = up.ready().await;
    let (head, answer) = post(gateway, "/v1/chat/completions", "s", &json!({"model": "m", "messages": []})).await;
    assert_eq!(answer["id"], "c");
    let rank = header(&head, "x-rankpin-dp-rank");
    let seen = engine.last();
    assert_eq!((seen.header("x-data-parallel-rank"), seen.header("x-session-id")), (Some(rank.as_str()), Some("s")));
    // Killed, it can tidy nothing itself.
    up.process.kill();
    is_gone(nats).await;
}

#[tokio::test]
async fn an_operator_who_drains_its_worker_ends_it_in_order() {
    let mut up = Up::start(&[]);
    let (_, nats) = up.ready().await;
    let args = ["drain", "local", "--nats-url", &format!("nats://{nats}")];
    let drained = tokio::process::Command::from(command(&args)).output().await.expect("it runs");
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    assert!(up.process.wait(PATIENCE).await.success(), "{}", up.process.log());
    assert!(up.process.log().contains("its worker was drained"), "{}", up.process.log());
    is_gone(nats).await;
    assert_eq!(up.left(), Vec::<String>::new());
}

#[test]
fn what_makes_no_sense_is_said_at_once() {
    for (args, words) in [
        (&["--engine-url", "http://127.0.0.1:1"][..], "--engine"),
        (&["--engine", "vllm"], "--engine-url"),
        (&["--dp-size", "0"], "--dp-size"),
        (&["--affinity", "sometimes"], "affinity"),
    ] {
        let mut command: Command = command(&["up", "--listen", "127.0.0.1:0"]);
        command.env("RANKPIN_NATS_SERVER", crate::support::server::binary());
        let output = command.args(args).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{args:?}: {said}");
    }
}
