//! Servers that are full, frozen or slow to be read.

use std::time::Duration;

use async_nats::jetstream::{self, kv};

use super::LONG;
use crate::support::process::Signal;
use crate::support::server::Options;
use crate::support::{Ask, Cluster, NatsServer, PATIENCE, RouterProcess, eventually};

#[tokio::test]
async fn a_pins_bucket_that_is_full_keeps_what_it_has_and_new_sessions_are_served() {
    let server = NatsServer::start();
    let client = server.client().await;
    let config = kv::Config {
        bucket: "rankpin_pins".into(),
        history: 1,
        max_age: Duration::from_secs(3600),
        max_bytes: 2_000,
        ..kv::Config::default()
    };
    let js = jetstream::new(client.clone());
    js.create_key_value(config).await.expect("the bucket is made");
    let cluster = Cluster::on(server, 2, &[]).await;
    let _a = cluster.worker("a").ranks(0, 4).start().await;
    let _b = cluster.worker("b").ranks(4, 4).start().await;
    cluster.knows_workers(2).await;
    let first = cluster.at("first").await;
    assert!(!first.contains(' '), "{first}");
    let mut unpinned = Vec::new();
    for n in 0..40 {
        let session = format!("s{n}");
        let told = cluster.turn(&session).await.told();
        assert!(told.contains(" placed"), "{told}");
        if told.ends_with("bucket-unreachable") {
            unpinned.push((session.clone(), told.split(' ').next().expect("a place").to_owned()));
            // Routers still agree: each turn finds the same by the hash.
            for _ in 0..3 {
                assert_eq!(cluster.at(&session).await, told.split(' ').next().expect("a place"));
            }
        }
    }
    assert!(!unpinned.is_empty(), "the bucket is full by now");
    let mut said = 0.0;
    for router in &cluster.routers {
        said += router.metric("bucket_unreachable").await;
    }
    assert!(said > 0.0, "somebody is told");
    assert_eq!(cluster.turn("first").await.told(), format!("{first} pinned"));
    assert!(!cluster.ask(Ask::new()).await.at().contains(' '), "what has no session needs no bucket");
    let mut stream = js.get_stream("KV_rankpin_pins").await.expect("there").cached_info().config.clone();
    stream.max_bytes = 1 << 20;
    js.update_stream(&stream).await.expect("there is room");
    for router in &cluster.routers {
        router.reaches("bucket_unreachable", 0.0).await;
    }
    for (session, place) in &unpinned {
        let pinned = format!("{place} pinned");
        let told = async || (cluster.turn(session).await.told() == pinned).then_some(());
        eventually("it is pinned where it was", PATIENCE, told).await;
    }
}

#[tokio::test]
async fn a_router_whose_server_is_frozen_is_not_ready() {
    let server = NatsServer::start();
    let router = RouterProcess::start("router", &server, &[]).await;
    assert_eq!(router.get("/readyz").await.0, 200);
    server.freeze();
    assert_eq!(router.get("/readyz").await.0, 503);
    assert_eq!(router.get("/healthz").await.0, 200, "it lives");
    server.thaw();
    let ready = async || (router.get("/readyz").await.0 == 200).then_some(());
    eventually("it is ready again", PATIENCE, ready).await;
}

#[tokio::test]
async fn a_router_whose_server_is_gone_is_not_ready_until_it_is_back() {
    let mut server = NatsServer::start();
    let router = RouterProcess::start("router", &server, &[]).await;
    server.kill();
    let not_ready = async || (router.get("/readyz").await.0 == 503).then_some(());
    eventually("it is not ready", PATIENCE, not_ready).await;
    server.restart();
    let ready = async || (router.get("/readyz").await.0 == 200).then_some(());
    eventually("it is ready again", PATIENCE, ready).await;
}

#[tokio::test]
async fn a_router_that_read_too_slowly_and_was_cut_off_comes_back() {
    let config = "max_pending: 1048576".into();
    let server = NatsServer::start_with(Options { config, ..Options::default() });
    let router = RouterProcess::start("router", &server, &[]).await;
    let cluster = Cluster::on(server, 0, &[]).await;
    let _w = cluster.worker("w").ranks(0, 2).start().await;
    let served = async || Some(cluster.at("s").await).filter(|at| !at.contains(' '));
    let at = eventually("the worker is known", PATIENCE, served).await;
    let connects = router.metric("nats_connects").await;
    // It stands still, while more comes than the server keeps for it.
    router.process.signal(Signal::Stop);
    let flood = vec![0_u8; 256 * 1024];
    for _ in 0..64 {
        cluster.client.publish("rankpin.load.nobody", flood.clone().into()).await.expect("is published");
    }
    crate::support::settle(&cluster.client).await;
    let client = &cluster.server;
    let cut = async || client.log().contains("Slow Consumer").then_some(());
    eventually("the server cuts it off", LONG, cut).await;
    router.process.signal(Signal::Continue);
    let again = async || (router.metric("nats_connects").await > connects).then_some(());
    eventually("it connects again", PATIENCE, again).await;
    let back = async || {
        let told = cluster.turn("s").await.told();
        (told == format!("{at} pinned")).then_some(())
    };
    eventually("it serves again, and knows its pins", LONG, back).await;
}
