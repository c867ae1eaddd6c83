//! Acceptance and what comes in its place (protocol section 6).

use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{Ask, Behaviour, Cluster, PATIENCE, eventually};

const QUICK: &[(&str, &str)] = &[("accept_timeout", "1s")];

fn unix_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis()
}

#[tokio::test]
async fn a_silent_worker_is_given_up_and_told_so() {
    let cluster = Cluster::with(1, QUICK).await;
    let a = cluster.worker("a").behaves(Behaviour::Silent).start().await;
    let before = unix_ms();
    let sent = cluster.send(Ask::new().session("s").id("r")).await;
    let first = a.dispatch(0).await;
    let after = unix_ms();
    let b = cluster.worker("b").behaves(Behaviour::Hold).start().await;
    assert_eq!(first.attempt(), "1");
    let accept_by: u128 = first.header("Rankpin-Accept-By").expect("it is there").parse().expect("unix ms");
    assert!((before + 1000..=after + 1000).contains(&accept_by), "{before} {accept_by} {after}");
    let second = b.dispatch(0).await;
    assert_eq!(second.attempt(), "2");
    assert_eq!(second.header("Rankpin-Decision"), Some("placed,worker-lost"));
    assert_eq!(second.header("Rankpin-Request-Id"), Some("r"));
    assert_ne!(first.message.reply, second.message.reply, "each attempt has an inbox of its own");
    assert_eq!(a.cancel(0).await, ("r".to_owned(), "1".to_owned()));
    // It thaws: it is cancelled once more, and what else it says is nobody's.
    first.accept().await;
    assert_eq!(a.cancel(1).await, ("r".to_owned(), "1".to_owned()));
    first.finish("ok").await;
    first.reject(400, "bad").await;
    crate::support::settle(&a.client).await;
    second.answer().await;
    let answer = sent.end().await;
    assert_eq!(answer.at(), "b");
    assert_eq!(answer.header("Rankpin-Attempt"), Some("2"));
    assert_eq!(cluster.pinned_at("s").await.as_deref(), Some("b"));
    assert_eq!(b.cancels().len(), 0);
}

#[tokio::test]
async fn an_accept_timeout_moves_a_hard_pin() {
    let cluster = Cluster::with(1, QUICK).await;
    let a = cluster.worker("a").start().await;
    assert_eq!(cluster.at("s").await, "a");
    let _b = cluster.worker("b").start().await;
    a.behave(Behaviour::Silent);
    assert_eq!(cluster.turn("s").await.told(), "b repinned,worker-lost");
    assert_eq!(cluster.turn("s").await.told(), "b pinned");
}

#[tokio::test]
async fn with_nobody_left_the_error_is_the_last_attempts() {
    let cluster = Cluster::with(1, &[("accept_timeout", "200ms")]).await;
    let worker = cluster.worker("w").behaves(Behaviour::Silent).start().await;
    let refusal = cluster.turn("s").await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (504, "accept_timeout"));
    assert_eq!(worker.count(), 1);
    let _refusing = cluster.worker("a").behaves(Behaviour::Reject(503, "draining")).start().await;
    // First the silent one, where it is pinned, then the one that refuses; and the other way round.
    for (session, first, wanted) in [("t", "w", "503 no_worker"), ("u", "a", "504 accept_timeout")] {
        cluster.put_pin(session, first, None).await;
        assert_eq!(cluster.at(session).await, wanted, "first {first}");
    }
}

#[tokio::test]
async fn what_a_worker_says_after_its_refusal_is_not_taken_for_the_next_ones_word() {
    let cluster = Cluster::with(1, &[("accept_timeout", "300ms")]).await;
    let talkative = Behaviour::script(|dispatch| async move {
        dispatch.reject(503, "draining").await;
        dispatch.finish("error").await;
        dispatch.accept().await;
    });
    let refusing = cluster.worker("a").behaves(talkative).start().await;
    let silent = cluster.worker("b").behaves(Behaviour::Silent).start().await;
    for n in 0..4 {
        let at = cluster.at(&format!("s{n}")).await;
        assert!(at == "504 accept_timeout" || at == "503 no_worker", "{at}");
    }
    assert_eq!((refusing.count(), silent.count()), (4, 4), "each has had its chance");
}

