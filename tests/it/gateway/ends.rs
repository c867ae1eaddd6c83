//! How requests end before their time: clients that go away, and gateways that stop.

use futures_util::StreamExt as _;
use rankpin::wire::load::LoadReport;

use super::{Gateway, chat, sim, with};
use crate::support::process::{Process, Signal};
use crate::support::rankpin::command;
use crate::support::{Behaviour, Cluster, PATIENCE, eventually, http};

const CHAT: &str = "/v1/chat/completions";

/// Waits until the simulated worker says that it has so many requests in flight.
async fn in_flight(loads: &mut async_nats::Subscriber, wanted: u32) {
    let reached = async {
        while let Some(message) = loads.next().await {
            let report: LoadReport = serde_json::from_slice(&message.payload).expect("a report");
            if report.ranks.iter().map(|rank| rank.inflight).sum::<u32>() == wanted {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("the worker says so in time");
}

#[tokio::test]
async fn a_client_that_goes_away_stops_the_worker() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    // A token a second: it would take an hour.
    let _sim = sim(&cluster, &["--decode-rate", "1", "--output-tokens", "3600"]).await;
    let mut loads = cluster.subscribe("rankpin.load.w").await;
    let long = with(chat("hi"), "max_tokens", 3600);

    let mut stream = gateway.open(CHAT, &with(long.clone(), "stream", true)).await;
    stream.line("data: ").await;
    in_flight(&mut loads, 1).await;
    drop(stream);
    in_flight(&mut loads, 0).await;

    // One that waits for a whole answer, of which nothing has come.
    let waiting = tokio::spawn({
        let (address, body) = (gateway.address, long.to_string());
        async move { http::send(address, "POST", CHAT, &[], body.as_bytes()).await }
    });
    in_flight(&mut loads, 1).await;
    waiting.abort();
    in_flight(&mut loads, 0).await;
    let line = "rankpin_gateway_requests_total{api=\"chat\",outcome=\"disconnected\"}";
    eventually("both are counted", PATIENCE, async || (gateway.metric(line).await == 2.0).then_some(())).await;
}

fn process(cluster: &Cluster, args: &[&str]) -> (Process, std::net::SocketAddr) {
    let address = rankpin::local::http::free_port().expect("there are ports");
    let (url, listen) = (cluster.server.url(), address.to_string());
    let mut command = command(&["gateway", "--nats-url", &url, "--listen", &listen]);
    command.args(args);
    (Process::start("gateway", command, cluster.server.dir()), address)
}

async fn ready(address: std::net::SocketAddr) {
    let is_ready = async || {
        let answer = rankpin::local::http::get(address, "/readyz").await.ok()?;
        (answer.status == 200).then_some(())
    };
    eventually("the gateway is ready", PATIENCE, is_ready).await;
}

#[tokio::test]
async fn a_gateway_that_is_told_to_stop_lets_its_requests_end() {
    let cluster = Cluster::start().await;
    let (mut gateway, address) = process(&cluster, &[]);
    ready(address).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let body = with(chat("hi"), "stream", true).to_string();
    let first = async { worker.dispatch(0).await.reply(&[], "{}").await };
    let (mut open, ()) = tokio::join!(http::open(address, CHAT, &[], &body), first);
    open.line("data: ").await;
    gateway.signal(Signal::Terminate);
    let refused = async || tokio::net::TcpStream::connect(address).await.is_err().then_some(());
    eventually("it takes no more connections", PATIENCE, refused).await;
    worker.dispatch(0).await.reply(&[("Rankpin-Seq", "1"), ("Rankpin-Final", "true")], r#"{"last":1}"#).await;
    let rest = open.rest().await;
    assert!(rest.contains("data: {\"last\":1}") && rest.contains("[DONE]"), "{rest}");
    assert!(gateway.wait(PATIENCE).await.success(), "{}", gateway.log());
    assert!(worker.cancels().is_empty());
}

#[tokio::test]
async fn what_does_not_end_in_time_is_cancelled() {
    let cluster = Cluster::start().await;
    let (mut gateway, address) = process(&cluster, &["--drain-timeout", "100ms"]);
    ready(address).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let body = chat("hi").to_string();
    let sent = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("somebody listens");
        let head = format!("POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes()).await.expect("the connection stands");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        rest
    });
    let id = worker.dispatch(0).await.header("Rankpin-Request-Id").expect("an id").to_owned();
    gateway.signal(Signal::Terminate);
    assert_eq!(worker.cancel(0).await.0, id);
    assert!(gateway.wait(PATIENCE).await.success(), "{}", gateway.log());
    assert!(sent.await.expect("no panic").is_empty(), "there is no answer to tell");
}

#[tokio::test]
async fn a_gateway_without_nats_is_not_ready_and_comes_back() {
    let mut cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    cluster.server.kill();
    let is = async |status: u16| {
        eventually("readiness follows the connection", PATIENCE, async || {
            (gateway.get("/readyz").await.status == status).then_some(())
        })
        .await;
    };
    is(503).await;
    let answer = gateway.post(CHAT, &chat("hi")).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &"no_connection".into()));
    assert_eq!(gateway.get("/healthz").await.status, 200);
    cluster.server.restart();
    is(200).await;
}
