//! Sessions derived from the conversation's text (protocol section 4): the frontend names none.

use std::collections::BTreeSet;

use rankpin::core::id::{Model, SessionId};
use rankpin::core::session::configured::BodyFields;
use rankpin::core::session::derived::{Element, Part, Prefixes};
use rankpin::wire::Encoding;
use rankpin::wire::body::{Wanted, read};
use serde_json::{Value, json};

use crate::support::cluster::placement;
use crate::support::worker::Dispatch;
use crate::support::{Ask, Behaviour, Cluster, PATIENCE, eventually};

/// A conversation, as its client sends it: the whole of it with every turn.
#[derive(Clone)]
struct Conversation {
    messages: Vec<Value>,
}

impl Conversation {
    /// With a system prompt that all conversations share.
    fn new(first: &str) -> Self {
        let system = json!({"role": "system", "content": "You are helpful."});
        Self { messages: vec![system, json!({"role": "user", "content": first})] }
    }

    fn goes_on(&mut self, answer: &str, question: &str) {
        self.messages.push(json!({"role": "assistant", "content": answer}));
        self.messages.push(json!({"role": "user", "content": question}));
    }

    fn body(&self) -> Value {
        json!({"model": "m", "messages": self.messages})
    }

    fn ask(&self) -> Ask {
        Ask::new().body(self.body().to_string())
    }

    /// The session ids of its prefixes, shortest first.
    fn sessions(&self) -> Vec<String> {
        let body = self.body().to_string();
        let reading =
            read(body.as_bytes(), Encoding::Json, Wanted { model: true, elements: true, fields: BodyFields::NONE })
                .expect("valid");
        let prefixes = reading.prefixes(&Model::new("m").expect("valid")).expect("it has items");
        prefixes.keys().iter().map(|key| SessionId::derived(*key).as_str().to_owned()).collect()
    }

    fn last_session(&self) -> String {
        self.sessions().pop().expect("it has items")
    }
}

async fn is_pinned(cluster: &Cluster, session: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    eventually("the session is pinned as it should be", PATIENCE, async || {
        let (pin, _) = cluster.pin(session).await?;
        wanted(&pin).then_some(pin)
    })
    .await
}

fn is_at(pin: &Value, at: &str) -> bool {
    placement(pin["worker"].as_str().expect("a worker"), pin["dp_rank"].as_u64()) == at
}

/// Pins are written after acceptance without anybody waiting: a client's next turn comes later than that.
async fn seen_by_all(cluster: &Cluster, pins: usize) {
    for router in &cluster.routers {
        router.reaches("pins_mirrored", pins as f64).await;
    }
}

#[tokio::test]
async fn a_conversation_stays_on_its_rank_whichever_router_takes_the_turn() {
    let cluster = Cluster::with(2, &[]).await;
    let a = cluster.worker("a").ranks(0, 4).start().await;
    let b = cluster.worker("b").ranks(4, 4).start().await;
    let mut conversation = Conversation::new("a question");
    let opening = conversation.last_session();
    let first = cluster.ask(conversation.ask()).await;
    assert_eq!(first.decision(), "placed,derived");
    let at = first.at();
    assert!(at.contains('/'), "a derived session has a rank: {at}");
    let pin = is_pinned(&cluster, &opening, |_| true).await;
    assert!(is_at(&pin, &at));
    assert_eq!((&pin["origin"], &pin["root"]), (&json!("derived"), &json!(opening)));
    assert!(pin.get("shared").is_none());
    seen_by_all(&cluster, 1).await;
    for turn in 0..6 {
        conversation.goes_on(&format!("answer {turn}"), &format!("question {turn}"));
        assert_eq!(cluster.ask(conversation.ask()).await.told(), format!("{at} pinned,derived"), "turn {turn}");
        // About two pins a conversation, however long it gets.
        seen_by_all(&cluster, 2).await;
    }
    let sessions: BTreeSet<_> =
        a.dispatches().iter().chain(&b.dispatches()).map(|dispatch| dispatch.session().to_owned()).collect();
    assert_eq!(sessions, BTreeSet::from([opening]), "workers see one session");
}

