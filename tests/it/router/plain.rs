//! Plain NATS responders as workers (protocol section 6).

use crate::support::frontend::find;
use crate::support::{Ask, Behaviour, Cluster, NatsServer, PATIENCE, eventually};

fn responder(headers: &'static [(&'static str, &'static str)], payload: &'static str) -> Behaviour {
    Behaviour::script(move |dispatch| async move { dispatch.event(headers, payload).await })
}

#[tokio::test]
async fn its_whole_answer_is_relayed() {
    let cluster = Cluster::start().await;
    let headers: &[_] =
        &[("Content-Type", "text/plain"), ("X-Model", "m1"), ("Rankpin-Forged", "x"), ("Nats-Msg-Id", "7")];
    let worker = cluster.worker("w").ranks(0, 2).with("plain", true).behaves(responder(headers, "hello")).start().await;
    let answer = cluster.ask(Ask::new().session("s").id("r")).await;
    assert_eq!(answer.at(), super::hashed_at("w", "s", 0, 2));
    assert_eq!(&answer.last.payload[..], b"hello");
    for (name, value) in [
        ("Content-Type", Some("text/plain")),
        ("X-Model", Some("m1")),
        ("Rankpin-Forged", None),
        ("Nats-Msg-Id", None),
        ("Rankpin-Request-Id", Some("r")),
        ("Rankpin-Seq", Some("0")),
        ("Rankpin-Final", Some("true")),
        ("Rankpin-Decision", Some("placed")),
    ] {
        assert_eq!(answer.header(name), value, "{name}");
    }
    assert_eq!(cluster.turn("s").await.decision(), "pinned");
    worker.behave(responder(&[("Nats-Service-Error-Code", "500"), ("Nats-Service-Error", "boom")], "broken"));
    let failed = cluster.turn("s").await;
    assert_eq!(find(&failed.last, "Nats-Service-Error-Code"), Some("500"));
    assert_eq!(find(&failed.last, "Nats-Service-Error"), Some("boom"));
    assert_eq!(&failed.last.payload[..], b"broken");
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
}

#[tokio::test]
async fn it_is_waited_for_longer_than_the_accept_timeout() {
    let cluster = Cluster::with(1, &[("accept_timeout", "100ms")]).await;
    let slow = Behaviour::script(|dispatch| async move {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        dispatch.event(&[], "slow").await;
    });
    let worker = cluster.worker("w").with("plain", true).behaves(slow).start().await;
    let answer = cluster.turn("s").await;
    assert_eq!((answer.at().as_str(), &answer.last.payload[..]), ("w", &b"slow"[..]));
    assert_eq!(worker.count(), 1);
    // Its own timeout is the request's.
    worker.behave(Behaviour::Silent);
    assert_eq!(cluster.ask(Ask::new().timeout_ms(200)).await.at(), "504 accept_timeout");
}

#[tokio::test]
async fn an_answer_without_event_from_another_worker_is_none() {
    let cluster = Cluster::with(1, &[("accept_timeout", "400ms")]).await;
    let _w = cluster.worker("w").behaves(responder(&[], "forged")).start().await;
    assert_eq!(cluster.at("s").await, "504 accept_timeout");
    assert_eq!(cluster.routers[0].metric_where("malformed", "event").await, 1.0);
}

#[tokio::test]
async fn services_from_the_configuration_are_workers() {
    let server = NatsServer::start();
    let file = server.dir().join("rankpin.toml");
    let text = r#"
        [[worker]]
        id = "legacy"
        models = ["m"]
        subject = "svc.legacy"

        [[worker]]
        id = "ranked"
        models = ["n"]
        subject = "svc.ranked.{rank}"
        dp_start = 4
        dp_size = 4
    "#;
    std::fs::write(&file, text).expect("is written");
    let path = file.to_str().expect("a path in UTF-8").to_owned();
    let cluster = Cluster::on(server, 1, &[("config", &path)]).await;
    assert_eq!(cluster.routers[0].metric("workers").await, 2.0);
    assert_eq!(cluster.at("s").await, "503 no_worker");
    let client = cluster.server.client().await;
    let mut requests = client.subscribe("svc.>").await.expect("subscribes");
    crate::support::settle(&client).await;
    let service = tokio::spawn(async move {
        while let Some(message) = futures_util::StreamExt::next(&mut requests).await {
            let subject = message.subject.to_string();
            client.publish(message.reply.expect("a request"), subject.into()).await.expect("is published");
        }
    });
    let at = super::hashed_at("ranked", "s", 4, 4);
    let rank = at.split('/').nth(1).expect("a rank").to_owned();
    let answer = async |ask: Ask| {
        let answer = cluster.ask(ask).await;
        (answer.at(), String::from_utf8(answer.last.payload.to_vec()).expect("text"))
    };
    let ranked = Ask::new().model("n").session("s");
    assert_eq!(answer(ranked).await, (at, format!("svc.ranked.{rank}")));
    assert_eq!(answer(Ask::new().model("n")).await, ("ranked".into(), "svc.ranked.any".into()));
    // The worker of the first request is marked lost for some seconds.
    let back = async || (cluster.at("s").await == "legacy").then_some(());
    eventually("the service is tried again", PATIENCE, back).await;
    // A registration under a configured name is refused.
    let _forged = cluster.worker("legacy").start_unnoticed().await;
    let _real = cluster.worker("real").start().await;
    assert_eq!(answer(Ask::new().header("Rankpin-Target-Worker", "legacy")).await.1, "svc.legacy");
    service.abort();
}
