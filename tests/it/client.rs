//! The frontend library against a real server; the test plays router and worker.

use std::time::Duration;

use futures_util::StreamExt as _;
use rankpin::client::sequence::SequenceError;
use rankpin::client::{Chunk, Client, ClientError, ClientOptions, ReplyStream, Request};
use rankpin::core::id::{DpRank, Model, SessionId};
use rankpin::nats::Headers;

use crate::support::server::Options;
use crate::support::{NatsServer, PATIENCE, RawClient, eventually, settle};

/// A frontend, and the other side of its conversation.
struct Stage {
    server: NatsServer,
    client: Client,
    peer: async_nats::Client,
    requests: async_nats::Subscriber,
}

impl Stage {
    async fn set(change: impl FnOnce(&mut ClientOptions)) -> Self {
        Self::set_on(NatsServer::start_with(Options { jetstream: false, ..Options::default() }), change).await
    }

    async fn set_on(server: NatsServer, change: impl FnOnce(&mut ClientOptions)) -> Self {
        let mut options = ClientOptions::new(&server.url());
        change(&mut options);
        let client = Client::connect(options).await.expect("the server takes connections");
        let peer = server.client().await;
        let requests = peer.queue_subscribe("rankpin.request.>", "router".into()).await.expect("subscribes");
        settle(&peer).await;
        Self { server, client, peer, requests }
    }

    /// Sends a request and takes it on the other side.
    async fn send(&mut self, request: Request) -> (ReplyStream, async_nats::Message) {
        let stream = self.client.send(request).await.expect("is published");
        let request = tokio::time::timeout(PATIENCE, self.requests.next()).await.expect("in time").expect("lives");
        (stream, request)
    }

    /// Answers with one message.
    async fn reply(&self, to: &async_nats::Message, headers: &[(&str, &str)], payload: &'static str) {
        let inbox = to.reply.clone().expect("a frontend gives an inbox");
        let mut map = async_nats::HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, *value);
        }
        self.peer.publish_with_headers(inbox, map, payload.into()).await.expect("is published");
    }

    async fn chunk(&self, to: &async_nats::Message, attempt: &str, seq: &str, payload: &'static str) {
        self.reply(to, &[("Rankpin-Attempt", attempt), ("Rankpin-Seq", seq)], payload).await;
    }

    async fn last(&self, to: &async_nats::Message, attempt: &str, seq: &str, payload: &'static str) {
        let headers = [("Rankpin-Attempt", attempt), ("Rankpin-Seq", seq), ("Rankpin-Final", "true")];
        self.reply(to, &headers, payload).await;
    }
}

fn request() -> Request {
    Request::new(Model::new("m").expect("valid"), "{}")
}

async fn next(stream: &mut ReplyStream) -> Option<Result<Chunk, ClientError>> {
    tokio::time::timeout(PATIENCE, stream.next()).await.expect("a chunk, an error or the end")
}

async fn text(stream: &mut ReplyStream) -> String {
    let chunk = next(stream).await.expect("the stream goes on").expect("no error");
    String::from_utf8(chunk.payload.to_vec()).expect("text")
}

async fn failure(stream: &mut ReplyStream) -> ClientError {
    let error = next(stream).await.expect("the stream goes on").expect_err("an error");
    assert!(next(stream).await.is_none(), "an error ends the stream");
    error
}

#[tokio::test]
async fn a_request_carries_what_it_was_given_and_its_replies_come_in_order() {
    let mut stage = Stage::set(|_| {}).await;
    let session = SessionId::named("conversation 1").expect("valid");
    let request = request().session(&session).target_rank(DpRank(5)).header("traceparent", "00-1");
    let id = request.id().to_string();
    let (mut stream, sent) = stage.send(request).await;
    let headers = sent.headers.clone().expect("it has headers");
    let header = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(sent.subject.as_str(), "rankpin.request.m");
    assert_eq!(sent.payload, "{}");
    assert_eq!(header("Rankpin-Request-Id"), Some(id));
    assert_eq!(header("Rankpin-Session-Id").as_deref(), Some("conversation 1"));
    assert_eq!(header("Rankpin-Target-Dp-Rank").as_deref(), Some("5"));
    assert_eq!(header("traceparent").as_deref(), Some("00-1"));

    assert_eq!(stream.served(), None);
    let placed = [
        ("Rankpin-Attempt", "2"),
        ("Rankpin-Seq", "0"),
        ("Rankpin-Worker", "w"),
        ("Rankpin-Dp-Rank", "5"),
        ("Rankpin-Decision", "hinted"),
    ];
    stage.reply(&sent, &placed, "a").await;
    stage.chunk(&sent, "2", "1", "b").await;
    stage.last(&sent, "2", "2", "").await;
    assert_eq!(text(&mut stream).await, "a");
    let served = stream.served().expect("the first chunk says so").clone();
    assert_eq!(served.placement.to_string(), "w/5");
    assert_eq!((served.decision.as_deref(), served.attempt), (Some("hinted"), Some(2)));
    assert_eq!(text(&mut stream).await, "b");
    assert!(next(&mut stream).await.expect("the last one").expect("no error").last);
    assert!(next(&mut stream).await.is_none());
    drop(stream);
    assert_eq!(stage.client.open_streams(), 0);
}

