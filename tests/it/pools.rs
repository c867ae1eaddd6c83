//! Pools of workers below a router at the global level (protocol section 6.3): every router and worker is a process of its
//! own, the frontends speak nothing but the protocol.

use std::collections::BTreeMap;

use async_nats::Client;
use async_nats::jetstream;
use futures_util::{FutureExt as _, StreamExt as _};
use rankpin::core::hash::PinKey;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::frontend::Answer;
use crate::support::process::{Process, Signal};
use crate::support::rankpin::command;
use crate::support::{Ask, NatsServer, PATIENCE, RouterProcess, eventually};

const TWO_POOLS: &str = r#"
[[pool]]
name = "eu"
namespace = "eu"

[[pool]]
name = "us"
namespace = "us"
"#;

/// A pool: its router and its workers.
struct Pool {
    router: RouterProcess,
    workers: Vec<Process>,
}

/// A server, a router at the global level, and a client that plays frontends.
struct World {
    server: NatsServer,
    client: Client,
    global: RouterProcess,
    _dir: TempDir,
}

impl World {
    async fn with(config: &str, args: &[&str]) -> Self {
        let server = NatsServer::start();
        let dir = tempfile::tempdir().expect("a temp directory can be made");
        let path = dir.path().join("global.toml");
        std::fs::write(&path, config).expect("a temp directory takes files");
        let path = path.to_str().expect("UTF-8");
        let args = [&["--level", "global", "--config", path], args].concat();
        let global = RouterProcess::start("global", &server, &args).await;
        let client = server.client().await;
        Self { server, client, global, _dir: dir }
    }

    /// A pool whose namespace is its name, with these further arguments for its router and a worker of each name.
    async fn pool(&self, name: &str, router: &[&str], workers: &[(&str, &[&str])]) -> Pool {
        let args = [&["--namespace", name], router].concat();
        let mut pool = Pool {
            router: RouterProcess::start(&format!("router-{name}-{}", uuid::Uuid::new_v4()), &self.server, &args).await,
            workers: Vec::new(),
        };
        for (worker, args) in workers {
            pool.workers.push(self.worker(name, worker, args));
        }
        let known = async || (pool.router.metric("workers").await == workers.len() as f64).then_some(());
        eventually("the pool's workers are known", PATIENCE, known).await;
        pool
    }

    fn worker(&self, pool: &str, worker: &str, args: &[&str]) -> Process {
        let url = self.server.url();
        let mut command =
            command(&["sim", "--nats-url", &url, "--namespace", pool, "--worker", worker, "--model", "m"]);
        let fast: &[&str] = if args.contains(&"--speed") { &[] } else { &["--speed", "1000", "--output-tokens", "4"] };
        command.args(fast).args(args);
        Process::start(worker, command, self.server.dir())
    }

    async fn ask(&self, ask: Ask) -> Answer {
        ask.send(&self.client).await.end().await
    }

    async fn at(&self, session: &str) -> String {
        self.ask(turn(session)).await.at()
    }

    /// The pin of a named session of model `m` at the global level.
    async fn pin(&self, session: &str) -> Value {
        let bucket = jetstream::new(self.client.clone()).get_key_value("rankpin_pins").await.expect("it was made");
        let key = PinKey::of("", "m", session).to_string();
        let value = bucket.get(key).await.expect("the bucket answers").expect("it is pinned");
        serde_json::from_slice(&value).expect("JSON")
    }

    /// Nothing is counted any more.
    async fn settles(&self) {
        let idle = async || (self.global.metric("requests_in_flight").await == 0.0).then_some(());
        eventually("no request is under way", PATIENCE, idle).await;
    }
}

fn body(content: &str) -> String {
    json!({"model": "m", "messages": [{"role": "user", "content": content}]}).to_string()
}

fn turn(session: &str) -> Ask {
    Ask::new().session(session).body(body("hello"))
}

/// A conversation that nothing names.
fn conversation(first: &str, turns: usize) -> Ask {
    let mut messages = vec![json!({"role": "user", "content": first})];
    for turn in 0..turns {
        messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
        messages.push(json!({"role": "user", "content": format!("question {turn}")}));
    }
    Ask::new().body(json!({"model": "m", "messages": messages}).to_string())
}

/// The pool of a worker that is named after it.
fn pool_of(at: &str) -> String {
    at.split('-').next().expect("a name").to_owned()
}

const NO_ARGS: &[&str] = &[];

