//! Three NATS servers, one of which dies, freezes, or takes its leave.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use futures_util::future::{join, join_all};
use rankpin::client::sequence::SequenceError;
use rankpin::client::{Client, ClientError, ClientOptions};
use rankpin::core::fleet::RANK_LOST_FOR;

use super::{LONG, ask, frontend, served, sim};
use crate::support::process::Process;
use crate::support::{Nodes, PATIENCE, RouterProcess, eventually};

const REPLICATED: [&str; 4] = ["--replicas", "3", "--jobs-replicas", "3"];

/// Three servers, two routers and two workers, each of which knows all servers.
struct Scene {
    // These first: their logs lie in a directory of the servers.
    routers: Vec<RouterProcess>,
    workers: Vec<Process>,
    nodes: Nodes,
}

impl Scene {
    async fn set(more: &str) -> Self {
        let scene = Self::without_workers(more).await;
        let urls = scene.nodes.urls();
        scene.with_workers_at(&urls).await
    }

    async fn without_workers(more: &str) -> Self {
        let nodes = Nodes::with(more).await;
        let mut routers = Vec::new();
        for name in ["router-1", "router-2"] {
            routers.push(RouterProcess::start_at(name, &nodes.urls(), nodes.servers[0].dir(), &REPLICATED).await);
        }
        Self { nodes, routers, workers: Vec::new() }
    }

    async fn with_workers_at(mut self, urls: &str) -> Self {
        let start = |name: &str| sim(urls, self.nodes.servers[0].dir(), name, &["--dp-size", "2", "--speed", "100"]);
        self.workers = vec![start("a"), start("b")];
        for router in &self.routers {
            eventually("both workers are known", LONG, async || (router.metric("workers").await == 2.0).then_some(()))
                .await;
        }
        self
    }

    /// Every router says that it has all of both buckets, and that it can write there.
    async fn mirrors_are_complete(&self) {
        for router in &self.routers {
            eventually("the mirrors are complete", LONG, async || {
                let complete = router.metric("mirror_complete").await == 2.0;
                (complete && router.metric("bucket_unreachable").await == 0.0).then_some(())
            })
            .await;
        }
    }

    async fn nothing_is_held(&self) {
        for router in &self.routers {
            for gauge in ["requests_in_flight", "requests_queued"] {
                let none = async || (router.metric(gauge).await == 0.0).then_some(());
                eventually(&format!("{gauge} is 0 again"), LONG, none).await;
            }
        }
    }
}

