//! What a router carries to a worker, and what it adds (protocol section 6).

use std::collections::BTreeMap;

use futures_util::StreamExt as _;

use crate::support::{Ask, Behaviour, Cluster, so_far};

#[tokio::test]
async fn headers_of_the_frontend_go_on_and_the_routers_own_cannot_be_forged() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").ranks(0, 2).start().await;
    let ask = Ask::new().session("s").headers(&[
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("X-Twice", "one"),
        ("X-Twice", "two"),
        ("Content-Type", "application/json"),
        ("Rankpin-Tenant", "t"),
        ("Rankpin-Made-Up", "kept"),
        ("Nats-Msg-Id", "7"),
        ("nats-expected-stream", "S"),
        ("Rankpin-Worker", "forged"),
        ("rankpin-dp-rank", "forged"),
        ("RANKPIN-REPLY-TO", "forged"),
        ("Rankpin-Session", "forged"),
        ("Rankpin-Accept-By", "1"),
        ("rankpin-attempt", "99"),
        ("Rankpin-Decision", "forged"),
    ]);
    let sent = cluster.send(ask).await;
    let inbox = sent.inbox.clone();
    let at = sent.end().await.at();
    let dispatch = worker.dispatch(0).await;
    let mut carried = BTreeMap::<String, Vec<String>>::new();
    for (name, values) in dispatch.message.headers.as_ref().expect("there are headers").iter() {
        let all = carried.entry(AsRef::<str>::as_ref(name).to_owned()).or_default();
        all.extend(values.iter().map(|value| value.as_str().to_owned()));
    }
    let mut take = |name: &str| carried.remove(name).unwrap_or_default().join("|");
    let id = take("Rankpin-Request-Id");
    assert_eq!(uuid::Uuid::parse_str(&id).expect("a UUID").get_version_num(), 7);
    let accept_by = take("Rankpin-Accept-By");
    assert!(accept_by.parse::<u64>().expect("unix ms") > 1_600_000_000_000);
    let rank = super::hashed("s", 0, 2).to_string();
    for (name, value) in [
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("X-Twice", "one|two"),
        ("Content-Type", "application/json"),
        ("Rankpin-Tenant", "t"),
        ("Rankpin-Session-Id", "s"),
        ("Rankpin-Made-Up", "kept"),
        ("Rankpin-Reply-To", &inbox),
        ("Rankpin-Worker", "w"),
        ("Rankpin-Dp-Rank", &rank),
        ("Rankpin-Session", "s"),
        ("Rankpin-Attempt", "1"),
        ("Rankpin-Decision", "placed"),
    ] {
        assert_eq!(take(name), value, "{name}");
    }
    assert!(carried.is_empty(), "more than was sent: {carried:?}");
    assert_eq!(at, format!("w/{rank}"));
}

#[tokio::test]
async fn a_given_request_id_is_kept() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").start().await;
    let id = "x".repeat(64);
    assert_eq!(cluster.ask(Ask::new().id(&id)).await.header("Rankpin-Request-Id"), Some(id.as_str()));
    assert_eq!(worker.dispatch(0).await.header("Rankpin-Request-Id"), Some(id.as_str()));
}

#[tokio::test]
async fn the_payload_goes_on_byte_for_byte() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").start().await;
    let all: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for payload in [vec![], b"\0".to_vec(), b"{ \"a\" : 1e999 }\r\n".to_vec(), all] {
        let n = worker.count();
        assert_eq!(cluster.ask(Ask::new().session("s").body(payload.clone())).await.at(), "w");
        assert!(worker.dispatch(n).await.message.payload == payload);
    }
}

#[tokio::test]
async fn a_request_without_reply_is_dispatched_without_one() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").start().await;
    let mut sent = cluster.send(Ask::new().session("s").without_reply()).await;
    let dispatch = worker.dispatch(0).await;
    assert_eq!(dispatch.header("Rankpin-Reply-To"), None);
    assert!(dispatch.message.reply.is_some(), "the router still wants to hear of it");
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    // Its errors are counted, as nobody can be told.
    worker.behave(Behaviour::Reject(400, "bad"));
    cluster.send(Ask::new().without_reply()).await;
    cluster.send(Ask::new().without_reply().model("unknown")).await;
    let counted = crate::support::eventually("the errors are counted", crate::support::PATIENCE, async || {
        let refused = cluster.routers[0].metric_where("requests", "refused_by_worker").await;
        let unknown = cluster.routers[0].metric_where("requests", "unknown_model").await;
        ((refused, unknown) == (1.0, 1.0)).then_some(())
    });
    counted.await;
    assert!(sent.is_silent());
}

