//! A connection that can be replaced.

use std::time::Duration;

use futures_util::StreamExt as _;
use rankpin::nats::link::ConnectError;
use rankpin::nats::{Headers, Link, LinkOptions};

use crate::support::server::Options;
use crate::support::{NatsServer, PATIENCE, RawClient, eventually, settle};

async fn open(server: &NatsServer) -> Link {
    let link = Link::open(LinkOptions::new(&server.url(), "test")).await.expect("connects");
    link.barrier().await.expect("the server answers");
    link
}

async fn subscribe(link: &Link, subject: &'static str) -> async_nats::Subscriber {
    let (client, _) = link.client();
    let subscriber = client.subscribe(subject).await.expect("the client lives");
    link.barrier().await.expect("the server answers");
    subscriber
}

#[tokio::test]
async fn messages_pass() {
    let server = NatsServer::start();
    let link = open(&server).await;
    let mut raw = RawClient::connect(&server).await;
    raw.subscribe("here").await;
    let mut headers = Headers::new();
    headers.set("Rankpin-Seq", "0");
    link.publish("here", Some("back".into()), headers, "body".into()).await.expect("the client takes the message");
    let message = raw.next().await;
    assert_eq!(message.subject, "here");
    assert_eq!(message.reply.as_deref(), Some("back"));
    assert_eq!(message.headers, b"NATS/1.0\r\nRankpin-Seq: 0\r\n\r\n");
    assert_eq!(message.payload, b"body");
}

#[tokio::test]
async fn a_message_that_kills_the_client_is_survived_by_a_new_client() {
    let server = NatsServer::start();
    let link = open(&server).await;
    let mut messages = subscribe(&link, "here").await;
    let (_, generation) = link.client();
    let mut raw = RawClient::connect(&server).await;
    // A bare CR inside a value: the server passes it on, and the client library's connection task panics on it.
    raw.publish("here", None, b"NATS/1.0\r\nName: a\rb\r\n\r\n", b"").await;
    let end = tokio::time::timeout(PATIENCE, messages.next()).await.expect("the subscription ends");
    assert!(end.is_none(), "the client survived what killed it before: is Link::rebuild still needed?");

    link.rebuild(generation).await;
    let mut messages = subscribe(&link, "here").await;
    raw.publish("here", None, b"NATS/1.0\r\nName: a\r\n\r\n", b"again").await;
    let message = tokio::time::timeout(PATIENCE, messages.next()).await.expect("in time").expect("the client lives");
    assert_eq!(message.payload, "again");
    assert_eq!(link.state().borrow().connects, 2);
}

#[tokio::test]
async fn a_restarted_server_is_found_again() {
    let mut server = NatsServer::start();
    let link = open(&server).await;
    server.kill();
    eventually("the link notices", PATIENCE, async || (!link.is_connected()).then_some(())).await;
    server.restart();
    eventually("the link is back", PATIENCE, async || link.is_connected().then_some(())).await;
    assert_eq!(link.state().borrow().connects, 2);
    settle(&server.client().await).await;
}

#[tokio::test]
async fn a_frozen_server_is_told_as_silent() {
    let server = NatsServer::start();
    let link = open(&server).await;
    server.freeze();
    let error = link.barrier().await.expect_err("nothing answers");
    assert!(matches!(error, ConnectError::Silent(_)), "{error}");
    server.thaw();
    let again = async || link.barrier().await.ok();
    eventually("the server answers again", Duration::from_secs(30), again).await;
}

#[tokio::test]
async fn missing_permissions_are_named() {
    let config = r#"authorization { users: [{ user: u, password: p, permissions: { subscribe: ["_INBOX.>"] } }] }"#;
    let server = NatsServer::start_with(Options { jetstream: false, config: config.into(), ..Options::default() });
    let url = format!("nats://u:p@127.0.0.1:{}", server.port());
    let link = Link::open(LinkOptions::new(&url, "test")).await.expect("connects");
    let (client, _) = link.client();
    let _denied = client.subscribe("rankpin.request.>").await.expect("the client takes it");
    let error = link.barrier().await.expect_err("not allowed");
    assert!(error.to_string().contains("rankpin.request.>"), "{error}");
    settle(&server.client_as("u", "p").await).await;
}

#[tokio::test]
async fn no_server_is_an_error_that_says_where() {
    let error = Link::open(LinkOptions::new("nats://127.0.0.1:1", "test")).await.expect_err("nobody listens");
    assert!(error.to_string().contains("nats://127.0.0.1:1"), "{error}");
    let error = Link::open(LinkOptions::new("nats://:a b", "test")).await.expect_err("no URL");
    assert!(matches!(error, ConnectError::Url { .. }), "{error}");
}
