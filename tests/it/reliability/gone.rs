//! What is lost with one end of a conversation: a frontend that is killed in the middle of an answer costs no more work,
//! and an answer that is lost with the worker's connection is said again (protocol section 6.1).

use std::process::Command;
use std::time::Duration;

use futures_util::StreamExt as _;

use rankpin::client::sequence::SequenceError;
use rankpin::client::{ClientError, Request};
use rankpin::core::id::Model;

use super::{collect, frontend, served, sim, turn};
use crate::support::process::Process;
use crate::support::proxy::{Carriage, Proxy};
use crate::support::{NatsServer, PATIENCE, RouterProcess, eventually};

/// Names the servers to the process that the test below starts of this binary.
const SERVERS: &str = "FRONTEND_TEST_SERVERS";

/// Not a test: the frontend, as a process of its own. It reads one long answer.
#[tokio::test]
#[ignore = "it is a process of another test"]
async fn the_frontend() {
    let urls = std::env::var(SERVERS).expect("the other test names the servers");
    let client = frontend(&urls).await;
    let mut stream = client.send(turn("long", 1_000_000)).await.expect("is published");
    while let Some(chunk) = stream.next().await {
        chunk.expect("the answer goes on");
        println!("a part has come");
    }
}

#[tokio::test]
async fn a_frontend_killed_in_the_middle_of_an_answer_frees_its_rank() {
    let server = NatsServer::start();
    let router = RouterProcess::start("router", &server, &[]).await;
    let endless = ["--output-tokens", "1000000", "--decode-rate", "50"];
    let _worker = sim(&server.url(), server.dir(), "w", &endless);
    let client = frontend(&server.url()).await;
    served(&client, "warm").await;
    let mut loads = server.client().await.subscribe("rankpin.load.w").await.expect("subscribes");

    let mut command = Command::new(std::env::current_exe().expect("it runs"));
    let name = concat!(module_path!(), "::the_frontend");
    let name = name.split_once("::").expect("the crate's name stands first").1;
    command.args(["--exact", name, "--ignored", "--nocapture"]).env(SERVERS, server.url());
    let mut killed = Process::start("frontend", command, server.dir());
    let begun = async || killed.log().contains("a part has come").then_some(());
    eventually("the answer begins", PATIENCE, begun).await;
    // One that stays, beside it.
    let mut staying = client.send(turn("staying", 1_000_000)).await.expect("is published");
    staying.next().await.expect("it begins").expect("no error");
    assert_eq!(router.metric("requests_in_flight").await, 2.0);

    killed.kill();
    let freed = async || (router.metric("requests_in_flight").await == 1.0).then_some(());
    eventually("the router counts it no more", PATIENCE, freed).await;
    assert_eq!(router.metric_where("requests", "outcome=\"cancelled\"").await, 1.0);
    eventually("the rank works on one request only", PATIENCE, async || {
        let report = loads.next().await?;
        let report: serde_json::Value = serde_json::from_slice(&report.payload).expect("a report is JSON");
        (report["ranks"][0]["inflight"] == 1).then_some(())
    })
    .await;
    for _ in 0..50 {
        staying.next().await.expect("it goes on").expect("no error");
    }
}

#[tokio::test]
async fn the_end_of_an_answer_that_was_lost_with_the_connection_is_said_again() {
    let server = NatsServer::start();
    let router = RouterProcess::start("router", &server, &[]).await;
    let proxy = Proxy::to(vec![([127, 0, 0, 1], server.port()).into()]).await;
    // An answer takes 0.4 s, and nothing but the answer is lost: liveness and probes have their time.
    let worker = sim(&proxy.url(), server.dir(), "w", &["--output-tokens", "20", "--decode-rate", "50"]);
    let client = frontend(&server.url()).await;
    served(&client, "warm").await;
    let one_message = Request::new(Model::new("m").expect("valid"), r#"{"model":"m","messages":[]}"#);
    for (is_streamed, request) in [(false, one_message), (true, turn("streamed", 20))] {
        let mut stream = client.send(request).await.expect("is published");
        if is_streamed {
            stream.next().await.expect("it begins").expect("no error");
        }
        let taken = async || (router.metric("requests_in_flight").await == 1.0).then_some(());
        eventually("the router has it", PATIENCE, taken).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxy.set(Carriage::Swallowed);
        // Time for the worker to answer into the void.
        tokio::time::sleep(Duration::from_millis(800)).await;
        let lost_before = worker.log().matches("reconnecting").count();
        proxy.set(Carriage::Ended);
        let lost = async || (worker.log().matches("reconnecting").count() > lost_before).then_some(());
        eventually("the worker's connections end", PATIENCE, lost).await;
        proxy.set(Carriage::Through);
        match (is_streamed, collect(stream).await) {
            (false, Ok((place, 1))) => assert!(place.starts_with('w'), "{place}"),
            // The parts between are lost, which is told at once.
            (true, Err(ClientError::Sequence(SequenceError::Gap { .. }))) => {}
            (_, other) => panic!("streamed: {is_streamed}, {other:?}"),
        }
        let done = async || (router.metric("requests_in_flight").await == 0.0).then_some(());
        eventually("the router knows", PATIENCE, done).await;
        assert_eq!(router.metric_where("requests", "outcome=\"worker_lost\"").await, 0.0);
    }
}
