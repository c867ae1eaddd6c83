//! Placement with affinity hard and off (protocol section 5).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{hashed, hashed_at};
use crate::support::{Ask, Cluster, PATIENCE, eventually};

#[tokio::test]
async fn a_named_session_gets_the_hashed_rank_and_keeps_it() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").ranks(4, 4).start().await;
    let mut used = BTreeSet::new();
    for n in 0..40 {
        let session = format!("sitzung-é-{n}");
        let rank = hashed(&session, 4, 4);
        for turn in ["placed", "pinned", "pinned"] {
            assert_eq!(cluster.turn(&session).await.told(), format!("w/{rank} {turn}"));
        }
        let (pin, _) = cluster.pin(&session).await.expect("it is pinned");
        let wanted = json!({
            "v": 1, "session": session, "model": "m", "tenant": "", "worker": "w", "dp_rank": rank, "origin": "named"
        });
        assert_eq!(pin, wanted);
        used.insert(rank);
    }
    assert!(used.iter().eq(&[4, 5, 6, 7]), "{used:?}");
    for dispatch in worker.dispatches() {
        let rank = hashed(dispatch.session(), 4, 4).to_string();
        assert_eq!(dispatch.header("Rankpin-Dp-Rank"), Some(rank.as_str()));
        assert_eq!(dispatch.message.subject.as_str(), format!("rankpin.worker.w.rank.{rank}"));
    }
}

#[tokio::test]
async fn without_a_session_there_is_no_rank() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").ranks(0, 4).start().await;
    for _ in 0..3 {
        assert_eq!(cluster.ask(Ask::new()).await.told(), "w unpinned");
    }
    for dispatch in worker.dispatches() {
        assert_eq!(dispatch.message.subject.as_str(), "rankpin.worker.w.any");
        assert_eq!(dispatch.header("Rankpin-Dp-Rank"), None);
        assert_eq!(dispatch.header("Rankpin-Session"), None);
    }
}

#[tokio::test]
async fn a_worker_of_one_rank_never_gets_one() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").ranks(8, 1).start().await;
    assert_eq!(cluster.turn("s").await.told(), "w placed");
    assert_eq!(cluster.turn("s").await.told(), "w pinned");
    assert_eq!(cluster.pin("s").await.expect("it is pinned").0["dp_rank"], json!(null));
    assert_eq!(cluster.ask(Ask::new().session("s").header("x-dp-rank", "8")).await.told(), "w hinted");
    assert_eq!(cluster.ask(Ask::new().header("x-dp-rank", "8")).await.told(), "w hinted");
    // A pin of its first rank is met by it, another is none that it declares.
    cluster.put_pin("at-8", "w", Some(8)).await;
    cluster.put_pin("at-9", "w", Some(9)).await;
    assert_eq!(cluster.turn("at-8").await.told(), "w pinned");
    assert_eq!(cluster.turn("at-9").await.told(), "w repinned,worker-lost");
    assert!(worker.dispatches().iter().all(|dispatch| dispatch.header("Rankpin-Dp-Rank").is_none()));
}

#[tokio::test]
async fn workers_take_turns() {
    let cluster = Cluster::start().await;
    let (_a, _b) = (cluster.worker("a").ranks(0, 4).start().await, cluster.worker("b").ranks(4, 4).start().await);
    let mut placed = BTreeMap::<String, u32>::new();
    for n in 0..10 {
        let at = cluster.at(&format!("s{n}")).await;
        let worker = at.split('/').next().expect("a worker").to_owned();
        *placed.entry(worker).or_default() += 1;
        // Turns of pinned sessions take nobody's turn.
        cluster.at("s0").await;
    }
    assert!(placed.values().eq(&[5, 5]), "{placed:?}");
}

#[tokio::test]
async fn the_random_policy_uses_every_worker() {
    let cluster = Cluster::with(1, &[("policy", "random")]).await;
    let mut workers = Vec::new();
    for id in ["a", "b", "c"] {
        workers.push(cluster.worker(id).start().await);
    }
    for n in 0..60 {
        cluster.at(&format!("s{n}")).await;
    }
    let counts: Vec<_> = workers.iter().map(crate::support::worker::Worker::count).collect();
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[tokio::test]
async fn tenant_and_model_scope_a_session() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).with("models", json!(["m", "meta-llama/Llama-3.1-8B"])).start().await;
    let session = || Ask::new().session("s");
    for ask in [
        session(),
        session().header("Rankpin-Tenant", "t"),
        session().model("meta-llama/Llama-3%2E1-8B"),
        session().model("meta-llama/Llama-3%2E1-8B").header("Rankpin-Tenant", "t"),
    ] {
        assert_eq!(cluster.ask(ask.clone()).await.decision(), "placed", "{ask:?}");
        assert_eq!(cluster.ask(ask.clone()).await.decision(), "pinned", "{ask:?}");
    }
    let (pin, _) = cluster.pin_of("t", "meta-llama/Llama-3.1-8B", "s").await.expect("it is pinned");
    assert_eq!((&pin["tenant"], &pin["model"]), (&json!("t"), &json!("meta-llama/Llama-3.1-8B")));
}