#[tokio::test]
async fn a_router_at_the_global_level_takes_no_jobs() {
    let world = World::with(TWO_POOLS, &[]).await;
    let _pool = world.pool("eu", &[], &[]).await;
    let stream = async |name| jetstream::new(world.client.clone()).get_stream(name).await.is_ok();
    assert!(stream("eu_jobs").await, "the pool's router does");
    assert!(!stream("rankpin_jobs").await);
}

#[tokio::test]
async fn sessions_stay_in_their_pool_and_those_of_one_that_dies_move() {
    let world = World::with(TWO_POOLS, &[]).await;
    let two: &[(&str, &[&str])] = &[("eu-1", NO_ARGS), ("eu-2", NO_ARGS)];
    let mut eu = world.pool("eu", &[], two).await;
    let _us = world.pool("us", &[], &[("us-1", NO_ARGS)]).await;
    let mut before = BTreeMap::new();
    for n in 0..16 {
        let session = format!("s{n}");
        before.insert(session.clone(), world.at(&session).await);
    }
    for (session, at) in &before {
        assert_eq!(world.at(session).await, *at, "its worker too");
        let pin = world.pin(session).await;
        assert_eq!((&pin["worker"], &pin["pool"]), (&json!(pool_of(at)), &json!(pool_of(at))));
    }
    let pools: Vec<_> = before.values().map(|at| pool_of(at)).collect();
    assert!(pools.iter().any(|pool| pool == "eu") && pools.iter().any(|pool| pool == "us"), "{pools:?}");
    let mut derived = BTreeMap::new();
    for n in 0..8 {
        let first = format!("conversation {n}");
        let at = world.ask(conversation(&first, 0)).await.at();
        for turns in 1..4 {
            assert_eq!(world.ask(conversation(&first, turns)).await.at(), at, "{first}, turn {turns}");
        }
        derived.insert(first, at);
    }
    world.settles().await;
    // The pool dies, its router with its workers.
    eu.router.process.kill();
    eu.workers.iter_mut().for_each(Process::kill);
    for (session, at) in &before {
        let now = world.at(session).await;
        assert_eq!(now, "us-1", "{session} was at {at}");
        let pin = world.pin(session).await;
        assert_eq!((&pin["worker"], &pin["pool"]), (&json!("us"), &json!("us")));
    }
    for first in derived.keys() {
        assert_eq!(world.ask(conversation(first, 4)).await.at(), "us-1");
    }
    world.settles().await;
    // It comes back, and nobody who has moved goes back to it.
    let _eu = world.pool("eu", &[], two).await;
    for session in before.keys() {
        assert_eq!(world.at(session).await, "us-1");
    }
}

#[tokio::test]
async fn what_one_pool_refuses_another_may_take() {
    let config = format!("pool_policy = \"priority\"\n{TWO_POOLS}");
    let world = World::with(&config, &[]).await;
    let slow: &[&str] = &["--max-inflight", "1", "--speed", "1", "--decode-rate", "1", "--output-tokens", "100000"];
    let eu = world.pool("eu", &["--max-waiting", "0"], &[("eu-1", slow)]).await;
    let _us = world.pool("us", &[], &[("us-1", &["--model", "n"])]).await;
    assert_eq!(world.ask(turn("n").on("rankpin.request.n")).await.at(), "us-1", "only us serves n");
    let refusal = world.ask(turn("x").on("rankpin.request.x")).await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (404, "unknown_model"));
    assert_eq!(world.ask(turn("w").header("Rankpin-Target-Worker", "us-1")).await.at(), "us-1");
    assert_eq!(world.ask(turn("p").header("Rankpin-Pool", "us")).await.at(), "us-1");
    let nowhere = turn("w").header("Rankpin-Target-Worker", "nobody");
    assert_eq!(world.ask(nowhere).await.at(), "404 unknown_worker");
    assert_eq!(world.ask(turn("p2").header("Rankpin-Pool", "ap")).await.at(), "404 unknown_pool");
    // The one worker of the first pool is busy from here on.
    let mut held = turn("held")
        .id("held")
        .body(body("hello").replace("{\"mes", "{\"stream\":true,\"mes"))
        .send(&world.client)
        .await;
    let first = held.next().await;
    assert_eq!(crate::support::frontend::find(&first, "Rankpin-Worker"), Some("eu-1"));
    for n in 0..4 {
        assert_eq!(world.at(&format!("s{n}")).await, "us-1");
    }
    assert_eq!(eu.router.metric("requests_in_flight").await, 1.0);
    // A cancel finds its way through both routers to the worker.
    world.client.publish("rankpin.cancel.held", "".into()).await.expect("is published");
    assert_eq!(held.end().await.at(), "499 cancelled");
    world.settles().await;
    // Without a session, so that none of these asks decides about the next.
    let short = json!({"messages": [], "max_tokens": 1}).to_string();
    let back = async || (world.ask(Ask::new().body(short.clone())).await.at() == "eu-1").then_some(());
    eventually("there is room again", PATIENCE, back).await;
}

