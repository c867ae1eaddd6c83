//! The checks of the fuzz targets, on their seeds and on all bodies that are at hand. What a fuzzer finds becomes a seed.

#[path = "../../fuzz/checks/mod.rs"]
pub mod checks;

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::support::conversations::Conversations;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const GOLDEN: &str = include_str!("../golden/keys.json");

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    files
}

#[test]
fn seeds_keep_the_rules() {
    for (target, _) in checks::ALL {
        let seeds = files(&Path::new(ROOT).join("fuzz/seeds").join(target));
        assert!(seeds.len() >= 5, "{target} has few seeds");
        for seed in seeds {
            // Where a check fails, this is what was read last.
            println!("{}", seed.display());
            checks::run(target, &std::fs::read(&seed).expect("readable"));
        }
    }
}

#[test]
fn every_check_has_a_target_and_every_target_a_check() {
    let manifest = std::fs::read_to_string(Path::new(ROOT).join("fuzz/Cargo.toml")).expect("readable");
    for (target, _) in checks::ALL {
        assert!(manifest.contains(&format!("path = \"targets/{target}.rs\"")), "{target}");
    }
    assert_eq!(files(&Path::new(ROOT).join("fuzz/targets")).len(), checks::ALL.len());
    assert_eq!(files(&Path::new(ROOT).join("fuzz/seeds")).len(), checks::ALL.len());
}

#[test]
fn golden_and_recorded_bodies_keep_the_rules() {
    let golden: Value = serde_json::from_str(GOLDEN).expect("JSON");
    for group in ["bodies", "no_session", "refused"] {
        for body in golden[group].as_array().expect("bodies") {
            println!("{}", body["name"]);
            if let Some(text) = body["body"].as_str() {
                checks::run("json_body", text.as_bytes());
            }
            if let Some(text) = body["msgpack"].as_str() {
                checks::run("packed_body", &STANDARD.decode(text).expect("base64"));
            }
        }
    }
    for conversation in Conversations::load().all {
        println!("{}", conversation.name);
        checks::run("json_body", conversation.body(conversation.turns() - 1));
    }
}
