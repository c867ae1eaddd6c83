//! Answers in the shapes of the APIs, whole and streamed.

use serde_json::{Value, json};

use super::{Gateway, chat, sim, with};
use crate::support::{Behaviour, Cluster, PATIENCE, eventually};

const CHAT: &str = "/v1/chat/completions";

fn bodies() -> Vec<(&'static str, Value)> {
    let anthropic =
        json!({"model": "m", "system": "s", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]});
    vec![
        (CHAT, chat("hi")),
        ("/v1/completions", json!({"model": "m", "prompt": "hi", "max_tokens": 4})),
        ("/v1/responses", json!({"model": "m", "input": "hi", "max_output_tokens": 4})),
        ("/v1/messages", anthropic),
    ]
}

#[tokio::test]
async fn every_api_answers_in_its_own_shape() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let _sim = sim(&cluster, &["--speed", "100"]).await;
    for ((path, body), place) in bodies().iter().zip([
        "/choices/0/message/content",
        "/choices/0/text",
        "/output/0/content/0/text",
        "/content/0/text",
    ]) {
        let answer = gateway.post(path, body).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{path}");
        let text = answer.json().pointer(place).and_then(Value::as_str).map(str::len);
        assert_eq!(text, Some(16), "{path}: {}", answer.text());
        assert_eq!((answer.header("x-rankpin-worker"), answer.header("x-rankpin-dp-rank")), (Some("w"), None));
        assert_eq!(answer.header("x-request-id").map(str::len), Some(36));
        assert_eq!(answer.header("request-id").is_some(), *path == "/v1/messages");
    }
    let vectors = gateway.post("/v1/embeddings", &json!({"model": "m", "input": ["a", "b"]})).await.json();
    assert_eq!(vectors["data"][1]["embedding"].as_array().map(Vec::len), Some(8), "{vectors}");
    let count = gateway.post("/v1/messages/count_tokens", &bodies()[3].1).await.json();
    assert!(count["input_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{count}");
}

/// A count of tokens before the first turn is the opening of no conversation, nor is a text that is embedded.
#[tokio::test]
async fn what_is_no_turn_pins_nothing() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let _sim = sim(&cluster, &["--speed", "100", "--dp-size", "4"]).await;
    let said = |role: &str, words: &str| json!({"role": role, "content": words});
    let turn = |messages: &[Value]| json!({"model": "m", "max_tokens": 4, "messages": messages});
    let opening = turn(&[said("user", "one")]);
    for (path, body) in [
        ("/v1/messages/count_tokens", opening.clone()),
        ("/v1/messages/count_tokens?beta=true", opening.clone()),
        ("/v1/embeddings", json!({"model": "m", "input": "one"})),
    ] {
        let answer = gateway.post(path, &body).await;
        assert_eq!((answer.status, answer.header("x-rankpin-decision")), (200, Some("unpinned")), "{path}");
    }
    let first = gateway.post("/v1/messages", &opening).await;
    cluster.routers[0].reaches("derived_pins_mirrored", 1.0).await;
    let later = turn(&[said("user", "one"), said("assistant", "two"), said("user", "three")]);
    let second = gateway.post("/v1/messages", &later).await;
    assert_eq!(second.header("x-rankpin-decision"), Some("pinned,derived"));
    assert_eq!(second.header("x-rankpin-dp-rank"), first.header("x-rankpin-dp-rank"));
}

#[tokio::test]
async fn every_api_streams_its_own_events() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let _sim = sim(&cluster, &["--speed", "100"]).await;
    for (path, body) in bodies() {
        let answer = gateway.post(path, &with(body, "stream", true)).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")), "{path}");
        assert_eq!(answer.header("x-rankpin-worker"), Some("w"), "{path}");
        let mut events = answer.events();
        if path == CHAT || path == "/v1/completions" {
            assert_eq!(events.pop(), Some((None, "[DONE]".into())), "{path}");
            assert!(events.iter().all(|(name, _)| name.is_none()));
            let last: Value = serde_json::from_str(&events.last().expect("events").1).expect("JSON");
            assert_eq!(last["usage"]["completion_tokens"], 4, "{path}");
            continue;
        }
        for (name, data) in &events {
            let data: Value = serde_json::from_str(data).expect("JSON");
            assert_eq!(name.as_deref(), data["type"].as_str(), "{path}");
        }
        let last = if path == "/v1/messages" { "message_stop" } else { "response.incomplete" };
        assert_eq!(events.last().and_then(|(name, _)| name.as_deref()), Some(last), "{path}");
    }
    assert_eq!(gateway.metric("rankpin_gateway_requests_total{api=\"messages\",outcome=\"ok\"}").await, 1.0);
    assert_eq!(gateway.metric("rankpin_gateway_first_reply_seconds_count{api=\"chat\"}").await, 1.0);
    assert_eq!(gateway.metric("rankpin_gateway_in_flight").await, 0.0);
}

#[tokio::test]
async fn an_event_has_the_name_that_its_message_gives_it_and_tokens_come_one_by_one() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let mut open = gateway.open(CHAT, &with(chat("hi"), "stream", true)).await_head(&worker).await;
    // The first event is here while the answer goes on.
    assert_eq!(open.line("event: ").await, "event: named");
    assert_eq!(open.line("data: ").await, "data: {}");
    let dispatch = worker.dispatch(0).await;
    dispatch.reply(&[("Rankpin-Seq", "1"), ("Rankpin-Final", "true")], "").await;
    assert!(open.rest().await.contains("data: [DONE]"));
}

/// A stream whose first event the test writes before the client has a head to read.
trait AwaitHead {
    async fn await_head(self, worker: &crate::support::Worker) -> crate::support::http::Open;
}

