//! The users of `rankpin nats-permissions`: a deployment runs under them, and each denial is proved from outside, by a
//! plain client that tries.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_nats::{Client, ConnectOptions, Event};
use rankpin::client::{Client as Frontend, ClientOptions, Request};
use rankpin::core::id::{Model, SessionId};
use rankpin::nats::Access;
use rankpin::nats::access::Urls;
use rankpin::nats::login::Secret;
use serde_json::Value;

use super::{output_with, printed};
use crate::support::process::Process;
use crate::support::rankpin::command;
use crate::support::server::Options;
use crate::support::{NatsServer, PATIENCE, eventually, settle};

/// The users of the deployment under `deploy/nats`, and more.
const USERS: [&str; 9] =
    ["router", "worker-gpu-0", "worker-gpu-1", "web", "chat", "gateway", "direct", "nightly", "operator"];
const ARGS: [&str; 18] = [
    "nats-permissions",
    "--frontend",
    "web",
    "--frontend",
    "chat",
    "--gateway",
    "gateway",
    "--deciding-gateway",
    "direct",
    "--batch",
    "nightly",
    "--worker",
    "gpu-0",
    "--worker",
    "gpu-1",
    "--out",
    ".",
    "--auth",
];

fn password(user: &str) -> String {
    format!("p-{user}")
}

fn variable(user: &str) -> String {
    format!("RANKPIN_NATS_{}_PASSWORD", user.replace('-', "_").to_uppercase())
}

