//! The command line in a namespace with partitions, of which it is told nothing; and users that have no more rights than they
//! need there.

use serde_json::{Value, json};

use super::permissions::{run_as, server_with, start_as};
use super::{json, refused, run};
use crate::support::rankpin::command;
use crate::support::{Ask, Cluster, NatsServer, PATIENCE, eventually};

async fn halves() -> Cluster {
    let mut cluster = Cluster::with(1, &[("partitions", "4"), ("partition", "0-1")]).await;
    cluster.add_router(&[("partitions", "4"), ("partition", "2-3")]).await;
    cluster
}

/// What the doctor finds of partitions.
fn findings(server: &NatsServer, args: &[&str]) -> Vec<(String, String)> {
    let output =
        command(&[&["doctor", "--json"], args].concat()).env("NATS_URL", server.url()).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let word = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
    all.filter(|one| one["check"] == "partitions").map(|one| (word(&one, "health"), word(&one, "found"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_look_at_all_partitions() {
    const SESSIONS: usize = 12;
    let cluster = halves().await;
    let server = &cluster.server;
    let _a = cluster.worker("a").ranks(0, 2).start().await;
    let _b = cluster.worker("b").ranks(4, 2).start().await;
    cluster.knows_workers(2).await;
    for n in 0..SESSIONS {
        cluster.at(&format!("s{n}")).await;
    }
    let listed = json(server, &["pins", "ls"]).await;
    assert_eq!(listed.len(), SESSIONS);
    assert!(listed.iter().all(|pin| pin["partition"].as_u64().is_some_and(|partition| partition < 4)), "{listed:?}");
    let body = server.dir().join("turn.json");
    std::fs::write(&body, r#"{"messages":[]}"#).expect("a temp directory takes files");
    let body = body.to_str().expect("UTF-8").to_owned();
    let stats = json(server, &["pins", "stats"]).await.remove(0);
    assert_eq!((&stats["pins"], &stats["ttl_s"]), (&json!(SESSIONS), &json!(3600)));
    assert_eq!(json(server, &["workers"]).await[0]["pins"], SESSIONS);

    for n in 0..4 {
        let session = format!("s{n}");
        let pin = json(server, &["pins", "get", &session, "--model", "m"]).await.remove(0);
        assert_eq!(pin["session"], session.as_str());
        let other = if pin["worker"] == "a" { "b/5" } else { "a/1" };
        json(server, &["pins", "move", &session, "--model", "m", "--to", other]).await;
        eventually("its router has heard of it", PATIENCE, async || {
            (cluster.turn(&session).await.told() == format!("{other} pinned")).then_some(())
        })
        .await;
        let headers = format!("Rankpin-Session-Id: {session}");
        let url = server.url();
        let told = run(server, &["explain", &body, "--model", "m", "--header", &headers, "--nats-url", &url]).await;
        assert!(told.contains(&format!("its session is of partition {} of 4", pin["partition"])), "{told}");
        assert!(told.contains(other), "{told}");
    }
    assert_eq!(run(server, &["pins", "rm", "s0", "--model", "m"]).await, "removed 1\n");
    assert!(refused(server, &["pins", "get", "s0", "--model", "m"]).await.contains("nothing is pinned of s0"));

    let told = findings(server, &[]);
    assert_eq!(told[0], ("warn".into(), "the namespace has 4, and this configuration says 1".into()));
    let sound = [
        ("ok".to_owned(), "4, each with its bucket".to_owned()),
        ("note".to_owned(), "one router alone serves 0-3 of 4".to_owned()),
    ];
    assert_eq!(findings(server, &["--partitions", "4"]), sound);
    let mut cluster = cluster;
    let mut gone = cluster.routers.remove(0);
    gone.tell_to_stop();
    gone.ended().await;
    let told = findings(&cluster.server, &["--partitions", "4"]);
    assert!(told.contains(&("fail".into(), "no router that is ready serves 0-1 of 4".into())), "{told:?}");
}

#[tokio::test]
async fn a_deployment_with_partitions_runs_under_its_users() {
    let server = server_with(&["--partitions", "2"]);
    let made = run_as(&server, "operator", &["provision", "--partitions", "2"]).await;
    for bucket in ["rankpin_pins_0:", "rankpin_pins_1:"] {
        assert!(made.contains(bucket), "{made}");
    }
    let mut routers = Vec::new();
    for partition in ["0", "1"] {
        let args = ["router", "--provision", "never", "--listen", "off", "--partitions", "2", "--partition", partition];
        let router = start_as(&server, "router", &args);
        eventually("the router is ready", PATIENCE, async || router.log().contains("router is ready").then_some(()))
            .await;
        routers.push(router);
    }
    let _worker = start_as(&server, "worker-gpu-0", &["sim", "--worker", "gpu-0", "--model", "m", "--speed", "1000"]);
    let web = server.client_with_inbox("web", &super::permissions::password("web")).await;
    eventually("the worker is there", PATIENCE, async || {
        let answer = Ask::new().session("s0").body(r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#);
        (answer.send(&web).await.end().await.at() == "gpu-0").then_some(())
    })
    .await;
    for n in 0..8 {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
        let answer = Ask::new().session(&format!("s{n}")).body(body).send(&web).await.end().await;
        assert_eq!(answer.at(), "gpu-0");
    }
    for router in &routers {
        assert!(!router.log().contains("ermissions"), "{}", router.log());
    }
    let pins = run_as(&server, "operator", &["pins", "ls", "--json"]).await;
    assert_eq!(pins.lines().count(), 8);
}
