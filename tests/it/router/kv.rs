//! The policy `kv` through routers: requests go where their prompt is expected to be cached, as far as load allows.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{Ask, Behaviour, Cluster, PATIENCE, Worker, eventually, settle};

const KV_OFF: &[(&str, &str)] = &[("policy", "kv"), ("affinity", "off")];

/// A conversation of these texts, of the user and the assistant in turns.
fn body(texts: &[&str]) -> String {
    let item = |(n, text): (usize, &&str)| json!({"role": if n.is_multiple_of(2) { "user" } else { "assistant" }, "content": text});
    json!({"messages": texts.iter().enumerate().map(item).collect::<Vec<_>>()}).to_string()
}

/// A text of some thousand bytes that begins with this word.
fn long(word: &str) -> String {
    format!("{word} ").repeat(6000 / (word.len() + 1))
}

async fn at(cluster: &Cluster, texts: &[&str]) -> String {
    cluster.ask(Ask::new().body(body(texts))).await.at()
}

/// Waits until every router expects so many prefixes to be cached somewhere.
async fn expects(cluster: &Cluster, prefixes: f64) {
    for router in &cluster.routers {
        router.reaches("cached_prefixes", prefixes).await;
    }
}

/// A worker that says of each prompt that so many of its 100 tokens were cached.
fn caching(tokens: u32) -> Behaviour {
    Behaviour::script(move |dispatch| async move {
        dispatch.accept().await;
        dispatch.reply(&[("Rankpin-Final", "true")], "done").await;
        let finished = json!({"outcome": "ok", "prompt_tokens": 100, "cached_tokens": tokens});
        dispatch.event(&[("Rankpin-Event", "finished")], &finished.to_string()).await;
    })
}

async fn tell_cache(worker: &Worker, rank: u16, seq: u64, events: Value) {
    let message = json!({"v": 1, "instance": worker.instance(), "seq": seq, "events": events});
    let subject = format!("rankpin.kv.{}.{rank}", worker.id);
    worker.client.publish(subject, message.to_string().into()).await.expect("is published");
    settle(&worker.client).await;
}

#[tokio::test]
async fn a_conversation_without_a_session_goes_on_where_it_is_cached() {
    let cluster = Cluster::with(1, KV_OFF).await;
    let _a = cluster.worker("a").ranks(0, 4).start().await;
    let _b = cluster.worker("b").ranks(4, 4).start().await;
    let mut places = BTreeMap::<String, usize>::new();
    for n in 0..16 {
        let (first, answer) = (long(&format!("question-{n}")), long(&format!("answer-{n}")));
        let began = at(&cluster, &[&first]).await;
        assert!(began.contains('/'), "worker and rank: {began}");
        assert_eq!(at(&cluster, &[&first, &answer, "more"]).await, began);
        assert_eq!(at(&cluster, &[&first, &answer, "more", "yes", "and more"]).await, began);
        *places.entry(began).or_default() += 1;
    }
    assert!(places.len() == 8 && places.values().all(|count| *count == 2), "{places:?}");
}

#[tokio::test]
async fn conversations_part_inside_a_long_text_and_still_share_its_beginning() {
    let cluster = Cluster::with(1, KV_OFF).await;
    let _w = cluster.worker("w").ranks(0, 8).start().await;
    let common = long("manual").repeat(4);
    let first = at(&cluster, &[&format!("{common} first")]).await;
    for n in 0..5 {
        assert_eq!(at(&cluster, &[&format!("{common} another {n}")]).await, first);
        assert_ne!(at(&cluster, &[&format!("{n} {common}")]).await, first, "it shares no beginning");
    }
}

#[tokio::test]
async fn a_burst_with_one_opening_herds_nowhere() {
    let cluster = Cluster::with(1, KV_OFF).await;
    let a = cluster.worker("a").ranks(0, 2).behaves(Behaviour::Hold).start().await;
    let b = cluster.worker("b").ranks(2, 2).behaves(Behaviour::Hold).start().await;
    let opening = long("opening");
    let mut sent = Vec::new();
    for n in 0..64 {
        sent.push(cluster.send(Ask::new().body(body(&[&opening, "ok", &long(&format!("question-{n}"))]))).await);
    }
    eventually("all were dispatched", PATIENCE, async || (a.count() + b.count() == 64).then_some(())).await;
    let mut ranks = BTreeMap::<String, usize>::new();
    for dispatch in a.dispatches().iter().chain(&b.dispatches()) {
        *ranks.entry(dispatch.header("Rankpin-Dp-Rank").expect("a rank").to_owned()).or_default() += 1;
    }
    assert!(ranks.len() == 4 && ranks.values().all(|count| (12..=20).contains(count)), "{ranks:?}");
}