#[tokio::test]
async fn what_clients_change_between_turns_changes_nothing() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    let mut conversation = Conversation::new("a question");
    let at = cluster.ask(conversation.ask()).await.at();
    seen_by_all(&cluster, 1).await;
    conversation.goes_on("an answer", "another question");
    // Parts for a string, a cache mark, reasoning kept, numbers, order.
    conversation.messages[1] = json!({"content": [{"cache_control": {"type": "ephemeral"}, "text": "a question", "type": "text"}], "role": "user"});
    conversation.messages[2]["reasoning_content"] = json!("I think");
    let mut body = conversation.body();
    body["temperature"] = json!(0.3);
    assert_eq!(cluster.ask(Ask::new().body(body.to_string())).await.told(), format!("{at} pinned,derived"));
    seen_by_all(&cluster, 2).await;
    // The same in MessagePack.
    conversation.goes_on("more", "and more");
    let packed = rmp_serde::to_vec_named(&conversation.body()).expect("plain data");
    let ask = Ask::new().header("Content-Type", "application/msgpack").body(packed);
    assert_eq!(cluster.ask(ask).await.told(), format!("{at} pinned,derived"));
    // Another model or tenant is another conversation.
    let tenant = conversation.ask().header("Rankpin-Tenant", "t");
    assert_eq!(cluster.ask(tenant).await.decision(), "placed,derived");
}

#[tokio::test]
async fn a_named_session_wins_over_the_text() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    let conversation = Conversation::new("a question");
    let at = super::hashed_at("w", "s", 0, 4);
    assert_eq!(cluster.ask(conversation.ask().session("s")).await.told(), format!("{at} placed"));
    assert_eq!(cluster.pin(&conversation.last_session()).await, None);
}

#[tokio::test]
async fn identical_first_turns_are_placed_each_on_their_own_and_share_their_opening() {
    let cluster = Cluster::start().await;
    let _a = cluster.worker("a").ranks(0, 2).start().await;
    let _b = cluster.worker("b").ranks(2, 2).start().await;
    let opening = Conversation::new("hi");
    let session = opening.last_session();
    let first = cluster.ask(opening.ask()).await.at();
    is_pinned(&cluster, &session, |pin| is_at(pin, &first)).await;
    seen_by_all(&cluster, 1).await;
    let second = cluster.ask(opening.ask()).await;
    assert_eq!(second.decision(), "placed,derived");
    assert_ne!(second.at(), first, "they take turns");
    let shared = is_pinned(&cluster, &session, |pin| pin["shared"] == true).await;
    assert!(is_at(&shared, &first), "it is marked and does not move");
    // The next turns are placed afresh, and from then on each stays where it is.
    let mut places = BTreeSet::new();
    for n in 0..4 {
        let mut own = opening.clone();
        own.goes_on(&format!("answer {n}"), "go on");
        let revision = cluster.pin(&session).await;
        let at = eventually("the router has seen the mark", PATIENCE, async || {
            let answer = cluster.ask(own.ask()).await;
            (answer.decision() == "placed,derived" || n > 0).then(|| answer.at())
        })
        .await;
        places.insert(at.clone());
        let assistant = own.sessions().into_iter().nth(2).expect("system, user, assistant, user");
        is_pinned(&cluster, &assistant, |pin| is_at(pin, &at)).await;
        own.goes_on("more", "and more");
        let stays = eventually("the pin is seen", PATIENCE, async || {
            let answer = cluster.ask(own.ask()).await;
            (answer.decision() == "pinned,derived").then(|| answer.at())
        });
        assert_eq!(stays.await, at);
        assert_eq!(cluster.pin(&session).await, revision, "use does not clear the mark");
    }
    assert!(places.len() > 1, "not all on one rank: {places:?}");
}

#[tokio::test]
async fn conversations_with_one_system_prompt_are_spread() {
    let cluster = Cluster::start().await;
    let _a = cluster.worker("a").ranks(0, 2).start().await;
    let _b = cluster.worker("b").ranks(2, 2).start().await;
    let mut places = Vec::new();
    for n in 0..12 {
        places.push(cluster.ask(Conversation::new(&format!("question {n}")).ask()).await.at());
    }
    let on_a = places.iter().filter(|at| at.starts_with('a')).count();
    assert_eq!(on_a, 6, "{places:?}");
    // Ranks without load are taken in turn, never always the first.
    let used: BTreeSet<_> = places.iter().collect();
    assert_eq!(used.len(), 4, "{places:?}");
}

