//! Session sources that are off until they are configured (protocol section 3.1, the end of row 6).

use serde_json::{Value, json};

use super::hashed_at;
use crate::support::{Ask, Cluster};

const SOURCES: &[(&str, &str)] =
    &[("session.headers", "x-chat-id"), ("session.body_fields", "metadata.user_id,prompt_cache_key")];

fn body(fields: Value) -> Ask {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    Ask::new().body(body.to_string())
}

#[tokio::test]
async fn configured_sources_name_sessions_like_any_header() {
    let cluster = Cluster::with(2, SOURCES).await;
    let worker = cluster.worker("w").ranks(0, 8).start().await;
    cluster.knows_workers(1).await;
    let claude = json!({"metadata": {"user_id": "{\"session_id\":\"claude\"}"}, "prompt_cache_key": "app"});
    for (ask, session) in [
        (body(claude.clone()).header("X-Chat-ID", "chat"), "chat"),
        (body(claude), "claude"),
        (body(json!({"metadata": {"user_id": "alice"}, "prompt_cache_key": "app"})), "app"),
    ] {
        let at = hashed_at("w", session, 0, 8);
        assert_eq!(cluster.ask(ask.clone()).await.told(), format!("{at} placed"), "{session}");
        assert_eq!(cluster.pinned_at(session).await, Some(at.clone()), "it is pinned before its dispatch");
        assert_eq!(cluster.pin(session).await.expect("pinned").0["origin"], "named");
        cluster.mirrors_pins().await;
        for _ in 0..4 {
            assert_eq!(cluster.ask(ask.clone()).await.told(), format!("{at} pinned"), "{session}");
        }
        let seen = worker.dispatches();
        assert_eq!(seen.last().expect("it was served").session(), session);
    }
}

#[tokio::test]
async fn sources_that_are_not_configured_name_nothing() {
    let cluster = Cluster::start().await;
    let _worker = cluster.worker("w").ranks(0, 8).start().await;
    let ask = body(json!({"prompt_cache_key": "app", "session_id": "s", "conversation": "c"}));
    assert_eq!(cluster.ask(ask.header("X-Chat-Id", "chat")).await.decision(), "placed,derived");
    for session in ["chat", "app", "s", "c"] {
        assert_eq!(cluster.pin(session).await, None, "{session}");
    }
}

#[tokio::test]
async fn a_configured_source_with_an_invalid_id_is_refused() {
    let cluster = Cluster::with(1, SOURCES).await;
    let _worker = cluster.worker("w").ranks(0, 8).start().await;
    let forged = body(json!({"prompt_cache_key": "\u{1}px:0000000000000001"}));
    let refusal = cluster.ask(forged).await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (400, "invalid_session_id"));
    assert!(refusal.message.contains("body field prompt_cache_key"), "{}", refusal.message);
    let long = cluster.ask(Ask::new().header("x-chat-id", &"x".repeat(257))).await.router_refusal();
    assert_eq!((long.status, long.code.as_str()), (400, "invalid_session_id"));
}
