//! Frontends that send the body themselves (protocol section 6.4). The test plays one by hand, from the protocol's text
//! alone, where it does not use the frontend library.

use async_nats::{HeaderMap, Message};
use futures_util::StreamExt as _;
use rankpin::client::{Client, ClientError, ClientOptions, ReplyStream, Request};
use rankpin::core::id::{Model, SessionId};

use super::sessions_hashing_to;
use crate::support::cluster::RouterTask;
use crate::support::frontend::{Answer, Sent, find};
use crate::support::rankpin::sim;
use crate::support::{Ask, Behaviour, Cluster, NatsServer, PATIENCE, RouterProcess, eventually, settle};

const ON: (&str, &str) = ("decide_mode", "true");
/// Where a permit is to expire.
const SHORT: (&str, &str) = ("accept_timeout", "1s");
const BODY: &str = r#"{"messages":[{"role":"user","content":"how are you?"}]}"#;

pub fn question() -> Ask {
    Ask::new().on("rankpin.decide.m").body("").header("Rankpin-Body-Size", "60").header("traceparent", "t-1")
}

/// The next message, which is a placement.
async fn placement(sent: &mut Sent) -> Message {
    let message = sent.next().await;
    assert_eq!(find(&message, "Rankpin-Event"), Some("placed"), "{message:?}");
    assert!(message.payload.is_empty() && find(&message, "Rankpin-Seq").is_none());
    message
}

/// Sends the body where a placement says.
async fn send_body(cluster: &Cluster, placement: &Message) {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", "t-1");
    for (name, values) in placement.headers.iter().flat_map(HeaderMap::iter) {
        let name: &str = name.as_ref();
        if !["Rankpin-Event", "Rankpin-Send-To"].contains(&name) {
            headers.insert(name, values[0].as_str());
        }
    }
    let (to, inbox) = (find(placement, "Rankpin-Send-To"), placement.reply.clone());
    let (to, inbox) = (to.expect("a subject").to_owned(), inbox.expect("the router's inbox"));
    cluster.client.publish_with_reply_and_headers(to, inbox, headers, BODY.into()).await.expect("is published");
}

/// Asks, and does as the router says until the end.
pub async fn decided(cluster: &Cluster, ask: Ask) -> Answer {
    let mut sent = cluster.send(ask).await;
    let mut placements = 0;
    let (mut first, mut last);
    loop {
        last = sent.next().await;
        first = last.clone();
        if find(&last, "Rankpin-Event") == Some("placed") {
            placements += 1;
            let expected = placements.to_string();
            assert_eq!(find(&last, "Rankpin-Attempt"), Some(expected.as_str()));
            send_body(cluster, &last).await;
            continue;
        }
        while find(&last, "Rankpin-Final") != Some("true") {
            last = sent.next().await;
        }
        return Answer { first, last };
    }
}

async fn frontend(cluster: &Cluster) -> Client {
    let mut options = ClientOptions::new(&cluster.server.url());
    options.decide_from = Some(1);
    Client::connect(options).await.expect("the server takes connections")
}

fn request(body: &str) -> Request {
    Request::new(Model::new("m").expect("valid"), body.to_owned())
}

fn in_session(session: &str) -> Request {
    request(BODY).session(&SessionId::named(session).expect("valid"))
}

async fn end(replies: ReplyStream) -> Result<Vec<u8>, ClientError> {
    let chunks = tokio::time::timeout(PATIENCE, replies.collect()).await.expect("it ends")?;
    Ok(chunks.into_iter().flat_map(|chunk| chunk.payload).collect())
}

