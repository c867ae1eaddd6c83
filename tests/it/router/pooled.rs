//! Pools among the workers of one router (protocol section 5.1).

use serde_json::json;
use tempfile::TempDir;

use crate::support::{Ask, Behaviour, Cluster, Worker};

/// A router whose sessions go to `home` until it is half full, then to `cloud`.
async fn cluster() -> (TempDir, Cluster) {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let path = dir.path().join("rankpin.toml");
    let text = "pool_policy = 'priority'\n[[pool]]\nname = 'home'\nspill_over = '50%'\n[[pool]]\nname = 'cloud'";
    std::fs::write(&path, text).expect("it takes files");
    let cluster = Cluster::with(1, &[("config", path.to_str().expect("UTF-8"))]).await;
    (dir, cluster)
}

async fn worker(cluster: &Cluster, id: &str, pool: &str) -> Worker {
    cluster.worker(id).with("pool", pool).with("max_inflight", 2).start().await
}

#[tokio::test]
async fn new_sessions_spill_over_and_pinned_ones_stay() {
    let (_dir, cluster) = cluster().await;
    let home = worker(&cluster, "h", "home").await;
    let _cloud = worker(&cluster, "c", "cloud").await;
    for n in 0..4 {
        // One that is just ending would be half of what it may have.
        cluster.routers[0].reaches("requests_in_flight", 0.0).await;
        assert_eq!(cluster.at(&format!("s{n}")).await, "h");
    }
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    home.behave(Behaviour::Hold);
    let held = cluster.send(Ask::new().session("held")).await;
    home.dispatch(4).await;
    assert_eq!(cluster.at("new").await, "c", "half of it is used");
    home.behave(Behaviour::Answer);
    assert_eq!(cluster.turn("s0").await.told(), "h pinned");
    home.dispatch(4).await.answer().await;
    assert_eq!(held.end().await.at(), "h");
    assert_eq!(cluster.turn("new").await.told(), "c pinned", "it stays where it was placed");
    let (pin, _) = cluster.pin("new").await.expect("it is pinned");
    assert_eq!(pin["pool"], json!("cloud"));
}

#[tokio::test]
async fn a_session_whose_worker_is_gone_stays_in_its_pool() {
    let (_dir, cluster) = cluster().await;
    let mut first = worker(&cluster, "c1", "cloud").await;
    let sessions: Vec<String> = (0..6).map(|n| format!("s{n}")).collect();
    for session in &sessions {
        assert_eq!(cluster.at(session).await, "c1");
    }
    let _home = worker(&cluster, "h", "home").await;
    let _second = worker(&cluster, "c2", "cloud").await;
    assert_eq!(cluster.at("new").await, "h", "it has priority");
    first.die().await;
    for session in &sessions {
        assert_eq!(cluster.turn(session).await.told(), "c2 repinned,worker-lost");
    }
}
