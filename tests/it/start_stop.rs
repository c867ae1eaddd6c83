//! How a router starts, what it says where it can't, and how it leaves.

use std::process::Output;

use bytes::Bytes;
use futures_util::StreamExt as _;
use rankpin::wire::registration::Registration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::process::Signal;
use crate::support::rankpin::command;
use crate::support::server::Options;
use crate::support::{NatsServer, PATIENCE, RouterProcess, eventually, settle};

/// Runs a router that can't start, to its end.
async fn refused(args: &[&str]) -> Output {
    let mut command = tokio::process::Command::from(command(&["router"]));
    let output = command.args(args).kill_on_drop(true).output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("it ends").expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    output
}

async fn message(args: &[&str]) -> String {
    let output = refused(args).await;
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    text.lines().last().expect("a message").to_owned()
}

#[tokio::test]
async fn settings_that_are_wrong_end_it_before_it_connects() {
    let text = message(&["--pin-ttl", "soon"]).await;
    assert!(text.starts_with("rankpin: --pin-ttl: pin_ttl is \"soon\"; allowed is a duration"), "{text}");
}

#[test]
fn what_kubernetes_says_of_services_is_no_setting_of_ours_and_what_looks_like_one_is_refused() {
    for (value, passes) in [("tcp://10.0.0.1:80", true), ("80", false)] {
        let output = command(&["config", "check"]).env("RANKPIN_GATEWAY_PORT", value).output().expect("it starts");
        assert_eq!(output.status.success(), passes, "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).contains("RANKPIN_GATEWAY_PORT is no setting"), !passes);
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let text = message(&["--nats-url", "nats://127.0.0.1:1"]).await;
    assert!(text.starts_with("rankpin: cannot connect to NATS at nats://127.0.0.1:1: "), "{text}");
}

#[tokio::test]
async fn a_login_is_never_shown() {
    let config = "authorization { user: u, password: right }".into();
    let server = NatsServer::start_with(Options { config, ..Options::default() });
    let url = format!("nats://u:wr0ng@127.0.0.1:{}", server.port());
    let output = refused(&["--nats-url", &url]).await;
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(text.contains("authorization violation"), "{text}");
    assert!(!text.contains("wr0ng"), "{text}");
}

#[tokio::test]
async fn a_server_without_jetstream_is_named_with_what_to_do() {
    let server = NatsServer::start_with(Options { jetstream: false, ..Options::default() });
    let text = message(&["--nats-url", &server.url()]).await;
    assert!(text.contains("has no JetStream") && text.contains("-js"), "{text}");
}

#[tokio::test]
async fn missing_buckets_that_may_not_be_made_are_named_with_the_command_that_makes_them() {
    let server = NatsServer::start();
    let text = message(&["--nats-url", &server.url(), "--provision", "never"]).await;
    assert!(text.contains("nats kv add rankpin_workers --history=1 --ttl=30s --replicas=1"), "{text}");
    drop(RouterProcess::start("maker", &server, &[]).await);
    RouterProcess::start("router", &server, &["--provision", "never"]).await;
}

#[tokio::test]
async fn missing_permissions_are_named() {
    let config = r#"authorization { users: [{ user: u, password: p, permissions: {
        publish: { allow: ">" }, subscribe: { allow: ">", deny: "rankpin.request.>" } } }] }"#;
    let server = NatsServer::start_with(Options { config: config.into(), ..Options::default() });
    let url = format!("nats://u:p@127.0.0.1:{}", server.port());
    let text = message(&["--nats-url", &url]).await;
    assert!(text.contains("rankpin.request.>") && text.contains("permission"), "{text}");
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let server = NatsServer::start();
    let address = format!("127.0.0.1:{}", server.port());
    let text = message(&["--nats-url", &server.url(), "--listen", &address]).await;
    assert!(text.contains(&format!("cannot listen on {address}")) && text.contains("--listen"), "{text}");
}

