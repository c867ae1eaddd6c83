//! Errors in the words and with the status of each API.

use serde_json::{Value, json};

use super::{Gateway, chat, with};
use crate::support::{Behaviour, Cluster, http};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

fn message(words: &str) -> Value {
    json!({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": words}]})
}

#[tokio::test]
async fn a_routers_error_is_told_in_the_words_of_the_api() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let answer = gateway.post(CHAT, &chat("hi")).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &"unknown_model".into()));
    assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    assert!(answer.header("x-request-id").is_some());
    let answer = gateway.post(MESSAGES, &message("hi")).await;
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (404, &"not_found_error".into()));
    assert_eq!(answer.json()["type"], "error");

    let worker = cluster.worker("w").behaves(Behaviour::Reject(404, "unknown_path")).start().await;
    let gateway = Gateway::start(&cluster, &[("request_timeout", "500ms")]).await;
    let answer = gateway.post_with(CHAT, &[("session_id", "s")], &chat("hi")).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &"unknown_path".into()));
    worker.behave(Behaviour::Reject(429, "overloaded"));
    let answer = gateway.post(CHAT, &chat("hi")).await;
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (429, &"rate_limit_error".into()));
    let retry: u32 = answer.header("retry-after").and_then(|text| text.parse().ok()).expect("seconds");
    assert!((1..=60).contains(&retry));
    let name = "rankpin_gateway_requests_total{api=\"chat\",outcome=\"refused\"}";
    assert_eq!(gateway.metric(name).await, 2.0);
}

#[tokio::test]
async fn what_is_no_request_is_refused_before_anything_is_published() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[("max_body", "1KB")]).await;
    let mut tap = cluster.subscribe(">").await;
    let send = async |method: &str, path: &str, headers: http::Headers<'_>, body: &str| {
        http::send(gateway.address, method, path, headers, body.as_bytes()).await
    };
    for (method, path, headers, body, status, code) in [
        ("POST", CHAT, &[][..], "no json", 400, "invalid_request"),
        ("POST", CHAT, &[], r#"{"messages":[]}"#, 400, "invalid_request"),
        ("POST", MESSAGES, &[], r#"{"model":"m","model":"n"}"#, 400, "invalid_request"),
        ("POST", CHAT, &[], &"x".repeat(1025), 413, "payload_too_large"),
        ("POST", CHAT, &[("Content-Encoding", "gzip")], "{}", 415, "unsupported_encoding"),
        ("POST", "/v1/engines", &[], "{}", 404, "unknown_path"),
        ("GET", MESSAGES, &[], "", 405, "method_not_allowed"),
    ] {
        let answer = send(method, path, headers, body).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (status, &code.into()), "{method} {path} {body}");
    }
    let heard = crate::support::so_far(&cluster.client, &mut tap).await;
    let requests = heard.iter().filter(|message| message.subject.starts_with("rankpin.request"));
    assert_eq!(requests.count(), 0, "{heard:?}");
}

#[tokio::test]
async fn without_a_router_the_answer_is_that_there_is_none() {
    let cluster = Cluster::with(0, &[]).await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let answer = gateway.post(CHAT, &chat("hi")).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &"no_router".into()));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn an_engines_own_error_passes_as_it_is() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let script = Behaviour::script(|dispatch| async move {
        dispatch.accept().await;
        let headers = [
            ("Rankpin-Final", "true"),
            ("Nats-Service-Error-Code", "422"),
            ("Nats-Service-Error", "engine_error"),
            ("Content-Type", "application/problem+json"),
        ];
        dispatch.reply(&headers, r#"{"detail": ["its own"]}"#).await;
        dispatch.finish("error").await;
    });
    let _worker = cluster.worker("w").behaves(script).start().await;
    for body in [chat("hi"), with(chat("hi"), "stream", true)] {
        let answer = gateway.post(CHAT, &body).await;
        assert_eq!((answer.status, answer.text().as_str()), (422, r#"{"detail": ["its own"]}"#));
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
}

#[tokio::test]
async fn an_engines_answer_that_is_no_error_of_its_own_is_told_in_the_words_of_the_api() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    // A redirect; and an error without a word.
    for (engine, status, body) in [("302", 502, ""), ("302", 502, "<html>"), ("503", 503, "")] {
        let script = Behaviour::script(move |dispatch| async move {
            dispatch.accept().await;
            let headers = [
                ("Rankpin-Final", "true"),
                ("Nats-Service-Error-Code", engine),
                ("Nats-Service-Error", "engine_error"),
                ("Content-Type", "text/html"),
            ];
            dispatch.reply(&headers, body).await;
            dispatch.finish("error").await;
        });
        worker.behave(script);
        for (path, body) in [(CHAT, chat("hi")), (CHAT, with(chat("hi"), "stream", true)), (MESSAGES, message("hi"))] {
            let answer = gateway.post(path, &body).await;
            assert_eq!((answer.status, answer.header("content-type")), (status, Some("application/json")));
            let error = answer.json()["error"].clone();
            assert_eq!(error["code"], "engine_error");
            assert!(error["message"].as_str().is_some_and(|words| words.contains(engine)), "{error}");
        }
    }
}

#[tokio::test]
async fn a_stream_that_breaks_ends_in_an_error_that_client_libraries_know() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let script = Behaviour::script(|dispatch| async move {
        dispatch.accept().await;
        dispatch.reply(&[], r#"{"type":"begun"}"#).await;
        let more = [
            ("Rankpin-Seq", "1"),
            ("Rankpin-Final", "true"),
            ("Nats-Service-Error-Code", "503"),
            ("Nats-Service-Error", "worker_lost"),
        ];
        let body = r#"{"error":{"message":"it is gone","type":"rankpin_error","code":"worker_lost"}}"#;
        dispatch.reply(&more, body).await;
        dispatch.finish("error").await;
    });
    let _worker = cluster.worker("w").behaves(script).start().await;
    let events = async |path: &str, body: Value| {
        let answer = gateway.post(path, &with(body, "stream", true)).await;
        assert_eq!(answer.status, 200);
        answer.events()
    };
    let parse = |data: &str| serde_json::from_str::<Value>(data).expect("JSON");
    let chat = events(CHAT, chat("hi")).await;
    assert_eq!((chat.len(), chat[2].1.as_str()), (3, "[DONE]"));
    let error = parse(&chat[1].1);
    assert_eq!((&error["error"]["code"], &error["error"]["message"]), (&"worker_lost".into(), &"it is gone".into()));
    let messages = events(MESSAGES, message("hi")).await;
    assert_eq!((messages.len(), messages[1].0.as_deref()), (2, Some("error")));
    assert_eq!(parse(&messages[1].1)["error"]["type"], "overloaded_error");
    let responses = events("/v1/responses", json!({"model": "m", "input": "hi"})).await;
    assert_eq!((responses.len(), responses[1].0.as_deref()), (2, Some("error")));
    let error = parse(&responses[1].1);
    assert_eq!((&error["code"], &error["sequence_number"]), (&"worker_lost".into(), &1.into()));
    assert_eq!(gateway.metric("rankpin_gateway_requests_total{api=\"chat\",outcome=\"failed\"}").await, 1.0);
}
