//! Names that stand for several models (protocol section 3.3).

use std::collections::BTreeSet;

use rankpin::core::alias::{Target, by_hash};
use rankpin::core::id::{Model, SessionId};
use serde_json::json;
use tempfile::TempDir;

use crate::support::cluster::RouterTask;
use crate::support::worker::Dispatch;
use crate::support::{Ask, Behaviour, Cluster, PATIENCE, Worker, eventually};

/// A configuration file in which `chat` leads to `a` and `b`.
struct Config {
    dir: TempDir,
}

impl Config {
    fn new(a: f64, b: f64) -> Self {
        let dir = tempfile::tempdir().expect("a temp directory can be made");
        let text =
            format!("[[alias]]\nmodel = 'chat'\nto = [{{model='a', weight={a:?}}}, {{model='b', weight={b:?}}}]");
        std::fs::write(dir.path().join("rankpin.toml"), text).expect("a temp directory takes files");
        Self { dir }
    }

    fn path(&self) -> String {
        self.dir.path().join("rankpin.toml").to_str().expect("UTF-8").to_owned()
    }
}

async fn cluster(routers: usize, config: &Config) -> Cluster {
    Cluster::with(routers, &[("config", &config.path())]).await
}

/// A worker of one of the models, with the model's name.
async fn serving(cluster: &Cluster, model: &str) -> Worker {
    cluster.worker(model).with("models", vec![model]).start().await
}

fn chat(session: &str) -> Ask {
    Ask::new().model("chat").session(session)
}

/// Where the hash leads a session with these weights.
fn hashed(session: &str, a: f64, b: f64) -> &'static str {
    let target = |name: &str, weight| Target { model: Model::new(name).expect("valid"), weight };
    let session = SessionId::named(session).expect("valid");
    ["a", "b"][by_hash(&[target("a", a), target("b", b)], &session).expect("there are two")]
}

#[tokio::test]
async fn a_session_stays_on_the_model_that_it_was_given_whichever_router_takes_the_turn() {
    let config = Config::new(1.0, 1.0);
    let cluster = cluster(2, &config).await;
    let (a, b) = (serving(&cluster, "a").await, serving(&cluster, "b").await);
    let mut met = BTreeSet::new();
    for n in 0..12 {
        let session = format!("s{n}");
        let model = hashed(&session, 1.0, 1.0);
        for _ in 0..3 {
            assert_eq!(cluster.ask(chat(&session)).await.at(), model);
        }
        assert!(cluster.pin_of("", model, &session).await.is_some(), "it is pinned under the model");
        assert!(cluster.pin_of("", "chat", &session).await.is_none());
        met.insert(model);
    }
    assert_eq!((met.len(), a.count() + b.count()), (2, 36));
    let of_router = |n: usize| cluster.routers[n].metric_where("aliases_resolved", "alias=\"chat\",model=\"a\"");
    assert_eq!(of_router(0).await + of_router(1).await, a.count() as f64);
}

#[tokio::test]
async fn the_worker_is_told_the_model_and_the_alias_and_the_body_stays() {
    let config = Config::new(1.0, 1e-9);
    let cluster = cluster(1, &config).await;
    let a = serving(&cluster, "a").await;
    let body = r#"{"messages":[],  "model":"chat"}"#;
    let forged = [("Rankpin-Model", "x"), ("rankpin-alias", "y")];
    cluster.ask(Ask::new().on("rankpin.request").session("s").headers(&forged).body(body)).await;
    let dispatch = a.dispatch(0).await;
    let header = |name| dispatch.header(name);
    assert_eq!((header("Rankpin-Model"), header("Rankpin-Alias")), (Some("a"), Some("chat")));
    assert_eq!(&dispatch.message.payload[..], body.as_bytes());
    cluster.ask(Ask::new().model("a").session("s").headers(&forged)).await;
    let plain = a.dispatch(1).await;
    assert_eq!((plain.header("Rankpin-Model"), plain.header("Rankpin-Alias")), (None, None), "it is none");
    assert_eq!(plain.header("Rankpin-Decision"), Some("pinned"), "the same session of the same model");
}

