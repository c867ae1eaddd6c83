//! Too much at once (protocol section 5): sessions take turns, the queue is bounded, ranks that refuse are left alone for
//! a moment, and reports can say that a rank is full.

use serde_json::{Value, json};

use super::sessions_hashing_to;
use crate::support::frontend::Sent;
use crate::support::{Ask, Behaviour, Cluster, PATIENCE, Worker, eventually};

/// Sends a request and waits until it waits.
async fn queue(cluster: &Cluster, ask: Ask) -> Sent {
    let before = cluster.routers[0].metric("requests_queued").await;
    let sent = cluster.send(ask).await;
    cluster.routers[0].reaches("requests_queued", before + 1.0).await;
    sent
}

/// A worker with room for one request, and the request that has it.
async fn full(cluster: &Cluster) -> (Worker, Sent) {
    let worker = cluster.worker("w").with("max_inflight", 1).behaves(Behaviour::Hold).start().await;
    let held = cluster.send(Ask::new().session("flood")).await;
    worker.dispatch(0).await;
    (worker, held)
}

/// Publishes a load report: per rank what is queued, and the blocks in use.
async fn report(worker: &Worker, seq: u64, ranks: &[(u16, u32, u64)]) {
    let rank = |&(rank, queued, used): &(u16, u32, u64)| json!({"dp_rank": rank, "inflight": 0, "queued": queued, "kv_used_blocks": used});
    let ranks: Vec<Value> = ranks.iter().map(rank).collect();
    let report = json!({"v": 1, "worker": worker.id, "instance": worker.instance(), "seq": seq, "ranks": ranks});
    let subject = format!("rankpin.load.{}", worker.id);
    worker.client.publish(subject, report.to_string().into()).await.expect("is published");
    worker.client.flush().await.expect("the server is there");
}

#[tokio::test]
async fn a_flood_of_one_session_does_not_keep_the_others_waiting() {
    let cluster = Cluster::start().await;
    let (worker, held) = full(&cluster).await;
    let mut waiting = Vec::new();
    for session in ["flood", "flood", "flood", "flood", "b", "c", "b"] {
        waiting.push(queue(&cluster, Ask::new().session(session)).await);
    }
    for _ in 0..2 {
        waiting.push(queue(&cluster, Ask::new()).await);
    }
    worker.behave(Behaviour::Answer);
    worker.dispatch(0).await.answer().await;
    held.end().await;
    for sent in waiting {
        assert_eq!(sent.end().await.at(), "w");
    }
    let order: Vec<_> = worker.dispatches()[1..]
        .iter()
        .map(|dispatch| dispatch.header("Rankpin-Session").unwrap_or("none").to_owned())
        .collect();
    assert_eq!(order, ["flood", "b", "c", "none", "flood", "b", "none", "flood", "flood"]);
    let metric = async |kind| cluster.routers[0].metric_where("queue_left", kind).await;
    assert_eq!((metric("granted").await, metric("timed_out").await), (9.0, 0.0));
    assert_eq!(cluster.routers[0].metric("queue_wait_seconds_count").await, 9.0);
}

#[tokio::test]
async fn a_derived_sessions_turns_share_its_turn() {
    let cluster = Cluster::start().await;
    let body = |turns: usize| {
        let mut messages = vec![json!({"role": "user", "content": "hello"})];
        for turn in 0..turns {
            messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
            messages.push(json!({"role": "user", "content": format!("question {turn}")}));
        }
        json!({"model": "m", "messages": messages}).to_string()
    };
    let worker = cluster.worker("w").with("max_inflight", 1).start().await;
    assert_eq!(cluster.ask(Ask::new().body(body(0))).await.at(), "w");
    cluster.routers[0].reaches("derived_pins_mirrored", 1.0).await;
    worker.behave(Behaviour::Hold);
    let held = cluster.send(Ask::new().session("held")).await;
    worker.dispatch(1).await;
    let mut waiting = Vec::new();
    for turns in [1, 1, 1] {
        waiting.push(queue(&cluster, Ask::new().body(body(turns))).await);
    }
    waiting.push(queue(&cluster, Ask::new().session("other")).await);
    worker.behave(Behaviour::Answer);
    worker.dispatch(1).await.answer().await;
    held.end().await;
    for sent in waiting {
        sent.end().await;
    }
    assert_eq!(worker.dispatch(3).await.session(), "other");
}

#[tokio::test]
async fn a_models_queue_is_bounded_and_whoever_counts_less_gives_way() {
    let cluster = Cluster::with(1, &[("max_waiting", "3")]).await;
    let (worker, held) = full(&cluster).await;
    let _other = cluster.worker("n").with("models", vec!["n"]).with("max_inflight", 1).start().await;
    let of = |session: &str, priority: &str| Ask::new().session(session).header("Rankpin-Priority", priority);
    let low = queue(&cluster, of("low", "-1")).await;
    let first = queue(&cluster, of("flood", "0")).await;
    let second = queue(&cluster, of("flood", "0")).await;
    let refusal = cluster.ask(of("x", "-2")).await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (429, "overloaded"));
    assert!(refusal.message.contains("as many requests wait"), "{}", refusal.message);
    let high = cluster.send(of("high", "5")).await;
    assert!(low.end().await.router_refusal().message.contains("requests that count more wait"));
    let other = cluster.send(of("other", "0")).await;
    assert_eq!(second.end().await.at(), "429 overloaded", "the session with the most gives way");
    assert_eq!(cluster.ask(of("flood", "0")).await.at(), "429 overloaded");
    let left = async |kind| cluster.routers[0].metric_where("queue_left", kind).await;
    assert_eq!((left("displaced").await, left("full").await), (2.0, 2.0));
    assert_eq!(cluster.ask(Ask::new().model("n").session("s")).await.at(), "n", "another model's is its own");
    worker.behave(Behaviour::Answer);
    worker.dispatch(0).await.answer().await;
    for sent in [held, high, first, other] {
        assert_eq!(sent.end().await.at(), "w");
    }
    assert_eq!(worker.dispatch(1).await.session(), "high");
}

