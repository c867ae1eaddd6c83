//! A frontend that is killed in the middle of an answer costs no more work (protocol section 6.1).

use std::process::Command;

use futures_util::StreamExt as _;

use super::{frontend, served, sim, turn};
use crate::support::process::Process;
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