impl<F: Future<Output = crate::support::http::Open>> AwaitHead for F {
    async fn await_head(self, worker: &crate::support::Worker) -> crate::support::http::Open {
        let first = async {
            worker.dispatch(0).await.reply(&[("Rankpin-Sse-Event", "named")], "{}").await;
        };
        tokio::join!(self, first).0
    }
}

#[tokio::test]
async fn a_session_stays_on_its_rank_by_header_and_by_text() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let _sim = sim(&cluster, &["--speed", "100", "--dp-size", "8"]).await;
    let mut ranks = Vec::new();
    for turn in 0..4 {
        let answer = gateway.post_with(CHAT, &[("Thread-Id", "t")], &chat(&format!("turn {turn}"))).await;
        assert_eq!(answer.header("x-rankpin-decision"), Some(if turn == 0 { "placed" } else { "pinned" }));
        ranks.push(answer.header("x-rankpin-dp-rank").expect("a rank").to_owned());
    }
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{ranks:?}");
    let mut messages = vec![json!({"role": "user", "content": "by text"})];
    let mut ranks = Vec::new();
    for turn in 0..4 {
        let answer = gateway.post(CHAT, &json!({"model": "m", "messages": messages, "max_tokens": 4})).await;
        let decision = answer.header("x-rankpin-decision").expect("a decision").to_owned();
        assert_eq!(decision.split(',').next(), Some(if turn == 0 { "placed" } else { "pinned" }));
        ranks.push(answer.header("x-rankpin-dp-rank").expect("a rank").to_owned());
        messages.push(answer.json()["choices"][0]["message"].clone());
        messages.push(json!({"role": "user", "content": format!("and {turn}")}));
        // A derived pin is written once the worker has accepted, and nobody waits for it.
        cluster.mirrors_pins().await;
    }
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{ranks:?}");
}

#[tokio::test]
async fn tools_are_called_by_script_in_every_api() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let script = r#"[{"calls": [{"name": "look", "arguments": {"at": "sea"}}]}, {"text": "All done."}]"#;
    let path = cluster.server.dir().join("script.json");
    std::fs::write(&path, script).expect("a temp directory takes files");
    let _sim = sim(&cluster, &["--speed", "100", "--script", path.to_str().expect("UTF-8")]).await;

    let tool = json!([{"type": "function", "function": {"name": "look", "parameters": {}}}]);
    let first = gateway.post(CHAT, &with(chat("hi"), "tools", tool.clone())).await.json();
    assert_eq!(first["choices"][0]["finish_reason"], "tool_calls");
    let message = &first["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], r#"{"at": "sea"}"#);
    let messages = json!([{"role": "user", "content": "hi"}, message,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "waves"}]);
    let second = gateway.post(CHAT, &json!({"model": "m", "messages": messages, "tools": tool})).await.json();
    assert_eq!(second["choices"][0]["message"]["content"], "All done.");

    let tool = json!([{"name": "look", "input_schema": {"type": "object"}}]);
    let body = with(with(bodies()[3].1.clone(), "tools", tool), "stream", true);
    let events = gateway.post("/v1/messages", &body).await.text();
    assert!(events.contains(r#""stop_reason":"tool_use""#) && events.contains("input_json_delta"), "{events}");

    let tool = json!([{"type": "function", "name": "look", "parameters": {}}]);
    let answer = gateway.post("/v1/responses", &with(bodies()[2].1.clone(), "tools", tool)).await.json();
    assert_eq!((&answer["output"][0]["type"], &answer["output"][0]["name"]), (&"function_call".into(), &"look".into()));
}

#[tokio::test]
async fn models_are_those_of_the_workers() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    assert_eq!(gateway.get("/v1/models").await.json()["data"], json!([]));
    let _worker = cluster.worker("w").with("models", json!(["org/a", "b"])).start().await;
    let listed = eventually("the list is read anew", PATIENCE, async || {
        let listed = gateway.get("/v1/models").await.json();
        (listed["data"] != json!([])).then_some(listed)
    });
    let listed = listed.await;
    assert_eq!((&listed["data"][0]["id"], &listed["data"][1]["id"]), (&"b".into(), &"org/a".into()));
    assert_eq!(gateway.get("/v1/models/org/a").await.json()["object"], "model");
    let anthropic = gateway.get_with("/v1/models/b", &[("anthropic-version", "2023-06-01")]).await.json();
    assert_eq!(anthropic["type"], "model");
    assert_eq!(gateway.get("/v1/models/c").await.status, 404);
}

#[tokio::test]
async fn aliases_are_listed_where_a_model_of_theirs_is_served() {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let config = dir.path().join("rankpin.toml");
    let aliases = "[[alias]]\nmodel = 'best'\nto = [{model = 'none'}, {model = 'm'}]\n\
                   [[alias]]\nmodel = 'unserved'\nto = [{model = 'none'}]\n";
    std::fs::write(&config, aliases).expect("a temp directory takes files");
    let cluster = Cluster::with(2, &[("config", config.to_str().expect("UTF-8"))]).await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let _sim = sim(&cluster, &["--speed", "100"]).await;
    let ids = async || {
        let listed = gateway.get("/v1/models").await.json();
        let ids = listed["data"].as_array().expect("a list").iter().map(|model| model["id"].to_string());
        ids.collect::<Vec<_>>()
    };
    let both = ["\"best\"", "\"m\""];
    eventually("the model and its alias are listed", PATIENCE, async || (ids().await == both).then_some(())).await;
    let one = gateway.get("/v1/models/best").await;
    assert_eq!((one.status, &one.json()["id"]), (200, &"best".into()));
    assert_eq!(gateway.get("/v1/models/unserved").await.status, 404);
    // What is listed is answered.
    assert_eq!(gateway.post(CHAT, &with(chat("hi"), "model", "best")).await.status, 200);
}