#[tokio::test]
async fn health_readiness_and_metrics_are_served() {
    let server = NatsServer::start();
    let router = RouterProcess::start("router", &server, &[]).await;
    assert_eq!(router.get("/healthz").await.0, 200);
    assert_eq!(router.get("/readyz").await.0, 200);
    let (status, metrics) = router.get("/metrics").await;
    assert!(status == 200 && metrics.contains("# TYPE rankpin_router_requests_admitted_total counter"), "{metrics}");
}

#[tokio::test]
async fn whoever_holds_http_connections_open_keeps_no_probe_from_its_answer() {
    let server = NatsServer::start();
    let router = RouterProcess::start("router", &server, &[]).await;
    let mut held = Vec::new();
    for _ in 0..400 {
        let mut connection = TcpStream::connect(router.http()).await.expect("taken");
        // Half a head. A connection that is closed again may have been told before.
        let _ = connection.write_all(b"GET /readyz HTTP/1.1\r\nHost: a").await;
        held.push(connection);
    }
    assert_eq!(router.get("/readyz").await.0, 200);
    let mut nothing = [0];
    let oldest = tokio::time::timeout(PATIENCE, held[0].read(&mut nothing)).await.expect("it is closed");
    assert!(matches!(oldest, Ok(0) | Err(_)), "{oldest:?}");
}

#[tokio::test]
async fn sigterm_and_sigint_end_an_idle_router_with_0() {
    let server = NatsServer::start();
    for (name, signal) in [("terminated", Signal::Terminate), ("interrupted", Signal::Interrupt)] {
        let mut router = RouterProcess::start(name, &server, &[]).await;
        router.process.signal(signal);
        let status = router.process.wait(PATIENCE).await;
        assert_eq!(status.code(), Some(0), "{status}");
        assert!(router.process.log().contains("router has stopped"));
    }
}

/// A worker that accepts a request and never finishes it, and a router that waits for it.
async fn router_that_is_busy(server: &NatsServer) -> RouterProcess {
    let router = RouterProcess::start("router", server, &["--drain-timeout", "1h"]).await;
    let client = server.client().await;
    let mut requests = client.subscribe("rankpin.worker.w.>").await.expect("the client lives");
    settle(&client).await;
    let workers =
        async_nats::jetstream::new(client.clone()).get_key_value("rankpin_workers").await.expect("it is made");
    let registration = serde_json::to_vec(&Registration::new("w", "i", &["m"], 0, 1)).expect("plain data");
    workers.put("w", registration.into()).await.expect("the bucket takes it");
    let known = async || {
        router
            .get("/metrics")
            .await
            .1
            .lines()
            .any(|l| l.starts_with("rankpin_router_workers ") && l.ends_with(" 1"))
            .then_some(())
    };
    eventually("the router knows the worker", PATIENCE, known).await;

    let mut answers = client.subscribe("_INBOX.test").await.expect("the client lives");
    client.publish_with_reply("rankpin.request.m", "_INBOX.test", "{}".into()).await.expect("the client lives");
    let request = tokio::time::timeout(PATIENCE, requests.next()).await.expect("in time").expect("the client lives");
    let mut event = async_nats::HeaderMap::new();
    event.insert("Rankpin-Event", "accepted");
    let inbox = request.reply.expect("a dispatch has a reply subject");
    client.publish_with_headers(inbox, event, Bytes::new()).await.expect("the client lives");
    settle(&client).await;
    assert!(futures_util::FutureExt::now_or_never(answers.next()).is_none(), "the request is accepted, not refused");
    router
}

#[tokio::test]
async fn a_router_that_is_busy_ends_at_the_second_signal() {
    let server = NatsServer::start();
    let mut router = router_that_is_busy(&server).await;
    router.process.signal(Signal::Terminate);
    let stops = async || router.process.log().contains("router stops").then_some(());
    eventually("the router drains", PATIENCE, stops).await;
    assert!(router.process.ended().is_none(), "it waits for its request");
    router.process.signal(Signal::Terminate);
    assert_eq!(router.process.wait(PATIENCE).await.code(), Some(128 + 15));
}
