//! Engines that come, go and come back, and what they say of themselves.

use rankpin::wire::event::Outcome;
use rankpin::wire::load::LoadReport;
use serde_json::json;

use super::engine::{Engine, metrics};
use super::{ask, registered, start, unregistered};
use crate::support::{Ask, NatsServer, PATIENCE, RouterProcess, eventually};
use crate::worker::{Field, next};

#[tokio::test]
async fn what_no_flag_says_is_asked_of_the_engine() {
    let (field, mut engine) = (Field::new().await, Engine::start());
    engine.say(|said| said.models = vec!["large", "small"]);
    engine.kill();
    let bridge = start(&field, "vllm", &[&engine], &[]);
    eventually("it waits", PATIENCE, async || bridge.log().contains("waiting for the engine").then_some(())).await;
    engine.restart();
    let registration = registered(&field).await;
    assert_eq!(registration.models, ["large", "small"]);
    assert_eq!((registration.dp_start, registration.dp_size), (0, 2));
    assert_eq!((registration.block_size, registration.kv_blocks), (Some(32), Some(512)));
}

#[tokio::test]
async fn ranks_that_the_engine_has_not_are_refused_at_the_start() {
    let field = Field::new().await;
    let (vllm, plain) = (Engine::start(), Engine::plain());
    for (kind, engine, args, words) in [
        ("vllm", &vllm, &["--dp-size", "4"][..], "has 2"),
        ("vllm", &vllm, &["--dp-size", "1"], "has 2"),
        ("openai", &plain, &["--dp-size", "2"], "takes no rank"),
        ("trtllm", &plain, &["--dp-size", "2"], "takes no rank"),
        ("openai", &plain, &["--engine-url", "nonsense"], "nonsense"),
        ("openai", &plain, &["--dp-start", "65536"], "--dp-start"),
        ("openai", &plain, &["--idle-timeout", "0s"], "--idle-timeout"),
    ] {
        let mut bridge = start(&field, kind, &[engine], args);
        assert!(!bridge.wait(PATIENCE).await.success(), "{args:?}");
        assert!(bridge.log().contains(words), "{args:?}: {}", bridge.log());
    }
    assert_eq!(field.registration().await, None);
}

#[tokio::test]
async fn a_dead_engine_is_not_registered_until_it_is_back() {
    let (field, mut engine) = (Field::new().await, Engine::start());
    let bridge = start(&field, "vllm", &[&engine], &[]);
    let before = registered(&field).await;
    let mut lost = ask(&field, "rank.0", json!({"do": "stall"}), &[]).await;
    assert!(!lost.reply().await.0.last);
    let mut waiting = ask(&field, "rank.0", json!({"do": "hang"}), &[]).await;
    engine.has_seen(2).await;
    engine.kill();
    assert_eq!(lost.reply().await.0.error, Some((503, "worker_lost".into())));
    lost.finished(Outcome::Error).await;
    // Nothing of it was given out: it can be served elsewhere.
    assert_eq!(waiting.rejected().await, (503, "worker_lost".into()));
    unregistered(&field).await;
    let mut late = field.dispatch("rank.0", "r", "{}", &[]).await;
    assert_eq!(late.rejected().await, (503, "engine_down".into()));
    engine.restart();
    assert_eq!(registered(&field).await, before);
    ask(&field, "rank.0", json!({}), &[]).await.finished(Outcome::Ok).await;

    // Another one on the same port is another worker.
    engine.say(|said| said.models = vec!["other"]);
    engine.say(|said| said.health = 503);
    unregistered(&field).await;
    engine.say(|said| said.health = 200);
    let other = registered(&field).await;
    assert_eq!(other.models, ["other"]);
    assert_ne!(other.instance, before.instance);
    drop(bridge);
}

#[tokio::test]
async fn an_engine_that_says_it_is_dead_is_believed() {
    let (field, engine) = (Field::new().await, Engine::start());
    let _bridge = start(&field, "vllm", &[&engine], &[]);
    registered(&field).await;
    // Its health says 200 all the time.
    let mut attempt = ask(&field, "rank.0", json!({"do": "dead"}), &[]).await;
    assert_eq!(attempt.rejected().await, (503, "worker_lost".into()));
    unregistered(&field).await;
}

