//! Errors that a router gives, each with status, code word and shape (protocol sections 1, 3, 6.1).

use crate::support::server::Options;
use crate::support::{Ask, Behaviour, Cluster, NatsServer};

fn body(text: &str) -> Ask {
    Ask::new().on("rankpin.request").body(text.to_owned())
}

#[tokio::test]
async fn requests_that_break_the_protocol_are_refused() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").start().await;
    let long = "x".repeat(257);
    let header = |name: &str, value: &str| Ask::new().header(name, value);
    let rows = [
        (header("Rankpin-Session-Id", &long), "400 invalid_session_id"),
        (header("session_id", &long), "400 invalid_session_id"),
        (header("thread-id", "a\u{7f}b"), "400 invalid_session_id"),
        (header("x-session-id", "\u{1}px:00"), "400 invalid_session_id"),
        (header("Rankpin-Timeout-Ms", "-1"), "400 invalid_request"),
        (header("Rankpin-Timeout-Ms", "1.5"), "400 invalid_request"),
        (header("Rankpin-Timeout-Ms", "4294967296"), "400 invalid_request"),
        (header("Rankpin-Deadline-Ms", "soon"), "400 invalid_request"),
        (header("Rankpin-Priority", "2147483648"), "400 invalid_request"),
        (header("Rankpin-Priority", "high"), "400 invalid_request"),
        (header("Rankpin-Request-Id", "a b"), "400 invalid_request"),
        (header("Rankpin-Request-Id", &long), "400 invalid_request"),
        (header("Rankpin-Tenant", &long), "400 invalid_request"),
        (Ask::new().on("rankpin.request.a.b"), "400 invalid_request"),
        (Ask::new().on("rankpin.trusted.a.b"), "400 invalid_request"),
        (Ask::new().model("%zz"), "400 invalid_request"),
        (Ask::new().model("%FF"), "400 invalid_request"),
        (Ask::new().model(&long), "400 invalid_request"),
        (body("{\"messages\":[]}"), "400 invalid_request"),
        (body("{\"model\":7}"), "400 invalid_request"),
        (body("{\"model\":\"\"}"), "400 invalid_request"),
        (body(&format!("{{\"model\":\"{long}\"}}")), "400 invalid_request"),
        (body("nope"), "400 invalid_request"),
        (Ask::new().model("other"), "404 unknown_model"),
        (body("{\"model\":\"other\"}"), "404 unknown_model"),
        // Fine, each just so.
        (header("Rankpin-Session-Id", &long[..256]), "w"),
        (header("Rankpin-Session-Id", " \t "), "w"),
        (header("Rankpin-Timeout-Ms", "4294967295"), "w"),
        (header("Rankpin-Priority", "-2147483648"), "w"),
        (header("Rankpin-Tenant", &long[..256]), "w"),
        (Ask::new().model("%6d"), "w"),
        (Ask::new().session("s").body("nope"), "w"),
        (body("{\"model\":\"m\"}"), "w"),
    ];
    let mut served = 0;
    for (ask, wanted) in rows {
        let what = format!("{ask:?}");
        let answer = cluster.ask(ask).await;
        assert_eq!(answer.at(), wanted, "{what}");
        match wanted {
            "w" => served += 1,
            _ => drop(answer.router_refusal()),
        }
    }
    assert_eq!(worker.count(), served);
    // What is wrong is named.
    let named = cluster.ask(header("Rankpin-Timeout-Ms", "soon")).await.router_refusal();
    assert!(named.message.contains("Rankpin-Timeout-Ms") && named.message.contains("soon"), "{}", named.message);
    let id = cluster.ask(header("Rankpin-Request-Id", "a b")).await;
    let made = id.header("Rankpin-Request-Id").expect("one is made");
    assert_eq!(uuid::Uuid::parse_str(made).expect("a UUID").get_version_num(), 7);
}

#[tokio::test]
async fn bodies_are_judged_only_where_they_are_read() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").start().await;
    let deep = format!("{{\"model\":\"m\",\"x\":{}{}}}", "[".repeat(200), "]".repeat(200));
    let rows = [
        ("", "400 invalid_request"),
        ("{\"messages\":[]} x", "400 invalid_request"),
        ("\u{feff}{\"messages\":[]}", "400 invalid_request"),
        ("{\"messages\":[],\"messages\":[]}", "400 invalid_request"),
        ("{\"input\":\"a\",\"input\":\"b\"}", "400 invalid_request"),
        ("{\"system\":\"a\",\"system\":\"b\"}", "400 invalid_request"),
        ("{\"model\":\"a\",\"model\":\"b\"}", "400 invalid_request"),
        ("{\"messages\":\"none\"}", "w"),
        ("{\"messages\":7}", "w"),
        ("{}", "w"),
        ("[]", "w"),
        ("7", "w"),
        ("{\"other\":1e999,\"lone\":\"\\ud800\"}", "w"),
        (&deep, "w"),
    ];
    for (text, wanted) in rows {
        assert_eq!(cluster.ask(Ask::new().body(text.to_owned())).await.at(), wanted, "{text:.60}");
        // With a session named and the model in the subject it's opaque.
        assert_eq!(cluster.ask(Ask::new().session("s").body(text.to_owned())).await.at(), "w", "{text:.60}");
    }
    for media in ["application/msgpack", "Application/X-MsgPack; v=1", "application/vnd.msgpack"] {
        let packed = rmp_serde::to_vec_named(&serde_json::json!({"model": "m", "messages": []})).expect("plain data");
        let ask = || Ask::new().on("rankpin.request").header("Content-Type", media);
        assert_eq!(cluster.ask(ask().body(packed)).await.at(), "w");
        assert_eq!(cluster.ask(ask().body("{\"model\":\"m\"}")).await.at(), "400 invalid_request");
    }
}

