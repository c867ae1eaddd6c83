//! Partitions: a router has its own share of the sessions, and hands over requests of the others' (protocol section 8.1).

use std::collections::{BTreeMap, BTreeSet};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, kv};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use rankpin::core::hash::PinKey;
use rankpin::core::partition::Partition;
use rankpin::router::RouterError;
use serde_json::{Value, json};

use super::decide::{decided, question};
use crate::jobs;
use crate::support::cluster::{RouterTask, Settings, placement};
use crate::support::frontend::{Answer, find};
use crate::support::worker::Dispatch;
use crate::support::{Ask, Behaviour, Cluster, NatsServer, PATIENCE, Worker, eventually};

/// Partitions in these tests.
const COUNT: u16 = 4;
const LOW: Settings<'static> = &[("partitions", "4"), ("partition", "0-1")];
const HIGH: Settings<'static> = &[("partitions", "4"), ("partition", "2,3")];

async fn halves() -> Cluster {
    let mut cluster = Cluster::with(1, LOW).await;
    cluster.add_router(HIGH).await;
    cluster
}

async fn workers(cluster: &Cluster) -> Vec<Worker> {
    let mut workers = Vec::new();
    for (id, start) in [("a", 0), ("b", 4)] {
        workers.push(cluster.worker(id).ranks(start, 4).start().await);
    }
    workers
}

fn partition(session: &str) -> usize {
    Partition::of(PinKey::of("", "m", session), COUNT).index()
}

/// Waits until the routers have heard of the end of every request: they pin what nothing names once they hear that a worker
/// has it, and a frontend may have its answer before.
async fn all_ended(cluster: &Cluster) {
    for router in &cluster.routers {
        router.reaches("requests_in_flight", 0.0).await;
    }
}

/// A turn of each of so many sessions, with where it went: some at a time, so that the bucket answers all of them in time.
async fn turns(cluster: &Cluster, sessions: usize) -> Vec<Answer> {
    const AT_ONCE: usize = 10;
    let all: Vec<String> = (0..sessions).map(|n| format!("s{n}")).collect();
    let mut answers = Vec::new();
    for some in all.chunks(AT_ONCE) {
        answers.extend(join_all(some.iter().map(|session| cluster.turn(session))).await);
    }
    answers
}

