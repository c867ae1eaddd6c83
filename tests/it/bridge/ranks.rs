//! How a rank reaches the engine.

use rankpin::wire::event::Outcome;
use serde_json::json;

use super::engine::Engine;
use super::{ask, registered, start};
use crate::worker::Field;

const PATHS: [&str; 6] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages/count_tokens",
];

#[tokio::test]
async fn a_rank_is_a_header_where_the_engine_looks_at_it() {
    for (kind, looked_at) in [("vllm", 3), ("sglang", 4)] {
        let (field, engine) = (Field::new().await, Engine::start());
        let _bridge = start(&field, kind, &[&engine], &["--dp-start", "4", "--dp-size", "2", "--model", "m"]);
        registered(&field).await;
        for (place, path) in PATHS.into_iter().enumerate() {
            for (to, local) in [("rank.5", Some("1")), ("rank.4", Some("0")), ("any", None)] {
                let client = [("Rankpin-Path", path), ("X-Data-Parallel-Rank", "7"), ("x-custom", "kept")];
                ask(&field, to, json!({"model": "m"}), &client).await.finished(Outcome::Ok).await;
                let seen = engine.last();
                assert_eq!(seen.path, path);
                assert_eq!(seen.header("x-custom"), Some("kept"));
                let expected = local.filter(|_| place < looked_at);
                assert_eq!(seen.header("x-data-parallel-rank"), expected, "{kind} {path} {to}");
            }
        }
    }
}

#[tokio::test]
async fn one_url_for_each_rank_needs_no_header_on_any_path() {
    let (field, first, second) = (Field::new().await, Engine::plain(), Engine::plain());
    let _bridge = start(&field, "openai", &[&first, &second], &["--dp-start", "8"]);
    assert_eq!((registered(&field).await.dp_start, registered(&field).await.dp_size), (8, 2));
    for path in PATHS {
        for (to, engine) in [("rank.8", &first), ("rank.9", &second)] {
            let before = engine.seen().len();
            ask(&field, to, json!({"model": "m"}), &[("Rankpin-Path", path)]).await.finished(Outcome::Ok).await;
            assert_eq!(engine.seen().len(), before + 1, "{path} {to}");
            assert_eq!(engine.last().header("x-data-parallel-rank"), None);
        }
    }
}

#[tokio::test]
async fn several_ranks_on_each_of_several_urls() {
    let (field, first, second) = (Field::new().await, Engine::start(), Engine::start());
    let _bridge = start(&field, "vllm", &[&first, &second], &[]);
    assert_eq!(registered(&field).await.dp_size, 4);
    for (rank, engine, local) in [(0, &first, "0"), (1, &first, "1"), (2, &second, "0"), (3, &second, "1")] {
        ask(&field, &format!("rank.{rank}"), json!({"model": "m"}), &[]).await.finished(Outcome::Ok).await;
        assert_eq!(engine.last().header("x-data-parallel-rank"), Some(local), "rank {rank}");
    }
}

#[tokio::test]
async fn the_session_goes_along() {
    let (field, engine) = (Field::new().await, Engine::start());
    let _bridge = start(&field, "vllm", &[&engine], &["--engine-key", "secret"]);
    registered(&field).await;
    let derived = [("Rankpin-Session", "\u{1}px:0123456789abcdef"), ("Authorization", "Bearer client")];
    ask(&field, "rank.0", json!({"model": "m"}), &derived).await.finished(Outcome::Ok).await;
    let seen = engine.last();
    assert_eq!(seen.header("x-session-id"), Some("%01px:0123456789abcdef"));
    assert_eq!(seen.header("authorization"), Some("Bearer secret"));
    assert_eq!(seen.header("x-request-id"), Some("r"));
    assert!(seen.headers.keys().all(|name| !name.as_str().starts_with("rankpin-")), "{:?}", seen.headers);
}
