//! Worker, rank and pool that a frontend asks for (protocol section 5).

use super::{hashed, hashed_at};
use crate::support::{Ask, Cluster, PATIENCE, eventually};

type Headers<'h> = &'h [(&'h str, &'h str)];

const WORKER: &str = "Rankpin-Target-Worker";
const RANK: &str = "Rankpin-Target-Dp-Rank";
const POOL: &str = "Rankpin-Pool";

#[tokio::test]
async fn hints_without_a_session() {
    let cluster = Cluster::start().await;
    let _a = cluster.worker("a").ranks(0, 4).with("pool", "p").start().await;
    let _b = cluster.worker("b").ranks(4, 4).with("pool", "q").start().await;
    let _c = cluster.worker("c").ranks(8, 1).start().await;
    let table: &[(&[(&str, &str)], &str)] = &[
        (&[(RANK, "6")], "b/6"),
        (&[("x-dynamo-dp-rank", "6")], "b/6"),
        (&[("X-Data-Parallel-Rank", "0")], "a/0"),
        (&[("x-dp-rank", "007")], "b/7"),
        // Ours counts before the aliases, and these in their order.
        (&[("x-data-parallel-rank", "1"), ("x-dp-rank", "5"), (RANK, "2")], "a/2"),
        (&[("x-data-parallel-rank", "1"), ("x-dp-rank", "5")], "b/5"),
        (&[(WORKER, "b")], "b"),
        (&[("x-dynamo-worker-instance-id", "b")], "b"),
        (&[("x-dynamo-worker-instance-id", "b"), (WORKER, "a")], "a"),
        (&[(WORKER, "b"), (RANK, "7")], "b/7"),
        (&[(WORKER, "c"), (RANK, "8")], "c"),
        (&[(RANK, "8")], "c"),
        (&[(POOL, "q")], "b"),
        (&[(POOL, "p"), (RANK, "3")], "a/3"),
        (&[(POOL, "default")], "c"),
        (&[(WORKER, " ")], "any"),
        (&[(WORKER, "zz")], "404 unknown_worker"),
        (&[(WORKER, "impossible.id")], "404 unknown_worker"),
        (&[(POOL, "zz")], "404 unknown_pool"),
        (&[(POOL, "q"), (WORKER, "a")], "404 unknown_worker"),
        (&[(POOL, "q"), (RANK, "0")], "400 rank_out_of_range"),
        (&[(WORKER, "a"), (RANK, "4")], "400 rank_out_of_range"),
        (&[(WORKER, "c"), (RANK, "0")], "400 rank_out_of_range"),
        (&[(RANK, "9")], "400 rank_out_of_range"),
        (&[(RANK, "65536")], "400 rank_out_of_range"),
        (&[(RANK, "-1")], "400 rank_out_of_range"),
        (&[(RANK, "+1")], "400 rank_out_of_range"),
        (&[(RANK, "1.0")], "400 rank_out_of_range"),
        (&[(RANK, "0x1")], "400 rank_out_of_range"),
        (&[(RANK, "one")], "400 rank_out_of_range"),
    ];
    for (headers, wanted) in table {
        let answer = cluster.ask(Ask::new().headers(headers)).await;
        let at = answer.at();
        let fits = if *wanted == "any" { !at.contains(' ') } else { at == *wanted };
        assert!(fits, "{headers:?}: {at} instead of {wanted}");
    }
}

#[tokio::test]
async fn a_hinted_session_is_pinned_as_placed() {
    let cluster = Cluster::start().await;
    let _a = cluster.worker("a").ranks(0, 4).with("pool", "p").start().await;
    let _b = cluster.worker("b").ranks(4, 4).with("pool", "q").start().await;
    let _c = cluster.worker("c").start().await;
    let hashed_on_b = hashed_at("b", "worker", 4, 4);
    let rows: [(&str, Headers<'_>, &str, &str); 5] = [
        ("rank", &[(RANK, "6")], "b/6", "hinted"),
        ("worker", &[(WORKER, "b")], &hashed_on_b, "hinted"),
        ("both", &[(WORKER, "a"), (RANK, "1")], "a/1", "hinted"),
        ("single", &[(WORKER, "c")], "c", "hinted"),
        ("pool", &[(POOL, "default")], "c", "placed"),
    ];
    for (session, headers, wanted, reason) in rows {
        let hinted = || Ask::new().session(session).headers(headers);
        assert_eq!(cluster.ask(hinted()).await.told(), format!("{wanted} {reason}"), "{session}");
        assert_eq!(cluster.pinned_at(session).await.as_deref(), Some(wanted), "{session}");
        assert_eq!(cluster.turn(session).await.told(), format!("{wanted} pinned"), "{session}");
        assert_eq!(cluster.ask(hinted()).await.at(), wanted, "{session}");
    }
}

#[tokio::test]
async fn a_worker_hint_keeps_the_pins_rank() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").ranks(0, 4).start().await;
    let rank = (hashed("s", 0, 4) + 1) % 4;
    cluster.put_pin("s", "w", u16::try_from(rank).ok()).await;
    let ask = Ask::new().session("s").header(WORKER, "w");
    assert_eq!(cluster.ask(ask).await.told(), format!("w/{rank} hinted"));
    assert_eq!(cluster.pinned_at("s").await, Some(format!("w/{rank}")));
}

