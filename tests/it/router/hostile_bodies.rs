//! Bodies made to break a reader, through a router: forwarded byte for byte, without a session where they give none.

use rankpin::wire::Encoding;
use rankpin::wire::body::{Wanted, read};
use serde_json::json;

use crate::support::server::Options;
use crate::support::{Ask, Cluster, NatsServer, Worker};

const MANY: usize = 100_000;

/// A cluster that takes bodies larger than a server does by default, and its worker.
async fn field() -> (Cluster, Worker) {
    let config = "max_payload: 16777216\nmax_pending: 67108864".into();
    let server = NatsServer::start_with(Options { config, ..Options::default() });
    let cluster = Cluster::on(server, 1, &[]).await;
    let worker = cluster.worker("w").ranks(0, 4).start().await;
    (cluster, worker)
}

/// Sends a body, and says what was decided; it has to reach the worker as it is.
async fn decided(cluster: &Cluster, worker: &Worker, body: impl Into<Vec<u8>>, encoding: &str) -> String {
    let body = body.into();
    let before = worker.count();
    let answer = cluster.ask(Ask::new().header("Content-Type", encoding).body(body.clone())).await;
    let decision = answer.decision().to_owned();
    let dispatch = worker.dispatch(before).await;
    assert!(dispatch.message.payload == body, "the body was changed");
    assert_eq!(dispatch.header("Rankpin-Session").is_some(), decision != "unpinned");
    decision
}

#[tokio::test]
async fn bodies_that_give_no_session_are_forwarded_without_one() {
    let (cluster, worker) = field().await;
    let nested = |open: &str, close: &str| {
        let (open, close) = (open.repeat(MANY), close.repeat(MANY));
        format!(r#"{{"messages":[{{"role":"user","content":{open}"x"{close}}}]}}"#)
    };
    let mut packed = b"\x81\xa8messages".to_vec();
    packed.extend([0x91].repeat(MANY));
    packed.push(0xc0);
    for (body, encoding) in [
        (nested("[", "]").into_bytes(), "application/json"),
        (nested(r#"{"a":"#, "}").into_bytes(), "application/json"),
        (packed, "application/msgpack"),
        (br#"{"messages":{"role":"user","content":"x"}}"#.to_vec(), "application/json"),
        (br#"{"messages":[1,null,"x",[{"role":"user"}]]}"#.to_vec(), "application/json"),
        (br#"{"prompt":"x","system":"y"}"#.to_vec(), "application/json"),
        (b"[]".to_vec(), "application/json"),
        (b"\xc7\x04\x01abcd".to_vec(), "application/msgpack"),
        (b"\x81\xa8messages\xc4\x01x".to_vec(), "application/msgpack"),
    ] {
        assert_eq!(decided(&cluster, &worker, body, encoding).await, "unpinned");
    }
}

// The router lives in this process: what the test does with large bodies must not hold up its connection to the bucket.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn large_bodies_are_sessions_like_others() {
    let (cluster, worker) = field().await;
    let json = "application/json";
    let firsts = [
        vec![json!({"role": "user", "content": "x".repeat(10 << 20)})],
        vec![json!({"role": "user", "content": "x"}); MANY],
    ];
    let mut pins = 0.0;
    for mut messages in firsts {
        let body = json!({"messages": messages}).to_string();
        assert_eq!(decided(&cluster, &worker, body, json).await, "placed,derived");
        // The pin is written without anybody waiting.
        pins += 1.0;
        cluster.routers[0].reaches("pins_mirrored", pins).await;
        messages.extend([json!({"role": "assistant", "content": "y"}), json!({"role": "user", "content": "z"})]);
        let body = json!({"messages": messages}).to_string();
        assert_eq!(decided(&cluster, &worker, body, json).await, "pinned,derived");
        pins += 1.0;
        cluster.routers[0].reaches("pins_mirrored", pins).await;
    }
}

#[tokio::test]
async fn extension_types_are_passed_over() {
    let (cluster, worker) = field().await;
    // The same message with an extension of each form in it, and without.
    let message = |more: &[u8]| {
        let body = [&b"\x81\xa8messages\x91\x83\xa4role\xa4user\xa1c\xa1x\xa1e"[..], more].concat();
        let wanted = Wanted { elements: true, ..Wanted::default() };
        let reading = read(&body, Encoding::MessagePack, wanted).expect("valid");
        (body, reading)
    };
    let (_, plain) = message(b"\xc0");
    for ext in [
        &b"\xd4\x01a"[..],
        b"\xd5\x01ab",
        b"\xd6\x01abcd",
        b"\xd7\xffabcdefgh",
        b"\xd8\x01abcdefghijklmnop",
        b"\xc7\x03\x01abc",
        b"\xc8\x00\x03\x01abc",
        b"\xc9\x00\x00\x00\x03\x01abc",
        b"\xc7\x00\x01",
    ] {
        let (body, reading) = message(ext);
        assert_eq!(reading, plain);
        assert_eq!(decided(&cluster, &worker, body, "application/msgpack").await, "placed,derived");
    }
}