#[tokio::test]
async fn a_request_that_its_headers_make_too_large_is_refused_at_once() {
    let options = Options { config: "max_payload: 4096".into(), ..Options::default() };
    let cluster = Cluster::on(NatsServer::start_with(options), 1, &[]).await;
    let worker = cluster.worker("w").ranks(0, 2).start().await;
    // Small enough to be sent, and not to be sent on with what the router adds.
    let ask = Ask::new().session("s").body(vec![b'x'; 3990]);
    let refusal = cluster.ask(ask).await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (413, "payload_too_large"));
    assert!(refusal.message.contains("4096"), "{}", refusal.message);
    assert_eq!(cluster.pin("s").await, None);
    assert_eq!(worker.count(), 0);
    assert_eq!(cluster.ask(Ask::new().session("s").body(vec![b'x'; 3000])).await.decision(), "placed");
}

#[tokio::test]
async fn a_plain_answer_that_is_too_large_to_relay_is_an_error() {
    let options = Options { config: "max_payload: 4096".into(), ..Options::default() };
    let cluster = Cluster::on(NatsServer::start_with(options), 1, &[]).await;
    let large = Behaviour::script(|dispatch| async move { dispatch.event(&[("X", "y")], &"x".repeat(4000)).await });
    let _w = cluster.worker("w").with("plain", true).behaves(large).start().await;
    assert_eq!(cluster.at("s").await, "413 payload_too_large");
}

#[tokio::test]
async fn a_deadline_ends_the_request_wherever_it_is() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").with("max_inflight", 1).behaves(Behaviour::Silent).start().await;
    let ask = |session: &str| Ask::new().session(session).id(session).header("Rankpin-Deadline-Ms", "400");
    // Dispatched and not accepted.
    let refusal = cluster.ask(ask("silent")).await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (504, "deadline"));
    assert_eq!(worker.cancel(0).await, ("silent".to_owned(), "1".to_owned()));
    // Accepted.
    worker.behave(Behaviour::Hold);
    assert_eq!(cluster.ask(ask("accepted")).await.at(), "504 deadline");
    assert_eq!(worker.cancel(1).await, ("accepted".to_owned(), "1".to_owned()));
    assert_eq!(cluster.pinned_at("accepted").await.as_deref(), Some("w"), "the worker has seen the session");
    // Waiting for room.
    let held = cluster.send(Ask::new().session("held")).await;
    worker.dispatch(2).await;
    assert_eq!(cluster.ask(ask("queued")).await.at(), "504 deadline");
    assert_eq!(worker.count(), 3);
    worker.dispatch(2).await.answer().await;
    assert_eq!(held.end().await.at(), "w");
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    // The room of all of them is free again.
    worker.behave(Behaviour::Answer);
    assert_eq!(cluster.at("next").await, "w");
}

#[tokio::test]
async fn untrusted_frontends_say_tenant_and_priority_only_on_the_trusted_subject() {
    let cluster = Cluster::with(1, &[("untrusted_frontends", "true")]).await;
    let _w = cluster.worker("w").start().await;
    let ask = || Ask::new().session("s").header("Rankpin-Tenant", "t").header("Rankpin-Priority", "7");
    assert_eq!(cluster.ask(ask()).await.decision(), "placed");
    assert!(cluster.pin("s").await.is_some() && cluster.pin_of("t", "m", "s").await.is_none());
    assert_eq!(cluster.ask(ask().on("rankpin.trusted.m")).await.decision(), "placed");
    assert!(cluster.pin_of("t", "m", "s").await.is_some());
    let junk = ask().header("Rankpin-Priority", "junk").header("Rankpin-Tenant", "\u{7f}");
    assert_eq!(cluster.ask(junk).await.at(), "w");
}

#[tokio::test]
async fn a_router_that_stops_answers_what_no_worker_has_accepted() {
    let mut cluster = Cluster::with(1, &[("drain_timeout", "0s")]).await;
    let worker = cluster.worker("w").behaves(Behaviour::Silent).start().await;
    let sent = cluster.send(Ask::new().session("s").id("r")).await;
    worker.dispatch(0).await;
    let mut router = cluster.routers.remove(0);
    router.tell_to_stop();
    let refusal = sent.end().await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (503, "shutting_down"));
    assert_eq!(worker.cancel(0).await, ("r".to_owned(), "1".to_owned()));
    router.ended().await;
    assert_eq!(cluster.pin("s").await, None);
}