#[tokio::test]
async fn an_operators_drain_ends_it() {
    let (field, engine) = (Field::new().await, Engine::start());
    let mut bridge = start(&field, "vllm", &[&engine], &[]);
    registered(&field).await;
    let mut drain = crate::support::rankpin::command(&["drain", "w", "--nats-url", &field.server.url()]);
    let told = tokio::task::spawn_blocking(move || drain.output()).await.expect("it ends").expect("it runs");
    assert!(told.status.success(), "{told:?}");
    assert!(bridge.wait(PATIENCE).await.success(), "{}", bridge.log());
    assert_eq!(field.registration().await, None);
}

/// Whether somebody listens on a rank's subject.
async fn is_served(field: &Field, rank: u16) -> bool {
    let request = field.client.request(format!("rankpin.worker.w.rank.{rank}"), "{}".into());
    !request.await.is_err_and(|error| error.kind() == async_nats::RequestErrorKind::NoResponders)
}

#[tokio::test]
async fn of_several_servers_the_living_serve() {
    let (field, mut first, second) = (Field::new().await, Engine::plain(), Engine::plain());
    let _bridge = start(&field, "openai", &[&first, &second], &[]);
    registered(&field).await;
    let served = async |ranks: [bool; 2]| {
        eventually("those that work are served", PATIENCE, async || {
            let now = [is_served(&field, 0).await, is_served(&field, 1).await];
            (now == ranks).then_some(())
        })
        .await;
    };
    served([true, true]).await;
    first.kill();
    served([false, true]).await;
    for to in ["rank.1", "any", "any"] {
        ask(&field, to, json!({}), &[]).await.finished(Outcome::Ok).await;
    }
    assert!(field.registration().await.is_some(), "one works");
    first.restart();
    served([true, true]).await;
    ask(&field, "rank.0", json!({}), &[]).await.finished(Outcome::Ok).await;
}

#[tokio::test]
async fn sessions_of_a_dead_server_go_on_at_the_others() {
    let server = NatsServer::start();
    let _router = RouterProcess::start("router", &server, &[]).await;
    let field = Field::of(server).await;
    let (mut first, second) = (Engine::plain(), Engine::plain());
    let _bridge = start(&field, "openai", &[&first, &second], &[]);
    let ask = async |session: &str| Ask::new().session(session).send(&field.client).await.end().await.at();
    eventually("the router knows it", PATIENCE, async || (ask("s0").await.starts_with("w/")).then_some(())).await;
    let sessions: Vec<String> = (0..8).map(|i| format!("s{i}")).collect();
    let mut before = Vec::new();
    for session in &sessions {
        before.push(ask(session).await);
    }
    assert!(before.contains(&"w/0".into()) && before.contains(&"w/1".into()), "{before:?}");
    first.kill();
    eventually("it is noticed", PATIENCE, async || (!is_served(&field, 0).await).then_some(())).await;
    for session in &sessions {
        assert_eq!(ask(session).await, "w/1", "{session}");
    }
}

#[tokio::test]
async fn load_is_what_the_engine_says() {
    let (field, engine) = (Field::new().await, Engine::start());
    let mut reports = field.client.subscribe("rankpin.load.w").await.expect("subscribed");
    let _bridge = start(&field, "vllm", &[&engine], &["--dp-start", "4"]);
    registered(&field).await;
    // One of rank 5 is ours; it has three, and one waits.
    let _ours = ask(&field, "rank.5", json!({"do": "hang"}), &[]).await;
    engine.has_seen(1).await;
    engine.say(|said| said.metrics = metrics(&[(0, 0, 0.0), (3, 1, 0.25)]));
    eventually("the engine's figures are reported", PATIENCE, async || {
        let report: LoadReport = serde_json::from_slice(&next(&mut reports).await.payload).expect("a report");
        let [four, five] = report.ranks.as_slice() else { panic!("two ranks: {report:?}") };
        assert_eq!((four.dp_rank, five.dp_rank, four.inflight), (4, 5, 0));
        ((five.inflight, five.queued, five.kv_used_blocks) == (4, 1, 128)).then_some(())
    })
    .await;
}
