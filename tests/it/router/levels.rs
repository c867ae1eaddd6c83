//! What a router at the global level sends to a pool, and what a pool's router tells it (protocol section 6.3), message by
//! message.

use async_nats::Message;
use futures_util::{FutureExt as _, StreamExt as _};
use tempfile::TempDir;

use crate::support::cluster::Settings;
use crate::support::frontend::find;
use crate::support::{Ask, Behaviour, Cluster, PATIENCE, eventually};

/// A configuration file with one pool.
fn config(more: &str) -> (TempDir, String) {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let path = dir.path().join("rankpin.toml");
    std::fs::write(&path, format!("[[pool]]\nname = \"eu\"\nnamespace = \"eu\"\n{more}")).expect("it takes files");
    let path = path.to_str().expect("UTF-8").to_owned();
    (dir, path)
}

async fn global(path: &str, more: Settings<'_>) -> Cluster {
    let settings = [&[("level", "global"), ("config", path)], more].concat();
    Cluster::with(1, &settings).await
}

/// Says something of a dispatch to the router above.
async fn say(cluster: &Cluster, dispatch: &Message, headers: &[(&str, &str)], payload: &str) {
    let mut map = async_nats::HeaderMap::new();
    headers.iter().for_each(|(name, value)| map.insert(*name, *value));
    let inbox = dispatch.reply.clone().expect("the router above wants to hear");
    cluster.client.publish_with_headers(inbox, map, payload.to_owned().into()).await.expect("is published");
}

#[tokio::test]
async fn a_pool_gets_the_request_with_what_is_left_of_its_times() {
    let (_dir, path) = config("trusted = true");
    let cluster = global(&path, &[("untrusted_frontends", "true")]).await;
    let mut pool = cluster.subscribe("eu.trusted.>").await;
    let body = r#"{"messages":[],  "x":1}"#;
    let ask = Ask::new().session("s").model("a%2Eb").id("r").body(body).timeout_ms(20_000);
    let forged =
        [("Rankpin-Tenant", "t"), ("Rankpin-Priority", "9"), ("Rankpin-Hops", "3"), ("Rankpin-Reply-To", "_INBOX.x")];
    let ask = ask.headers(&forged).header("X-Own", "kept").header("Rankpin-Deadline-Ms", "60000");
    let sent = cluster.send(ask).await;
    let dispatch = pool.next().await.expect("the pool is asked");
    assert_eq!((dispatch.subject.as_str(), &dispatch.payload[..]), ("eu.trusted.a%2Eb", body.as_bytes()));
    let header = |name| find(&dispatch, name);
    assert_eq!(header("Rankpin-Reply-To"), Some(sent.inbox.as_str()));
    assert!(dispatch.reply.as_ref().is_some_and(|inbox| inbox.starts_with("_INBOX_rankpin_router.")));
    for (name, value) in [
        ("Rankpin-Request-Id", Some("r")),
        ("Rankpin-Session-Id", Some("s")),
        ("Rankpin-Hops", Some("1")),
        ("Rankpin-Attempt", Some("1")),
        ("X-Own", Some("kept")),
        ("Rankpin-Tenant", None),
        ("Rankpin-Priority", None),
        ("Rankpin-Worker", None),
    ] {
        assert_eq!(header(name), value, "{name}");
    }
    let number = |name| header(name).expect("it is told").parse::<u64>().expect("a number");
    assert!((1..=20_000).contains(&number("Rankpin-Timeout-Ms")));
    assert!((1..=60_000).contains(&number("Rankpin-Deadline-Ms")));
    assert_eq!(cluster.routers[0].metric("requests_in_flight").await, 1.0);
    say(&cluster, &dispatch, &[("Rankpin-Event", "accepted")], "").await;
    say(&cluster, &dispatch, &[("Rankpin-Event", "finished")], r#"{"outcome":"ok"}"#).await;
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
}

#[tokio::test]
async fn a_pool_that_has_taken_a_request_in_may_take_the_requests_time() {
    let (_dir, path) = config("");
    let cluster = global(&path, &[("accept_timeout", "100ms")]).await;
    let mut pool = cluster.subscribe("eu.request.>").await;
    let sent = cluster.send(Ask::new().session("s").timeout_ms(60_000)).await;
    let dispatch = pool.next().await.expect("the pool is asked");
    say(&cluster, &dispatch, &[("Rankpin-Event", "progress")], "").await;
    // A second request shows that more than the accept timeout has passed.
    let silent = cluster.ask(Ask::new().session("t")).await;
    assert_eq!(silent.at(), "504 accept_timeout");
    let rejected = [
        ("Rankpin-Event", "rejected"),
        ("Nats-Service-Error-Code", "429"),
        ("Nats-Service-Error", "overloaded"),
        ("Retry-After", "17"),
    ];
    say(
        &cluster,
        &dispatch,
        &rejected,
        r#"{"error":{"message":"no room","type":"rankpin_error","code":"overloaded"}}"#,
    )
    .await;
    let answer = sent.end().await;
    assert_eq!((answer.at(), answer.header("Retry-After")), ("429 overloaded".to_owned(), Some("17")), "relayed");
    assert_eq!(answer.router_refusal().message, "no room");
}

/// Sends a request to a pool's router as one at the global level does.
async fn from_above(cluster: &Cluster, ask: Ask) -> (async_nats::Subscriber, crate::support::frontend::Sent) {
    let inbox = format!("_INBOX_global_router.{}.1-1", uuid::Uuid::new_v4().simple());
    let events = cluster.subscribe(&inbox).await;
    let sent = ask.header("Rankpin-Hops", "1").reply_on(&inbox).send(&cluster.client).await;
    (events, sent)
}

async fn event(events: &mut async_nats::Subscriber) -> Message {
    tokio::time::timeout(PATIENCE, events.next()).await.expect("an event comes").expect("the client lives")
}

#[tokio::test]
async fn a_pools_router_tells_what_becomes_of_it_and_the_worker_answers_the_frontend() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").start().await;
    let mut replies = cluster.subscribe("_INBOX.frontend").await;
    let ask =
        Ask::new().session("s").id("r").header("Rankpin-Reply-To", "_INBOX.frontend").header("Rankpin-Attempt", "3");
    let (mut events, _) = from_above(&cluster, ask.clone().header("Rankpin-Alias", "chat")).await;
    let mut kinds = Vec::new();
    for _ in 0..3 {
        kinds.push(find(&event(&mut events).await, "Rankpin-Event").expect("an event").to_owned());
    }
    assert_eq!(kinds, ["progress", "accepted", "finished"]);
    let reply = event(&mut replies).await;
    assert_eq!((find(&reply, "Rankpin-Worker"), find(&reply, "Rankpin-Final")), (Some("w"), Some("true")));
    let dispatch = worker.dispatch(0).await;
    assert_eq!(dispatch.attempt(), (2 * 65_536 + 1).to_string(), "attempts count up over pools");
    assert_eq!((dispatch.header("Rankpin-Alias"), dispatch.header("Rankpin-Model")), (Some("chat"), Some("m")));
    assert_eq!((dispatch.header("Rankpin-Hops"), dispatch.header("Rankpin-Reply-To")), (None, Some("_INBOX.frontend")));

    worker.behave(Behaviour::Reject(429, "overloaded"));
    let (mut events, _) = from_above(&cluster, ask.clone().session("u").timeout_ms(500)).await;
    assert_eq!(find(&event(&mut events).await, "Rankpin-Event"), Some("progress"));
    let rejected = event(&mut events).await;
    let header = |name| find(&rejected, name);
    assert_eq!((header("Rankpin-Event"), header("Nats-Service-Error-Code")), (Some("rejected"), Some("429")));
    assert!(header("Retry-After").is_some());
    let (mut events, _) =
        from_above(&cluster, Ask::new().model("unknown").header("Rankpin-Reply-To", "_INBOX.frontend")).await;
    assert_eq!(find(&event(&mut events).await, "Rankpin-Event"), Some("progress"));
    assert_eq!(find(&event(&mut events).await, "Nats-Service-Error"), Some("unknown_model"));
    assert!(replies.next().now_or_never().is_none(), "the frontend is told by the router above");
}