#[tokio::test]
async fn a_body_goes_straight_to_the_rank_that_its_session_is_pinned_to() {
    let cluster = Cluster::with(1, &[ON]).await;
    let worker = cluster.worker("w").ranks(4, 4).start().await;
    let mut tap = cluster.client.subscribe("rankpin.decide.m").await.expect("subscribes");
    settle(&cluster.client).await;
    let before = cluster.turn("s").await.told();
    let frontend = frontend(&cluster).await;
    let mut replies = frontend.send(in_session("s").header("traceparent", "t-1")).await.expect("is sent");
    let first = tokio::time::timeout(PATIENCE, replies.next()).await.expect("in time").expect("one").expect("no error");
    assert_eq!(first.payload, "done");
    let served = replies.served().expect("known");
    let at = format!("{}/{}", served.placement.worker, served.placement.rank.expect("a rank"));
    assert_eq!(before, format!("{at} placed"));
    assert_eq!((served.decision.as_deref(), served.attempt), (Some("pinned"), Some(1)));
    // The router has not seen the body, and the worker has, as if from the router.
    let asked = tap.next().await.expect("one question");
    assert_eq!((asked.payload.len(), find(&asked, "Rankpin-Body-Size")), (0, Some(BODY.len().to_string().as_str())));
    let [usual, sent] = [worker.dispatch(0).await, worker.dispatch(1).await];
    assert_eq!((sent.message.payload.as_ref(), &sent.message.subject), (BODY.as_bytes(), &usual.message.subject));
    assert_eq!((sent.header("traceparent"), sent.session()), (Some("t-1"), "s"));
    for name in ["Rankpin-Event", "Rankpin-Send-To", "Rankpin-Prefix-Keys", "Rankpin-Body-Size"] {
        assert_eq!(sent.header(name), None);
    }
    let router = &cluster.routers[0];
    router.reaches("requests_in_flight", 0.0).await;
    router.reaches("permits_open", 0.0).await;
    assert_eq!(router.metric("permits").await, 1.0);
    assert_eq!(router.metric_where("requests", "outcome=\"ok\"").await, 2.0);
}

