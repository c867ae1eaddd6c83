//! Bodies, streams and errors, each way.

use rankpin::wire::event::Outcome;
use rankpin::wire::reply::ReplyHead;
use serde_json::{Value, json};

use super::engine::Engine;
use super::{ask, registered, start};
use crate::worker::{Attempt, Field, next, pairs};

async fn field(args: &[&str]) -> (Field, Engine, crate::support::process::Process) {
    let (field, engine) = (Field::new().await, Engine::start());
    let bridge = start(&field, "vllm", &[&engine], args);
    registered(&field).await;
    (field, engine, bridge)
}

/// The replies to their end: event name, payload, head.
async fn replies(attempt: &mut Attempt) -> Vec<(Option<String>, String, ReplyHead)> {
    let mut replies = Vec::new();
    loop {
        let message = next(&mut attempt.replies).await;
        let head = ReplyHead::read(pairs(&message));
        let name = pairs(&message).find(|(name, _)| *name == "Rankpin-Sse-Event").map(|(_, value)| value.to_owned());
        let last = head.last;
        replies.push((name, String::from_utf8_lossy(&message.payload).into_owned(), head));
        if last {
            return replies;
        }
    }
}

#[tokio::test]
async fn bodies_go_and_come_as_they_are() {
    let (field, engine, _bridge) = field(&[]).await;
    let body = r#"{ "model":"m","b":1.0e2,"a":"\u00e9" }"#;
    let mut attempt = field.dispatch("rank.1", "r", body, &[]).await;
    attempt.accepted().await;
    let (head, payload) = attempt.reply().await;
    assert_eq!(engine.last().body, body);
    assert_eq!(engine.last().path, "/v1/chat/completions");
    assert_eq!((head.content_type.as_deref(), head.last, head.dp_rank), (Some("application/json"), true, Some(1)));
    let usage = serde_json::from_slice::<Value>(&payload).expect("JSON")["usage"].clone();
    let finished = attempt.finished(Outcome::Ok).await;
    let told = (finished.prompt_tokens, finished.cached_tokens, finished.output_tokens);
    assert_eq!(told, (usage["prompt_tokens"].as_u64(), Some(4), Some(2)));

    ask(&field, "any", json!({"input": "x"}), &[("Rankpin-Model", "real")]).await.finished(Outcome::Ok).await;
    assert_eq!(engine.last().body, r#"{"model":"real","input":"x"}"#);
    assert_eq!(engine.last().path, "/v1/responses");

    let packed = rmp_serde::to_vec(&json!({"model": "m", "system": "s"})).expect("plain data");
    let mut attempt = field.dispatch("any", "r", packed, &[("Content-Type", "application/msgpack")]).await;
    attempt.accepted().await;
    attempt.finished(Outcome::Ok).await;
    assert_eq!(
        (&engine.last().body[..], engine.last().path.as_str()),
        (&br#"{"model":"m","system":"s"}"#[..], "/v1/messages")
    );
    assert_eq!(engine.last().header("content-type"), Some("application/json"));

    let mut attempt = ask(&field, "any", json!({"model": "m"}), &[("Rankpin-Path", "/metrics")]).await;
    assert_eq!(attempt.rejected().await, (404, "unknown_path".into()));
}

#[tokio::test]
async fn streams_come_event_by_event() {
    let (field, _engine, _bridge) = field(&[]).await;
    let mut attempt = ask(&field, "any", json!({"do": "stream"}), &[]).await;
    let said = replies(&mut attempt).await;
    assert_eq!(said.len(), 4, "three events and the end: {said:?}");
    assert_eq!(said[0].1, r#"{"choices":[{"delta":{"content":"a"},"index":0}]}"#);
    assert_eq!((said[3].1.as_str(), said[3].2.error.clone()), ("", None));
    assert_eq!(attempt.finished(Outcome::Ok).await.cached_tokens, Some(4));

    let mut attempt = ask(&field, "any", json!({"do": "messages"}), &[]).await;
    let names: Vec<_> = replies(&mut attempt).await.into_iter().map(|(name, ..)| name.unwrap_or_default()).collect();
    assert_eq!(names, ["message_start", "content_block_delta", "message_delta", "message_stop", ""]);
    let finished = attempt.finished(Outcome::Ok).await;
    assert_eq!((finished.prompt_tokens, finished.cached_tokens, finished.output_tokens), (Some(9), Some(4), Some(2)));

    let mut attempt = ask(&field, "any", json!({"do": "responses"}), &[]).await;
    replies(&mut attempt).await;
    assert_eq!(attempt.finished(Outcome::Ok).await.response_id.as_deref(), Some("resp_1"));

    let mut attempt = ask(&field, "any", json!({"do": "cut"}), &[]).await;
    let said: Vec<_> = replies(&mut attempt).await.into_iter().map(|(_, payload, _)| payload).collect();
    assert_eq!(said, ["{\"a\":1}", "2", ""]);
}

#[tokio::test]
async fn an_engines_error_is_passed_on_as_it_is() {
    let (field, _engine, _bridge) = field(&[]).await;
    for code in [400, 404, 422, 500] {
        let mut attempt = ask(&field, "any", json!({"do": code.to_string()}), &[]).await;
        let (head, payload) = attempt.reply().await;
        assert_eq!((head.error, head.last), (Some((code, "engine_error".into())), true));
        assert_eq!(head.content_type.as_deref(), Some("application/json; odd=1"));
        assert_eq!(serde_json::from_slice::<Value>(&payload).expect("JSON")["extra"], json!([1, 2]));
        attempt.finished(Outcome::Error).await;
    }
    // In a stream, whose status was 200.
    let mut attempt = ask(&field, "any", json!({"do": "error first"}), &[]).await;
    let said = replies(&mut attempt).await;
    assert_eq!((said.len(), said[0].2.error.clone()), (1, Some((400, "engine_error".into()))));
    attempt.finished(Outcome::Error).await;
    let mut attempt = ask(&field, "any", json!({"do": "error late"}), &[]).await;
    let said = replies(&mut attempt).await;
    assert_eq!((said.len(), said[1].2.error.clone()), (2, Some((500, "engine_error".into()))));
    assert!(said[1].1.contains("as the test wants it"));
    attempt.finished(Outcome::Error).await;
}

#[tokio::test]
async fn what_another_engine_may_take_is_rejected() {
    let (field, _engine, _bridge) = field(&[]).await;
    for (script, expected) in
        [("429", (429, "overloaded")), ("full first", (429, "overloaded")), ("503", (503, "engine_unavailable"))]
    {
        let mut attempt = ask(&field, "any", json!({"do": script}), &[]).await;
        assert_eq!(attempt.rejected().await, (expected.0, expected.1.to_owned()), "{script}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_lost_worker() {
    let (field, engine, _bridge) = field(&[]).await;
    let mut attempt = ask(&field, "any", json!({"do": "break"}), &[]).await;
    let said = replies(&mut attempt).await;
    assert_eq!((said.len(), said[1].2.error.clone()), (2, Some((503, "worker_lost".into()))));
    attempt.finished(Outcome::Error).await;
    // Nothing is wrong with the engine: it is asked, and stays registered.
    ask(&field, "any", json!({"do": "whole"}), &[]).await.finished(Outcome::Ok).await;
    assert_eq!(engine.seen().len(), 2);
}

#[tokio::test]
async fn a_stream_that_stops_without_its_end_is_no_whole_answer() {
    let (field, engine, _bridge) = field(&[]).await;
    for (script, parts) in [("stopped", 2), ("stopped message", 2), ("stopped response", 1), ("nothing", 0)] {
        let mut attempt = ask(&field, "any", json!({"do": script}), &[]).await;
        let said = replies(&mut attempt).await;
        assert_eq!(
            (said.len(), said[parts].2.error.clone()),
            (parts + 1, Some((502, "engine_stream".into()))),
            "{script}"
        );
        assert!(said[parts].1.contains(&engine.url()), "{}", said[parts].1);
        attempt.finished(Outcome::Error).await;
    }
    let mut attempt = ask(&field, "any", json!({"do": "reason"}), &[]).await;
    let said = replies(&mut attempt).await;
    assert_eq!((said.len(), said[2].2.error.clone()), (3, None));
    attempt.finished(Outcome::Ok).await;
}

#[tokio::test]
async fn silence_has_an_end() {
    let (field, engine, _bridge) = field(&["--idle-timeout", "300ms", "--answer-timeout", "900ms"]).await;
    for (script, parts, setting) in [("stall", 1, "--idle-timeout"), ("hang", 0, "--answer-timeout")] {
        let mut attempt = ask(&field, "any", json!({"do": script}), &[]).await;
        let said = replies(&mut attempt).await;
        assert_eq!((said.len(), said[parts].2.error.clone()), (parts + 1, Some((504, "engine_stalled".into()))));
        assert!(said[parts].1.contains(setting), "{}", said[parts].1);
        attempt.finished(Outcome::Error).await;
        engine.hung_up().await;
    }
}

#[tokio::test]
async fn a_cancel_hangs_up() {
    for script in ["stall", "hang"] {
        let (field, engine, _bridge) = field(&[]).await;
        let mut attempt = ask(&field, "any", json!({"do": script}), &[]).await;
        engine.has_seen(1).await;
        field.cancel("r", "1").await;
        engine.hung_up().await;
        attempt.finished(Outcome::Cancelled).await;
    }
}