/// A server with these users, whose passwords are in its environment.
async fn server() -> NatsServer {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let args = [&ARGS[..], &["passwords"]].concat();
    let made = command(&args).current_dir(dir.path()).output().expect("it runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let config = std::fs::read_to_string(dir.path().join("rankpin.conf")).expect("written");
    let environment = USERS.map(|user| (variable(user), password(user))).to_vec();
    NatsServer::start_with(Options { config, environment, ..Options::default() })
}

fn login(server: &NatsServer, user: &str) -> Vec<(&'static str, String)> {
    let inbox = format!("_INBOX.{user}");
    vec![
        ("NATS_URL", server.url()),
        ("NATS_USER", user.to_owned()),
        ("NATS_PASSWORD", password(user)),
        ("RANKPIN_INBOX_PREFIX", inbox),
    ]
}

async fn run_as(server: &NatsServer, user: &str, args: &[&str]) -> String {
    let login = login(server, user);
    let variables: Vec<(&str, &str)> = login.iter().map(|(name, value)| (*name, value.as_str())).collect();
    printed(args, output_with(server, args, &variables).await)
}

fn start_as(server: &NatsServer, user: &str, args: &[&str]) -> Process {
    let mut command = command(args);
    command.envs(login(server, user));
    Process::start(user, command, server.dir())
}

fn access(server: &NatsServer, user: &str) -> Access {
    Access {
        urls: Some(Urls::new(server.url())),
        user: Some(user.to_owned()),
        password: Some(Secret::new(password(user))),
        inbox_prefix: Some(format!("_INBOX.{user}")),
        ..Access::default()
    }
}

#[tokio::test]
async fn a_deployment_runs_under_them() {
    let server = server().await;
    run_as(&server, "operator", &["provision"]).await;
    let router = start_as(&server, "router", &["router", "--provision", "never", "--listen", "off", "--policy", "kv"]);
    eventually("the router is ready", PATIENCE, async || router.log().contains("router is ready").then_some(())).await;
    let worker = |name: &str| {
        let args = ["sim", "--worker", name, "--model", "m", "--dp-size", "2", "--speed", "1000"];
        start_as(&server, &format!("worker-{name}"), &args)
    };
    let (_a, mut b) = (worker("gpu-0"), worker("gpu-1"));
    eventually("both workers are there", PATIENCE, async || {
        let seen: Value =
            serde_json::from_str(&run_as(&server, "operator", &["workers", "--json"]).await).expect("JSON");
        (seen["workers"].as_array().expect("a list").len() == 2).then_some(())
    })
    .await;

    // Two frontends, turn after turn.
    for user in ["web", "chat", "gateway"] {
        let mut options = ClientOptions::new(&server.url());
        options.link = access(&server, user).link("test").expect("it makes sense");
        let frontend = Frontend::connect(options).await.expect("it may");
        for turn in 0..2 {
            let session = SessionId::named(&format!("s-{user}")).expect("valid");
            let body = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
            let request = Request::new(Model::new("m").expect("valid"), body).session(&session);
            let mut replies = frontend.send(request).await.expect("it may");
            let answer = futures_util::StreamExt::next(&mut replies).await.expect("an answer").expect("no error");
            assert!(!answer.payload.is_empty(), "{user} {turn}");
        }
    }
    let pins = run_as(&server, "operator", &["pins", "ls", "--json"]).await;
    assert_eq!(pins.lines().count(), 3, "{pins}");
    run_as(&server, "operator", &["pins", "move", "s-web", "--model", "m", "--to", "gpu-0/1"]).await;
    run_as(&server, "operator", &["pins", "rm", "s-chat", "--model", "m"]).await;

    // A durable job, of somebody who may submit some.
    let line = r#"{"custom_id":"c","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"q"}]}}"#;
    std::fs::write(server.dir().join("batch.jsonl"), line).expect("written");
    run_as(&server, "nightly", &["jobs", "submit", "batch.jsonl", "--wait", "15s"]).await;
    let result = run_as(&server, "nightly", &["jobs", "results", "--of", "batch.jsonl", "--json"]).await;
    let result: Value = serde_json::from_str(&result).expect("one line");
    assert_eq!((&result["custom_id"], &result["error"]), (&"c".into(), &Value::Null), "{result}");

    let doctor = run_as(&server, "operator", &["doctor"]).await;
    assert!(doctor.contains("ok    permissions") && doctor.contains("can be operator"), "{doctor}");
    assert!(doctor.contains("1 routers, 1 ready") && doctor.contains("2 registered and alive, 2 ready"), "{doctor}");
    let states: Value =
        serde_json::from_str(&run_as(&server, "operator", &["top", "--json", "--count", "1"]).await).expect("JSON");
    assert_eq!(states[0]["requests"]["ended"]["ok"], 7);
    run_as(&server, "operator", &["drain", "gpu-1"]).await;
    eventually("its process ends", PATIENCE, async || b.ended()).await;
    assert!(
        !router.log().contains("Permissions Violation") && !router.log().contains("permissions violation"),
        "{}",
        router.log()
    );
}

/// A plain client, and the violations that the server has told it of.
struct Plain {
    client: Client,
    told: Arc<Mutex<Vec<String>>>,
    user: &'static str,
}

impl Plain {
    async fn connect(server: &NatsServer, user: &'static str) -> Self {
        let told = Arc::new(Mutex::new(Vec::new()));
        let inbox = if user == "router" { "_INBOX_rankpin_router".to_owned() } else { format!("_INBOX.{user}") };
        let client = ConnectOptions::with_user_and_password(user.to_owned(), password(user))
            .custom_inbox_prefix(inbox)
            .event_callback({
                let told = Arc::clone(&told);
                move |event| {
                    let told = Arc::clone(&told);
                    async move {
                        if let Event::ServerError(error) = event {
                            told.lock().expect("whole").push(error.to_string());
                        }
                    }
                }
            })
            .connect(server.url())
            .await
            .expect("the server takes this user");
        Self { client, told, user }
    }

    /// What the server says to these, each tried alone: subjects by whether they were refused.
    async fn publish(&self, subject: &str) -> bool {
        self.client.publish(subject.to_owned(), "x".into()).await.expect("taken");
        self.was_refused(subject).await
    }

    async fn subscribe(&self, subject: &str) -> bool {
        let (subject, queue) =
            subject.split_once(' ').map_or((subject, None), |(subject, queue)| (subject, Some(queue)));
        let subscribed = match queue {
            Some(queue) => self.client.queue_subscribe(subject.to_owned(), queue.to_owned()).await,
            None => self.client.subscribe(subject.to_owned()).await,
        };
        let subscribed = subscribed.expect("taken");
        let refused = self.was_refused(subject).await;
        drop(subscribed);
        refused
    }

    async fn was_refused(&self, subject: &str) -> bool {
        // The server answers in order, but the library hands errors on through another task: one that comes is waited for.
        settle(&self.client).await;
        let quoted = format!("\"{subject}\"");
        for _ in 0..20 {
            if self.told.lock().expect("whole").iter().any(|told| told.contains("ermissions") && told.contains(&quoted))
            {
                self.told.lock().expect("whole").clear();
                return true;
            }
            tokio::task::yield_now().await;
            settle(&self.client).await;
        }
        false
    }

    /// Everything here has to be refused.
    async fn denied(&self, publish: &[&str], subscribe: &[&str]) {
        for subject in publish {
            assert!(self.publish(subject).await, "{} may publish {subject}", self.user);
        }
        for subject in subscribe {
            assert!(self.subscribe(subject).await, "{} may subscribe to {subject}", self.user);
        }
    }

    /// Everything here has to be let through: that what is denied above is not denied for another reason.
    async fn allowed(&self, publish: &[&str], subscribe: &[&str]) {
        for subject in publish {
            assert!(!self.publish(subject).await, "{} may not publish {subject}", self.user);
        }
        for subject in subscribe {
            assert!(!self.subscribe(subject).await, "{} may not subscribe to {subject}", self.user);
        }
    }
}

/// What nobody but an operator of the whole server may do.
const NOBODY: [&str; 8] = [
    "$JS.API.STREAM.DELETE.KV_rankpin_pins",
    "$JS.API.STREAM.PURGE.KV_rankpin_pins",
    "$JS.API.STREAM.UPDATE.KV_rankpin_pins",
    "$JS.API.STREAM.DELETE.rankpin_jobs",
    "$JS.API.STREAM.CREATE.spy",
    "$JS.API.STREAM.LIST",
    "$JS.API.CONSUMER.DELETE.rankpin_jobs.router",
    "$SYS.REQ.SERVER.PING",
];

#[tokio::test]
async fn a_frontend_can_only_ask_and_hear_its_own_answers() {
    let server = server().await;
    let web = Plain::connect(&server, "web").await;
    web.allowed(&["rankpin.request.m", "rankpin.request", "rankpin.cancel.r"], &["_INBOX.web.>"]).await;
    web.denied(&NOBODY, &[]).await;
    web.denied(
        &[
            // Registering a worker, or passing for one.
            "$KV.rankpin_workers.evil",
            "rankpin.load.gpu-0",
            "rankpin.kv.gpu-0.0",
            "_INBOX_rankpin_router.x",
            "rankpin.result.r",
            // Pins, read or written.
            "$KV.rankpin_pins.5f3b0a7c8d9e4f10a1b2c3d4e5f60718",
            "$JS.API.STREAM.INFO.KV_rankpin_pins",
            "$JS.API.STREAM.MSG.GET.KV_rankpin_pins",
            "$JS.API.DIRECT.GET.KV_rankpin_pins",
            "$JS.API.DIRECT.GET.KV_rankpin_pins.$KV.rankpin_pins.x",
            "$JS.API.CONSUMER.CREATE.KV_rankpin_pins",
            "$JS.API.CONSUMER.CREATE.KV_rankpin_pins.c.$KV.rankpin_pins.>",
            // To a rank, past the router; and what only routers, gateways, batch users and operators say.
            "rankpin.worker.gpu-0.rank.0",
            "rankpin.worker.gpu-0.any",
            "rankpin.worker.gpu-0.cancel",
            "rankpin.worker.gpu-0.drain",
            "rankpin.router.kv",
            "rankpin.trusted.m",
            "rankpin.decide.m",
            "rankpin.job.m",
            "rankpin.dead.m",
            "$SRV.STATS",
            // Another frontend's inbox.
            "_INBOX.chat.x",
        ],
        &[
            ">",
            "rankpin.>",
            "rankpin.request.>",
            "rankpin.request.> router",
            "rankpin.worker.>",
            "rankpin.worker.gpu-0.rank.0",
            "rankpin.load.*",
            "rankpin.cancel.*",
            "rankpin.result.>",
            "$KV.rankpin_pins.>",
            "$KV.rankpin_workers.>",
            "_INBOX.>",
            "_INBOX.*.x",
            "_INBOX.chat.>",
            "_INBOX_rankpin_router.>",
        ],
    )
    .await;
}

#[tokio::test]
async fn a_gateway_can_only_ask_and_hear_its_own_answers() {
    let server = server().await;
    let gateway = Plain::connect(&server, "gateway").await;
    gateway.allowed(&["rankpin.trusted.m"], &["_INBOX.gateway.>"]).await;
    gateway.denied(&NOBODY, &[]).await;
    gateway
        .denied(
            &[
                "$KV.rankpin_workers.evil",
                "$KV.rankpin_pins.x",
                "rankpin.decide.m",
                "_INBOX_rankpin_router.x",
                "rankpin.worker.gpu-0.rank.0",
                "rankpin.worker.gpu-0.drain",
            ],
            &["_INBOX.>", "_INBOX.web.>", "rankpin.trusted.>", "rankpin.request.> router"],
        )
        .await;
}

#[tokio::test]
async fn a_deciding_gateway_can_send_to_ranks_and_do_no_more_than_any_gateway_besides() {
    let server = server().await;
    let direct = Plain::connect(&server, "direct").await;
    direct
        .allowed(
            &[
                "rankpin.decide.m",
                "rankpin.trusted.m",
                "rankpin.worker.gpu-0.rank.0",
                "rankpin.worker.gpu-0.any",
                "_INBOX_rankpin_router.x",
            ],
            &["_INBOX.direct.>"],
        )
        .await;
    direct.denied(&NOBODY, &[]).await;
    direct
        .denied(
            &[
                "$KV.rankpin_workers.evil",
                "$KV.rankpin_pins.x",
                "rankpin.worker.gpu-0.cancel",
                "rankpin.worker.gpu-0.drain",
                "rankpin.load.gpu-0",
                "rankpin.router.kv",
                "_INBOX.web.x",
            ],
            &[
                "_INBOX.>",
                "_INBOX_rankpin_router.>",
                "rankpin.worker.>",
                "rankpin.decide.>",
                "rankpin.decide.> router",
                "rankpin.request.> router",
            ],
        )
        .await;
}

#[tokio::test]
async fn decide_mode_runs_under_them() {
    let server = server().await;
    run_as(&server, "operator", &["provision"]).await;
    let router = start_as(&server, "router", &["router", "--provision", "never", "--listen", "off", "--decide-mode"]);
    eventually("the router is ready", PATIENCE, async || router.log().contains("router is ready").then_some(())).await;
    let _worker = start_as(&server, "worker-gpu-0", &["sim", "--worker", "gpu-0", "--model", "m", "--engine", "echo"]);
    eventually("the worker is there", PATIENCE, async || {
        let seen: Value =
            serde_json::from_str(&run_as(&server, "operator", &["workers", "--json"]).await).expect("JSON");
        (seen["workers"].as_array().expect("a list").len() == 1).then_some(())
    })
    .await;
    let mut options = ClientOptions::new(&server.url());
    options.link = access(&server, "direct").link("test").expect("it makes sense");
    options.decide_from = Some(1);
    let frontend = Frontend::connect(options).await.expect("it may");
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
    let request = Request::new(Model::new("m").expect("valid"), body);
    let mut replies = frontend.send(request).await.expect("it may");
    let answer = futures_util::StreamExt::next(&mut replies).await.expect("an answer").expect("no error");
    assert_eq!(answer.payload, body);
    let top = run_as(&server, "operator", &["top", "--json", "--count", "1"]).await;
    let states: Value = serde_json::from_str(&top).expect("JSON");
    assert_eq!(states[0]["requests"]["ended"]["ok"], 1);
    assert!(!router.log().to_lowercase().contains("permissions violation"), "{}", router.log());
}

#[tokio::test]
async fn a_worker_is_itself_alone_and_neither_asks_nor_pins() {
    let server = server().await;
    let worker = Plain::connect(&server, "worker-gpu-0").await;
    worker
        .allowed(
            &["rankpin.load.gpu-0", "rankpin.kv.gpu-0.1", "_INBOX.web.x", "_INBOX_rankpin_router.x"],
            &["rankpin.worker.gpu-0.rank.7", "rankpin.worker.gpu-0.any any", "rankpin.worker.gpu-0.drain"],
        )
        .await;
    worker.denied(&NOBODY, &[]).await;
    worker
        .denied(
            &[
                "rankpin.request.m",
                "rankpin.request",
                "rankpin.trusted.m",
                "rankpin.job.m",
                "rankpin.cancel.r",
                "$KV.rankpin_pins.x",
                "$JS.API.STREAM.INFO.KV_rankpin_pins",
                "$JS.API.STREAM.MSG.GET.KV_rankpin_pins",
                "$JS.API.CONSUMER.CREATE.KV_rankpin_pins",
                "$JS.API.STREAM.MSG.GET.rankpin_results",
                "$KV.rankpin_workers.gpu-1",
                "rankpin.load.gpu-1",
                "rankpin.kv.gpu-1.0",
                "rankpin.worker.gpu-1.rank.0",
                "rankpin.worker.gpu-1.drain",
                "rankpin.worker.gpu-0.drain",
                "rankpin.router.kv",
                "rankpin.dead.m",
            ],
            &[
                ">",
                "rankpin.worker.gpu-1.rank.0",
                "rankpin.worker.gpu-1.any any",
                "rankpin.worker.>",
                "rankpin.worker.gpu-0.>",
                "rankpin.request.> router",
                "rankpin.load.*",
                "_INBOX.>",
                "_INBOX.web.>",
                "_INBOX_rankpin_router.>",
                "$KV.rankpin_workers.>",
            ],
        )
        .await;
}

#[tokio::test]
async fn routers_batch_users_and_operators_have_limits_too() {
    let server = server().await;
    let router = Plain::connect(&server, "router").await;
    router
        .allowed(&["rankpin.worker.gpu-0.rank.0", "_INBOX.web.x"], &["rankpin.request.> router", "rankpin.load.*"])
        .await;
    router.denied(&NOBODY, &[]).await;
    router
        .denied(
            &[
                "rankpin.request.m",
                "$KV.rankpin_workers.evil",
                "rankpin.load.gpu-0",
                "rankpin.worker.gpu-0.drain",
                "$JS.API.STREAM.CREATE.KV_rankpin_pins",
                "$JS.API.STREAM.MSG.DELETE.KV_rankpin_pins",
                "$JS.API.STREAM.PURGE.rankpin_results",
            ],
            &[
                ">",
                "rankpin.request.>",
                "rankpin.request.> spy",
                "_INBOX.>",
                "_INBOX.web.>",
                "rankpin.worker.>",
                "rankpin.result.>",
            ],
        )
        .await;
    let batch = Plain::connect(&server, "nightly").await;
    batch.denied(&NOBODY, &[]).await;
    batch
        .denied(
            &[
                "rankpin.request.m",
                "$KV.rankpin_pins.x",
                "$KV.rankpin_workers.x",
                "$JS.API.STREAM.MSG.GET.KV_rankpin_pins",
            ],
            &["_INBOX.>", "_INBOX.web.>", "rankpin.result.>", "rankpin.job.>"],
        )
        .await;
    let operator = Plain::connect(&server, "operator").await;
    operator.denied(&NOBODY, &[]).await;
    operator
        .denied(
            &["rankpin.request.m", "rankpin.worker.gpu-0.rank.0", "$KV.rankpin_workers.evil", "_INBOX.web.x"],
            &[">", "_INBOX.>", "_INBOX.web.>", "rankpin.request.>", "rankpin.request.> router", "rankpin.worker.>"],
        )
        .await;
}

#[tokio::test]
async fn nkeys_are_kept_and_let_their_users_in() {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let make = || {
        let args = [&ARGS[..], &["nkeys"]].concat();
        let made = command(&args).current_dir(dir.path()).output().expect("it runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        std::fs::read_to_string(dir.path().join("rankpin.conf")).expect("written")
    };
    let config = make();
    assert_eq!(config, make(), "keys that are there are kept");
    let server = NatsServer::start_with(Options { config, ..Options::default() });
    let seed = dir.path().join("keys/operator.nk");
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(&seed).expect("written").permissions().mode() & 0o777, 0o600);
    let variables = [("NATS_URL", server.url()), ("NATS_NKEY", seed.display().to_string())];
    let variables: BTreeMap<&str, &str> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let variables: Vec<(&str, &str)> = variables.into_iter().collect();
    // The router's own connections are by nkey as well: provision is a router's first steps. Its inbox is said in the file.
    let args = ["doctor", "--inbox-prefix", "_INBOX.operator"];
    let output = output_with(&server, &args, &variables).await;
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("rankpin_workers is missing") && told.contains("can be operator"), "{told}");
}

#[test]
fn the_example_in_deploy_is_what_the_command_writes() {
    let args = ["nats-permissions", "--gateway", "gateway", "--batch", "batch"];
    let made = command(&args).output().expect("it runs");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/nats/rankpin.conf");
    let committed = std::fs::read_to_string(path).expect("deploy/nats/rankpin.conf is there");
    let written = String::from_utf8(made.stdout).expect("UTF-8");
    assert!(
        committed == written,
        "deploy/nats/rankpin.conf differs: make it with `rankpin {} --out deploy/nats`",
        args.join(" ")
    );
}