#[tokio::test]
async fn a_pin_on_a_worker_alone_is_completed() {
    let cluster = Cluster::start().await;
    let _a = cluster.worker("a").ranks(0, 4).start().await;
    let _b = cluster.worker("b").ranks(4, 4).start().await;
    for session in ["x", "y", "z"] {
        cluster.put_pin(session, "b", None).await;
        let wanted = hashed_at("b", session, 4, 4);
        assert_eq!(cluster.turn(session).await.told(), format!("{wanted} pinned,completed"));
        assert_eq!(cluster.pinned_at(session).await, Some(wanted.clone()));
        assert_eq!(cluster.turn(session).await.told(), format!("{wanted} pinned"));
    }
    // With the rank that is asked for, where one is.
    cluster.put_pin("hinted", "b", None).await;
    let rank = 4 + (hashed("hinted", 0, 4) + 1) % 4;
    let ask = Ask::new().session("hinted").header("Rankpin-Target-Dp-Rank", &rank.to_string());
    assert_eq!(cluster.ask(ask).await.at(), format!("b/{rank}"));
    assert_eq!(cluster.pinned_at("hinted").await, Some(format!("b/{rank}")));
}

#[tokio::test]
async fn a_pin_holds_against_the_hash() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    let rank = (hashed("s", 0, 4) + 1) % 4;
    cluster.put_pin("s", "w", u16::try_from(rank).ok()).await;
    assert_eq!(cluster.turn("s").await.told(), format!("w/{rank} pinned"));
}

#[tokio::test]
async fn a_rank_that_is_no_longer_declared_is_left_once() {
    let cluster = Cluster::start().await;
    let mut worker = cluster.worker("w").ranks(0, 4).start().await;
    let session = super::sessions_hashing_to(3, 4).next().expect("there are many");
    assert_eq!(cluster.at(&session).await, "w/3");
    worker.declare("dp_size", 2).await;
    let wanted = hashed_at("w", &session, 0, 2);
    let moved = eventually("the session moves", PATIENCE, async || {
        let answer = cluster.turn(&session).await;
        (answer.at() != "w/3").then(|| answer.told())
    });
    assert_eq!(moved.await, format!("{wanted} repinned,worker-lost"));
    assert_eq!(cluster.pinned_at(&session).await, Some(wanted.clone()));
    assert_eq!(cluster.turn(&session).await.told(), format!("{wanted} pinned"));
    worker.stop_heartbeat();
}

#[tokio::test]
async fn a_draining_worker_gets_no_new_sessions_and_loses_its_own_at_their_next_turn() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").start().await;
    let b = cluster.worker("b").start().await;
    while cluster.pinned_at("s").await != Some("a".into()) {
        cluster.ask(Ask::new().session("s").header("Rankpin-Target-Worker", "a")).await;
    }
    a.declare("state", "draining").await;
    let moved = eventually("the session moves", PATIENCE, async || {
        let answer = cluster.turn("s").await;
        (answer.at() != "a").then(|| answer.told())
    });
    assert_eq!(moved.await, "b repinned,draining");
    for n in 0..4 {
        assert_eq!(cluster.turn(&format!("new-{n}")).await.told(), "b placed");
    }
    b.declare("state", "draining").await;
    let gone = async || (cluster.at("s").await == "503 no_worker").then_some(());
    eventually("nobody is ready", PATIENCE, gone).await;
    // Back on both: it stays where it moved to.
    a.declare("state", "ready").await;
    b.declare("state", "ready").await;
    let back = async || (cluster.ask(Ask::new().header("Rankpin-Target-Worker", "b")).await.at() == "b").then_some(());
    eventually("b is ready again", PATIENCE, back).await;
    assert_eq!(cluster.at("s").await, "b");
}

#[tokio::test]
async fn a_session_of_a_worker_that_left_moves_once() {
    let cluster = Cluster::start().await;
    let mut a = cluster.worker("a").start().await;
    assert_eq!(cluster.turn("s").await.told(), "a placed");
    let _b = cluster.worker("b").start().await;
    a.deregister().await;
    cluster.knows_workers(1).await;
    assert_eq!(cluster.turn("s").await.told(), "b repinned,worker-lost");
    assert_eq!(cluster.pinned_at("s").await, Some("b".into()));
    a.put().await;
    cluster.knows_workers(2).await;
    assert_eq!(cluster.turn("s").await.told(), "b pinned");
}

#[tokio::test]
async fn a_worker_that_no_longer_serves_the_model_is_left() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").with("models", json!(["m", "n"])).start().await;
    assert_eq!(cluster.at("s").await, "a");
    let _b = cluster.worker("b").start().await;
    a.declare("models", json!(["n"])).await;
    let moved = eventually("the session moves", PATIENCE, async || {
        let answer = cluster.turn("s").await;
        (answer.at() != "a").then(|| answer.told())
    });
    assert_eq!(moved.await, "b repinned,worker-lost");
}

#[tokio::test]
async fn with_affinity_off_no_session_is_read() {
    let cluster = Cluster::with(1, &[("affinity", "off")]).await;
    let worker = cluster.worker("w").ranks(0, 4).start().await;
    // Neither a session id that no session may have, nor a body that is no JSON, is looked at.
    let long = "x".repeat(300);
    for ask in [
        Ask::new().session("s"),
        Ask::new().session(&long),
        Ask::new().body("garbage"),
        Ask::new().header("thread-id", "t").body(r#"{"messages":[{"role":"user","content":"hi"}]}"#),
    ] {
        assert_eq!(cluster.ask(ask).await.told(), "w unpinned");
    }
    assert_eq!(cluster.ask(Ask::new().session("s").header("x-dp-rank", "2")).await.told(), "w/2 hinted");
    assert!(worker.dispatches().iter().all(|dispatch| dispatch.header("Rankpin-Session").is_none()));
    for session in ["s", "t"] {
        assert_eq!(cluster.pin(session).await, None);
    }
}