#[tokio::test]
async fn a_conflict_with_a_hard_pin_names_neither_its_worker_nor_its_rank() {
    let cluster = Cluster::start().await;
    let _a = cluster.worker("aaa").ranks(0, 4).with("pool", "p").start().await;
    let _b = cluster.worker("secret").ranks(4, 4).with("pool", "q").start().await;
    cluster.put_pin("s", "secret", Some(6)).await;
    let ask = |headers: &[(&str, &str)]| Ask::new().session("s").headers(headers);
    let conflicts: [&[(&str, &str)]; 5] =
        [&[(RANK, "5")], &[(WORKER, "aaa")], &[(POOL, "p")], &[(WORKER, "aaa"), (RANK, "1")], &[(RANK, "1")]];
    for headers in conflicts {
        let answer = cluster.ask(ask(headers)).await;
        let refusal = answer.router_refusal();
        assert_eq!((refusal.status, refusal.code.as_str()), (409, "pin_conflict"), "{headers:?}");
        assert!(!refusal.message.contains("secret") && !refusal.message.contains('6'), "{}", refusal.message);
        let shown = format!("{:?}", answer.last.headers);
        assert!(!shown.contains("secret") && answer.header("Rankpin-Dp-Rank").is_none(), "{shown}");
    }
    for headers in [&[(RANK, "6")][..], &[(WORKER, "secret")], &[(POOL, "q")], &[(POOL, "q"), (RANK, "6")]] {
        assert_eq!(cluster.ask(ask(headers)).await.at(), "secret/6", "{headers:?}");
    }
    assert_eq!(cluster.pinned_at("s").await, Some("secret/6".into()));
}

#[tokio::test]
async fn of_several_errors_the_first_check_tells() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("a").ranks(0, 4).with("pool", "p").start().await;
    let _b = cluster.worker("b").ranks(4, 4).with("pool", "q").start().await;
    cluster.put_pin("s", "a", Some(0)).await;
    // Each row puts one thing right.
    let rows: [(&str, Headers<'_>, &str); 5] = [
        ("other", &[(POOL, "zz"), (WORKER, "zz"), (RANK, "x")], "404 unknown_model"),
        ("m", &[(POOL, "zz"), (WORKER, "zz"), (RANK, "x")], "404 unknown_pool"),
        ("m", &[(POOL, "q"), (WORKER, "zz"), (RANK, "x")], "404 unknown_worker"),
        ("m", &[(POOL, "q"), (WORKER, "b"), (RANK, "x")], "400 rank_out_of_range"),
        ("m", &[(POOL, "q"), (WORKER, "b"), (RANK, "5")], "409 pin_conflict"),
    ];
    for (model, headers, wanted) in rows {
        let ask = Ask::new().session("s").model(model).headers(headers);
        assert_eq!(cluster.ask(ask).await.at(), wanted, "{headers:?}");
    }
    worker.declare("models", "only".split(' ').collect::<Vec<_>>()).await;
    let only = async || (cluster.ask(Ask::new().model("only")).await.at() == "a").then_some(());
    eventually("the new model is known", PATIENCE, only).await;
    worker.declare("state", "draining").await;
    // The model is known, and nobody is ready for it: that is told before all that is wrong with the hints.
    let no_worker = async || {
        let ask = Ask::new().model("only").headers(&[(POOL, "zz"), (WORKER, "zz"), (RANK, "x")]);
        (cluster.ask(ask).await.at() == "503 no_worker").then_some(())
    };
    eventually("nobody is ready", PATIENCE, no_worker).await;
}
