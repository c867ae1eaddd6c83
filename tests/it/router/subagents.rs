//! Subagents beside their siblings, where that is turned on (protocol section 5).

use std::collections::BTreeSet;

use super::{hashed, sessions_hashing_to};
use crate::support::{Ask, Behaviour, Cluster};

const GROUPED: &[(&str, &str)] = &[("group_subagents", "true")];

fn child(session: &str, header: &str) -> Ask {
    Ask::new().session(session).header(header, "parent")
}

#[tokio::test]
async fn siblings_meet_on_one_rank_whichever_router_places_them() {
    let cluster = Cluster::with(2, GROUPED).await;
    let _a = cluster.worker("a").ranks(0, 8).start().await;
    let _b = cluster.worker("b").ranks(8, 8).start().await;
    cluster.knows_workers(2).await;
    // The parent is placed like any session, and its pin stays as it is whatever becomes of its children.
    let parent = cluster.at("parent").await;
    let pin = cluster.pin("parent").await;
    let mut places = BTreeSet::new();
    let headers = ["Rankpin-Parent-Session-Id", "x-dynamo-parent-session-id", "X-Codex-Parent-Thread-Id"];
    for n in 0..12 {
        let answer = cluster.ask(child(&format!("child-{n}"), headers[n % 3])).await;
        assert_eq!(answer.decision(), "placed,siblings");
        places.insert(answer.at());
    }
    let group = places.pop_first().expect("there are children");
    assert!(places.is_empty(), "all at {group}, but also at {places:?}");
    let (worker, rank) = group.split_once('/').expect("a rank");
    let start = if worker == "a" { 0 } else { 8 };
    assert_eq!(rank, hashed("parent", start, 8).to_string());
    for n in 0..12 {
        assert_eq!(cluster.pinned_at(&format!("child-{n}")).await.as_deref(), Some(group.as_str()));
        let turn = cluster.ask(child(&format!("child-{n}"), headers[0])).await;
        assert_eq!(turn.told(), format!("{group} pinned"), "a child is a session of its own");
    }
    assert_eq!(cluster.pin("parent").await, pin);
    assert_eq!(cluster.at("parent").await, parent);
}

#[tokio::test]
async fn a_full_rank_takes_no_more_siblings() {
    let cluster = Cluster::with(1, GROUPED).await;
    let worker = cluster.worker("a").ranks(0, 2).with("max_inflight", 1).behaves(Behaviour::Hold);
    let a = worker.start().await;
    let group = hashed("parent", 0, 2);
    // A session whose own rank has room.
    let second = sessions_hashing_to(1 - group, 2).next().expect("one of two");
    let first = cluster.send(child("first", "x-parent-session-id")).await;
    let beside = a.dispatch(0).await;
    assert_eq!(beside.header("Rankpin-Dp-Rank"), Some(group.to_string().as_str()));
    let second = cluster.send(child(&second, "x-parent-session-id")).await;
    let afresh = a.dispatch(1).await;
    assert_eq!(afresh.header("Rankpin-Dp-Rank"), Some((1 - group).to_string().as_str()));
    assert_eq!(afresh.header("Rankpin-Decision"), Some("placed"));
    for held in [beside, afresh] {
        held.answer().await;
    }
    assert_eq!(first.end().await.at(), format!("a/{group}"));
    assert_eq!(second.end().await.at(), format!("a/{}", 1 - group));
}

#[tokio::test]
async fn parents_are_not_read_unless_subagents_are_grouped() {
    let cluster = Cluster::start().await;
    let _a = cluster.worker("a").ranks(0, 8).start().await;
    for n in 0..4 {
        let session = format!("child-{n}");
        let answer = cluster.ask(child(&session, "Rankpin-Parent-Session-Id")).await;
        assert_eq!(answer.told(), format!("a/{} placed", hashed(&session, 0, 8)));
    }
}
