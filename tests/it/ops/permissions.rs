//! The users of `rankpin nats-permissions`: a deployment runs under them.

use std::collections::BTreeMap;
use std::time::Duration;

use rankpin::client::{Client as Frontend, ClientOptions, Request};
use rankpin::core::id::{Model, SessionId};
use rankpin::local::http::{self as local, free_port};
use rankpin::nats::Access;
use rankpin::nats::access::Urls;
use rankpin::nats::login::Secret;
use serde_json::{Value, json};

use super::{output_with, printed};
use crate::support::process::Process;
use crate::support::rankpin::command;
use crate::support::server::Options;
use crate::support::{NatsServer, PATIENCE, eventually, http};

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

/// How long one request of a test that sends another one waits for its answer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

pub fn password(user: &str) -> String {
    format!("p-{user}")
}

fn variable(user: &str) -> String {
    format!("RANKPIN_NATS_{}_PASSWORD", user.replace('-', "_").to_uppercase())
}

/// A server with these users, whose passwords are in its environment.
pub async fn server() -> NatsServer {
    server_with(&[])
}

/// The same, with further arguments to `rankpin nats-permissions`.
pub fn server_with(more: &[&str]) -> NatsServer {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let args = [&ARGS[..], &["passwords"], more].concat();
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

pub async fn run_as(server: &NatsServer, user: &str, args: &[&str]) -> String {
    printed(args, output_with(server, args, &variables(&login(server, user))).await)
}

fn variables<'v>(login: &'v [(&'static str, String)]) -> Vec<(&'v str, &'v str)> {
    login.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

pub fn start_as(server: &NatsServer, user: &str, args: &[&str]) -> Process {
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

/// Of a user of each role `rankpin doctor` says that it can be that, and finds no fault in what that role can't see.
async fn every_role_is_examined(server: &NatsServer) {
    // It finds the inboxes of each by itself; where they are named, that counts.
    for (user, named, role) in [
        ("router", None, "router"),
        ("router", Some("_INBOX_rankpin_router"), "router"),
        ("worker-gpu-0", None, "worker"),
        ("gateway", Some("_INBOX.gateway"), "gateway"),
        ("nightly", None, "batch"),
    ] {
        let mut args = vec!["doctor"];
        args.extend(named.into_iter().flat_map(|inbox| ["--inbox-prefix", inbox]));
        let mut login = login(server, user);
        login.retain(|(name, _)| *name != "RANKPIN_INBOX_PREFIX");
        let doctor = printed(&args, output_with(server, &args, &variables(&login)).await);
        let told = |line: &str| line.contains("ok    permissions") && line.contains(role);
        assert!(doctor.lines().any(told) && !doctor.contains("FAIL"), "{user}: {doctor}");
        assert!(doctor.contains("note  routers") && doctor.contains("$SRV.STATS.rankpin"), "{user}: {doctor}");
    }
    // A frontend may not even ask what it may do: the answer would go wherever it says.
    let doctor = run_as(server, "web", &["doctor", "--inbox-prefix", "_INBOX.web"]).await;
    assert!(doctor.contains("this user may not ask what it may do") && !doctor.contains("FAIL"), "{doctor}");
    let top = output_with(server, &["top", "--json", "--count", "1"], &variables(&login(server, "web"))).await;
    let problem = String::from_utf8_lossy(&top.stderr);
    assert!(!top.status.success() && problem.contains("$SRV.STATS.rankpin"), "{problem}");
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
    every_role_is_examined(&server).await;
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

#[tokio::test]
async fn a_gateway_serves_all_that_it_can_under_its_own() {
    let server = server().await;
    run_as(&server, "operator", &["provision"]).await;
    let router = start_as(&server, "router", &["router", "--provision", "never", "--listen", "off"]);
    let sim = ["sim", "--worker", "gpu-0", "--model", "m", "--dp-size", "2", "--speed", "100000"];
    let worker = start_as(&server, "worker-gpu-0", &sim);
    let address = free_port().expect("there are ports");
    let gateway = start_as(&server, "gateway", &["gateway", "--listen", &address.to_string()]);
    let listed = async || {
        let answer = local::get(address, "/v1/models").await.ok()?;
        let models: Value = serde_json::from_slice(&answer.body).ok()?;
        (models["data"][0]["id"] == "m").then_some(())
    };
    eventually("the gateway lists the model", PATIENCE, listed).await;

    let large = json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(3 << 20)}], "max_tokens": 4});
    let chat = "/v1/chat/completions";
    let answer = http::send(address, "POST", chat, &[], large.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());

    let small = json!({"model": "m", "messages": [{"role": "user", "content": "q"}], "max_tokens": 4});
    let line =
        |id: &str, body: &Value| json!({"custom_id": id, "method": "POST", "url": chat, "body": body}).to_string();
    let file = [line("a", &small), line("b", &large)].join("\n");
    let form = format!(
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{file}\r\n--b--\r\n"
    );
    let kind = [("Content-Type", "multipart/form-data; boundary=b")];
    let uploaded = http::send(address, "POST", "/v1/files", &kind, form.as_bytes()).await;
    assert_eq!(uploaded.status, 200, "{}", uploaded.text());
    let wanted = json!({"input_file_id": uploaded.json()["id"], "endpoint": chat, "completion_window": "1h"});
    let batch = http::send(address, "POST", "/v1/batches", &[], wanted.to_string().as_bytes()).await;
    assert_eq!(batch.status, 200, "{}", batch.text());
    let path = format!("/v1/batches/{}", batch.json()["id"].as_str().expect("an id"));
    let get = async |path: String| http::send(address, "GET", &path, &[], b"").await;
    let done = eventually("the batch is done", PATIENCE * 3, async || {
        let batch = get(path.clone()).await.json();
        assert_ne!(batch["status"], "failed", "{batch}");
        (batch["status"] == "completed").then_some(batch)
    })
    .await;
    assert_eq!(done["request_counts"], json!({"total": 2, "completed": 2, "failed": 0}));
    for path in ["/v1/files", "/v1/batches"] {
        assert_eq!(get(path.into()).await.status, 200, "{path}");
    }
    let output = format!("/v1/files/{}", done["output_file_id"].as_str().expect("an id"));
    assert_eq!(get(format!("{output}/content")).await.text().lines().count(), 2);
    assert_eq!(http::send(address, "DELETE", &output, &[], b"").await.status, 200);
    for process in [&gateway, &worker, &router] {
        let log = process.log();
        assert!(!log.to_lowercase().contains("permissions violation"), "{log}");
    }
}

#[tokio::test]
async fn a_gateway_that_may_not_decide_does_not_start_to_do_so() {
    let server = server().await;
    run_as(&server, "operator", &["provision"]).await;
    let args = ["gateway", "--listen", "127.0.0.1:0", "--decide-from", "1KB"];
    let ended = output_with(&server, &args, &variables(&login(&server, "gateway"))).await;
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{told}");
    for subject in ["rankpin.decide.", "rankpin.worker.", "_INBOX_rankpin_router."] {
        assert!(told.contains(subject), "{told}");
    }
    assert!(told.contains("--deciding-gateway"), "{told}");
}

#[tokio::test]
async fn who_may_not_decide_any_more_sends_bodies_the_usual_way() {
    let mut server = server().await;
    run_as(&server, "operator", &["provision"]).await;
    let router = start_as(&server, "router", &["router", "--provision", "never", "--listen", "off", "--decide-mode"]);
    // Where nobody decides yet, nobody is asked for a while.
    eventually("the router is ready", PATIENCE, async || router.log().contains("router is ready").then_some(())).await;
    let sim = ["sim", "--worker", "gpu-0", "--model", "m", "--speed", "100000"];
    let _worker = start_as(&server, "worker-gpu-0", &sim);
    let mut options = ClientOptions::new(&server.url());
    options.link = access(&server, "direct").link("test").expect("it makes sense");
    options.decide_from = Some(1);
    // What the server drops, or loses at its restart, is not waited for until the test's time is up.
    (options.idle_timeout, options.request_timeout) = (ANSWER_WAIT, ANSWER_WAIT);
    let frontend = Frontend::connect(options).await.expect("it may");
    let served = async || {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
        let request = Request::new(Model::new("m").expect("valid"), body);
        let mut replies = frontend.send(request).await.ok()?;
        futures_util::StreamExt::next(&mut replies).await?.ok()
    };
    eventually("a body arrives", PATIENCE, served).await;
    let config = server.config().replace("\"rankpin.decide.>\"", "\"rankpin.request\"");
    assert_ne!(config, server.config());
    server.restart_with(config);
    // A question that the server drops would have no answer at all.
    eventually("a body arrives by way of the router", PATIENCE, served).await;
    assert!(!router.log().to_lowercase().contains("permissions violation"), "{}", router.log());
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