#[tokio::test]
async fn a_worker_that_dies_ends_the_stream_once_and_a_pool_whose_router_is_frozen_is_left() {
    let config = format!("pool_policy = \"priority\"\n{TWO_POOLS}");
    let world = World::with(&config, &["--accept-timeout", "1s"]).await;
    let slow: &[&str] = &["--speed", "1", "--decode-rate", "1", "--output-tokens", "100000"];
    let mut eu = world.pool("eu", &[], &[("eu-1", slow)]).await;
    let us = world.pool("us", &[], &[("us-1", NO_ARGS)]).await;
    let streaming = body("hello").replace("{\"mes", "{\"stream\":true,\"mes");
    let mut lost = turn("lost").body(streaming.clone()).send(&world.client).await;
    lost.next().await;
    eu.workers[0].kill();
    assert_eq!(lost.end().await.at(), "503 worker_lost");
    world.settles().await;

    eu.router.process.signal(Signal::Stop);
    let sent = turn("frozen").send(&world.client).await;
    let inbox = sent.inbox.clone();
    assert_eq!(sent.end().await.at(), "us-1");
    let mut again = world.client.subscribe(inbox).await.expect("subscribes");
    eu.router.process.signal(Signal::Continue);
    let _new = world.worker("eu", "eu-1", NO_ARGS);
    // The router that has thawed works again, and says nothing of what was given up.
    let back = async || (world.ask(Ask::new().timeout_ms(3000)).await.at() == "eu-1").then_some(());
    eventually("the pool gets requests again", PATIENCE, back).await;
    assert!(again.next().now_or_never().is_none(), "a second answer came");
    assert_eq!(world.at("frozen").await, "us-1", "it stays where it went");
    let idle = async || (us.router.metric("requests_in_flight").await == 0.0).then_some(());
    eventually("nothing is counted there any more", PATIENCE, idle).await;
}

#[tokio::test]
async fn with_no_pool_left_the_error_comes_at_once() {
    let world = World::with(TWO_POOLS, &[]).await;
    let refusal = world.ask(turn("s")).await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (503, "no_worker"));
    let _eu = world.pool("eu", &[], &[("eu-1", NO_ARGS)]).await;
    // Pools that nobody answered for are left alone for five seconds.
    let back = async || (world.at("s").await == "eu-1").then_some(());
    eventually("it gets requests", PATIENCE, back).await;
}

#[tokio::test]
async fn an_alias_is_resolved_above_and_told_below() {
    let config = format!("{TWO_POOLS}\n[[alias]]\nmodel = \"chat\"\nto = [{{ model = \"m\" }}]");
    let world = World::with(&config, &[]).await;
    let _eu = world.pool("eu", &[], &[("eu-1", NO_ARGS)]).await;
    let _us = world.pool("us", &[], &[("us-1", NO_ARGS)]).await;
    let answer = world.ask(turn("s").on("rankpin.request.chat")).await;
    assert_eq!(answer.header("Rankpin-Model"), Some("m"));
    let told: Value = serde_json::from_slice(&answer.last.payload).expect("JSON");
    assert_eq!(told["model"], "m");
}

#[tokio::test]
async fn a_pools_router_that_dies_while_a_request_waits_there_costs_seconds_and_not_the_whole_timeout() {
    let world = World::with(TWO_POOLS, &["--pool-policy", "priority"]).await;
    // One request at a time, and that one takes for ever.
    let slow = ["--max-inflight", "1", "--speed", "1", "--decode-rate", "0.01", "--output-tokens", "4"];
    let mut eu = world.pool("eu", &[], &[("eu-0", &slow)]).await;
    let _us = world.pool("us", &[], &[("us-0", &[])]).await;
    let _held = turn("held").send(&world.client).await;
    let held = async || (eu.router.metric("requests_in_flight").await == 1.0).then_some(());
    eventually("the only place in eu is taken", PATIENCE, held).await;
    // It may wait for ten minutes, and waits in eu.
    let waiting = turn("waiting").timeout_ms(600_000).send(&world.client).await;
    let queued = async || (eu.router.metric("requests_queued").await == 1.0).then_some(());
    eventually("it waits in eu", PATIENCE, queued).await;
    eu.router.process.kill();
    assert_eq!(waiting.end().await.at(), "us-0");
}
