//! Nobody listens, or the worker refuses: elsewhere, or the right error (protocol section 6).

use std::collections::BTreeMap;

use super::{hashed_at, sessions_hashing_to};
use crate::support::{Ask, Behaviour, Cluster, PATIENCE, RouterProcess, eventually};

#[tokio::test]
async fn nobody_on_a_rank_marks_that_rank_lost_for_a_while() {
    let cluster = Cluster::start().await;
    let mut worker = cluster.worker("w").ranks(0, 2).deaf_on(0).start().await;
    let session = sessions_hashing_to(0, 2).next().expect("there are many");
    // Its own rank is dead, and there is no other worker: the least loaded rank.
    assert_eq!(cluster.turn(&session).await.told(), "w/1 placed,worker-lost");
    assert_eq!(cluster.pinned_at(&session).await.as_deref(), Some("w/1"));
    assert_eq!(worker.dispatch(0).await.attempt(), "2");
    // The rank counts as not declared now: it is not even tried, and asking for it is no mistake of the frontend.
    let dispatched = cluster.routers[0].metric("dispatches").await;
    assert_eq!(cluster.ask(Ask::new().header("x-dp-rank", "0")).await.at(), "503 no_worker");
    let other = sessions_hashing_to(0, 2).nth(1).expect("there are many");
    assert_eq!(cluster.at(&other).await, "w/1");
    assert_eq!(cluster.routers[0].metric("dispatches").await, dispatched + 1.0);
    // It comes back by itself.
    worker.listen("rankpin.worker.w.rank.0").await;
    let back = async || (cluster.ask(Ask::new().header("x-dp-rank", "0")).await.at() == "w/0").then_some(());
    eventually("rank 0 is tried again", PATIENCE, back).await;
    assert_eq!(cluster.turn(&session).await.told(), "w/1 pinned");
}

#[tokio::test]
async fn a_registration_of_another_instance_clears_the_marks() {
    let cluster = Cluster::start().await;
    let mut worker = cluster.worker("w").ranks(0, 2).deaf_on(0).start().await;
    let session = sessions_hashing_to(0, 2).next().expect("there are many");
    assert_eq!(cluster.at(&session).await, "w/1");
    worker.listen("rankpin.worker.w.rank.0").await;
    worker.declare("instance", "another").await;
    let back = async || (cluster.ask(Ask::new().header("x-dp-rank", "0")).await.at() == "w/0").then_some(());
    eventually("rank 0 is tried again", PATIENCE, back).await;
}

#[tokio::test]
async fn a_lost_hashed_rank_is_taken_on_another_worker() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").ranks(0, 2).deaf_on(0).start().await;
    let _b = cluster.worker("b").ranks(2, 2).start().await;
    let mut on_a = 0;
    for session in sessions_hashing_to(0, 2).take(8) {
        assert_eq!(cluster.at(&session).await, "b/2");
        assert_eq!(cluster.pinned_at(&session).await.as_deref(), Some("b/2"));
    }
    for session in sessions_hashing_to(1, 2).take(8) {
        let at = cluster.at(&session).await;
        assert!(at == "a/1" || at == "b/3", "{at}");
        on_a += u32::from(at == "a/1");
    }
    assert!(on_a > 0 && a.count() > 0, "the other rank of a goes on");
}

#[tokio::test]
async fn nobody_on_any_marks_the_worker() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").ranks(0, 2).deaf_to_any().start().await;
    let b = cluster.worker("b").ranks(2, 2).start().await;
    for _ in 0..4 {
        assert_eq!(cluster.ask(Ask::new()).await.at(), "b");
    }
    assert_eq!(cluster.ask(Ask::new().header("Rankpin-Target-Worker", "a")).await.at(), "404 unknown_worker");
    assert_eq!((a.count(), b.count()), (0, 4));
    assert_eq!(b.dispatches().iter().filter(|dispatch| dispatch.attempt() == "2").count(), 1);
}