#[tokio::test]
async fn named_and_derived_sessions_are_placed_as_in_the_usual_way() {
    let cluster = Cluster::with(2, &[ON]).await;
    let _a = cluster.worker("a").ranks(0, 4).start().await;
    let _b = cluster.worker("b").ranks(4, 4).start().await;
    let frontend = frontend(&cluster).await;
    for n in 0..12 {
        let session = format!("s{n}");
        // First turns in both ways, and the second in the other one.
        let (first, second) = if n % 2 == 0 {
            let first = decided(&cluster, question().session(&session)).await;
            (first, cluster.turn(&session).await)
        } else {
            let first = cluster.turn(&session).await;
            (first, decided(&cluster, question().session(&session)).await)
        };
        assert_eq!(second.told(), format!("{} pinned", first.at()), "{session}");
        assert_eq!(cluster.pinned_at(&session).await, Some(first.at()));
    }
    let turn = |n: u32, more: &str| {
        let question = format!(r#"{{"role":"user","content":"this is conversation {n}"}}"#);
        format!(r#"{{"messages":[{question}{more}]}}"#)
    };
    let more = r#",{"role":"assistant","content":"yes"},{"role":"user","content":"go on"}"#;
    for n in 0..6 {
        let pins = cluster.routers[0].metric("derived_pins_mirrored").await;
        let mut first = frontend.send(request(&turn(n, ""))).await.expect("is sent");
        tokio::time::timeout(PATIENCE, first.next()).await.expect("in time").expect("one").expect("no error");
        let at = first.served().expect("known").clone();
        for router in &cluster.routers {
            router.reaches("derived_pins_mirrored", pins + 1.0).await;
        }
        let usual = cluster.ask(Ask::new().body(turn(n, more))).await;
        let place = format!("{}/{}", at.placement.worker, at.placement.rank.expect("a rank"));
        assert_eq!((at.decision.as_deref(), usual.told()), (Some("placed,derived"), format!("{place} pinned,derived")));
        for router in &cluster.routers {
            router.reaches("derived_pins_mirrored", pins + 2.0).await;
        }
    }
}

#[tokio::test]
async fn nobody_at_the_rank_is_noticed_though_the_router_does_not_send_the_body() {
    let cluster = Cluster::with(1, &[ON]).await;
    let worker = cluster.worker("w").ranks(0, 2).deaf_on(0).start().await;
    let session = sessions_hashing_to(0, 2).next().expect("there are many");
    let frontend = frontend(&cluster).await;
    assert_eq!(end(frontend.send(in_session(&session)).await.expect("is sent")).await.expect("served"), b"done");
    assert_eq!(cluster.pinned_at(&session).await.as_deref(), Some("w/1"));
    assert_eq!(worker.dispatch(0).await.attempt(), "2");
    // The rank counts as lost for the usual way too.
    let other = sessions_hashing_to(0, 2).nth(1).expect("there are many");
    let dispatched = cluster.routers[0].metric("dispatches").await;
    assert_eq!(cluster.at(&other).await, "w/1");
    assert_eq!(cluster.routers[0].metric("dispatches").await, dispatched + 1.0);
}

#[tokio::test]
async fn a_refusal_brings_another_placement_and_the_body_is_sent_again() {
    let cluster = Cluster::with(1, &[ON]).await;
    let a = cluster.worker("a").behaves(Behaviour::Reject(503, "draining")).start().await;
    let b = cluster.worker("b").behaves(Behaviour::RejectLate(503, "draining")).start().await;
    let c = cluster.worker("c").start().await;
    let frontend = frontend(&cluster).await;
    for n in 0..3 {
        let mut replies = frontend.send(in_session(&format!("s{n}"))).await.expect("is sent");
        let first = tokio::time::timeout(PATIENCE, replies.next()).await.expect("in time").expect("one");
        assert_eq!(first.expect("no error").payload, "done");
        assert_eq!(replies.served().expect("known").placement.worker.as_str(), "c");
    }
    assert!(a.count() > 0 && b.count() > 0 && c.count() == 3, "{} {} {}", a.count(), b.count(), c.count());
    for dispatch in a.dispatches().iter().chain(&b.dispatches()).chain(&c.dispatches()) {
        assert_eq!(dispatch.message.payload, BODY);
    }
    a.behave(Behaviour::Reject(404, "not_here"));
    let target = rankpin::core::id::WorkerId::new("a").expect("valid");
    let refused = end(frontend.send(request(BODY).target_worker(&target)).await.expect("is sent")).await;
    assert_eq!(refused.expect_err("relayed").service_code(), Some("not_here"));
    cluster.routers[0].reaches("permits_open", 0.0).await;
}

#[tokio::test]
async fn a_silent_worker_is_given_up_once_the_frontend_says_that_it_has_sent_the_body() {
    let cluster = Cluster::with(1, &[ON, SHORT]).await;
    let a = cluster.worker("a").behaves(Behaviour::Silent).start().await;
    let b = cluster.worker("b").start().await;
    let frontend = frontend(&cluster).await;
    cluster.put_pin("s", "a", None).await;
    assert_eq!(end(frontend.send(in_session("s")).await.expect("is sent")).await.expect("served"), b"done");
    assert_eq!(cluster.pinned_at("s").await.as_deref(), Some("b"));
    assert_eq!((a.count(), b.count()), (1, 1));
    assert_eq!(a.cancel(0).await.1, "1", "it is told that it was given up");
    let router = &cluster.routers[0];
    assert_eq!(router.metric_where("attempts_failed", "accept_timeout").await, 1.0);
    assert_eq!(router.metric("permits_expired").await, 0.0);
}

#[tokio::test]
async fn a_permit_that_is_not_used_expires_and_blames_nobody() {
    let cluster = Cluster::with(1, &[ON, SHORT]).await;
    let worker = cluster.worker("w").ranks(0, 2).start().await;
    let router = &cluster.routers[0];
    let mut sent = cluster.send(question().session("s").id("r-1")).await;
    let permit = placement(&mut sent).await;
    assert_eq!((router.metric("permits_open").await, router.metric("requests_in_flight").await), (1.0, 1.0));
    assert!(cluster.pin("s").await.is_some(), "claimed before the placement");
    let asked = sent.next().await;
    assert_eq!(find(&asked, "Rankpin-Event"), Some("unaccepted"));
    assert_eq!((find(&asked, "Rankpin-Request-Id"), find(&asked, "Rankpin-Attempt")), (Some("r-1"), Some("1")));
    assert!(asked.reply.is_some() && asked.payload.is_empty());
    let last = sent.next().await;
    assert_eq!(find(&last, "Nats-Service-Error"), Some("permit_expired"));
    assert_eq!(find(&last, "Nats-Service-Error-Code"), Some("504"));
    router.reaches("requests_in_flight", 0.0).await;
    router.reaches("permits_open", 0.0).await;
    assert_eq!(router.metric("permits_expired").await, 1.0);
    assert_eq!(router.metric_where("requests", "outcome=\"permit_expired\"").await, 1.0);
    eventually("the claim is taken back", PATIENCE, async || cluster.pin("s").await.is_none().then_some(())).await;
    assert_eq!(router.metric("attempts_failed").await, 0.0);
    // What the router no longer waits for is nobody's request any more, whatever the worker says.
    send_body(&cluster, &permit).await;
    worker.dispatch(0).await;
    settle(&cluster.client).await;
    assert_eq!(router.metric("requests_in_flight").await, 0.0);
    assert_eq!(worker.cancel(0).await, ("r-1".to_owned(), "1".to_owned()));
    assert_eq!(cluster.turn("s").await.decision(), "placed");
}

#[tokio::test]
async fn a_stale_permit_is_refused_by_the_worker() {
    let cluster = Cluster::with(1, &[ON, ("accept_timeout", "2s")]).await;
    let _worker = sim(&cluster.server, "w", &["--engine", "echo"]);
    cluster.knows_workers(1).await;
    let mut sent = cluster.send(question().session("s").id("late")).await;
    let permit = placement(&mut sent).await;
    let by: u64 = find(&permit, "Rankpin-Accept-By").expect("a time").parse().expect("a number");
    let now = || std::time::UNIX_EPOCH.elapsed().expect("later").as_millis();
    eventually("it is stale", PATIENCE, async || (now() > u128::from(by) + 2000).then_some(())).await;
    let ended = async |sent: &mut Sent| loop {
        let message = sent.next().await;
        if find(&message, "Rankpin-Final").is_some() {
            return find(&message, "Nats-Service-Error").map(str::to_owned);
        }
    };
    assert_eq!(ended(&mut sent).await.as_deref(), Some("permit_expired"));
    send_body(&cluster, &permit).await;
    // What is sent to the same rank after it is answered, so that it has been read.
    let mut next = cluster.send(question().session("s")).await;
    let fresh = placement(&mut next).await;
    send_body(&cluster, &fresh).await;
    assert_eq!(ended(&mut next).await, None);
    assert!(sent.is_silent(), "nothing comes of the stale one");
}

#[tokio::test]
async fn a_frontend_that_is_gone_leaves_nothing_behind() {
    let cluster = Cluster::with(1, &[ON]).await;
    let worker = cluster.worker("w").ranks(0, 2).start().await;
    cluster.send(question().session("s").reply_on("_INBOX.nobody.1")).await;
    let router = &cluster.routers[0];
    router.reaches("requests_admitted", 1.0).await;
    // The accept timeout is far away.
    router.reaches("requests_in_flight", 0.0).await;
    eventually("the claim is taken back", PATIENCE, async || cluster.pin("s").await.is_none().then_some(())).await;
    assert_eq!(router.metric_where("requests", "outcome=\"cancelled\"").await, 1.0);
    assert_eq!((worker.count(), router.metric("attempts_failed").await), (0, 0.0));
}

#[tokio::test]
async fn a_cancel_reaches_the_worker() {
    let cluster = Cluster::with(1, &[ON]).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let frontend = frontend(&cluster).await;
    let replies = frontend.send(in_session("s")).await.expect("is sent");
    let id = replies.request_id().to_string();
    let held = worker.dispatch(0).await;
    cluster.routers[0].reaches("requests_waiting", 0.0).await;
    drop(replies);
    assert_eq!(worker.cancel(0).await, (id, "1".to_owned()));
    held.fail(499, "cancelled").await;
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
}

#[tokio::test]
async fn a_router_that_dies_with_a_permit_out_is_not_missed() {
    let cluster = Cluster::on(NatsServer::start(), 0, &[]).await;
    let mut router = RouterProcess::start("router", &cluster.server, &["--decide-mode"]).await;
    let _worker = sim(&cluster.server, "w", &["--engine", "echo"]);
    eventually("the router knows it", PATIENCE, async || (router.metric("workers").await == 1.0).then_some(())).await;
    let mut sent = cluster.send(question().session("s")).await;
    let permit = placement(&mut sent).await;
    router.process.kill();
    send_body(&cluster, &permit).await;
    let answer = sent.end().await;
    assert_eq!((answer.at().as_str(), answer.last.payload.as_ref()), ("w", BODY.as_bytes()));
    // Another router places the session where it was.
    let router = RouterTask::start(&cluster.server.url(), &[ON]).await;
    router.reaches("workers", 1.0).await;
    assert_eq!(cluster.turn("s").await.told(), "w pinned");
}

#[tokio::test]
async fn without_a_router_that_decides_requests_go_the_usual_way() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").start().await;
    let frontend = frontend(&cluster).await;
    for _ in 0..3 {
        assert_eq!(end(frontend.send(in_session("s")).await.expect("is sent")).await.expect("served"), b"done");
    }
    assert!(worker.dispatches().iter().all(|dispatch| dispatch.message.payload == BODY));
    assert_eq!(worker.count(), 3);
    assert_eq!(cluster.routers[0].metric("permits").await, 0.0);
}

#[tokio::test]
async fn what_can_not_be_decided_without_the_body_goes_the_usual_way() {
    let undecided = async |cluster: &Cluster, ask: Ask| {
        let refusal = cluster.ask(ask).await.router_refusal();
        assert_eq!((refusal.status, refusal.code.as_str()), (421, "undecided"));
        refusal.message
    };
    let cluster = Cluster::with(1, &[ON, ("session.body_fields", "session_id")]).await;
    let plain = cluster.worker("w").with("plain", true).behaves(Behaviour::Silent).start().await;
    let field = undecided(&cluster, question()).await;
    assert!(field.starts_with("a field of the body may name the session"), "{field}");
    let words = undecided(&cluster, question().session("s")).await;
    assert!(words.starts_with("the worker does not speak the protocol"), "{words}");
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    cluster.routers[0].reaches("permits_open", 0.0).await;
    assert_eq!(plain.count(), 0);
    let _worker = cluster.worker("x").with("models", vec!["n"]).start().await;
    let frontend = frontend(&cluster).await;
    let usual = Request::new(Model::new("n").expect("valid"), BODY);
    assert_eq!(end(frontend.send(usual).await.expect("is sent")).await.expect("served"), b"done");

    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let file = dir.path().join("rankpin.toml");
    std::fs::write(&file, "[[alias]]\nmodel = 'chat'\nto = [{model = 'm'}]").expect("written");
    let cluster = Cluster::with(1, &[ON, ("config", file.to_str().expect("UTF-8"))]).await;
    let worker = cluster.worker("w").start().await;
    let keys = question().on("rankpin.decide.chat").header("Rankpin-Prefix-Keys", "00000000000000ab;");
    let words = undecided(&cluster, keys).await;
    assert!(words.starts_with("under an alias"), "{words}");
    let named = decided(&cluster, question().on("rankpin.decide.chat").session("s")).await;
    assert_eq!((named.at().as_str(), worker.dispatch(0).await.header("Rankpin-Model")), ("w", Some("m")));
}

#[tokio::test]
async fn permits_are_bounded() {
    const MAX: usize = 4096;
    let cluster = Cluster::with(1, &[ON, ("accept_timeout", "10m"), ("request_timeout", "10m")]).await;
    let _worker = cluster.worker("w").start().await;
    let mut sent = cluster.send(question()).await;
    placement(&mut sent).await;
    let inbox = sent.inbox.clone();
    for _ in 1..MAX {
        let published = cluster.client.publish_with_reply("rankpin.decide.m", inbox.clone(), "".into()).await;
        published.expect("is published");
    }
    cluster.routers[0].reaches("permits_open", MAX as f64).await;
    let refusal = cluster.ask(question()).await.router_refusal();
    assert_eq!((refusal.status, refusal.code.as_str()), (421, "undecided"));
    assert_eq!(cluster.ask(Ask::new()).await.at(), "w", "the usual way goes on");
}

#[tokio::test]
async fn who_may_decide_is_believed() {
    let cluster = Cluster::with(1, &[ON, ("untrusted_frontends", "true")]).await;
    let _worker = cluster.worker("w").ranks(0, 2).start().await;
    let answer = decided(&cluster, question().session("s").header("Rankpin-Tenant", "t")).await;
    assert_eq!(answer.decision(), "placed");
    assert!(cluster.pin_of("t", "m", "s").await.is_some());
    // Off by default.
    let off = Cluster::start().await;
    assert_eq!(off.send(question()).await.next().await.status, Some(async_nats::StatusCode::NO_RESPONDERS));
}
