//! `docker-compose.yml` under load, with real containers: routers killed, a worker cut off, everything restarted in turn,
//! a NATS server of three lost. `make test-compose` brings an engine and images where there are none, and runs these.

mod load;
mod stack;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use async_nats::jetstream;

use self::load::{Load, Sessions, assert_none_failed, only_place};
use self::stack::{Kind, LONG, Stack, docker, root, script};
use crate::support::eventually;

/// Conversations under way in each test.
const SESSIONS: usize = 12;
/// Turns that each has before something happens, and after it.
const TURNS: usize = 5;

/// Where each session was at its last turn.
fn places(sessions: &Sessions) -> BTreeMap<String, String> {
    let last = |session: &load::Session| session.turns.last().expect("it has had a turn").clone();
    sessions.iter().map(|(name, session)| (name.clone(), last(session))).collect()
}

fn worker_of(place: &str) -> &str {
    place.split_once('/').expect("a worker and a rank").0
}

/// Turns of each session that came after those of `before`.
fn since(before: &Sessions, after: &Sessions) -> Sessions {
    let mut new = after.clone();
    for (name, session) in &mut new {
        session.turns.drain(..before.get(name).map_or(0, |session| session.turns.len()));
    }
    new
}

#[tokio::test]
#[ignore = "needs a Docker engine and images: make test-compose"]
async fn sessions_stay_over_two_routers_of_which_one_is_killed() {
    let stack = Stack::up("router", Kind::Single, &[]).await;
    stack.workers(2).await;
    let mut load = Load::connect(&stack.nats_urls()).await;
    load.begin("session", SESSIONS);
    load.goes_on("with two routers", TURNS).await;
    let routers = stack.containers("router");
    assert_eq!(routers.len(), 2);
    for router in &routers {
        let admitted = async || {
            let count = stack.metric(router, "rankpin_router_requests_admitted_total").await?;
            (count > 0.0).then_some(())
        };
        eventually(&format!("{router} takes its share"), LONG, admitted).await;
    }

    let over_http = stack.ask_gateway("over-http").await;
    docker(&["kill", &routers[0]]);
    load.goes_on("after a router was killed", TURNS).await;
    assert_eq!(stack.ask_gateway("over-http").await, over_http);
    docker(&["start", &routers[0]]);
    stack.healthy(&routers[0]).await;
    load.goes_on("with two routers again", TURNS).await;

    let sessions = load.end().await;
    assert_none_failed(&sessions);
    let places: BTreeSet<&str> = sessions.values().map(only_place).collect();
    assert!(places.len() > 1, "all sessions are at {places:?}");
}

#[tokio::test]
#[ignore = "needs a Docker engine and images: make test-compose"]
async fn a_worker_that_is_cut_off_loses_its_own_sessions_and_no_others() {
    let stack = Stack::up("worker", Kind::Single, &[]).await;
    stack.workers(2).await;
    let mut load = Load::connect(&stack.nats_urls()).await;
    load.begin("session", SESSIONS);
    let before = load.goes_on("with two workers", TURNS).await;
    let workers: BTreeSet<String> = before.values().map(|session| worker_of(only_place(session)).to_owned()).collect();
    assert_eq!(workers.len(), 2, "both workers have sessions");

    let cut_off = stack.container("worker-0");
    stack.cut_off(&cut_off);
    // A request that it accepted before is lost with it, once routers have heard nothing of it for six seconds.
    stack.workers(1).await;
    let cut = load.so_far();
    let after = load.goes_on("with one worker", TURNS).await;
    for (name, place) in places(&before) {
        let now = only_place(&since(&cut, &after)[&name]).to_owned();
        match worker_of(&place) {
            "gpu-0" => assert_eq!(worker_of(&now), "gpu-1", "{name} has moved"),
            _ => assert_eq!(now, place, "{name} has not moved"),
        }
        let moved = worker_of(&place) == "gpu-0";
        assert!(moved || after[&name].sent_again.is_empty(), "{name} noticed nothing: {:#?}", after[&name]);
    }

    stack.put_back(&cut_off);
    stack.workers(2).await;
    let back = load.so_far();
    let again = load.goes_on("with two workers again", TURNS).await;
    for (name, place) in places(&after) {
        assert_eq!(only_place(&since(&back, &again)[&name]), place, "{name} stays where it moved to");
    }
    // What was sent to it while it was away is sent again by TCP, at growing intervals, and what is new waits behind that.
    let mut round = 0;
    let taken = async || {
        round += 1;
        load.begin(&format!("later-{round}"), 2);
        let sessions = load.goes_on("that begin later", 1).await;
        places(&sessions).values().any(|place| worker_of(place) == "gpu-0").then_some(())
    };
    eventually("new sessions are placed on the worker that is back", LONG, taken).await;
    assert_none_failed(&load.end().await);
}