#[tokio::test]
async fn with_nobody_left_the_error_comes_at_once() {
    let cluster = Cluster::start().await;
    let mut worker = cluster.worker("w").start().await;
    worker.die().await;
    // The default timeout is 30 s, longer than the tests' patience.
    assert_eq!(cluster.at("s").await, "503 no_worker");
    assert_eq!(cluster.pin("s").await, None);
    assert_eq!(cluster.at("s").await, "503 no_worker");
}

#[tokio::test]
async fn only_the_sessions_of_a_dead_worker_move() {
    let cluster = Cluster::with(2, &[]).await;
    let mut a = cluster.worker("a").ranks(0, 4).start().await;
    let _b = cluster.worker("b").ranks(4, 4).start().await;
    let mut places = BTreeMap::new();
    for n in 0..40 {
        let session = format!("s{n}");
        let at = cluster.at(&session).await;
        places.insert(session, at);
    }
    assert!(places.values().any(|at| at.starts_with('a')) && places.values().any(|at| at.starts_with('b')));
    a.die().await;
    for (session, before) in &places {
        let answer = cluster.turn(session).await;
        if before.starts_with('a') {
            let after = hashed_at("b", session, 4, 4);
            assert_eq!(answer.told(), format!("{after} repinned,worker-lost"), "{session} was at {before}");
            assert_eq!(cluster.pinned_at(session).await, Some(after));
        } else {
            assert_eq!(answer.told(), format!("{before} pinned"));
        }
    }
}

#[tokio::test]
async fn a_refusal_sends_the_request_elsewhere() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").behaves(Behaviour::Reject(429, "overloaded")).start().await;
    let b = cluster.worker("b").start().await;
    for n in 0..4 {
        assert_eq!(cluster.at(&format!("overloaded-{n}")).await, "b");
    }
    a.behave(Behaviour::Reject(503, "draining"));
    for n in 0..4 {
        assert_eq!(cluster.at(&format!("draining-{n}")).await, "b");
    }
    let second: Vec<_> = b.dispatches().into_iter().filter(|dispatch| dispatch.attempt() == "2").collect();
    assert!(!second.is_empty() && second.len() == a.count());
    for dispatch in second {
        let decision = dispatch.header("Rankpin-Decision").expect("every dispatch has one").to_owned();
        let cause = if dispatch.session().starts_with("overloaded") { "overload" } else { "draining" };
        assert!(decision.ends_with(cause), "{decision}");
    }
}

#[tokio::test]
async fn a_refusal_for_good_is_relayed_and_not_tried_again() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").behaves(Behaviour::Reject(404, "no_such_adapter")).start().await;
    let b = cluster.worker("b").behaves(Behaviour::Reject(400, "too_long")).start().await;
    for n in 0..4 {
        let answer = cluster.turn(&format!("s{n}")).await;
        let refusal = answer.router_refusal();
        let known = [(404, "no_such_adapter"), (400, "too_long")];
        assert!(known.contains(&(refusal.status, refusal.code.as_str())), "{refusal:?}");
    }
    assert_eq!(a.count() + b.count(), 4);
    // The worker's own words reach the frontend.
    a.behave(Behaviour::script(|dispatch| async move {
        let error = [("Nats-Service-Error-Code", "400"), ("Nats-Service-Error", "bad")];
        let headers = [&[("Rankpin-Event", "rejected")], &error[..]].concat();
        dispatch.event(&headers, r#"{"error":{"message":"the prompt is too long"}}"#).await;
    }));
    let ask = Ask::new().header("Rankpin-Target-Worker", "a");
    assert_eq!(cluster.ask(ask).await.router_refusal().message, "the prompt is too long");
}

