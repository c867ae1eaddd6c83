//! `rankpin workers`, `pins`, `drain`, `config`, `completions` and `man` as processes.

use std::process::Stdio;

use rankpin::core::id::{DpRank, Namespace, WorkerId};
use rankpin::nats::bucket::{Bucket, is_silence};
use rankpin::nats::{Link, LinkOptions};
use rankpin::ops::pins::{Pins, Target, key_of};
use rankpin::wire::subject::Subjects;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{json, output_with, printed, refused, run};
use crate::support::rankpin::{command, sim};
use crate::support::{Cluster, PATIENCE, eventually};

async fn cluster() -> Cluster {
    Cluster::with(1, &[]).await
}

#[tokio::test]
async fn workers_are_shown_with_load_and_sessions() {
    let cluster = cluster().await;
    let _a = sim(&cluster.server, "a", &["--dp-start", "4", "--dp-size", "2", "--speed", "1000"]);
    let _b = cluster.worker("b").start().await;
    cluster.knows_workers(2).await;
    cluster.put_pin("s", "a", Some(5)).await;
    cluster.put_pin("t", "b", None).await;
    let seen = json(&cluster.server, &["workers"]).await.remove(0);
    assert_eq!(seen["pins"], 2);
    let a = &seen["workers"][0];
    assert_eq!(
        (&a["worker"], &a["state"], &a["dp_start"], &a["reports"]),
        (&json!("a"), &json!("ready"), &json!(4), &json!(true))
    );
    assert_eq!(a["ranks"][0], json!({"dp_rank": 4, "inflight": 0, "queued": 0, "kv_used_percent": 0, "sessions": 0}));
    assert_eq!(a["ranks"][1]["sessions"], 1);
    assert_eq!(seen["workers"][1]["sessions_without_rank"], 1);
    let text = run(&cluster.server, &["workers", "a"]).await;
    assert!(text.starts_with("WORKER  RANK  STATE"), "{text}");
    assert!(text.contains("\n1 workers, 2 ranks, 2 pins\n"), "{text}");
    let short = run(&cluster.server, &["workers", "--short"]).await;
    assert!(short.lines().any(|line| line.starts_with("a ") && line.contains("4-5")), "{short}");
    assert!(refused(&cluster.server, &["workers", "c"]).await.contains("there is no worker c"));
}

#[tokio::test]
async fn what_goes_on_until_stopped_ends_when_nobody_reads_it() {
    let cluster = cluster().await;
    for args in [&["top", "--json", "--every", "100ms"][..], &["workers", "--watch", "--json"]] {
        let mut command = tokio::process::Command::from(command(args));
        command.env("NATS_URL", cluster.server.url()).kill_on_drop(true).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        assert!(lines.next_line().await.expect("it can be read").expect("a line").starts_with(['[', '{']));
        drop(lines);
        let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
        assert!(ended.unwrap_or_else(|_| panic!("{args:?} goes on")).expect("it is ours").success());
    }
}

