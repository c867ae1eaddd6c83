//! Chains of responses: a request goes on where the response that it names was made (protocol section 4.1).

use serde_json::{Value, json};

use super::{hashed, sessions_hashing_to};
use crate::support::cluster::placement;
use crate::support::worker::Dispatch;
use crate::support::{Ask, Behaviour, Cluster, PATIENCE, eventually};

/// Answers, and says that the response is `resp-` and the request's id.
fn responding() -> Behaviour {
    Behaviour::script(async |dispatch: Dispatch| {
        dispatch.accept().await;
        respond(&dispatch).await;
    })
}

async fn respond(dispatch: &Dispatch) {
    let id = format!("resp-{}", dispatch.header("Rankpin-Request-Id").expect("every request has an id"));
    dispatch.reply(&[("Rankpin-Final", "true")], "done").await;
    let finished = json!({"outcome": "ok", "response_id": id});
    dispatch.event(&[("Rankpin-Event", "finished")], &finished.to_string()).await;
}

fn opening(id: &str) -> Ask {
    Ask::new().id(id).body(json!({"input": format!("a question {id}")}).to_string())
}

fn going_on(id: &str, from: &str) -> Ask {
    Ask::new().id(id).body(json!({"input": "go on", "previous_response_id": format!("resp-{from}")}).to_string())
}

fn alias(id: &str) -> String {
    format!("\u{1}rs:resp-{id}")
}

/// The alias of a response, once it is written.
async fn pinned(cluster: &Cluster, id: &str) -> Value {
    eventually("the response is pinned", PATIENCE, async || Some(cluster.pin(&alias(id)).await?.0)).await
}

fn at(pin: &Value) -> String {
    placement(pin["worker"].as_str().expect("a worker"), pin["dp_rank"].as_u64())
}

#[tokio::test]
async fn a_chain_stays_where_its_responses_are_whichever_router_takes_the_turn() {
    let cluster = Cluster::with(2, &[]).await;
    let a = cluster.worker("a").ranks(0, 4).behaves(responding()).start().await;
    let b = cluster.worker("b").ranks(4, 4).behaves(responding()).start().await;
    cluster.knows_workers(2).await;
    let first = cluster.ask(opening("r0")).await;
    assert_eq!(first.decision(), "placed,derived");
    let pin = pinned(&cluster, "r0").await;
    assert_eq!(at(&pin), first.at());
    let seen = || a.dispatches().into_iter().chain(b.dispatches()).map(|dispatch| dispatch.session().to_owned());
    let root = seen().next().expect("the first turn");
    assert_eq!((&pin["origin"], &pin["root"]), (&json!("derived"), &json!(root)));
    for turn in 1..8 {
        let answer = cluster.ask(going_on(&format!("r{turn}"), &format!("r{}", turn - 1))).await;
        assert_eq!(answer.told(), format!("{} pinned,derived", first.at()), "turn {turn}");
        pinned(&cluster, &format!("r{turn}")).await;
    }
    // A branch goes on from an older response.
    assert_eq!(cluster.ask(going_on("branch", "r2")).await.at(), first.at());
    assert!(seen().all(|session| session == root), "workers see one session");
}

#[tokio::test]
async fn a_response_belongs_to_its_tenant_and_model_and_an_unknown_one_is_placed_afresh() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("a").ranks(0, 8).with("models", json!(["m", "n"])).behaves(responding());
    let _worker = worker.start().await;
    cluster.ask(opening("r0").header("Rankpin-Tenant", "t")).await;
    let key = alias("r0");
    eventually("it is pinned", PATIENCE, async || cluster.pin_of("t", "m", &key).await).await;
    let on = cluster.ask(going_on("r1", "r0").header("Rankpin-Tenant", "t")).await;
    assert_eq!(on.decision(), "pinned,derived");
    for other in [going_on("r2", "r0"), going_on("r3", "r0").header("Rankpin-Tenant", "t").model("n")] {
        assert_eq!(cluster.ask(other).await.decision(), "placed,derived");
    }
    // What only a frontend has named is not pinned, and neither is a fragment's text.
    assert_eq!(cluster.pin(&key).await, None);
    assert_eq!(cluster.ask(going_on("r4", "r0")).await.decision(), "placed,derived");
}

#[tokio::test]
async fn a_turn_whose_session_is_named_leaves_no_alias() {
    let cluster = Cluster::start().await;
    let _worker = cluster.worker("a").ranks(0, 8).behaves(responding()).start().await;
    let named = cluster.ask(opening("r0").session("s")).await;
    assert_eq!(named.at(), format!("a/{}", hashed("s", 0, 8)));
    cluster.ask(going_on("r1", "r0").session("s")).await;
    // What was written later is there: then so would be what came before.
    cluster.ask(opening("r2")).await;
    pinned(&cluster, "r2").await;
    for id in ["r0", "r1"] {
        assert_eq!(cluster.pin(&alias(id)).await, None);
    }
}

#[tokio::test]
async fn a_chain_waits_for_a_full_rank_and_leaves_a_lost_one() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("a").ranks(0, 2).with("max_inflight", 1).behaves(responding());
    let mut a = worker.start().await;
    let first = cluster.ask(opening("r0")).await.at();
    pinned(&cluster, "r0").await;
    let rank = first.strip_prefix("a/").and_then(|rank| rank.parse().ok()).expect("a rank of a");
    // Somebody else has the only place on that rank: the response is there, and nowhere else.
    a.behave(Behaviour::Hold);
    let other = sessions_hashing_to(rank, 2).next().expect("one of two");
    let other = cluster.send(Ask::new().session(&other)).await;
    let held = a.dispatch(1).await;
    a.behave(responding());
    let waiting = cluster.send(going_on("r1", "r0")).await;
    cluster.routers[0].reaches("requests_waiting", 1.0).await;
    respond(&held).await;
    other.end().await;
    assert_eq!(waiting.end().await.told(), format!("{first} pinned,derived"));
    let b = cluster.worker("b").ranks(2, 2).behaves(responding()).start().await;
    a.die().await;
    let moved = cluster.ask(going_on("r2", "r0")).await;
    assert_eq!(moved.decision(), "repinned,worker-lost");
    assert!(moved.at().starts_with("b/"));
    eventually("the alias follows", PATIENCE, async || {
        let (pin, _) = cluster.pin(&alias("r0")).await?;
        (at(&pin) == moved.at()).then_some(())
    })
    .await;
    assert_eq!(b.count(), 1);
}

#[tokio::test]
async fn ids_that_can_name_no_response_are_passed_over() {
    let cluster = Cluster::start().await;
    let unnameable = Behaviour::script(async |dispatch: Dispatch| {
        dispatch.accept().await;
        dispatch.reply(&[("Rankpin-Final", "true")], "done").await;
        let finished = json!({"outcome": "ok", "response_id": "x".repeat(300)});
        dispatch.event(&[("Rankpin-Event", "finished")], &finished.to_string()).await;
    });
    let worker = cluster.worker("a").ranks(0, 8).behaves(unnameable).start().await;
    assert_eq!(cluster.ask(opening("r0")).await.decision(), "placed,derived");
    let long = json!({"input": "a question r0", "previous_response_id": "x".repeat(300)}).to_string();
    assert_eq!(cluster.ask(Ask::new().body(long)).await.decision(), "placed,derived", "identical first turns");
    let sessions: Vec<_> = worker.dispatches().iter().map(|dispatch| dispatch.session().to_owned()).collect();
    assert!(sessions[0].starts_with("\u{1}px:") && sessions[0] == sessions[1], "by their text: {sessions:?}");
}