#[tokio::test]
#[ignore = "needs a Docker engine and images: make test-compose"]
async fn routers_and_workers_are_restarted_in_turn_and_no_request_is_lost() {
    let stack = Stack::up("rolling", Kind::Single, &[]).await;
    stack.workers(2).await;
    let mut load = Load::connect(&stack.nats_urls()).await;
    load.begin("session", SESSIONS);
    let before = load.goes_on("at first", TURNS).await;
    for router in stack.containers("router") {
        stack.restart(&router).await;
    }
    let after = load.goes_on("with new routers", TURNS).await;
    for (name, session) in &after {
        assert_eq!(only_place(session), places(&before)[name], "{name} stays while routers are restarted");
    }
    for worker in ["worker-0", "worker-1"] {
        stack.restart(&stack.container(worker)).await;
        stack.workers(2).await;
        load.goes_on(&format!("with a new {worker}"), TURNS).await;
    }
    let sessions = load.end().await;
    assert_none_failed(&sessions);
    let sent_again: Vec<_> = sessions.values().flat_map(|session| &session.sent_again).collect();
    assert!(sent_again.is_empty(), "a planned restart costs nobody anything: {sent_again:#?}");
}

#[tokio::test]
#[ignore = "needs a Docker engine and images: make test-compose"]
async fn one_of_three_nats_servers_is_killed() {
    let stack = Stack::up("cluster", Kind::Cluster, &[]).await;
    stack.workers(2).await;
    let mut load = Load::connect(&stack.nats_urls()).await;
    load.begin("session", SESSIONS);
    load.goes_on("with three servers", TURNS).await;

    // The one that writes pins: the others have to elect.
    let urls: Vec<String> = stack.nats_urls().split(',').map(str::to_owned).collect();
    let client = async_nats::connect(urls).await.expect("the ports of NATS are published");
    let context = jetstream::new(client);
    let stream = context.get_stream("KV_rankpin_pins").await.expect("a router has made the bucket");
    assert_eq!(stream.cached_info().config.num_replicas, 3);
    let leader = stream.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone());
    let leader = stack.container(&leader.expect("it has a leader, and is named as its service"));
    docker(&["kill", &leader]);
    load.goes_on("with two servers", TURNS).await;
    load.begin("later", SESSIONS);
    load.goes_on("with two servers and new sessions", TURNS).await;

    docker(&["start", &leader]);
    stack.healthy(&leader).await;
    for router in stack.containers("router") {
        stack.healthy(&router).await;
    }
    stack.workers(2).await;
    let before = load.goes_on("with three servers again", 1).await;
    let after = load.goes_on("while nothing happens", TURNS).await;
    for session in since(&before, &after).values() {
        only_place(session);
    }
    assert_none_failed(&load.end().await);
}

#[tokio::test]
#[ignore = "needs a Docker engine and images: make test-compose"]
async fn prometheus_finds_every_router_and_the_dashboard_has_figures() {
    let services = ["nats", "router", "gateway", "worker-0", "worker-1", "prometheus"];
    let stack = Stack::up("monitoring", Kind::Monitoring, &services).await;
    for check in
        [["check", "config", "/etc/prometheus/prometheus.yml"], ["test", "rules", "/etc/prometheus/rules_test.yml"]]
    {
        stack.run(&[&["exec", "-T", "prometheus", "promtool"], &check[..]].concat());
    }
    stack.workers(2).await;
    let mut load = Load::connect(&stack.nats_urls()).await;
    load.begin("session", SESSIONS);
    load.goes_on("for Prometheus to count", TURNS).await;
    stack.ask_gateway("over-http").await;
    let mut check = Command::new(script("check-dashboard"));
    check.current_dir(root()).args(["--prometheus", &format!("http://127.0.0.1:{}", stack.port("PROMETHEUS_PORT"))]);
    check.args(["--gateway", &format!("127.0.0.1:{}", stack.port("GATEWAY_PORT"))]);
    for router in stack.containers("router") {
        check.args(["--router", &stack.http_of(&router).expect("it runs").to_string()]);
    }
    let output = tokio::task::spawn_blocking(move || check.output()).await.expect("it ends").expect("it runs");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_none_failed(&load.end().await);
}