#[tokio::test]
async fn a_hard_pin_moves_for_a_draining_worker_and_waits_for_an_overloaded_one() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").start().await;
    let b = cluster.worker("b").start().await;
    cluster.put_pin("s", "a", None).await;
    a.behave(Behaviour::Reject(429, "overloaded"));
    assert_eq!(cluster.ask(Ask::new().session("s").timeout_ms(1000)).await.at(), "429 overloaded");
    assert_eq!(b.count(), 0);
    // It is asked again until it has room.
    let sent = cluster.send(Ask::new().session("s")).await;
    a.dispatch(a.count() + 1).await;
    a.behave(Behaviour::Answer);
    assert_eq!(sent.end().await.told(), "a pinned");
    a.behave(Behaviour::Reject(503, "draining"));
    assert_eq!(cluster.turn("s").await.told(), "b repinned,draining");
    assert_eq!(cluster.pinned_at("s").await.as_deref(), Some("b"));
}

#[tokio::test]
async fn a_refusal_after_acceptance_counts_as_one_before_it() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").behaves(Behaviour::RejectLate(503, "engine_refused")).start().await;
    let b = cluster.worker("b").start().await;
    for n in 0..4 {
        let session = format!("s{n}");
        assert_eq!(cluster.at(&session).await, "b");
        assert_eq!(cluster.pinned_at(&session).await.as_deref(), Some("b"));
    }
    assert!(a.count() > 0 && b.count() == 4);
    a.behave(Behaviour::RejectLate(400, "bad"));
    let ask = Ask::new().session("t").header("Rankpin-Target-Worker", "a");
    assert_eq!(cluster.ask(ask).await.at(), "400 bad");
    assert_eq!(cluster.pin("t").await, None);
}

#[tokio::test]
async fn a_rejection_without_a_code_sends_the_request_elsewhere() {
    let cluster = Cluster::start().await;
    let bare = Behaviour::script(|dispatch| async move { dispatch.event(&[("Rankpin-Event", "rejected")], "").await });
    let _a = cluster.worker("a").behaves(bare).start().await;
    let _b = cluster.worker("b").start().await;
    for n in 0..2 {
        assert_eq!(cluster.at(&format!("s{n}")).await, "b");
    }
}

#[tokio::test]
async fn what_a_worker_says_is_never_told_as_an_error_that_is_none() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").behaves(Behaviour::Reject(200, "fine")).start().await;
    let b = cluster.worker("b").start().await;
    for n in 0..2 {
        assert_eq!(cluster.at(&format!("s{n}")).await, "b", "a status that is no error means that somebody else may");
    }
    assert_eq!((a.count(), b.count()), (1, 2));
    let long: &'static str = String::leak("x".repeat(5000));
    a.behave(Behaviour::Reject(400, long));
    let refusal = cluster.ask(Ask::new().header("Rankpin-Target-Worker", "a")).await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (400, "rejected"));
}

#[tokio::test]
async fn a_session_that_leaves_its_pin_because_its_worker_is_silent_is_logged() {
    let cluster = Cluster::with(0, &[]).await;
    // It makes the buckets.
    let router = RouterProcess::start("router", &cluster.server, &["--accept-timeout", "300ms"]).await;
    let a = cluster.worker("a").ranks(0, 2).start().await;
    let known = async || (router.metric("workers").await == 1.0).then_some(());
    eventually("the router knows the worker", PATIENCE, known).await;
    let at = cluster.at("s").await;
    let _b = cluster.worker("b").ranks(2, 2).start().await;
    let known = async || (router.metric("workers").await == 2.0).then_some(());
    eventually("the router knows the other one", PATIENCE, known).await;
    let told = |log: &str| log.lines().filter(|line| line.contains("leaves the rank that it is pinned to")).count();
    assert_eq!(told(&router.process.log()), 0);
    a.behave(Behaviour::Silent);
    assert!(cluster.at("s").await.starts_with("b/"));
    let log = router.process.log();
    let line = log.lines().find(|line| line.contains("leaves the rank")).unwrap_or_else(|| panic!("{log}"));
    let (_, rank) = at.split_once('/').expect("a worker and a rank");
    for part in ["\"session\":\"s\"", "\"worker\":\"a\"", &format!("\"dp_rank\":{rank}"), "WARN"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    // A session that is new there has no pin to leave.
    cluster.at("new").await;
    assert_eq!(told(&router.process.log()), 1);
}