#[tokio::test]
async fn sessions_stay_where_they_are_pinned_when_the_weights_change() {
    let (before, after) = (Config::new(1.0, 1e-9), Config::new(1e-9, 1.0));
    let mut cluster = cluster(1, &before).await;
    let (_a, _b) = (serving(&cluster, "a").await, serving(&cluster, "b").await);
    assert_eq!(cluster.ask(chat("old")).await.at(), "a");
    let derived = |turns: usize| {
        let mut messages =
            vec![json!({"role": "system", "content": "be brief"}), json!({"role": "user", "content": "hi"})];
        for turn in 0..turns {
            messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
            messages.push(json!({"role": "user", "content": format!("question {turn}")}));
        }
        Ask::new().model("chat").body(json!({"messages": messages}).to_string())
    };
    assert_eq!(cluster.ask(derived(0)).await.at(), "a");
    cluster.mirrors_pins().await;
    assert_eq!(cluster.ask(derived(1)).await.told(), "a pinned,derived");
    let settings = [("config", after.path())];
    let settings = settings.each_ref().map(|(key, path)| (*key, path.as_str()));
    cluster.routers = vec![RouterTask::start(&cluster.server.url(), &settings).await];
    cluster.mirrors_pins().await;
    assert_eq!(cluster.ask(chat("new")).await.at(), "b");
    assert_eq!(cluster.ask(chat("old")).await.told(), "a pinned");
    assert_eq!(cluster.ask(derived(2)).await.told(), "a pinned,derived");
    let other = Ask::new().model("chat").body(r#"{"messages":[{"role":"user","content":"another"}]}"#);
    assert_eq!(cluster.ask(other).await.at(), "b");
}

#[tokio::test]
async fn every_turn_of_a_derived_session_hashes_to_one_model_before_anything_is_pinned() {
    let config = Config::new(1.0, 1.0);
    let cluster = cluster(1, &config).await;
    let (_a, _b) = (serving(&cluster, "a").await, serving(&cluster, "b").await);
    let mut met = BTreeSet::new();
    for n in 0..10 {
        // Each turn under a tenant of its own, so that none finds the pin of another.
        let mut models = BTreeSet::new();
        for turns in 0..3 {
            let mut messages = vec![
                json!({"role": "system", "content": "shared"}),
                json!({"role": "user", "content": format!("{n}")}),
            ];
            for turn in 0..turns {
                messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
                messages.push(json!({"role": "user", "content": format!("question {turn}")}));
            }
            let body = json!({"messages": messages}).to_string();
            let ask = Ask::new().model("chat").header("Rankpin-Tenant", &format!("{turns}")).body(body);
            models.insert(cluster.ask(ask).await.at());
        }
        assert_eq!(models.len(), 1, "conversation {n}");
        met.extend(models);
    }
    assert_eq!(met.len(), 2, "a shared system prompt alone doesn't decide");
}

#[tokio::test]
async fn a_chain_of_responses_stays_on_its_model_whichever_router_takes_the_turn() {
    let config = Config::new(1.0, 1.0);
    let cluster = cluster(2, &config).await;
    let (a, b) = (serving(&cluster, "a").await, serving(&cluster, "b").await);
    for worker in [&a, &b] {
        worker.behave(Behaviour::script(async |dispatch: Dispatch| {
            dispatch.accept().await;
            let id = format!("resp-{}", dispatch.header("Rankpin-Request-Id").expect("every request has an id"));
            dispatch.reply(&[("Rankpin-Final", "true")], "done").await;
            let finished = json!({"outcome": "ok", "response_id": id});
            dispatch.event(&[("Rankpin-Event", "finished")], &finished.to_string()).await;
        }));
    }
    for chain in 0..6 {
        let ask = |turn: usize, body: serde_json::Value| {
            Ask::new().model("chat").id(&format!("c{chain}-{turn}")).body(body.to_string())
        };
        let first = cluster.ask(ask(0, json!({"input": format!("question {chain}")}))).await.at();
        for turn in 1..6 {
            let from = format!("resp-c{chain}-{}", turn - 1);
            let pinned = async || cluster.pin_of("", &first, &format!("\u{1}rs:{from}")).await;
            eventually("the response is pinned", PATIENCE, pinned).await;
            let answer = cluster.ask(ask(turn, json!({"input": "go on", "previous_response_id": from}))).await;
            assert_eq!(answer.told(), format!("{first} pinned,derived"), "turn {turn} of chain {chain}");
        }
    }
}

#[tokio::test]
async fn without_a_session_chance_decides() {
    let config = Config::new(1.0, 1.0);
    let cluster = cluster(1, &config).await;
    let (a, b) = (serving(&cluster, "a").await, serving(&cluster, "b").await);
    for _ in 0..60 {
        cluster.ask(Ask::new().model("chat")).await;
    }
    // Less than 10 of 60 comes once in ten million times.
    assert!(a.count() >= 10 && b.count() >= 10, "{} {}", a.count(), b.count());
}

#[tokio::test]
async fn models_that_nobody_serves() {
    let config = Config::new(1.0, 1e-9);
    let cluster = cluster(1, &config).await;
    let refusal = cluster.ask(chat("s")).await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (404, "unknown_model"));
    for named in ["\"chat\"", "\"a\"", "\"b\""] {
        assert!(refusal.message.contains(named), "{}", refusal.message);
    }
    let _b = serving(&cluster, "b").await;
    assert_eq!(cluster.ask(chat("s")).await.at(), "b", "a is not known");
    let _a = serving(&cluster, "a").await;
    assert_eq!(cluster.ask(chat("s")).await.told(), "b pinned", "it stays");
    assert_eq!(cluster.ask(chat("t")).await.at(), "a");
}

#[tokio::test]
async fn a_wanted_worker_is_asked_for_a_model_that_it_has() {
    let config = Config::new(1.0, 1.0);
    let cluster = cluster(1, &config).await;
    let (_a, _b) = (serving(&cluster, "a").await, serving(&cluster, "b").await);
    for n in 0..8 {
        for wanted in ["a", "b"] {
            let ask = chat(&format!("{wanted}-{n}")).header("Rankpin-Target-Worker", wanted);
            assert_eq!(cluster.ask(ask).await.at(), wanted);
            let unnamed = Ask::new().model("chat").header("Rankpin-Target-Worker", wanted);
            assert_eq!(cluster.ask(unnamed).await.at(), wanted);
        }
    }
    let nowhere = chat("s").header("Rankpin-Target-Worker", "c");
    assert_eq!(cluster.ask(nowhere).await.at(), "404 unknown_worker");
}