#[tokio::test]
async fn streams_of_one_client_do_not_mix() {
    let mut stage = Stage::set(|_| {}).await;
    let (mut first, first_sent) = stage.send(request()).await;
    let (mut second, second_sent) = stage.send(request()).await;
    stage.last(&second_sent, "1", "0", "second").await;
    stage.last(&first_sent, "1", "0", "first").await;
    assert_eq!(text(&mut first).await, "first");
    assert_eq!(text(&mut second).await, "second");
}

#[tokio::test]
async fn a_lost_and_a_repeated_chunk_are_errors() {
    let mut stage = Stage::set(|_| {}).await;
    let (mut stream, sent) = stage.send(request()).await;
    stage.chunk(&sent, "1", "0", "a").await;
    stage.last(&sent, "1", "2", "c").await;
    assert_eq!(text(&mut stream).await, "a");
    let error = failure(&mut stream).await;
    assert!(matches!(error, ClientError::Sequence(SequenceError::Gap { expected: 1, found: 2 })), "{error}");

    let (mut stream, sent) = stage.send(request()).await;
    stage.chunk(&sent, "1", "0", "a").await;
    stage.chunk(&sent, "1", "0", "a").await;
    assert_eq!(text(&mut stream).await, "a");
    let error = failure(&mut stream).await;
    assert!(matches!(error, ClientError::Sequence(SequenceError::Repeated { .. })), "{error}");

    let (mut stream, sent) = stage.send(request()).await;
    stage.reply(&sent, &[], "not numbered").await;
    assert!(matches!(failure(&mut stream).await, ClientError::Unnumbered));
}

#[tokio::test]
async fn the_highest_attempt_counts_and_never_continues_a_lower_one() {
    let mut stage = Stage::set(|_| {}).await;
    let (mut stream, sent) = stage.send(request()).await;
    stage.chunk(&sent, "2", "0", "second ").await;
    stage.chunk(&sent, "1", "0", "first").await;
    let stale = [("Rankpin-Attempt", "1"), ("Rankpin-Seq", "1"), ("Nats-Service-Error-Code", "500")];
    stage.reply(&sent, &stale, "").await;
    stage.last(&sent, "2", "1", "attempt").await;
    assert_eq!(text(&mut stream).await + &text(&mut stream).await, "second attempt");
    assert!(next(&mut stream).await.is_none());

    let (mut stream, sent) = stage.send(request()).await;
    stage.chunk(&sent, "1", "0", "first").await;
    stage.chunk(&sent, "2", "0", "second").await;
    assert_eq!(text(&mut stream).await, "first");
    let error = failure(&mut stream).await;
    let expected = SequenceError::Superseded { delivered: 1, found: 2 };
    assert!(matches!(&error, ClientError::Sequence(found) if *found == expected), "{error}");
}

