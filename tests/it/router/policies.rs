//! Policies through a router: what they are for is seen in where requests go (`docs/policies.md`).

use std::collections::BTreeMap;

use crate::support::{Ask, Behaviour, Cluster, PATIENCE, Worker, eventually};

/// Sends so many requests at the same time, to workers that hold them; returns once each was dispatched.
async fn burst(cluster: &Cluster, workers: &[&Worker], asks: impl Iterator<Item = Ask>) {
    let mut sent = Vec::new();
    for ask in asks {
        sent.push(cluster.send(ask).await);
    }
    let all = async || (count(workers).iter().sum::<usize>() >= sent.len()).then_some(());
    eventually("all were dispatched", PATIENCE, all).await;
}

fn count(workers: &[&Worker]) -> Vec<usize> {
    workers.iter().map(|worker| worker.dispatches().len()).collect()
}

#[tokio::test]
async fn a_burst_of_first_turns_is_even_within_one() {
    let cluster = Cluster::with(1, &[("policy", "least-loaded")]).await;
    let a = cluster.worker("a").ranks(0, 2).behaves(Behaviour::Hold).start().await;
    let b = cluster.worker("b").ranks(2, 2).behaves(Behaviour::Hold).start().await;
    let c = cluster.worker("c").ranks(4, 2).behaves(Behaviour::Hold).start().await;
    let workers = [&a, &b, &c];
    burst(&cluster, &workers, (0..64).map(|n| Ask::new().session(&format!("s{n}")))).await;
    let counts = count(&workers);
    assert!(counts.iter().all(|count| (21..=22).contains(count)), "{counts:?}");
}

#[tokio::test]
async fn weights_are_seen_in_the_traffic() {
    for policy in ["round-robin", "least-loaded"] {
        let cluster = Cluster::with(1, &[("policy", policy)]).await;
        let heavy = cluster.worker("heavy").with("weight", 3).behaves(Behaviour::Hold).start().await;
        let light = cluster.worker("light").behaves(Behaviour::Hold).start().await;
        burst(&cluster, &[&heavy, &light], (0..40).map(|_| Ask::new())).await;
        assert_eq!(count(&[&heavy, &light]), [30, 10], "{policy}");
    }
}

#[tokio::test]
async fn what_others_have_at_a_worker_counts_and_what_is_ours_counts_at_once() {
    let cluster = Cluster::with(1, &[("policy", "least-loaded")]).await;
    let a = cluster.worker("a").behaves(Behaviour::Hold).start().await;
    let b = cluster.worker("b").behaves(Behaviour::Hold).start().await;
    a.report(1, &[(0, 10)]).await;
    burst(&cluster, &[&a, &b], (0..10).map(|_| Ask::new())).await;
    assert_eq!(count(&[&a, &b]), [0, 10]);
    burst(&cluster, &[&a, &b], (0..10).map(|_| Ask::new())).await;
    eventually("both share what comes then", PATIENCE, async || (count(&[&a, &b]) == [5, 15]).then_some(())).await;
}

#[tokio::test]
async fn named_sessions_take_the_least_loaded_rank_where_that_is_chosen() {
    let cluster = Cluster::with(2, &[("policy", "least-loaded"), ("rank_choice", "least-loaded")]).await;
    let worker = cluster.worker("w").ranks(4, 4).behaves(Behaviour::Hold).start().await;
    cluster.knows_workers(1).await;
    let mut ranks = BTreeMap::<String, usize>::new();
    burst(&cluster, &[&worker], (0..32).map(|n| Ask::new().session(&format!("s{n}")))).await;
    for dispatch in worker.dispatches() {
        *ranks.entry(dispatch.header("Rankpin-Dp-Rank").expect("a rank").to_owned()).or_default() += 1;
    }
    // Two routers, which know nothing of each other before the first report, are each even within one.
    assert_eq!(ranks.keys().collect::<Vec<_>>(), ["4", "5", "6", "7"]);
    assert!(ranks.values().all(|count| (6..=10).contains(count)), "{ranks:?}");
    worker.behave(Behaviour::Answer);
    for n in 0..32 {
        let session = format!("s{n}");
        let all = worker.dispatches();
        let first = all.iter().find(|dispatch| dispatch.session() == session).expect("it was sent");
        let first = first.header("Rankpin-Dp-Rank").expect("a rank");
        assert_eq!(cluster.turn(&session).await.told(), format!("w/{first} pinned"), "whichever router asks");
    }
}

#[tokio::test]
async fn conversations_that_share_their_opening_are_spread_over_all_ranks() {
    let cluster = Cluster::with(1, &[("policy", "least-loaded")]).await;
    let a = cluster.worker("a").ranks(0, 4).start().await;
    let b = cluster.worker("b").ranks(4, 4).start().await;
    let mut ranks = BTreeMap::<String, usize>::new();
    for n in 0..200 {
        let body = serde_json::json!({ "messages": [
            { "role": "system", "content": "You are the same for everybody." },
            { "role": "user", "content": format!("Question {n}") },
        ]});
        let answer = cluster.ask(Ask::new().body(body.to_string())).await;
        *ranks.entry(answer.at()).or_default() += 1;
    }
    assert_eq!(a.dispatches().len() + b.dispatches().len(), 200);
    assert!(ranks.len() == 8 && ranks.values().all(|count| *count <= 200 / 8 * 5 / 4), "{ranks:?}");
}