#[tokio::test]
async fn a_named_session_begins_by_cost_and_then_stays_pinned() {
    let cluster = Cluster::with(1, &[("policy", "kv")]).await;
    let _w = cluster.worker("w").ranks(4, 8).start().await;
    let manual = long("manual").repeat(3);
    let ask = |session: &str, texts: &[&str]| Ask::new().session(session).body(body(texts));
    let began = cluster.ask(ask("s", &[&manual, "ok", "first"])).await;
    assert_eq!(began.decision(), "placed");
    let joined = cluster.ask(ask("t", &[&manual, "ok", "second"])).await;
    assert_eq!(joined.told(), began.told(), "another session begins where the manual is");
    // The text of a pinned one is anybody's.
    assert_eq!(cluster.ask(ask("s", &[&long("other")])).await.told(), format!("{} pinned", began.at()));
    let refused = cluster.ask(ask("u", &[]).body("{")).await;
    assert_eq!(refused.at(), "400 invalid_request", "bodies are read, whatever names the session");
}

#[tokio::test]
async fn routers_learn_from_each_other() {
    let cluster = Cluster::with(3, KV_OFF).await;
    let _w = cluster.worker("w").ranks(0, 8).start().await;
    let (first, answer) = (long("question"), long("answer"));
    let mut texts = vec![first.as_str()];
    let began = at(&cluster, &texts).await;
    // One prefix where its text ends, and one inside.
    expects(&cluster, 2.0).await;
    for n in 1..12 {
        texts.extend([answer.as_str(), "more"]);
        assert_eq!(at(&cluster, &texts).await, began, "turn {n}, whichever router it reaches");
        expects(&cluster, f64::from(2 + 3 * n)).await;
    }
}

#[tokio::test]
async fn what_is_known_of_a_worker_goes_with_it_and_with_its_process() {
    let cluster = Cluster::with(2, KV_OFF).await;
    let mut a = cluster.worker("a").ranks(0, 2).start().await;
    let text = long("question");
    at(&cluster, &[&text]).await;
    expects(&cluster, 2.0).await;
    a.declare("instance", "another process").await;
    expects(&cluster, 0.0).await;
    at(&cluster, &[&text]).await;
    expects(&cluster, 2.0).await;
    a.deregister().await;
    expects(&cluster, 0.0).await;
}

#[tokio::test]
async fn a_cache_is_expected_to_hold_no_more_than_it_declares() {
    let cluster = Cluster::with(1, KV_OFF).await;
    // 6,000 bytes are taken for 1,500 tokens.
    let _w = cluster.worker("w").with("kv_blocks", 100).with("block_size", 32).start().await;
    for n in 0..10 {
        at(&cluster, &[&long(&format!("question-{n}"))]).await;
        expects(&cluster, if n == 0 { 2.0 } else { 4.0 }).await;
    }
}

#[tokio::test]
async fn a_prompt_that_was_not_cached_takes_along_what_is_as_old() {
    let cluster = Cluster::with(1, KV_OFF).await;
    let worker = cluster.worker("w").behaves(caching(0)).start().await;
    for (n, text) in ["one", "two", "three"].into_iter().enumerate() {
        at(&cluster, &[text]).await;
        expects(&cluster, (n + 1) as f64).await;
    }
    worker.behave(caching(100));
    at(&cluster, &["two", "ok", "go on"]).await;
    expects(&cluster, 5.0).await;
    worker.behave(caching(0));
    at(&cluster, &["three", "ok", "go on"]).await;
    // "one" is older than "three" was, "two" was used after it.
    expects(&cluster, 6.0).await;
}