#[tokio::test]
async fn nobody_waits_where_that_is_configured() {
    let cluster = Cluster::with(1, &[("max_waiting", "0")]).await;
    let (_worker, _held) = full(&cluster).await;
    assert_eq!(cluster.at("s").await, "429 overloaded");
}

#[tokio::test]
async fn retry_after_grows_while_the_queue_stands() {
    let cluster = Cluster::start().await;
    let (_worker, _held) = full(&cluster).await;
    let mut waiting = Vec::new();
    for n in 0..5 {
        waiting.push(queue(&cluster, Ask::new().session(&format!("s{n}"))).await);
    }
    let grown = async || {
        let answer = cluster.ask(Ask::new().session("s").timeout_ms(1)).await;
        assert_eq!(answer.at(), "429 overloaded");
        let seconds: u32 = answer.header("Retry-After")?.parse().expect("whole seconds");
        (seconds > 3).then_some(())
    };
    eventually("more than the least is told", PATIENCE, grown).await;
}

#[tokio::test]
async fn a_rank_that_refuses_is_left_alone_for_a_moment() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").behaves(Behaviour::Reject(429, "overloaded")).start().await;
    let _b = cluster.worker("b").start().await;
    for n in 0..60 {
        assert_eq!(cluster.at(&format!("s{n}")).await, "b");
    }
    // In turns it would have been asked 30 times. It is, at most once a second from the fifth time on.
    assert!(a.count() < 20, "{}", a.count());
    a.behave(Behaviour::Answer);
    let back = async || (cluster.ask(Ask::new()).await.at() == "a").then_some(());
    eventually("it gets requests again", PATIENCE, back).await;
}

#[tokio::test]
async fn only_one_of_those_that_wait_tries_a_rank_that_refuses() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").start().await;
    cluster.put_pin("s", "w", None).await;
    worker.behave(Behaviour::Reject(429, "overloaded"));
    let mut waiting = Vec::new();
    for _ in 0..40 {
        waiting.push(cluster.send(Ask::new().session("s")).await);
    }
    cluster.routers[0].reaches("requests_queued", 40.0).await;
    let before = worker.count();
    let tried = eventually("it is tried again", PATIENCE, async || (worker.count() > before).then(|| worker.count()));
    assert!(tried.await <= before + 2, "they don't all come at once");
    worker.behave(Behaviour::Answer);
    for sent in waiting {
        assert_eq!(sent.end().await.told(), "w pinned");
    }
}

#[tokio::test]
async fn reports_make_a_rank_full_where_that_is_configured() {
    let settings = [("full_at_queued", "2"), ("full_at_kv_use", "90%")];
    let cluster = Cluster::with(1, &settings).await;
    let worker = cluster.worker("w").ranks(0, 2).with("kv_blocks", 100).start().await;
    let session = sessions_hashing_to(1, 2).next().expect("there are many");
    assert_eq!(cluster.at(&session).await, "w/1");
    report(&worker, 1, &[(0, 0, 0), (1, 2, 0)]).await;
    let full = async || {
        let ask = Ask::new().session(&session).timeout_ms(50);
        (cluster.ask(ask).await.at() == "429 overloaded").then_some(())
    };
    eventually("rank 1 is full by what it has queued", PATIENCE, full).await;
    assert_eq!(cluster.ask(Ask::new().header("x-dp-rank", "0")).await.at(), "w/0");
    let waiting = queue(&cluster, Ask::new().session(&session)).await;
    report(&worker, 2, &[(0, 0, 0), (1, 1, 89)]).await;
    assert_eq!(waiting.end().await.told(), "w/1 pinned");
    report(&worker, 3, &[(0, 0, 0), (1, 0, 90)]).await;
    eventually("rank 1 is full by its blocks", PATIENCE, full).await;
    assert_eq!(cluster.ask(Ask::new()).await.at(), "w", "where the engine chooses, one rank has room");
}

#[tokio::test]
async fn a_request_that_may_not_wait_is_served_where_there_is_room_and_else_refused_at_once() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").with("max_inflight", 1).start().await;
    for session in ["s", "s", "t"] {
        assert_eq!(cluster.ask(Ask::new().session(session).timeout_ms(0)).await.at(), "w");
    }
    assert_eq!(cluster.ask(Ask::new().timeout_ms(0)).await.at(), "w");
    worker.behave(Behaviour::Hold);
    let held = cluster.send(Ask::new()).await;
    let dispatch = worker.dispatch(4).await;
    for ask in [Ask::new(), Ask::new().session("s"), Ask::new().session("new")] {
        assert_eq!(cluster.ask(ask.timeout_ms(0)).await.at(), "429 overloaded");
    }
    dispatch.answer().await;
    assert_eq!(held.end().await.at(), "w");
}