#[tokio::test]
async fn nobody_is_taken_for_a_router_above_who_is_none() {
    let cluster = Cluster::with(1, &[("untrusted_frontends", "true")]).await;
    let worker = cluster.worker("w").start().await;
    let forged = [("Rankpin-Hops", "1"), ("Rankpin-Reply-To", "_INBOX.x")];
    // Its own reply subject counts where it is no router's inbox.
    assert_eq!(cluster.ask(Ask::new().headers(&forged)).await.at(), "w");
    // With untrusted frontends a router above has to send on the trusted subject.
    let (_events, _) = from_above(&cluster, Ask::new().headers(&forged)).await;
    let dispatch = worker.dispatch(1).await;
    assert!(dispatch.header("Rankpin-Reply-To").is_some_and(|reply| reply.starts_with("_INBOX_global_router.")));
    let (mut events, _) = from_above(&cluster, Ask::new().on("rankpin.trusted.m").headers(&forged)).await;
    assert_eq!(find(&event(&mut events).await, "Rankpin-Event"), Some("progress"));
    assert_eq!(worker.dispatch(2).await.header("Rankpin-Reply-To"), Some("_INBOX.x"));
    // Where the frontend's replies may not go, they don't go for a router above either.
    let dropped = cluster.routers[0].metric("requests_dropped_reply_subject").await;
    let elsewhere = Ask::new().on("rankpin.trusted.m").header("Rankpin-Reply-To", "$JS.API.x");
    let (_events, _) = from_above(&cluster, elsewhere).await;
    cluster.routers[0].reaches("requests_dropped_reply_subject", dropped + 1.0).await;
}

#[tokio::test]
async fn pools_that_lead_in_a_circle_end_in_an_error() {
    let (_dir, path) = config("");
    let cluster = global(&path, &[]).await;
    let (mut events, _) = from_above(&cluster, Ask::new().header("Rankpin-Hops", "4")).await;
    let told = async || {
        let event = event(&mut events).await;
        let body = String::from_utf8_lossy(&event.payload).into_owned();
        body.contains("lead in a circle").then_some(())
    };
    eventually("the circle is told", PATIENCE, told).await;
}

#[tokio::test]
async fn a_session_that_comes_round_in_a_circle_does_not_wait_for_itself() {
    let (_dir, path) = config("");
    let cluster = global(&path, &[]).await;
    let mut pool = cluster.subscribe("eu.request.>").await;
    let _sent = cluster.send(Ask::new().session("s").id("r")).await;
    pool.next().await.expect("the pool is asked");
    let again =
        Ask::new().session("s").id("r").header("Rankpin-Hops", "2").header("Rankpin-Reply-To", "_INBOX.frontend");
    let (mut events, _) = from_above(&cluster, again).await;
    let told = event(&mut events).await;
    assert_eq!(find(&told, "Nats-Service-Error"), Some("no_worker"));
    assert!(String::from_utf8_lossy(&told.payload).contains("lead in a circle"));
}
