//! Messages that should stop a router, and don't.

use futures_util::{FutureExt as _, StreamExt as _};
use rankpin::core::hash::PinKey;
use serde_json::json;

use crate::support::cluster::pin_value;
use crate::support::{Ask, Cluster, PATIENCE, RawClient, Worker, eventually};

/// Header blocks that a server passes on and that the client library can't read: some of them kill it for good.
const POISON: [&[u8]; 6] = [
    b"NATS/1.0\r\nA: x\ry\r\n\r\n",
    b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\n: x\r\n\r\n",
    b"NATS/1.0 abc\r\n\r\n",
    b"garbage\r\n\r\n",
];

/// Waits until a request of a new session is served. While a router builds its client anew, nobody may listen.
async fn serves_again(cluster: &Cluster, session: &str) {
    let served = async || {
        let sent = cluster.send(Ask::new().session(session)).await;
        let answer = tokio::time::timeout(std::time::Duration::from_secs(1), answered(sent)).await;
        answer.is_ok_and(|served| served).then_some(())
    };
    eventually("requests are served again", PATIENCE, served).await;
}

/// Whether the first message that comes is no error.
async fn answered(mut sent: crate::support::frontend::Sent) -> bool {
    let message = sent.next().await;
    message.status.is_none() && crate::support::frontend::find(&message, "Nats-Service-Error").is_none()
}

/// The router's inbox, as a worker has seen it.
async fn inbox_seen_by(cluster: &Cluster, worker: &Worker) -> String {
    cluster.at("seen").await;
    worker.dispatches().last().expect("it was sent").message.reply.clone().expect("an inbox").to_string()
}

#[tokio::test]
async fn header_blocks_that_kill_other_clients_are_refused_and_hurt_nobody() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").ranks(0, 2).start().await;
    let inbox = inbox_seen_by(&cluster, &worker).await;
    let connects = cluster.routers[0].metric("nats_connects").await;
    let mut raw = RawClient::connect(&cluster.server).await;
    raw.subscribe("_INBOX.raw").await;
    for (n, poison) in POISON.into_iter().enumerate() {
        let subjects = [
            "rankpin.request.m",
            "rankpin.trusted.m",
            "rankpin.cancel.x",
            "rankpin.load.w",
            &inbox,
            &format!("{inbox}x"),
        ];
        for subject in subjects {
            raw.publish(subject, Some("_INBOX.raw"), poison, b"{}").await;
        }
        for _ in ["request", "trusted"] {
            let answer = raw.next().await;
            let text = String::from_utf8_lossy(&answer.payload).into_owned();
            assert!(text.contains("invalid_request") && text.contains("header block"), "{text}");
        }
        assert_eq!(cluster.turn(&format!("after-{n}")).await.decision(), "placed");
    }
    assert_eq!(cluster.routers[0].metric("nats_connects").await, connects);
    assert_eq!(worker.dispatches().len(), 1 + POISON.len(), "poison is not passed on");
    assert_eq!(cluster.turn("seen").await.decision(), "pinned");
}

#[tokio::test]
async fn an_accepted_request_outlives_poison_on_every_subject() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").behaves(crate::support::Behaviour::Hold).start().await;
    let sent = cluster.send(Ask::new().session("s")).await;
    let dispatch = worker.dispatch(0).await;
    cluster.routers[0].reaches("requests_waiting", 0.0).await;
    let inbox = dispatch.message.reply.clone().expect("an inbox").to_string();
    let mut raw = RawClient::connect(&cluster.server).await;
    for subject in [&inbox, "rankpin.request.m", "rankpin.cancel.x"] {
        raw.publish(subject, Some("_INBOX.raw"), POISON[0], b"").await;
    }
    raw.settle().await;
    worker.behave(crate::support::Behaviour::Answer);
    serves_again(&cluster, "t").await;
    dispatch.answer().await;
    assert_eq!(sent.end().await.at(), "w");
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
}

#[tokio::test]
async fn stored_poison_stops_neither_who_runs_nor_who_starts() {
    let mut cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 2).start().await;
    let mut raw = RawClient::connect(&cluster.server).await;
    for (n, poison) in POISON.into_iter().enumerate() {
        for bucket in ["rankpin_workers", "rankpin_pins"] {
            raw.publish(&format!("$KV.{bucket}.poison{n}"), None, poison, b"{}").await;
        }
    }
    raw.settle().await;
    serves_again(&cluster, "running").await;
    // What is stored behind the poison is found.
    let _late = cluster.worker("late").start_unnoticed().await;
    let behind = PinKey::of("", "m", "behind").to_string();
    let pin = pin_value("behind", "late", None).to_string();
    cluster.bucket("rankpin_pins").await.put(behind, pin.into()).await.expect("is stored");
    let found =
        async || (cluster.ask(Ask::new().header("Rankpin-Target-Worker", "late")).await.at() == "late").then_some(());
    eventually("a worker that registered behind it is found", PATIENCE * 2, found).await;
    // A write that met the poison has found the bucket unreachable, for a moment.
    cluster.routers[0].reaches("bucket_unreachable", 0.0).await;
    assert_eq!(cluster.turn("behind").await.told(), "late pinned");
    cluster.add_router(&[]).await;
    cluster.knows_workers(2).await;
    for n in 0..10 {
        assert!(!cluster.at(&format!("s{n}")).await.contains(' '));
    }
}