#[tokio::test]
async fn pins_are_listed_moved_and_removed() {
    let cluster = cluster().await;
    let _a = cluster.worker("a").ranks(0, 2).start().await;
    let _b = cluster.worker("b").ranks(4, 2).start().await;
    cluster.knows_workers(2).await;
    for (session, rank) in [("s", 0), ("t", 1)] {
        cluster.put_pin(session, "a", Some(rank)).await;
    }
    let server = &cluster.server;
    assert_eq!(json(server, &["pins", "ls", "--worker", "a", "--rank", "1"]).await[0]["session"], "t");
    assert_eq!(json(server, &["pins", "ls", "--session", "s*"]).await.len(), 1);
    assert!(run(server, &["pins", "ls", "--limit", "1"]).await.ends_with("1 of 2; --limit shows more\n"));

    // A router sends the next turn where the pin was moved.
    let moved = json(server, &["pins", "move", "s", "--model", "m", "--to", "b/5"]).await.remove(0);
    assert_eq!((&moved["from"], &moved["pin"]["dp_rank"]), (&json!("a/0"), &json!(5)));
    eventually("the router has heard of it", PATIENCE, async || {
        (cluster.turn("s").await.told() == "b/5 pinned").then_some(())
    })
    .await;
    for (to, why) in [
        ("b/3", "worker b declares ranks 4 to 5; 3 is none of them"),
        ("c", "worker c is not registered; there are a, b"),
        ("b/x", "\"x\" is no rank"),
    ] {
        let said = refused(server, &["pins", "move", "t", "--model", "m", "--to", to]).await;
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(cluster.pinned_at("t").await.as_deref(), Some("a/1"));

    // All that a worker has: without a rank, each by its hash.
    assert_eq!(json(server, &["pins", "move", "--from", "a", "--to", "b"]).await.len(), 1);
    let at = cluster.pinned_at("t").await.expect("pinned");
    assert!(["b/4", "b/5"].contains(&at.as_str()), "{at}");

    let stats = json(server, &["pins", "stats"]).await.remove(0);
    assert_eq!((&stats["pins"], &stats["models"]["m"], &stats["ttl_s"]), (&json!(2), &json!(2), &json!(3600)));
    assert_eq!(run(server, &["pins", "rm", "t", "--model", "m"]).await, "removed 1\n");
    assert_eq!(cluster.pin("t").await, None);
    assert!(refused(server, &["pins", "get", "t"]).await.contains("nothing is pinned of t"));
    assert!(refused(server, &["pins", "get", "--key", "t"]).await.contains("32 hexadecimal digits"));
}

#[tokio::test]
async fn a_pin_is_moved_however_long_a_busy_server_takes() {
    let cluster = cluster().await;
    let _b = cluster.worker("b").ranks(4, 2).start().await;
    cluster.put_pin("s", "a", Some(0)).await;
    let link = Link::open(LinkOptions::new(&cluster.server.url(), "test")).await.expect("connects");
    let subjects = Subjects::new(Namespace::new("rankpin").expect("valid"));
    let pins = Pins::open(&link, &subjects).await.expect("a router has made it");
    let pin = pins.get(key_of("s", "m", "").expect("valid")).await.expect("readable").pop().expect("pinned");
    let target = Target { worker: WorkerId::new("b").expect("valid"), rank: Some(DpRank(5)) };
    let spec = pins.target(&target).await.expect("it is registered");
    cluster.server.freeze();
    let bucket = Bucket::new(link.clone(), &subjects.pins_bucket());
    let silent = bucket.read_leader(&pin.key).await.expect_err("the server is frozen");
    assert!(is_silence(&silent.0), "{silent}");
    // More than a router would wait has passed by now, and another time does before the server is back.
    let moving = async { pins.relocate(&pin, &spec, target.rank).await };
    let thawing = async {
        let _ = bucket.read_leader(&pin.key).await;
        let _ = bucket.read_leader(&pin.key).await;
        cluster.server.thaw();
    };
    let (moved, ()) = tokio::join!(moving, thawing);
    assert_eq!(moved.expect("it is only late").placement(), "b/5");
    assert_eq!(cluster.pinned_at("s").await.as_deref(), Some("b/5"));
}

#[tokio::test]
async fn a_drained_worker_finishes_and_leaves() {
    let cluster = cluster().await;
    let mut process = sim(&cluster.server, "a", &["--speed", "1000"]);
    cluster.knows_workers(1).await;
    assert_eq!(cluster.turn("s").await.told(), "a placed");
    let told = json(&cluster.server, &["drain", "a"]).await.remove(0);
    assert_eq!((&told["worker"], &told["held"], &told["gone"]), (&json!("a"), &json!(0), &json!(true)));
    let ended = eventually("its process ends", PATIENCE, async || process.ended()).await;
    assert!(ended.success(), "{ended}");
    assert!(refused(&cluster.server, &["drain", "a"]).await.contains("there is no worker a"));
    // One that does not know of drains: the tests' own.
    let _b = cluster.worker("b").start().await;
    // Its session was moved because somebody wanted it so: nothing was lost.
    eventually("the router knows that it is gone", PATIENCE, async || {
        (cluster.turn("u").await.at() == "b").then_some(())
    })
    .await;
    assert_eq!(cluster.turn("s").await.told(), "b repinned,draining");
    assert!(refused(&cluster.server, &["drain", "b"]).await.contains("stop its process (SIGTERM) instead"));
}

#[tokio::test]
async fn the_configuration_is_shown_with_its_sources_and_without_logins() {
    let server = crate::support::NatsServer::start();
    std::fs::write(server.dir().join("r.toml"), "pin_ttl = '2h'\nuser = 'u'\npassword = 'p4ss'").expect("written");
    let args = ["config", "show", "--config", "r.toml", "--policy", "random", "--nats-url", "nats://a"];
    let text = printed(&args, output_with(&server, &args, &[("RANKPIN_AFFINITY", "soft")]).await);
    let line = |key: &str| {
        let line =
            text.lines().find(|line| line.starts_with(&format!("{key} "))).unwrap_or_else(|| panic!("{key}: {text}"));
        line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("pin_ttl"), "2h r.toml, line 1");
    assert_eq!(line("policy"), "random --policy");
    assert_eq!(line("affinity"), "soft environment variable RANKPIN_AFFINITY");
    assert_eq!(line("accept_timeout"), "2s default");
    assert_eq!(line("password"), "(secret) r.toml, line 3");
    assert!(!text.contains("p4ss"), "{text}");
    let check = ["config", "check", "--config", "r.toml"];
    assert!(printed(&check, output_with(&server, &check, &[]).await).starts_with("the configuration is valid"));
    let wrong = output_with(&server, &["config", "check", "--policy", "best"], &[]).await;
    assert_eq!(wrong.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("--policy: policy is \"best\"; allowed are"));
}

#[tokio::test]
async fn completions_and_man_pages_know_every_command() {
    let server = crate::support::NatsServer::start();
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&server, &["completions", shell]).await;
        assert!(script.contains("pins") && script.contains("accept-timeout"), "{shell}");
    }
    run(&server, &["man", "--out", "man/man1"]).await;
    for page in ["rankpin.1", "rankpin-pins.1", "rankpin-pins-move.1", "rankpin-router.1"] {
        let text = std::fs::read_to_string(server.dir().join("man/man1").join(page)).expect(page);
        assert!(text.contains(".TH"), "{page}");
    }
}
