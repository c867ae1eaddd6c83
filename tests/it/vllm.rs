//! Against a real vLLM with two data-parallel ranks: `make test-vllm VLLM=dir`, with vLLM in `dir/venv` and a model that
//! it serves in `dir/model`. Left out elsewhere. What is asserted are the engine's own figures, never times.
//!
//! The table that it prints stands in `docs/engines.md`. Servers that run already, which a busy machine takes long to
//! start, are taken from `RANKPIN_VLLM_RUNNING=pid:port,pid:port`; their process groups are killed all the same.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use rankpin::wire::Encoding;
use rankpin::wire::kv::{KvEvent, KvEvents};
use serde_json::{Value, json};

use crate::support::frontend::{Ask, Sent, find};
use crate::support::process::Process;
use crate::support::rankpin::command;
use crate::support::{NatsServer, PATIENCE, RouterProcess, eventually};

/// vLLM needs half a minute to start, and many on a busy machine.
const START: Duration = Duration::from_secs(1200);
const RANKS: usize = 2;
/// Tokens of a block: only whole blocks are cached.
const BLOCK: u64 = 32;

/// A vLLM with its children; all of them gone when dropped.
struct Vllm {
    process: Option<Process>,
    /// Of its process and its children.
    group: u32,
    port: u16,
}

impl Vllm {
    /// One that runs already, where there is one; else a new one.
    fn take(number: usize, server: &NatsServer) -> Self {
        let running = std::env::var("RANKPIN_VLLM_RUNNING").unwrap_or_default();
        match running.split(',').nth(number).and_then(|one| one.split_once(':')) {
            Some((group, port)) => {
                Self { process: None, group: group.parse().expect("a process id"), port: port.parse().expect("a port") }
            }
            None => Self::start(&format!("vllm-{}", number + 1), server),
        }
    }