/// Whether an error is one that a frontend may get while a server is away: its own connection's loss, routers that are just
/// connecting anew, and what a router says.
fn is_clear(error: &ClientError) -> bool {
    matches!(error, ClientError::Disconnected | ClientError::NoResponders) || error.service_code().is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_makes_no_worker_look_lost_and_moves_no_session() {
    let scene = Scene::without_workers("").await;
    let leader = scene.nodes.leader("KV_rankpin_workers").await;
    // A worker whose own server dies is not listened to for a moment, and its sessions move: these are elsewhere.
    let others: Vec<_> = (0..3).filter(|n| *n != leader).map(|n| scene.nodes.servers[n].url()).collect();
    let others = others.join(",");
    let mut scene = scene.with_workers_at(&others).await;
    let client = frontend(&others).await;
    let mut places = BTreeMap::new();
    for n in 0..12 {
        let session = format!("s{n}");
        places.insert(session.clone(), served(&client, &session).await);
    }
    scene.mirrors_are_complete().await;
    assert_eq!(scene.nodes.leader("KV_rankpin_workers").await, leader, "nobody else was elected meanwhile");
    scene.nodes.servers[leader].kill();
    // Until a new leader takes writes: new sessions are claimed in the bucket again.
    let mut new = 0;
    let mut answered = 0;
    eventually("the buckets take writes again", LONG, async || {
        for router in &scene.routers {
            assert_eq!(router.metric("workers").await, 2.0, "nobody looks lost");
        }
        for (session, place) in &places {
            match ask(&client, session).await {
                Ok(now) => {
                    assert_eq!(now, *place, "{session} stays");
                    answered += 1;
                }
                Err(error) => assert!(is_clear(&error), "{error}"),
            }
        }
        new += 1;
        let _ = ask(&client, &format!("new-{new}")).await;
        let context = jetstream::new(scene.nodes.client().await);
        let info = context.get_stream("KV_rankpin_pins").await.ok()?.cached_info().clone();
        let written = info.cluster?.leader.is_some() && info.state.messages > places.len() as u64;
        written.then_some(())
    })
    .await;
    assert!(answered > 0);
    scene.nodes.servers[leader].restart();
    scene.mirrors_are_complete().await;
    for (session, place) in &places {
        assert_eq!(served(&client, session).await, *place);
    }
    scene.nothing_is_held().await;
}

/// Where each session is; every frontend, and so every router, is told the same of it.
async fn agreed(clients: &[Client], sessions: impl Iterator<Item = &String>) -> Vec<String> {
    let mut places = Vec::new();
    for session in sessions {
        // A worker that nobody listened to a moment ago may be left now: by this turn, and by no other.
        let place = served(&clients[0], session).await;
        for client in clients.iter().cycle().take(4.max(clients.len())) {
            assert_eq!(served(client, session).await, place, "{session} is elsewhere to another router");
        }
        places.push(place);
    }
    places
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_servers_that_restart_under_load_leave_complete_mirrors_and_nothing_counted() {
    let mut scene = Scene::set("").await;
    let urls = scene.nodes.urls();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(frontend(&urls).await);
    }
    let mut places = BTreeMap::new();
    for n in 0..40 {
        let session = format!("s{n}");
        places.insert(session.clone(), served(&clients[0], &session).await);
    }
    // A storm: everybody is connected anew at once, with as much to send as there is.
    for n in 0..3 {
        let storm = join_all(clients.iter().map(|client| {
            let places = &places;
            async move {
                let turns = places.keys().map(|session| ask(client, session));
                join_all(turns).await
            }
        }));
        let (answers, ()) = join(storm, async { scene.nodes.servers[n].restart() }).await;
        for answer in answers.into_iter().flatten() {
            if let Err(error) = answer {
                // Parts are lost with the connection that they were on, which is told; nothing is ever said twice.
                assert!(!matches!(error, ClientError::Sequence(SequenceError::Repeated { .. })), "{error}");
            }
        }
    }
    scene.mirrors_are_complete().await;
    // Nobody listens to a worker that is just changing its server; then its sessions move, and stay.
    let now = agreed(&clients, places.keys()).await;
    let moved = now.iter().zip(places.values()).filter(|(now, before)| now != before).count();
    println!("{moved} of {} sessions moved while each server was restarted once", places.len());
    scene.nothing_is_held().await;
    for router in &scene.routers {
        assert_eq!(router.metric("faults").await, 0.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_its_leave_costs_no_request_of_others() {
    let mut scene = Scene::set("lame_duck_grace_period: \"1s\"\nlame_duck_duration: \"30s\"").await;
    // Frontends elsewhere; routers and workers are wherever they are, some of them there.
    let urls = format!("{},{}", scene.nodes.servers[1].url(), scene.nodes.servers[2].url());
    let client = frontend(&urls).await;
    let mut places = BTreeMap::new();
    for n in 0..6 {
        let session = format!("s{n}");
        places.insert(session.clone(), served(&client, &session).await);
    }
    let stop = AtomicBool::new(false);
    let load = join_all(places.iter().map(|(session, place)| {
        let (client, stop) = (&client, &stop);
        async move {
            let (mut served, mut refused, mut moved) = (0, 0, 0);
            let mut place = place.clone();
            while !stop.load(Ordering::Relaxed) {
                match ask(client, session).await {
                    Ok(now) => {
                        served += 1;
                        // Nobody listens to a worker that is just changing its server.
                        moved += u32::from(now != place);
                        place = now;
                    }
                    // An event that was on its way to a router whose connection ended is lost, and may cost its request.
                    Err(error) if error.service_code().is_some() || matches!(error, ClientError::Sequence(_)) => {
                        refused += 1;
                    }
                    Err(error) => panic!("{session}: {error}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            (served, refused, moved)
        }
    }));
    let leaving = async {
        scene.nodes.servers[0].lame_duck();
        let left = async || scene.nodes.servers[0].has_ended().then_some(());
        eventually("the server has left", LONG, left).await;
        stop.store(true, Ordering::Relaxed);
    };
    let (counts, ()) = join(load, leaving).await;
    let (turns, refused, moved) =
        counts.into_iter().fold((0, 0, 0), |all, one| (all.0 + one.0, all.1 + one.1, all.2 + one.2));
    println!("{turns} turns were served while a server left, {refused} ended in an error, {moved} moved their session");
    // What is lost with a connection is told, and each connection is lost once.
    assert!(turns > refused && refused <= 2 * places.len(), "{turns} served, {refused} refused");
    // A rank that nobody listened to for a moment counts as gone to the router that noticed, and to no other, for so long.
    tokio::time::sleep(RANK_LOST_FOR).await;
    // While its own server leaves, a router may not hear where another has moved a session that nobody listened to; it
    // knows that, and says so.
    scene.mirrors_are_complete().await;
    agreed(std::slice::from_ref(&client), places.keys()).await;
    scene.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_whose_server_freezes_goes_to_another_one() {
    let nodes = Nodes::start().await;
    // The first server of the list is where a router goes first.
    let urls = nodes.urls();
    let dir = nodes.servers[1].dir().to_owned();
    let router = RouterProcess::start_at("router", &urls, &dir, &REPLICATED).await;
    let elsewhere = format!("{},{}", nodes.servers[1].url(), nodes.servers[2].url());
    let _worker = sim(&elsewhere, &dir, "a", &["--dp-size", "2", "--speed", "100"]);
    // The other servers hand the frozen one its share of the requests, as long as they keep their routes to it.
    let options = ClientOptions { idle_timeout: Duration::from_secs(2), ..ClientOptions::new(&elsewhere) };
    let client = Client::connect(options).await.expect("a server takes connections");
    let place = served(&client, "s").await;
    let connects = router.metric("nats_connects").await;
    nodes.servers[0].freeze();
    assert_eq!(router.get("/readyz").await.0, 503, "it can't route, and says so");
    let again = async || (router.get("/readyz").await.0 == 200).then_some(());
    eventually("it is ready at another server", LONG, again).await;
    assert!(router.metric("nats_connects").await > connects);
    assert_eq!(served(&client, "s").await, place);
    nodes.servers[0].thaw();
    let still = async || (router.get("/readyz").await.0 == 200).then_some(());
    eventually("it stays ready", PATIENCE, still).await;
    assert_eq!(served(&client, "s").await, place);
}