#[tokio::test]
async fn a_conversation_whose_rank_is_lost_moves_and_takes_its_pin_along() {
    let cluster = Cluster::start().await;
    let mut a = cluster.worker("a").ranks(0, 2).start().await;
    let mut conversation = Conversation::new("a question");
    let opening = conversation.last_session();
    assert!(cluster.ask(conversation.ask()).await.at().starts_with("a/"));
    seen_by_all(&cluster, 1).await;
    conversation.goes_on("an answer", "go on");
    cluster.ask(conversation.ask()).await;
    seen_by_all(&cluster, 2).await;
    let assistant = conversation.sessions().into_iter().nth(2).expect("system, user, assistant, user");
    let _b = cluster.worker("b").ranks(2, 2).start().await;
    a.die().await;
    conversation.goes_on("more", "and more");
    let moved = cluster.ask(conversation.ask()).await;
    assert_eq!(moved.decision(), "repinned,worker-lost");
    let at = moved.at();
    assert!(at.starts_with("b/"), "{at}");
    let pin = is_pinned(&cluster, &assistant, |pin| is_at(pin, &at)).await;
    assert_eq!(pin["root"], json!(opening), "it is still the same session to workers");
    for _ in 0..3 {
        conversation.goes_on("again", "and again");
        let told = eventually("the pin is seen", PATIENCE, async || {
            let told = cluster.ask(conversation.ask()).await.told();
            told.ends_with("pinned,derived").then_some(told)
        });
        assert_eq!(told.await, format!("{at} pinned,derived"));
    }
}

#[tokio::test]
async fn an_overloaded_rank_is_left_for_a_derived_session_is_a_guess() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").with("max_inflight", 1).start().await;
    let mut conversation = Conversation::new("a question");
    assert_eq!(cluster.ask(conversation.ask()).await.at(), "a");
    seen_by_all(&cluster, 1).await;
    let _b = cluster.worker("b").start().await;
    a.behave(Behaviour::Hold);
    let _held = cluster.send(Ask::new().header("Rankpin-Target-Worker", "a")).await;
    a.dispatch(1).await;
    conversation.goes_on("an answer", "go on");
    assert_eq!(cluster.ask(conversation.ask()).await.told(), "b repinned,overload");
    let opening = Conversation::new("a question").last_session();
    is_pinned(&cluster, &opening, |pin| is_at(pin, "b")).await;
}

#[tokio::test]
async fn a_pin_that_the_mirror_does_not_know_is_read_once() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    let mut conversation = Conversation::new("a question");
    conversation.goes_on("an answer", "go on");
    // Nothing is known, so the bucket is asked for the prefix before the first assistant item.
    assert_eq!(cluster.ask(conversation.ask()).await.decision(), "placed,derived");
    assert_eq!(cluster.routers[0].metric("pin_leader_reads").await, 1.0);
    assert_eq!(cluster.ask(Conversation::new("another").ask()).await.decision(), "placed,derived");
    assert_eq!(cluster.routers[0].metric("pin_leader_reads").await, 1.0);
}

#[tokio::test]
async fn pins_written_at_acceptance_move_along_where_the_worker_refuses_after_all() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").behaves(Behaviour::Hold).start().await;
    let mut conversation = Conversation::new("a question");
    conversation.goes_on("an answer", "go on");
    let sessions = conversation.sessions();
    let (full, assistant) = (sessions[3].clone(), sessions[2].clone());
    let sent = cluster.send(conversation.ask()).await;
    let dispatch = a.dispatch(0).await;
    is_pinned(&cluster, &full, |pin| is_at(pin, "a")).await;
    is_pinned(&cluster, &assistant, |pin| is_at(pin, "a")).await;
    let _b = cluster.worker("b").start().await;
    dispatch.reject(503, "draining").await;
    assert_eq!(sent.end().await.at(), "b");
    for session in [full, assistant] {
        let pin = is_pinned(&cluster, &session, |pin| is_at(pin, "b")).await;
        assert!(pin.get("shared").is_none(), "it is one conversation: {pin}");
    }
}

