//! Pins in the bucket (protocol sections 5 and 8): confirmed, refreshed, replaced, expired.

use std::time::{Duration, Instant};

use serde_json::json;

use super::hashed_at;
use crate::support::cluster::pin_value;
use crate::support::{Cluster, PATIENCE, eventually};

#[tokio::test]
async fn a_young_pin_of_another_router_is_put_again_once() {
    let cluster = Cluster::with(2, &[]).await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    let first = cluster.put_pin("s", "w", Some(3)).await;
    for router in &cluster.routers {
        router.reaches("pins_mirrored", 1.0).await;
    }
    // Whoever claimed it can't take it back any more once somebody has used it.
    let mut revisions = Vec::new();
    for _ in 0..20 {
        assert_eq!(cluster.turn("s").await.told(), "w/3 pinned");
        let (pin, revision) = cluster.pin("s").await.expect("it stays");
        assert_eq!(pin, pin_value("s", "w", Some(3)));
        revisions.push(revision);
    }
    assert!(revisions[0] > first, "{first}, then {revisions:?}");
    revisions.dedup();
    // Once by each of the two routers at most.
    assert!(revisions.len() <= 2, "{revisions:?}");
}

#[tokio::test]
async fn an_own_pin_is_not_written_by_use() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    cluster.at("s").await;
    let before = cluster.pin("s").await;
    for _ in 0..10 {
        assert_eq!(cluster.turn("s").await.decision(), "pinned");
    }
    assert_eq!(cluster.pin("s").await, before);
    assert_eq!(cluster.routers[0].metric("pin_leader_reads").await, 0.0);
}

#[tokio::test]
async fn use_refreshes_a_pin_once_per_quarter_of_its_time() {
    let ttl = Duration::from_secs(2);
    let cluster = Cluster::with(1, &[("pin_ttl", "2s")]).await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    let began = Instant::now();
    let at = cluster.at("s").await;
    let mut revisions = vec![cluster.pin("s").await.expect("it is pinned").1];
    let refreshed = eventually("the pin is refreshed three times", PATIENCE, async || {
        assert_eq!(cluster.turn("s").await.told(), format!("{at} pinned"));
        let (_, revision) = cluster.pin("s").await.expect("use keeps it");
        if revisions.last() != Some(&revision) {
            revisions.push(revision);
        }
        (revisions.len() > 3).then_some(())
    });
    refreshed.await;
    // Its age is refreshed in time, and not with every use.
    let quarters = began.elapsed().as_secs_f64() / (ttl.as_secs_f64() / 4.0);
    assert!(revisions.len() as f64 <= quarters + 2.0, "{revisions:?} in {quarters} quarters");
    assert!(revisions.windows(2).all(|pair| pair[1] == pair[0] + 1), "{revisions:?}: nothing else is written");
}

#[tokio::test]
async fn an_unused_pin_expires() {
    let cluster = Cluster::with(1, &[("pin_ttl", "1s")]).await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    assert_eq!(cluster.turn("s").await.decision(), "placed");
    let gone = async || cluster.pin("s").await.is_none().then_some(());
    eventually("the server drops it", PATIENCE, gone).await;
    cluster.routers[0].reaches("pins_mirrored", 0.0).await;
    assert_eq!(cluster.turn("s").await.decision(), "placed");
    assert!(cluster.pin("s").await.is_some());
}

