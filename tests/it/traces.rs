//! `rankpin replay`: the harness against figures that were made by another one, and the policies against each other.
//!
//! The recorded traces are no part of the repository: the directory that `RANKPIN_TRACES` names is read, else
//! `../shared/data/traces`. Where there is none, a test says so and plays a small trace of its own.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rankpin::core::mode::{AffinityMode, PolicyKind, RankChoice};
use rankpin::core::weighing::Weighing;
use rankpin::replay::{Combination, Measured, Named, Setup, Trace, replay};
use serde_json::{Value, json};

fn setup() -> Setup {
    Setup {
        workers: 32,
        ranks: 1,
        blocks: Some(10_000),
        prefill_rate: 8000.0,
        decode_rate: 50.0,
        seed: 1,
        speed: 1.0,
        rank_choice: RankChoice::Hash,
        pin_ttl: std::time::Duration::from_secs(3600),
        weighing: Weighing::DEFAULT,
        half_life: std::time::Duration::from_secs(4 * 3600),
    }
}

/// A recorded trace, where it is there.
fn recorded(name: &str) -> Option<Trace> {
    let given = std::env::var_os("RANKPIN_TRACES").map(PathBuf::from);
    let dir = given.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/traces"));
    let path = dir.join(format!("{name}.jsonl.gz"));
    if !path.exists() {
        println!("{} is not there: this test has nothing to say of it", path.display());
        return None;
    }
    Some(Trace::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

fn core(mode: AffinityMode, policy: PolicyKind) -> Named {
    Named::Core(Combination { mode, policy })
}

fn references(trace: &Trace, setup: &Setup) -> Vec<Measured> {
    Named::references().iter().map(|named| replay(trace, setup, named)).collect()
}

#[track_caller]
fn near(found: f64, wanted: f64, most: f64) {
    assert!((found - wanted).abs() <= most, "{found}, and not {wanted}");
}

/// Ten sessions with a common opening of 50 blocks, of ten turns each, in rounds.
fn small() -> String {
    let mut lines = vec![json!({"trace": "small", "block_tokens": 64}).to_string()];
    for turn in 0..10_u32 {
        for session in 0..10_u32 {
            let own = 1000 + session * 1000;
            let line = json!({
                "t": f64::from(turn * 100 + session), "session": format!("s{session}"),
                "blocks": [[0, 50], [own, 20 + 5 * turn]], "out": 100
            });
            lines.push(line.to_string());
        }
    }
    lines.join("\n")
}

#[test]
fn the_harness_agrees_with_another_one() {
    // Hit shares of the ideal, random, round robin, sticky by hash and sticky with a least-loaded start. Prompts are in
    // the caches at once there, so that prefills take no time here.
    for (name, wanted) in [
        ("mooncake_conversation", [0.366, 0.072, 0.073, 0.336, 0.335]),
        ("lmcache_miniswe", [0.937, 0.260, 0.000, 0.936, 0.936]),
    ] {
        let Some(trace) = recorded(name) else { continue };
        let setup = Setup { prefill_rate: 1e12, ..setup() };
        near(replay(&trace, &setup, &Named::Ideal).hit_share, wanted[0], 0.001);
        for (found, wanted) in references(&trace, &setup).iter().zip(&wanted[1..]) {
            // What is drawn by chance differs more, and most of few sessions.
            let most = if found.name == "random" { 0.02 } else { 0.004 };
            near(found.hit_share, *wanted, most);
        }
    }
}

#[test]
fn conversations_that_share_openings_are_placed_by_them_and_herd_nowhere() {
    let Some(trace) = recorded("mooncake_conversation") else { return };
    let setup = setup();
    let sticky = replay(&trace, &setup, &core(AffinityMode::Hard, PolicyKind::LeastLoaded));
    let published = references(&trace, &setup);
    let longest = published.iter().find(|run| run.name.starts_with("longest prefix")).expect("it is a reference");
    for mode in [AffinityMode::Hard, AffinityMode::Soft] {
        let kv = replay(&trace, &setup, &core(mode, PolicyKind::Kv));
        assert!(kv.hit_share > sticky.hit_share + 0.02 && kv.hit_share > longest.hit_share, "{kv:?}");
        assert!(kv.imbalance < 1.25 && kv.worst_misses < 1.25, "{kv:?}");
        assert!(kv.ttft.1 < longest.ttft.1, "{kv:?} {longest:?}");
    }
}

#[test]
fn a_few_sessions_stay_where_they_are() {
    let trace = Trace::read(small().as_bytes()).expect("it is valid");
    let ideal = replay(&trace, &setup(), &Named::Ideal);
    for mode in [AffinityMode::Hard, AffinityMode::Soft] {
        let run = replay(&trace, &setup(), &core(mode, PolicyKind::LeastLoaded));
        assert_eq!(run.moves, 0, "{run:?}");
        assert!(run.hit_share <= ideal.hit_share && run.hit_share > ideal.hit_share - 0.1, "{run:?} {ideal:?}");
    }
}

#[test]
fn the_command_prints_the_same_for_the_same_seed() {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let path = dir.path().join("small.jsonl");
    std::fs::File::create(&path).and_then(|mut file| file.write_all(small().as_bytes())).expect("is written");
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rankpin"));
        let out = command.arg("replay").arg(&path).args(more).output().expect("it runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("UTF-8")
    };
    let fleet = ["--workers", "2", "--ranks", "2", "--blocks", "200", "--affinity", "hard,soft,off", "--json"];
    let first = run(&fleet);
    assert_eq!(first, run(&fleet));
    let told: Value = serde_json::from_str(&first).expect("JSON");
    let runs = told["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 1 + Named::references().len() + 3 * PolicyKind::NAMED.len());
    let ideal = runs[0]["hit_share"].as_f64().expect("a number");
    for run in runs {
        let share = run["hit_share"].as_f64().expect("a number");
        assert!((0.0..=ideal + 1e-9).contains(&share), "{run}");
        assert!(run["imbalance"].as_f64().expect("a number") >= 1.0, "{run}");
    }
    let table = run(&["--policy", "kv", "--affinity", "soft", "--no-references", "--blocks", "infinite"]);
    assert!(table.contains("| soft + kv") && table.contains("| ideal"), "{table}");
    assert!(!table.contains("random"), "{table}");
}

#[test]
fn a_trace_that_can_not_be_read_is_told_with_its_line() {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let path = dir.path().join("bad.jsonl");
    std::fs::write(&path, "{\"trace\":\"t\",\"block_tokens\":64}\n{\"t\":1}\n").expect("is written");
    let out = Command::new(env!("CARGO_BIN_EXE_rankpin")).arg("replay").arg(&path).output().expect("it runs");
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && told.contains("line 2") && told.contains("bad.jsonl"), "{told}");
}