#[tokio::test]
async fn a_reply_subject_outside_the_prefixes_is_never_published_to() {
    let cluster = Cluster::with(2, &[("reply_prefixes", "_INBOX.,answers.")]).await;
    let worker = cluster.worker("w").start().await;
    let mut tap = cluster.subscribe(">").await;
    let bad =
        ["elsewhere", "$KV.rankpin_pins.x", "$JS.API.STREAM.DELETE.KV_rankpin_pins", "rankpin.request.other", "_INBOX"];
    for (n, reply) in bad.iter().enumerate() {
        // Whether it could be served, would be refused, or is none at all.
        let models = ["m", "unknown", "%zz"];
        let subject = format!("rankpin.request.{}", models[n % models.len()]);
        cluster.client.publish_with_reply(subject, *reply, "{".into()).await.expect("is published");
    }
    let dropped = async || {
        let mut dropped = 0.0;
        for router in &cluster.routers {
            dropped += router.metric("requests_dropped_reply_subject").await;
        }
        (dropped == bad.len() as f64).then_some(())
    };
    crate::support::eventually("all are dropped", crate::support::PATIENCE, dropped).await;
    let mut good = cluster.subscribe("answers.>").await;
    cluster
        .client
        .publish_with_reply("rankpin.request.m", "answers.1", "{\"messages\":[]}".into())
        .await
        .expect("sent");
    let answer = tokio::time::timeout(crate::support::PATIENCE, good.next()).await.expect("in time").expect("lives");
    assert_eq!(&answer.payload[..], b"done");
    for message in so_far(&cluster.client, &mut tap).await {
        let subject = message.subject.as_str();
        let asked = message.reply.as_deref().is_some_and(|reply| bad.contains(&reply));
        assert!(asked || !bad.contains(&subject), "published to {subject}");
    }
    assert_eq!(worker.count(), 1);
}

#[tokio::test]
async fn a_routers_own_inbox_is_no_place_for_replies() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").start().await;
    cluster.at("s").await;
    let inbox = worker.dispatch(0).await.message.reply.clone().expect("a dispatch has the router's inbox");
    cluster.client.publish_with_reply("rankpin.request.m", inbox, "{\"messages\":[]}".into()).await.expect("is sent");
    cluster.routers[0].reaches("requests_dropped_reply_subject", 1.0).await;
    assert_eq!(worker.count(), 1);
}

#[tokio::test]
async fn a_pinned_request_costs_five_messages_and_no_round_trip() {
    const TURNS: usize = 40;
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 2).without_heartbeat().start().await;
    let at = cluster.at("s").await;
    let rank = at.split('/').nth(1).expect("a rank").to_owned();
    let mut tap = cluster.subscribe(">").await;
    for _ in 0..TURNS {
        assert_eq!(cluster.turn("s").await.told(), format!("{at} pinned"));
    }
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    let mut counts = BTreeMap::<String, usize>::new();
    for message in so_far(&cluster.client, &mut tap).await {
        let subject = message.subject.as_str();
        let event = crate::support::frontend::find(&message, "Rankpin-Event");
        let kind = match (subject, event) {
            (_, Some(event)) => event.to_owned(),
            ("rankpin.request.m", _) => "request".to_owned(),
            _ if subject == format!("rankpin.worker.w.rank.{rank}") => "dispatch".to_owned(),
            _ if message.headers.is_some() && subject.starts_with("_INBOX.") => "reply".to_owned(),
            // Now and then, whatever the requests: whether the buckets are still the same, answers to that, probes.
            _ if subject.starts_with("$JS.API.STREAM.INFO.") || subject.starts_with("_INBOX") => continue,
            _ if subject.starts_with("$JS.") && !subject.contains("GET") => continue,
            ("rankpin.worker.w.cancel", _) => continue,
            _ => subject.to_owned(),
        };
        *counts.entry(kind).or_default() += 1;
    }
    let wanted = ["accepted", "dispatch", "finished", "reply", "request"].map(|kind| (kind.to_owned(), TURNS));
    assert_eq!(counts, BTreeMap::from(wanted));
    assert_eq!(cluster.routers[0].metric("pin_leader_reads").await, 0.0);
}