#[tokio::test]
async fn what_is_no_pin_of_this_session_is_replaced() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    let other = |field: &str, value: serde_json::Value| {
        let mut pin = pin_value("s", "elsewhere", Some(1));
        pin[field] = value;
        pin.to_string().into_bytes()
    };
    let values: Vec<Vec<u8>> = vec![
        b"".into(),
        b"{".into(),
        b"[]".into(),
        b"null".into(),
        b"{\"v\":1}".into(),
        b"\xff\xfe".into(),
        "[".repeat(100_000).into_bytes(),
        vec![b' '; 20_000],
        other("v", json!(2)),
        other("session", json!("t")),
        other("model", json!("n")),
        other("tenant", json!("u")),
        other("worker", json!("no.worker")),
        other("worker", json!(7)),
        other("dp_rank", json!(-1)),
        other("dp_rank", json!(65_536)),
        other("dp_rank", json!("1")),
    ];
    for (n, value) in values.iter().enumerate() {
        // Each under the key of a session of its own, except that the values name session s.
        let session = if value.windows(9).any(|text| text == b"\"session\"") { "s".into() } else { format!("s{n}") };
        let revision = cluster.put_pin_value(&session, value).await;
        let what = format!("{session}: {:?}", String::from_utf8_lossy(&value[..value.len().min(80)]));
        let at = hashed_at("w", &session, 0, 4);
        let taken = eventually(&what, PATIENCE, async || {
            let answer = cluster.turn(&session).await;
            let (_, now) = cluster.pin(&session).await.filter(|(pin, _)| pin["worker"] == "w")?;
            (now > revision).then(|| answer.at())
        });
        assert_eq!(taken.await, at, "{what}");
        assert_eq!(cluster.pinned_at(&session).await, Some(at), "{what}");
    }
}

#[tokio::test]
async fn a_deleted_pin_is_placed_anew() {
    let cluster = Cluster::with(2, &[]).await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    cluster.at("s").await;
    let key = rankpin::core::hash::PinKey::of("", "m", "s").to_string();
    for _ in 0..3 {
        cluster.bucket("rankpin_pins").await.delete(&key).await.expect("is deleted");
        let placed = async || (cluster.turn("s").await.decision() == "placed").then_some(());
        eventually("the session is placed anew", PATIENCE, placed).await;
        assert_eq!(cluster.pinned_at("s").await, Some(hashed_at("w", "s", 0, 4)));
    }
}

#[tokio::test]
async fn fields_of_a_newer_router_are_no_reason_to_refuse_a_pin() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    let mut pin = pin_value("s", "w", Some(2));
    pin["since"] = json!({"some": ["thing"]});
    cluster.put_pin_value("s", pin.to_string().as_bytes()).await;
    assert_eq!(cluster.turn("s").await.told(), "w/2 pinned");
}

#[tokio::test]
async fn a_router_that_starts_reads_the_pins_first() {
    let mut cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    let mut pins = Vec::new();
    for n in 0..30u16 {
        let session = format!("s{n}");
        cluster.put_pin(&session, "w", Some(n % 4)).await;
        pins.push((session, format!("w/{} pinned", n % 4)));
    }
    cluster.routers.clear();
    cluster.add_router(&[]).await;
    assert_eq!(cluster.routers[0].metric("pins_mirrored").await, 30.0);
    for (session, told) in pins {
        assert_eq!(cluster.turn(&session).await.told(), told);
    }
}

#[tokio::test]
async fn a_bucket_that_differs_is_left_as_it_is() {
    let server = crate::support::NatsServer::start();
    let context = async_nats::jetstream::new(server.client().await);
    let config = async_nats::jetstream::kv::Config {
        bucket: "rankpin_pins".into(),
        history: 3,
        max_age: Duration::from_secs(90),
        ..Default::default()
    };
    context.create_key_value(config).await.expect("the bucket is made");
    let cluster = Cluster::on(server, 1, &[]).await;
    let _w = cluster.worker("w").start().await;
    assert_eq!(cluster.at("s").await, "w");
    let stream = context.get_stream("KV_rankpin_pins").await.expect("it is there");
    let config = &stream.cached_info().config;
    assert_eq!((config.max_messages_per_subject, config.max_age), (3, Duration::from_secs(90)));
    let workers = context.get_stream("KV_rankpin_workers").await.expect("it was made");
    let config = &workers.cached_info().config;
    assert_eq!((config.max_messages_per_subject, config.max_age), (1, Duration::from_secs(30)));
}