#[tokio::test]
async fn garbage_on_every_subject_is_passed_over() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").ranks(0, 2).start().await;
    let inbox = inbox_seen_by(&cluster, &worker).await;
    let base = inbox.rsplit_once('.').expect("it has a last token").0;
    let mut bodies: Vec<Vec<u8>> = vec![vec![], b"{".into(), b"null".into(), b"\xff\xfe".into(), vec![0; 1000]];
    bodies.push("[".repeat(100_000).into_bytes());
    bodies.push(json!({"v": 1, "worker": "w", "instance": "?", "seq": u64::MAX, "ranks": "all"}).to_string().into());
    let subjects = [
        "rankpin.request.m".to_owned(),
        "rankpin.request".to_owned(),
        "rankpin.request.a.b.c".to_owned(),
        "rankpin.trusted.m".to_owned(),
        "rankpin.cancel.x".to_owned(),
        "rankpin.load.w".to_owned(),
        "rankpin.load.nobody".to_owned(),
        inbox.clone(),
        format!("{base}.zz-1"),
        format!("{base}.1"),
        format!("{base}.p0-0"),
        format!("{base}.ffffffffffffffffff-99999999999"),
        format!("{base}.--"),
    ];
    for _ in 0..20 {
        for subject in &subjects {
            for body in &bodies {
                cluster.client.publish(subject.clone(), body.clone().into()).await.expect("is published");
            }
        }
    }
    crate::support::settle(&cluster.client).await;
    assert_eq!(cluster.turn("seen").await.decision(), "pinned");
    assert_eq!(cluster.turn("new").await.decision(), "placed");
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    assert!(cluster.routers[0].metric("malformed").await > 0.0);
}

#[tokio::test]
async fn a_bad_registration_hurts_nobody_else_and_the_good_one_under_its_key_stands() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").ranks(0, 2).without_heartbeat().start().await;
    let _other = cluster.worker("other").start().await;
    let good = json!({"v": 1, "worker": "w", "instance": "i", "models": ["m"], "dp_start": 0, "dp_size": 2});
    let with = |field: &str, value: serde_json::Value| {
        let mut bad = good.clone();
        bad[field] = value;
        bad.to_string().into_bytes()
    };
    let bad: Vec<Vec<u8>> = vec![
        b"".into(),
        b"{".into(),
        b"[]".into(),
        b"null".into(),
        b"\xff".into(),
        "[".repeat(100_000).into_bytes(),
        vec![b'x'; 400_000],
        with("v", json!(2)),
        with("worker", json!("someone-else")),
        with("models", json!([])),
        with("dp_size", json!(0)),
        with("dp_size", json!(70_000)),
        with("dp_start", json!(65_535)),
        with("weight", json!(-1)),
        with("max_inflight", json!(0)),
        with("state", json!("asleep")),
    ];
    let bucket = cluster.bucket("rankpin_workers").await;
    let count = bad.len();
    for (n, value) in bad.into_iter().enumerate() {
        for key in ["w".to_owned(), format!("bad{n}"), format!("bad.{n}")] {
            bucket.put(key, value.clone().into()).await.expect("is stored");
        }
        worker.report(n as u64 + 1, &[]).await;
    }
    // Each but those that the next one under the same key has replaced before they were read.
    let refused = async || {
        let refused = cluster.routers[0].metric_where("malformed", "registration").await;
        (refused > 2.0 * count as f64).then_some(())
    };
    eventually("all are refused", PATIENCE, refused).await;
    for id in ["w", "other"] {
        assert_eq!(cluster.ask(Ask::new().header("Rankpin-Target-Worker", id)).await.at(), id);
    }
    // Its own time is up: a bad value is no sign of life.
    let up = async || {
        bucket.put("w", "garbage".into()).await.expect("is stored");
        (cluster.routers[0].metric("workers").await == 1.0).then_some(())
    };
    eventually("the silent worker is lost", PATIENCE, up).await;
}

#[tokio::test]
async fn a_flood_of_requests_is_answered_each_one() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    let mut sent = Vec::new();
    for n in 0..600 {
        let ask = match n % 4 {
            0 => Ask::new().session(&format!("s{}", n % 7)),
            1 => Ask::new(),
            2 => Ask::new().model("unknown"),
            _ => Ask::new().body("garbage"),
        };
        sent.push(cluster.send(ask).await);
    }
    for (n, sent) in sent.into_iter().enumerate() {
        let at = sent.end().await.at();
        let wanted = match n % 4 {
            0 => super::hashed_at("w", &format!("s{}", n % 7), 0, 4),
            1 => "w".into(),
            2 => "404 unknown_model".into(),
            _ => "400 invalid_request".into(),
        };
        assert_eq!(at, wanted);
    }
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    assert!(cluster.subscribe("_INBOX.nobody").await.next().now_or_never().is_none());
}