#[tokio::test]
async fn pins_written_at_acceptance_go_where_no_worker_takes_the_request_after_all() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let conversation = Conversation::new("a question");
    let opening = conversation.last_session();
    let sent = cluster.send(conversation.ask()).await;
    is_pinned(&cluster, &opening, |pin| is_at(pin, "w")).await;
    worker.dispatch(0).await.reject(400, "bad").await;
    assert_eq!(sent.end().await.at(), "400 bad");
    let gone = async || cluster.pin(&opening).await.is_none().then_some(());
    eventually("the pin is taken back", PATIENCE, gone).await;
}

#[tokio::test]
async fn a_refusal_of_one_turn_leaves_others_pins_alone() {
    let cluster = Cluster::start().await;
    let a = cluster.worker("a").start().await;
    let mut conversation = Conversation::new("a question");
    assert_eq!(cluster.ask(conversation.ask()).await.at(), "a");
    seen_by_all(&cluster, 1).await;
    a.behave(Behaviour::Reject(400, "bad"));
    conversation.goes_on("an answer", "go on");
    assert_eq!(cluster.ask(conversation.ask()).await.at(), "400 bad");
    assert_eq!(cluster.ask(Conversation::new("another").ask()).await.at(), "400 bad");
    seen_by_all(&cluster, 1).await;
    assert_eq!(cluster.pin(&Conversation::new("another").last_session()).await, None);
}

#[test]
fn sessions_of_this_file_are_those_of_the_protocol() {
    let element = |part, text: &str| Element { part, hash: xxhash_rust::xxh3::xxh3_64(text.as_bytes()) };
    // Every string of an element counts: its role too.
    let mut message = element(Part::Item, "hi");
    message.hash = message.hash.wrapping_add(xxhash_rust::xxh3::xxh3_64(b"user"));
    let mut system = element(Part::Item, "You are helpful.");
    system.hash = system.hash.wrapping_add(xxhash_rust::xxh3::xxh3_64(b"system"));
    let prefixes = Prefixes::of(&Model::new("m").expect("valid"), &[system, message]).expect("items");
    let wanted = SessionId::derived(prefixes.full());
    assert_eq!(Conversation::new("hi").last_session(), wanted.as_str());
}

#[tokio::test]
async fn derived_sessions_beyond_the_cap_are_routed_and_named_ones_pinned() {
    let cluster = Cluster::with(1, &[("max_derived_pins", "1")]).await;
    let responding = Behaviour::script(async |dispatch: Dispatch| {
        dispatch.accept().await;
        dispatch.reply(&[("Rankpin-Final", "true")], "done").await;
        dispatch.event(&[("Rankpin-Event", "finished")], r#"{"outcome":"ok","response_id":"r"}"#).await;
    });
    let _worker = cluster.worker("w").ranks(0, 4).behaves(responding).start().await;
    // Neither has text, so that only its response could be pinned: the first one takes the only place.
    let textless = || Ask::new().body("{}");
    cluster.ask(textless()).await;
    seen_by_all(&cluster, 1).await;
    let conversation = Conversation::new("a question");
    assert_eq!(cluster.ask(conversation.ask()).await.decision(), "placed,derived");
    cluster.routers[0].reaches("derived_sessions_unpinned", 1.0).await;
    for session in ["s", "t"] {
        assert_eq!(cluster.turn(session).await.decision(), "placed");
        assert_eq!(cluster.pinned_at(session).await, Some(super::hashed_at("w", session, 0, 4)));
    }
    seen_by_all(&cluster, 3).await;
    assert_eq!(cluster.pin(&conversation.last_session()).await, None);
    // What is pinned already may still be put again.
    let on = Ask::new().body(r#"{"input":"go on","previous_response_id":"r"}"#);
    assert!(cluster.ask(on).await.decision().starts_with("pinned"), "the response is known");
}