#[tokio::test]
async fn workers_that_know_their_caches_are_believed() {
    let cluster = Cluster::with(2, &[("policy", "kv"), ("affinity", "soft")]).await;
    let worker = cluster.worker("w").ranks(0, 2).with("block_size", 100).start().await;
    let mut text = long("question");
    text.truncate(2000);
    // Nothing was sent there yet: only the rank itself knows of the session.
    tell_cache(&worker, 1, 1, json!([{"stored": {"session": "s", "blocks": 30}}])).await;
    let heard = async |messages: f64| {
        for router in &cluster.routers {
            router.reaches("cache_events", messages).await;
        }
    };
    heard(1.0).await;
    let ask = |texts: &[&str]| Ask::new().session("s").body(body(texts));
    assert_eq!(cluster.ask(ask(&[&text])).await.told(), "w/1 placed");
    expects(&cluster, 1.0).await;
    // Some 500 tokens, and 600 are removed: the router that sent them there knows whose they were.
    tell_cache(&worker, 1, 2, json!([{"removed": {"session": "s", "blocks": 6}}])).await;
    heard(2.0).await;
    let mut left = Vec::new();
    for router in &cluster.routers {
        left.push(router.metric("cached_prefixes").await);
    }
    left.sort_by(f64::total_cmp);
    assert_eq!(left, [0.0, 1.0]);
    tell_cache(&worker, 0, 1, json!([{"stored": {"session": "t", "blocks": 1}}])).await;
    tell_cache(&worker, 1, 3, json!([{"cleared": true}])).await;
    tell_cache(&worker, 0, 2, json!([{"cleared": true}])).await;
    heard(5.0).await;
    expects(&cluster, 0.0).await;
    // What is older than the last message, and what another process says, is passed over; a gap forgets.
    cluster.ask(ask(&[&text])).await;
    expects(&cluster, 1.0).await;
    tell_cache(&worker, 1, 3, json!([{"cleared": true}])).await;
    heard(5.0).await;
    expects(&cluster, 1.0).await;
    tell_cache(&worker, 1, 5, json!([])).await;
    tell_cache(&worker, 0, 4, json!([])).await;
    heard(7.0).await;
    expects(&cluster, 0.0).await;
}

#[tokio::test]
async fn what_can_not_be_read_hurts_nobody() {
    let cluster = Cluster::with(1, KV_OFF).await;
    let worker = cluster.worker("w").start().await;
    for (subject, payload) in [
        ("rankpin.kv.w.0", "{"),
        ("rankpin.kv.w.rank", r#"{"v":1,"instance":"i","seq":1,"events":[]}"#),
        ("rankpin.router.kv", "no MessagePack"),
    ] {
        worker.client.publish(subject, payload.into()).await.expect("is published");
    }
    for (kind, count) in [("router_kv", 1.0), ("=\"kv\"", 2.0)] {
        let refused = async || (cluster.routers[0].metric_where("malformed", kind).await == count).then_some(());
        eventually(kind, PATIENCE, refused).await;
    }
    assert_eq!(at(&cluster, &["hello"]).await, "w");
}

#[tokio::test]
async fn a_soft_session_leaves_a_rank_with_too_much_work_once_and_then_stays() {
    let soft = [("affinity", "soft"), ("policy", "least-loaded"), ("balance_limit", "1.01")];
    let cluster = Cluster::with(1, &soft).await;
    let _a = cluster.worker("a").start().await;
    let began = cluster.turn("s").await;
    assert_eq!(began.told(), "a placed");
    // A worker that comes later begins with the work that others have.
    let _b = cluster.worker("b").start().await;
    let mut told = Vec::new();
    for _ in 0..8 {
        told.push(cluster.turn("s").await.told());
        let (last, _) = told.last().and_then(|told| told.split_once(' ')).expect("place and reason");
        let pinned = async || (cluster.pinned_at("s").await.as_deref() == Some(last)).then_some(());
        eventually("the pin follows", PATIENCE, pinned).await;
    }
    let moved = told.iter().position(|told| told == "b repinned,balance").unwrap_or_else(|| panic!("{told:?}"));
    assert!(told[..moved].iter().all(|told| told == "a pinned"), "{told:?}");
    assert!((2..6).contains(&moved) && told[moved + 1..].iter().all(|told| told == "b pinned"), "{told:?}");
}