/// Sessions of model `m` of one partition.
fn sessions_of(wanted: usize) -> impl Iterator<Item = String> {
    (0..).map(|n| format!("s{n}")).filter(move |session| partition(session) == wanted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_routers_have_half_of_the_sessions_each_and_every_session_one_placement() {
    const SESSIONS: usize = 200;
    let cluster = halves().await;
    let _workers = workers(&cluster).await;
    let mut places = BTreeMap::<usize, BTreeSet<String>>::new();
    for _ in 0..4 {
        for (n, answer) in turns(&cluster, SESSIONS).await.iter().enumerate() {
            places.entry(n).or_default().insert(answer.at());
        }
    }
    let hopped: Vec<_> = places.values().filter(|places| places.len() > 1).collect();
    assert!(hopped.is_empty(), "{hopped:?}");
    assert!(places.values().flatten().all(|at| !at.contains(' ')), "{places:?}");
    let low = (0..SESSIONS).filter(|n| partition(&format!("s{n}")) < 2).count();
    for (router, pins) in cluster.routers.iter().zip([low, SESSIONS - low]) {
        router.reaches("pins_mirrored", pins as f64).await;
        assert_eq!(router.metric("partitions_served").await, 2.0);
        // Half of what it takes from the queue group is of the other's partitions.
        assert!(router.metric("requests_handed_over").await > 0.0);
        assert_eq!(router.metric("requests_of_unserved_partitions").await, 0.0);
        assert_eq!(router.metric("requests_dropped_reply_subject").await, 0.0);
        assert_eq!(router.metric("malformed").await, 0.0);
    }
    let all: f64 =
        cluster.routers[0].metric("requests_admitted").await + cluster.routers[1].metric("requests_admitted").await;
    assert_eq!(all, 4.0 * SESSIONS as f64, "each request is taken in once");
}

/// The pin of a session of model `m` in the bucket of a partition.
async fn pin_in(cluster: &Cluster, partition: usize, tenant: &str, session: &str) -> Option<Value> {
    let key = PinKey::of(tenant, "m", session).to_string();
    let bucket = cluster.bucket(&format!("rankpin_pins_{partition}")).await;
    let entry = bucket.entry(key).await.expect("the bucket answers")?;
    let put = entry.operation == kv::Operation::Put;
    put.then(|| serde_json::from_slice(&entry.value).expect("a pin is JSON"))
}

fn at(pin: &Value) -> String {
    placement(pin["worker"].as_str().expect("a worker"), pin["dp_rank"].as_u64())
}

#[tokio::test]
async fn what_is_handed_over_is_what_came() {
    let cluster = halves().await;
    let worker = cluster.worker("w").start().await;
    for (n, session) in sessions_of(0).take(4).chain(sessions_of(3).take(4)).enumerate() {
        let ask = Ask::new().session(&session).id(&format!("r{n}")).header("traceparent", "t-1");
        // What a frontend says of it counts for nothing, and goes no further.
        let ask = ask.header("Rankpin-Handed-Over", "1").body(format!("{{\"n\":{n}}}"));
        assert_eq!(cluster.ask(ask).await.at(), "w");
        let dispatch = worker.dispatch(n).await;
        assert_eq!(dispatch.header("Rankpin-Request-Id"), Some(format!("r{n}").as_str()));
        assert_eq!(dispatch.header("traceparent"), Some("t-1"));
        assert_eq!(dispatch.header("Rankpin-Handed-Over"), None);
        assert_eq!(dispatch.message.payload, format!("{{\"n\":{n}}}"));
        let pin = pin_in(&cluster, partition(&session), "", &session).await.expect("in the bucket of its partition");
        assert_eq!(at(&pin), "w");
    }
    assert_eq!(cluster.bucket("rankpin_pins").await.status().await.expect("it is there").values(), 0);
}

#[tokio::test]
async fn conversations_that_nothing_names_stay_where_they_are() {
    let cluster = halves().await;
    let workers = workers(&cluster).await;
    for conversation in 0..8 {
        let mut messages = vec![
            json!({"role": "system", "content": "You are helpful."}),
            json!({"role": "user", "content": format!("question {conversation}")}),
        ];
        let mut places = BTreeSet::new();
        for turn in 0..6 {
            let answer = cluster.ask(Ask::new().body(json!({ "messages": messages }).to_string())).await;
            let wanted = if turn == 0 { "placed,derived" } else { "pinned,derived" };
            assert_eq!(answer.decision(), wanted, "turn {turn} of {conversation}");
            all_ended(&cluster).await;
            places.insert(answer.at());
            // The pin is written once the worker has accepted; the router may hear of that after the answer is here.
            for router in &cluster.routers {
                router.reaches("requests_in_flight", 0.0).await;
            }
            messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
            messages.push(json!({"role": "user", "content": format!("more {turn}")}));
        }
        assert_eq!(places.len(), 1, "{places:?}");
    }
    let sessions: BTreeSet<_> =
        workers.iter().flat_map(Worker::dispatches).map(|dispatch| dispatch.session().to_owned()).collect();
    assert_eq!(sessions.len(), 8, "each is one session to its worker");
}

#[tokio::test]
async fn chains_of_responses_go_on_in_whatever_partition_their_last_response_is() {
    let cluster = halves().await;
    let responding = Behaviour::script(async |dispatch: Dispatch| {
        dispatch.accept().await;
        dispatch.reply(&[("Rankpin-Final", "true")], "done").await;
        let id = format!("resp-{}", dispatch.header("Rankpin-Request-Id").expect("every request has an id"));
        let finished = json!({"outcome": "ok", "response_id": id}).to_string();
        dispatch.event(&[("Rankpin-Event", "finished")], &finished).await;
    });
    let mut workers = Vec::new();
    for (id, start) in [("a", 0), ("b", 4)] {
        workers.push(cluster.worker(id).ranks(start, 4).behaves(responding.clone()).start().await);
    }
    let first = cluster.ask(Ask::new().id("r0").body(r#"{"input":"a question"}"#)).await.at();
    let mut seen = BTreeSet::new();
    for turn in 1..10 {
        let (before, id) = (format!("resp-r{}", turn - 1), format!("r{turn}"));
        let alias = format!("\u{1}rs:{before}");
        let pinned = async || pin_in(&cluster, partition(&alias), "", &alias).await;
        let pin = eventually("the response is pinned in its partition", PATIENCE, pinned).await;
        assert_eq!(at(&pin), first);
        seen.insert(partition(&alias));
        let body = json!({"input": "go on", "previous_response_id": before}).to_string();
        let answer = cluster.ask(Ask::new().id(&id).body(body)).await;
        assert_eq!((answer.at(), answer.decision()), (first.clone(), "pinned,derived"), "turn {turn}");
    }
    assert!(seen.len() > 1, "{seen:?}");
}

#[tokio::test]
async fn sessions_that_no_router_serves_are_refused_at_once_and_others_are_not() {
    let cluster = Cluster::with(1, LOW).await;
    let _worker = cluster.worker("w").start().await;
    for wanted in [2, 3] {
        let session = sessions_of(wanted).next().expect("there are many");
        for ask in [Ask::new(), Ask::new().id("named"), Ask::new().on("rankpin.trusted.m")] {
            // It would wait for a worker as long as this; for a router it does not.
            let refusal = cluster.ask(ask.session(&session).timeout_ms(3_600_000)).await.router_refusal();
            assert_eq!((refusal.status, refusal.code.as_str()), (503, "no_worker"));
            assert!(refusal.message.contains(&format!("partition {wanted} of 4")), "{}", refusal.message);
        }
        assert_eq!(cluster.at(&sessions_of(wanted - 2).next().expect("there are many")).await, "w");
    }
    assert_eq!(cluster.routers[0].metric("requests_of_unserved_partitions").await, 6.0);
    // Without a session it is served where it comes in, and without a reply subject nobody is told.
    assert_eq!(cluster.ask(Ask::new()).await.at(), "w");
    let silent = Ask::new().session(&sessions_of(2).next().expect("there are many")).without_reply();
    drop(cluster.send(silent).await);
    cluster.routers[0].reaches("requests_handed_over", 7.0).await;
}

#[tokio::test]
async fn a_request_of_another_partition_is_handed_over_once_and_no_more() {
    let cluster = Cluster::with(1, LOW).await;
    let _worker = cluster.worker("w").start().await;
    let session = sessions_of(2).next().expect("there are many");
    // As another router would that reckons differently.
    let refusal = cluster.ask(Ask::new().on("rankpin.part.0.request.m").session(&session)).await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (503, "no_worker"));
    assert!(refusal.message.contains("is of partition 2 of 4"), "{}", refusal.message);
    assert_eq!(cluster.routers[0].metric("requests_handed_over").await, 0.0);
}

#[tokio::test]
async fn a_router_with_another_number_of_partitions_does_not_start() {
    let cluster = Cluster::with(1, LOW).await;
    let url = cluster.server.url();
    for (settings, wanted) in [(&[("partitions", "8")][..], 8), (&[], 1)] {
        let error = RouterTask::spawn(&url, settings).refused().await;
        assert!(matches!(&error, RouterError::OtherPartitions { wanted: other, .. } if *other == wanted), "{error}");
        let told = error.to_string();
        assert!(told.contains("is made for --partitions 4, as its bucket rankpin_pins says"), "{told}");
    }
    let undivided = Cluster::start().await;
    let error = RouterTask::spawn(&undivided.server.url(), LOW).refused().await;
    assert!(error.to_string().contains("is made for --partitions 1"), "{error}");
    let nowhere = NatsServer::start();
    let workers = kv::Config { bucket: "rankpin_workers".into(), ..kv::Config::default() };
    jetstream::new(nowhere.client().await).create_key_value(workers).await.expect("is made");
    let never = [LOW, &[("provision", "never")]].concat();
    let error = RouterTask::spawn(&nowhere.url(), &never).refused().await;
    assert!(error.to_string().contains("--description=\"rankpin partitions=4\""), "{error}");
}

#[tokio::test]
async fn partitions_go_from_router_to_router_and_their_sessions_stay() {
    const SESSIONS: usize = 40;
    let mut cluster = halves().await;
    let _workers = workers(&cluster).await;
    let before: Vec<_> = turns(&cluster, SESSIONS).await.iter().map(Answer::at).collect();
    cluster.add_router(LOW).await;
    let pins = cluster.routers[0].metric("pins_mirrored").await;
    assert_eq!(cluster.routers[2].metric("pins_mirrored").await, pins, "it is ready once it has them");
    let mut first = cluster.routers.remove(0);
    first.tell_to_stop();
    // While both are there, and after it.
    for _ in 0..3 {
        let during: Vec<_> = turns(&cluster, SESSIONS).await.iter().map(Answer::at).collect();
        assert_eq!(during, before);
    }
    first.ended().await;
    let after = turns(&cluster, SESSIONS).await;
    assert_eq!(after.iter().map(Answer::at).collect::<Vec<_>>(), before);
    assert!(after.iter().all(|answer| answer.decision() == "pinned"));
}

#[tokio::test]
async fn cancels_reach_whoever_has_the_request() {
    let mut cluster = Cluster::with(1, &[LOW, &[("accept_timeout", "1s")]].concat()).await;
    cluster.add_router(&[HIGH, &[("accept_timeout", "1s")]].concat()).await;
    let _worker = cluster.worker("w").behaves(Behaviour::Silent).start().await;
    for (n, session) in sessions_of(1).take(10).chain(sessions_of(2).take(10)).enumerate() {
        let id = format!("r{n}");
        let sent = cluster.send(Ask::new().session(&session).id(&id)).await;
        // At once: it may be there before the request that was handed over.
        cluster.cancel(&id).await;
        assert_eq!(sent.end().await.at(), "499 cancelled", "{id}");
    }
}

#[tokio::test]
async fn the_word_of_gateways_alone_is_believed_where_it_is_handed_over_too() {
    let mut cluster = Cluster::with(1, &[LOW, &[("untrusted_frontends", "true")]].concat()).await;
    cluster.add_router(&[HIGH, &[("untrusted_frontends", "true")]].concat()).await;
    let _workers = workers(&cluster).await;
    for n in 0..8 {
        let session = format!("t{n}");
        let tenant = |ask: Ask| ask.session(&session).header("Rankpin-Tenant", "acme");
        let trusted = cluster.ask(tenant(Ask::new().on("rankpin.trusted.m"))).await;
        let of_acme = Partition::of(PinKey::of("acme", "m", &session), COUNT).index();
        let pin = pin_in(&cluster, of_acme, "acme", &session).await.expect("it is pinned under its tenant");
        assert_eq!(at(&pin), trusted.at());
        assert_eq!(pin_in(&cluster, partition(&session), "", &session).await, None);
        let untrusted = cluster.ask(tenant(Ask::new())).await;
        let pin = pin_in(&cluster, partition(&session), "", &session).await.expect("it has no tenant");
        assert_eq!(at(&pin), untrusted.at());
    }
}

#[tokio::test]
async fn a_job_of_another_partition_is_pinned_there_without_its_router() {
    let mut cluster = Cluster::with(1, LOW).await;
    let jobs = jobs::connect(&cluster.server).await;
    let answering = Behaviour::script(async |dispatch: Dispatch| {
        dispatch.accept().await;
        match dispatch.header("Rankpin-Reply-To") {
            Some(to) if to.starts_with("rankpin.result.") => dispatch.job_answer("done").await,
            _ => dispatch.answer().await,
        }
    });
    let mut workers = Vec::new();
    for (id, start) in [("a", 0), ("b", 4)] {
        workers.push(cluster.worker(id).ranks(start, 4).behaves(answering.clone()).start().await);
    }
    let sessions: Vec<String> = sessions_of(3).take(6).collect();
    for (n, session) in sessions.iter().enumerate() {
        for turn in 0..2 {
            let name = format!("j{n}-{turn}");
            let job = jobs::job(&name).header("Rankpin-Session-Id", session);
            jobs.submit(&job).await.expect("it is taken");
            jobs::result(&jobs, &name).await;
        }
    }
    let mut places = BTreeMap::<String, BTreeSet<String>>::new();
    for dispatch in workers.iter().flat_map(Worker::dispatches) {
        places.entry(dispatch.session().to_owned()).or_default().insert(dispatch.message.subject.to_string());
    }
    assert_eq!(places.len(), sessions.len());
    assert!(places.values().all(|places| places.len() == 1), "{places:?}");
    assert_eq!(cluster.routers[0].metric("pins_mirrored").await, 0.0, "they are none of its own");
    cluster.add_router(HIGH).await;
    for session in &sessions {
        let pin = pin_in(&cluster, 3, "", session).await.expect("the job has pinned it");
        let answer = cluster.turn(session).await;
        assert_eq!(answer.told(), format!("{} pinned", at(&pin)));
    }
}

#[tokio::test]
async fn a_frontend_that_sends_bodies_itself_gets_its_placement_from_the_routers_of_the_partition() {
    const ON: (&str, &str) = ("decide_mode", "true");
    let mut cluster = Cluster::with(1, &[LOW, &[ON]].concat()).await;
    cluster.add_router(&[HIGH, &[ON]].concat()).await;
    let _workers = workers(&cluster).await;
    for n in 0..8 {
        let session = format!("s{n}");
        let answer = decided(&cluster, question().session(&session)).await;
        assert_eq!(cluster.turn(&session).await.told(), format!("{} pinned", answer.at()));
    }
    // One that does not take such questions says so, and the frontend sends the request whole.
    let mut cluster = Cluster::with(1, &[LOW, &[ON]].concat()).await;
    cluster.add_router(HIGH).await;
    let _w = cluster.worker("w").start().await;
    let session = sessions_of(3).next().expect("there are many");
    let refusal = cluster.ask(question().session(&session)).await.router_refusal();
    assert!(refusal.message.contains("publish the request with its body"), "{}", refusal.message);
}

#[tokio::test]
async fn a_session_under_an_alias_is_of_the_partition_that_the_alias_says() {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let path = dir.path().join("rankpin.toml");
    std::fs::write(&path, "[[alias]]\nmodel = 'chat'\nto = [{model='a'}, {model='b'}]").expect("it takes files");
    let alias = [("config", path.to_str().expect("UTF-8"))];
    let mut cluster = Cluster::with(1, &[LOW, &alias].concat()).await;
    cluster.add_router(&[HIGH, &alias].concat()).await;
    let mut workers = Vec::new();
    for model in ["a", "b"] {
        workers.push(cluster.worker(model).with("models", vec![model]).start().await);
    }
    for n in 0..12 {
        let session = format!("s{n}");
        let model = cluster.ask(Ask::new().model("chat").session(&session)).await.at();
        for _ in 0..3 {
            assert_eq!(cluster.ask(Ask::new().model("chat").session(&session)).await.told(), format!("{model} pinned"));
        }
        let bucket = Partition::of(PinKey::of("", "chat", &session), COUNT);
        let bucket = cluster.bucket(&format!("rankpin_pins_{bucket}")).await;
        let entry = bucket.get(PinKey::of("", &model, &session).to_string()).await.expect("the bucket answers");
        assert!(entry.is_some(), "it is pinned under the model, in the partition of the alias");
    }
    for n in 0..6 {
        let mut messages = vec![json!({"role": "user", "content": format!("question {n}")})];
        let mut places = BTreeSet::new();
        for turn in 0..3 {
            let ask = Ask::new().model("chat").body(json!({ "messages": messages }).to_string());
            let answer = cluster.ask(ask).await;
            assert_eq!(answer.decision(), if turn == 0 { "placed,derived" } else { "pinned,derived" });
            all_ended(&cluster).await;
            places.insert(answer.at());
            messages.push(json!({"role": "assistant", "content": "yes"}));
            messages.push(json!({"role": "user", "content": "and?"}));
        }
        assert_eq!(places.len(), 1);
    }
}

#[tokio::test]
async fn a_router_above_hears_that_nobody_serves_the_partition() {
    let cluster = Cluster::with(1, LOW).await;
    let _worker = cluster.worker("w").start().await;
    let mut above = cluster.subscribe("_INBOX_other_router.x.*").await;
    let mut headers = HeaderMap::new();
    let session = sessions_of(3).next().expect("there are many");
    for (name, value) in [
        ("Rankpin-Hops", "1"),
        ("Rankpin-Request-Id", "r"),
        ("Rankpin-Reply-To", "_INBOX.frontend"),
        ("Rankpin-Session-Id", session.as_str()),
    ] {
        headers.insert(name, value);
    }
    let (to, inbox) = ("rankpin.request.m", "_INBOX_other_router.x.7-1");
    let sent = cluster.client.publish_with_reply_and_headers(to, inbox, headers, "{}".into()).await;
    sent.expect("is published");
    let told = tokio::time::timeout(PATIENCE, above.next()).await.expect("it hears").expect("the client lives");
    let header = |name| find(&told, name);
    assert_eq!(header("Rankpin-Event"), Some("rejected"), "{told:?}");
    assert_eq!((header("Nats-Service-Error-Code"), header("Nats-Service-Error")), (Some("503"), Some("no_worker")));
}