#[tokio::test]
async fn errors_of_router_and_worker_are_typed() {
    let mut stage = Stage::set(|_| {}).await;
    let (mut stream, sent) = stage.send(request()).await;
    stage.chunk(&sent, "1", "0", "a").await;
    let headers = [
        ("Rankpin-Final", "true"),
        ("Nats-Service-Error-Code", "503"),
        ("Nats-Service-Error", "worker_lost"),
        ("Retry-After", "1"),
    ];
    let body = r#"{"error":{"message":"the worker is gone","type":"rankpin_error","code":"worker_lost"}}"#;
    stage.reply(&sent, &headers, body).await;
    assert_eq!(text(&mut stream).await, "a");
    match failure(&mut stream).await {
        ClientError::Service { status: 503, code, message, retry_after_s: Some(1), .. } => {
            assert_eq!((code.as_str(), message.as_str()), ("worker_lost", "the worker is gone"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn no_router_is_told_at_once() {
    let server = NatsServer::start_with(Options { jetstream: false, ..Options::default() });
    let client = Client::connect(ClientOptions::new(&server.url())).await.expect("connects");
    let mut stream = client.send(request()).await.expect("is published");
    assert!(matches!(failure(&mut stream).await, ClientError::NoResponders));
}

#[tokio::test]
async fn silence_is_an_error_and_cancels() {
    let short = Duration::from_millis(50);
    let mut stage = Stage::set(|options| options.request_timeout = short).await;
    let mut cancels = stage.peer.subscribe("rankpin.cancel.*").await.expect("subscribes");
    settle(&stage.peer).await;
    let (mut stream, _sent) = stage.send(request().idle_timeout(short)).await;
    let error = failure(&mut stream).await;
    assert!(matches!(error, ClientError::Idle(waited) if waited == 2 * short), "{error}");
    let id = stream.request_id().to_string();
    drop(stream);
    let cancel = tokio::time::timeout(PATIENCE, cancels.next()).await.expect("in time").expect("lives");
    assert_eq!(cancel.subject.as_str(), format!("rankpin.cancel.{id}"));

    let (mut stream, sent) = stage.send(request().idle_timeout(short).timeout(PATIENCE)).await;
    stage.chunk(&sent, "1", "0", "a").await;
    assert_eq!(text(&mut stream).await, "a");
    let error = failure(&mut stream).await;
    assert!(matches!(error, ClientError::Idle(waited) if waited == short), "after the first chunk: {error}");

    let (mut stream, _sent) = stage.send(request().deadline(short).timeout(PATIENCE)).await;
    assert!(matches!(failure(&mut stream).await, ClientError::Deadline(_)));
}

#[tokio::test]
async fn dropping_a_stream_cancels_and_reading_it_to_the_end_does_not() {
    let mut stage = Stage::set(|_| {}).await;
    let mut cancels = stage.peer.subscribe("rankpin.cancel.*").await.expect("subscribes");
    settle(&stage.peer).await;
    let (mut whole, sent) = stage.send(request()).await;
    stage.last(&sent, "1", "0", "a").await;
    assert_eq!(text(&mut whole).await, "a");
    drop(whole);

    let (mut stream, sent) = stage.send(request()).await;
    stage.chunk(&sent, "1", "0", "a").await;
    assert_eq!(text(&mut stream).await, "a");
    let id = stream.request_id().to_string();
    drop(stream);
    let cancel = tokio::time::timeout(PATIENCE, cancels.next()).await.expect("in time").expect("lives");
    assert_eq!(cancel.subject.as_str(), format!("rankpin.cancel.{id}"), "the whole one was not cancelled");
    assert!(cancel.payload.is_empty());
}

#[tokio::test]
async fn a_reply_in_several_messages_is_one_chunk() {
    let mut stage = Stage::set(|_| {}).await;
    let (mut stream, sent) = stage.send(request()).await;
    let more = ("Rankpin-Continues", "true");
    stage.reply(&sent, &[("Rankpin-Attempt", "1"), ("Rankpin-Seq", "0"), ("Rankpin-Sse-Event", "e"), more], "a").await;
    stage.reply(&sent, &[("Rankpin-Attempt", "1"), ("Rankpin-Seq", "1"), more], "b").await;
    stage.chunk(&sent, "1", "2", "c").await;
    stage.last(&sent, "1", "3", "d").await;
    let whole = stream.next().await.expect("a chunk").expect("no error");
    assert_eq!(
        (&whole.payload[..], whole.headers.find("Rankpin-Sse-Event"), whole.last),
        (&b"abc"[..], Some("e"), false)
    );
    assert_eq!(text(&mut stream).await, "d");
    assert!(stream.next().await.is_none());

    // A piece that is missing is missed.
    let (mut stream, sent) = stage.send(request()).await;
    stage.reply(&sent, &[("Rankpin-Attempt", "1"), ("Rankpin-Seq", "0"), more], "a").await;
    stage.last(&sent, "1", "2", "c").await;
    assert!(matches!(failure(&mut stream).await, ClientError::Sequence(_)));

    // The last one can't go on.
    let (mut stream, sent) = stage.send(request()).await;
    let last = ("Rankpin-Final", "true");
    stage.reply(&sent, &[("Rankpin-Attempt", "1"), ("Rankpin-Seq", "0"), more, last], "a").await;
    assert!(matches!(failure(&mut stream).await, ClientError::CutShort));
}

#[tokio::test]
async fn what_is_too_large_or_too_many_is_not_published() {
    let config = "max_payload: 4096".to_owned();
    let server = NatsServer::start_with(Options { jetstream: false, config, ..Options::default() });
    let stage = Stage::set_on(server, |options| options.max_open = 1).await;
    // The headers count too.
    let large = Request::new(Model::new("m").expect("valid"), vec![b'x'; 4090]);
    let error = stage.client.send(large).await.expect_err("too large");
    assert!(matches!(error, ClientError::TooLarge { size: 4091.., max: 4096 }), "{error}");
    let _open = stage.client.send(request()).await.expect("room for one");
    let error = stage.client.send(request()).await.expect_err("no room");
    assert!(matches!(error, ClientError::TooManyOpen { max: 1 }), "{error}");
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_told_so() {
    let mut stage = Stage::set(|options| options.stream_capacity = 2).await;
    let (mut stream, sent) = stage.send(request()).await;
    for seq in ["0", "1", "2"] {
        stage.chunk(&sent, "1", seq, "x").await;
    }
    // Another stream's answer comes after the third chunk, on the same connection.
    let (mut other, other_sent) = stage.send(request()).await;
    stage.last(&other_sent, "1", "0", "y").await;
    assert_eq!(text(&mut other).await, "y");
    assert_eq!(text(&mut stream).await + &text(&mut stream).await, "xx");
    assert!(matches!(failure(&mut stream).await, ClientError::Overflow { capacity: 2 }));
}

#[tokio::test]
async fn a_lost_connection_ends_open_streams_and_the_client_goes_on() {
    let mut stage = Stage::set(|_| {}).await;
    let (mut stream, sent) = stage.send(request()).await;
    stage.chunk(&sent, "1", "0", "a").await;
    assert_eq!(text(&mut stream).await, "a");
    stage.server.kill();
    assert!(matches!(failure(&mut stream).await, ClientError::Disconnected));
    drop(stream);
    assert!(matches!(stage.client.send(request()).await, Err(ClientError::Disconnected)));
    stage.server.restart();
    answered_again(&mut stage).await;
}

#[tokio::test]
async fn a_header_block_that_breaks_clients_ends_its_own_stream_alone() {
    let mut stage = Stage::set(|_| {}).await;
    let mut raw = RawClient::connect(&stage.server).await;
    let (mut other, others) = stage.send(request()).await;
    for poison in
        [&b"NATS/1.0\r\nName: a\rb\r\n\r\n"[..], b"NATS/1.0\r\nName: \xff\r\n\r\n", b"NATS/1.0\r\n: x\r\n\r\n"]
    {
        let (mut stream, sent) = stage.send(request()).await;
        let inbox = sent.reply.expect("a frontend gives an inbox");
        raw.publish(&inbox, None, poison, b"").await;
        assert!(matches!(failure(&mut stream).await, ClientError::Unreadable(_)));
        drop(stream);
    }
    stage.last(&others, "1", "0", "whole").await;
    assert_eq!(text(&mut other).await, "whole");
}

/// Requests are answered again, once both sides are connected.
async fn answered_again(stage: &mut Stage) {
    let client = stage.client.clone();
    let mut stream = eventually("a request goes out again", PATIENCE, async || {
        let mut stream = client.send(request()).await.ok()?;
        match tokio::time::timeout(Duration::from_millis(200), stream.next()).await {
            // The other side was not back yet.
            Ok(_) => None,
            Err(_) => Some(stream),
        }
    })
    .await;
    let id = stream.request_id().to_string();
    // Requests of earlier tries may have come first.
    let sent = loop {
        let sent = tokio::time::timeout(PATIENCE, stage.requests.next()).await.expect("in time").expect("lives");
        let headers: Headers =
            sent.headers.iter().flat_map(|map| map.iter()).map(|(n, v)| (n.as_ref(), v[0].as_str())).collect();
        if headers.find("Rankpin-Request-Id") == Some(id.as_str()) {
            break sent;
        }
    };
    stage.last(&sent, "1", "0", "back").await;
    assert_eq!(text(&mut stream).await, "back");
}

#[tokio::test]
async fn what_a_user_may_not_do_is_said_at_connect() {
    let config = r#"authorization { users: [{ user: u, password: p, permissions: { subscribe: ["other.>"] } }] }"#;
    let server = NatsServer::start_with(Options { jetstream: false, config: config.into(), ..Options::default() });
    let url = format!("nats://u:p@127.0.0.1:{}", server.port());
    let error = Client::connect(ClientOptions::new(&url)).await.expect_err("may not subscribe to its inbox");
    assert!(error.to_string().contains("_INBOX"), "{error}");
}