    fn start(name: &str, server: &NatsServer) -> Self {
        let dir = PathBuf::from(std::env::var_os("RANKPIN_VLLM").expect("run it by make test-vllm VLLM=dir"));
        let (port, events) = (free_ports(1), free_ports(2));
        let mut command = Command::new(dir.join("venv/bin/vllm"));
        command.arg("serve").arg(dir.join("model")).args(["--served-model-name", "tiny", "--host", "127.0.0.1"]);
        command.args(["--port", &port.to_string(), "--data-parallel-size", &RANKS.to_string()]);
        command.args(["--enable-prefix-caching", "--enable-prompt-tokens-details", "--block-size", &BLOCK.to_string()]);
        command.args(["--max-model-len", "4096", "--max-num-seqs", "8", "--api-server-count", "1"]);
        command.args(["--enforce-eager", "--dtype", "bfloat16", "--num-gpu-blocks-override", "512"]);
        let events =
            json!({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": format!("tcp://*:{events}")});
        command.args(["--kv-events-config", &events.to_string()]);
        // What a small machine without a GPU needs; a GPU ignores it.
        for (name, value) in [
            ("HF_HUB_OFFLINE", "1"),
            ("TRANSFORMERS_OFFLINE", "1"),
            ("VLLM_NO_USAGE_STATS", "1"),
            ("DO_NOT_TRACK", "1"),
            ("VLLM_CPU_KVCACHE_SPACE", "1"),
            ("OMP_NUM_THREADS", "1"),
            ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
            ("VLLM_HOST_IP", "127.0.0.1"),
            ("VLLM_LOOPBACK_IP", "127.0.0.1"),
            ("GLOO_SOCKET_IFNAME", "lo"),
        ] {
            command.env(name, value);
        }
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", dir.join("venv/bin").display())).process_group(0);
        let process = Process::start(name, command, server.dir());
        Self { group: process.id(), process: Some(process), port }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    async fn page(&self, path: &str) -> Option<String> {
        let address = ([127, 0, 0, 1], self.port).into();
        let answer = rankpin::local::http::get(address, path).await.ok().filter(|answer| answer.status == 200)?;
        String::from_utf8(answer.body).ok()
    }

    async fn is_ready(&mut self) {
        let what = format!("{} answers", self.url());
        eventually(&what, START, async || {
            assert!(self.process.as_mut().is_none_or(|vllm| vllm.ended().is_none()), "vLLM ended at its start");
            self.page("/health").await
        })
        .await;
    }

    /// The sum of a figure over its ranks.
    async fn figure(&self, name: &str) -> f64 {
        let page = self.page("/metrics").await.unwrap_or_default();
        let lines = page.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Kills it with all its children, as the end of a host would.
    fn kill(&mut self) {
        let group = format!("-{}", self.group);
        // A group that is gone already needs no signal.
        let _ = Command::new("kill").args(["-9", "--", &group]).status();
    }
}

impl Drop for Vllm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The first of some ports in a row that were free a moment ago.
fn free_ports(count: u16) -> u16 {
    loop {
        let first =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port is free").port();
        if (1..count).all(|next| std::net::TcpListener::bind(("0.0.0.0", first + next)).is_ok()) {
            return first;
        }
    }
}

fn bridge(server: &NatsServer, vllm: &Vllm, worker: &str, start: &str, namespace: &str) -> Process {
    let mut command = command(&["bridge", "--engine", "vllm", "--engine-url", &vllm.url(), "--worker", worker]);
    command.args(["--dp-start", start, "--nats-url", &server.url(), "--namespace", namespace]);
    Process::start(&format!("bridge-{worker}-{namespace}"), command, server.dir())
}

/// What became of one turn.
#[derive(Debug)]
struct Turn {
    at: String,
    decision: String,
    prompt: u64,
    cached: u64,
    answer: String,
}

/// How a conversation is written, and how its session is named.
struct Way {
    name: &'static str,
    path: &'static str,
    header: Option<&'static str>,
}

const WAYS: [Way; 6] = [
    Way {
        name: "`Rankpin-Session-Id`, chat completions",
        path: "/v1/chat/completions",
        header: Some("Rankpin-Session-Id"),
    },
    Way {
        name: "OpenCode's `x-session-id`, chat completions",
        path: "/v1/chat/completions",
        header: Some("x-session-id"),
    },
    Way { name: "Claude Code's header, messages", path: "/v1/messages", header: Some("x-claude-code-session-id") },
    Way { name: "`Rankpin-Session-Id`, completions", path: "/v1/completions", header: Some("Rankpin-Session-Id") },
    Way { name: "by the text, chat completions", path: "/v1/chat/completions", header: None },
    Way { name: "by the text, messages", path: "/v1/messages", header: None },
];

impl Way {
    fn ask(&self, namespace: &str, session: &str, said: &[String]) -> Ask {
        let mut body = json!({"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": true});
        if self.path == "/v1/completions" {
            body["prompt"] = said.concat().into();
        } else {
            let roles = ["user", "assistant"].iter().cycle();
            let turns = said.iter().zip(roles).map(|(text, role)| json!({"role": role, "content": text}));
            body["messages"] = turns.collect();
        }
        let ask = Ask::new().on(&format!("{namespace}.request.tiny")).header("Rankpin-Path", self.path);
        let ask = ask.body(body.to_string()).timeout_ms(60_000);
        match self.header {
            Some(header) => ask.header(header, session),
            None => ask,
        }
    }
}

async fn turn(client: &async_nats::Client, ask: Ask) -> Turn {
    let answer = ask.send(client).await.end().await;
    assert!(answer.header("Nats-Service-Error").is_none(), "{answer:?}");
    let body: Value = serde_json::from_slice(&answer.last.payload).expect("an answer is JSON");
    let (usage, number) = (&body["usage"], |value: &Value| value.as_u64().unwrap_or(0));
    let read = number(&usage["cache_read_input_tokens"]);
    let prompt = match usage["prompt_tokens"].as_u64() {
        Some(prompt) => prompt,
        None => number(&usage["input_tokens"]) + read + number(&usage["cache_creation_input_tokens"]),
    };
    let cached = read.max(number(&usage["prompt_tokens_details"]["cached_tokens"]));
    let texts = ["/choices/0/message/content", "/choices/0/text", "/content/0/text"];
    let text = texts.iter().find_map(|at| body.pointer(at)?.as_str()).expect("an answer has a text");
    let (at, decision) = (answer.at(), answer.decision().to_owned());
    Turn { at, decision, prompt, cached, answer: text.to_owned() }
}

/// Words that no other conversation has, a few blocks of them.
fn opening(tag: &str) -> String {
    (0..40).map(|i| format!("{tag} {i} of the quick brown fox ")).collect()
}

/// Whole blocks of a prompt, less the one that its end may share with the answer.
fn whole(prompt: u64) -> u64 {
    (prompt / BLOCK).saturating_sub(1) * BLOCK
}

/// Two turns of eight conversations, all at a time: where, and how much of turn 2 was cached.
async fn conversations(client: &async_nats::Client, namespace: &str, way: &Way) -> Vec<(Turn, Turn)> {
    let begun = (0..8).map(async |number| {
        let session = format!("{namespace}-{}-{number}", way.name.replace(['`', '\''], ""));
        let said = vec![opening(&session)];
        let first = turn(client, way.ask(namespace, &session, &said)).await;
        (session, said, first)
    });
    // Turned around, so that who came first in one round does not in the next.
    let begun = join_all(begun).await.into_iter().rev();
    let ended = begun.map(async |(session, mut said, first)| {
        said.extend([first.answer.clone(), "And what then?".to_owned()]);
        let second = turn(client, way.ask(namespace, &session, &said)).await;
        (first, second)
    });
    join_all(ended).await
}

fn share(turns: &[(Turn, Turn)]) -> String {
    let (cached, prompt) = turns.iter().fold((0, 0), |(c, p), (_, second)| (c + second.cached, p + second.prompt));
    format!("{} %", 100 * cached / prompt.max(1))
}

async fn ready(client: &async_nats::Client, namespace: &str, worker: &str) {
    eventually("the worker serves", PATIENCE, async || {
        let session = format!("warm-{worker}");
        let ask = WAYS[0].ask(namespace, &session, &["warm".into()]).header("Rankpin-Target-Worker", worker);
        ask.send(client).await.end().await.header("Nats-Service-Error").is_none().then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a real vLLM: make test-vllm VLLM=dir"]
async fn a_real_vllm() {
    let server = NatsServer::start();
    let client = server.client().await;
    let [mut first, mut second] = [0, 1].map(|number| Vllm::take(number, &server));
    first.is_ready().await;
    second.is_ready().await;
    let _router = RouterProcess::start("router", &server, &[]).await;
    let off = ["--namespace", "off", "--affinity", "off", "--policy", "round-robin"];
    let _off = RouterProcess::start("router-off", &server, &off).await;
    let mut heard = client.subscribe("rankpin.kv.w1.*").await.expect("subscribed");
    let _one = bridge(&server, &first, "w1", "0", "rankpin");
    let _one_off = bridge(&server, &first, "w1", "0", "off");
    ready(&client, "rankpin", "w1").await;
    ready(&client, "off", "w1").await;

    println!("| session | turn 2 on the rank of turn 1 | of turn 2's prompt cached |\n| --- | --- | --- |");
    for way in &WAYS {
        let turns = conversations(&client, "rankpin", way).await;
        for (one, two) in &turns {
            assert_eq!(one.at, two.at, "{}: {two:?}", way.name);
            assert!(two.cached >= whole(one.prompt), "{}: {one:?} {two:?}", way.name);
            assert!(two.decision.starts_with("pinned"), "{two:?}");
        }
        println!("| {} | {} of {} | {} |", way.name, turns.len(), turns.len(), share(&turns));
    }
    let (mut hits, turns) = (0, conversations(&client, "off", &WAYS[0]).await);
    for (_, two) in &turns {
        hits += u32::from(two.cached > 0);
    }
    println!(
        "| none: affinity off, vLLM's own balancer | {hits} of {} found something | {} |",
        turns.len(),
        share(&turns)
    );
    hop_misses(&client).await;
    events_name_sessions(&mut heard).await;
    refusals(&client).await;
    cancel(&client, &first).await;
    let _two = bridge(&server, &second, "w2", "2", "rankpin");
    ready(&client, "rankpin", "w2").await;
    kill(&client, &mut first).await;
}

/// The same conversation on the other rank finds nothing: what the ranks hold is theirs.
async fn hop_misses(client: &async_nats::Client) {
    let mut said = vec![opening("hop")];
    let on = |rank: &str, said: &[String]| WAYS[0].ask("off", "hop", said).header("Rankpin-Target-Dp-Rank", rank);
    let one = turn(client, on("0", &said)).await;
    said.extend([one.answer.clone(), "And then?".to_owned()]);
    let two = turn(client, on("1", &said)).await;
    assert_eq!((one.at.as_str(), two.at.as_str(), two.cached), ("w1/0", "w1/1", 0));
    let back = turn(client, on("0", &said)).await;
    assert!(back.cached >= whole(one.prompt), "{back:?}");
    println!(
        "| none: affinity off, turn 2 sent to the other rank | no | 0 % (sent to the first once more: {} of {} tokens) |",
        back.cached, back.prompt
    );
}

/// Routers hear how much of a session a rank holds, by named and by derived sessions.
async fn events_name_sessions(heard: &mut async_nats::Subscriber) {
    let (mut named, mut derived) = (0, 0);
    eventually("routers hear of blocks", PATIENCE, async || {
        let message = crate::worker::next(heard).await;
        let told: KvEvents = Encoding::MessagePack.read(&message.payload).expect("events");
        for event in told.events {
            if let KvEvent::Stored(of) = event {
                named += u32::from(of.session.starts_with("rankpin-")) * of.blocks;
                derived += u32::from(of.session.starts_with("\u{1}px:")) * of.blocks;
            }
        }
        (named > 0 && derived > 0).then_some(())
    })
    .await;
    println!("\ncache events: by named and by derived sessions");
}

async fn refusals(client: &async_nats::Client) {
    let said = [opening("refused")];
    let seven = WAYS[0].ask("rankpin", "seven", &said).header("Rankpin-Target-Dp-Rank", "7");
    let answer = seven.send(client).await.end().await;
    assert_eq!(answer.at(), "400 rank_out_of_range");
    let long = json!({"model": "tiny", "max_tokens": 100_000, "messages": [{"role": "user", "content": "x"}]});
    for stream in [false, true] {
        let mut body = long.clone();
        body["stream"] = stream.into();
        let answer = WAYS[0].ask("rankpin", "long", &said).body(body.to_string()).send(client).await.end().await;
        assert_eq!(answer.header("Nats-Service-Error-Code"), Some("400"), "{answer:?}");
        assert_eq!(answer.header("Nats-Service-Error"), Some("engine_error"));
        let body: Value = serde_json::from_slice(&answer.last.payload).expect("the engine's own error");
        assert_eq!(body["error"]["code"], 400, "{body}");
    }
    println!("rank 7 of [0, 2): 400 `rank_out_of_range`; the engine's own 400: as it is, whole and in a stream");
}

/// A stream that goes on for long.
async fn long_stream(client: &async_nats::Client, session: &str, worker: &str) -> Sent {
    let body = json!({"model": "tiny", "stream": true, "max_tokens": 3500, "ignore_eos": true,
        "messages": [{"role": "user", "content": opening(session)}]});
    let ask = WAYS[0].ask("rankpin", session, &[]).id(session).body(body.to_string());
    let mut sent = ask.header("Rankpin-Target-Worker", worker).send(client).await;
    for _ in 0..5 {
        let message = sent.next().await;
        assert!(find(&message, "Nats-Service-Error").is_none(), "{message:?}");
    }
    sent
}

async fn cancel(client: &async_nats::Client, vllm: &Vllm) {
    let mut sent = long_stream(client, "cancelled", "w1").await;
    eventually("the engine is at it", PATIENCE, async || {
        (vllm.figure("vllm:num_requests_running").await > 0.0).then_some(())
    })
    .await;
    client.publish("rankpin.cancel.cancelled", bytes::Bytes::new()).await.expect("published");
    let end = async || {
        let message = sent.next().await;
        find(&message, "Nats-Service-Error").map(str::to_owned)
    };
    assert_eq!(eventually("the stream ends", PATIENCE, end).await, "cancelled");
    eventually("the engine has stopped", PATIENCE, async || {
        (vllm.figure("vllm:num_requests_running").await == 0.0).then_some(())
    })
    .await;
    println!("cancel: 499 `cancelled`, and the engine runs nothing");
}

async fn kill(client: &async_nats::Client, vllm: &mut Vllm) {
    let mut sent = long_stream(client, "killed", "w1").await;
    vllm.kill();
    let end = async || {
        let message = sent.next().await;
        find(&message, "Nats-Service-Error").map(str::to_owned)
    };
    assert_eq!(eventually("the stream ends", PATIENCE, end).await, "worker_lost");
    let next = turn(client, WAYS[0].ask("rankpin", "killed", &[opening("killed"), "x".into(), "And?".into()])).await;
    assert!(next.at.starts_with("w2/"), "{next:?}");
    let bucket =
        async_nats::jetstream::new(client.clone()).get_key_value("rankpin_workers").await.expect("it is there");
    eventually("w1 is not registered", PATIENCE, async || {
        bucket.get("w1").await.expect("it answers").is_none().then_some(())
    })
    .await;
    println!("kill in mid-stream: 503 `worker_lost`; the next turn: {} ({})", next.at, next.decision);
}