#[tokio::test]
async fn a_worker_that_accepts_only_when_it_is_given_up_is_not_taken_for_the_next_one() {
    let cluster = Cluster::with(1, &[("accept_timeout", "300ms")]).await;
    // Both accept at the moment of their cancel, while the router is already moving the pin elsewhere.
    let mut slow = Vec::new();
    for id in ["a", "b"] {
        let worker = cluster.worker(id).behaves(Behaviour::Silent).start().await;
        slow.push(worker);
    }
    let accepting = slow.iter().map(async |worker| {
        let mut cancels =
            worker.client.subscribe(format!("rankpin.worker.{}.cancel", worker.id)).await.expect("subscribes");
        crate::support::settle(&worker.client).await;
        while futures_util::StreamExt::next(&mut cancels).await.is_some() {
            for dispatch in worker.dispatches() {
                dispatch.accept().await;
            }
        }
    });
    let turns = async {
        for n in 0..6 {
            assert_eq!(cluster.at(&format!("s{n}")).await, "504 accept_timeout");
        }
    };
    tokio::select! {
        () = turns => {}
        _ = futures_util::future::join_all(accepting) => panic!("the workers' clients died"),
    }
}

#[tokio::test]
async fn a_worker_may_leave_acceptance_out_where_it_finishes_at_once() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 2).with("max_inflight", 1).behaves(Behaviour::AnswerAtOnce).start().await;
    for _ in 0..3 {
        let told = cluster.turn("s").await.told();
        assert!(told.starts_with("w/"), "{told}");
    }
    assert!(cluster.pin("s").await.is_some());
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
}

#[tokio::test]
async fn events_that_make_no_sense_change_nothing() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").behaves(Behaviour::Silent).start().await;
    let sent = cluster.send(Ask::new().session("s")).await;
    let dispatch = worker.dispatch(0).await;
    dispatch.event(&[], "no event").await;
    dispatch.event(&[("Rankpin-Event", "celebrated")], "").await;
    dispatch.event(&[("Rankpin-Event", "")], "").await;
    // A stream that captures the subject answers with a publish ack.
    dispatch.event(&[], r#"{"stream":"TAP","seq":7}"#).await;
    dispatch.progress().await;
    cluster.routers[0].reaches("malformed", 4.0).await;
    dispatch.accept().await;
    dispatch.accept().await;
    dispatch.progress().await;
    dispatch.answer().await;
    dispatch.finish("ok").await;
    dispatch.accept().await;
    assert_eq!(sent.end().await.told(), "w placed");
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    let outcome = async || (cluster.routers[0].metric_where("requests", "outcome=\"ok\"").await == 1.0).then_some(());
    eventually("the request is counted once", PATIENCE, outcome).await;
    assert_eq!(worker.count(), 1);
}

#[tokio::test]
async fn an_unreadable_finish_still_ends_the_request() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let _sent = cluster.send(Ask::new().session("s")).await;
    worker.dispatch(0).await.event(&[("Rankpin-Event", "finished")], "garbage").await;
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    assert_eq!(cluster.routers[0].metric_where("requests", "outcome=\"error\"").await, 1.0);
}

#[tokio::test]
async fn the_outcome_counts_too_where_finished_is_the_only_event() {
    let cluster = Cluster::start().await;
    let failing = Behaviour::script(|dispatch| async move {
        dispatch.reply(&[("Rankpin-Final", "true")], "").await;
        dispatch.finish("error").await;
    });
    let _worker = cluster.worker("w").behaves(failing).start().await;
    cluster.turn("s").await;
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    let counted =
        async |outcome: &str| cluster.routers[0].metric_where("requests", &format!("outcome=\"{outcome}\"")).await;
    let once = async || (counted("error").await + counted("ok").await == 1.0).then_some(());
    eventually("the request is counted", PATIENCE, once).await;
    assert_eq!(counted("error").await, 1.0);
}
