//! The command line as a person meets it: what it prints, and how it ends.

use std::process::{Command, Output};

use crate::support::rankpin::command as rankpin;

fn run(mut command: Command) -> Output {
    command.output().expect("the binary was built for this test")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn schema_writes_the_files_and_prints_the_same() {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let out = dir.path().join("new/schemas");
    let output = run(rankpin(&["schema", "--out", out.to_str().expect("UTF-8")]));
    assert!(output.status.success(), "{}", stderr(&output));

    let printed = run(rankpin(&["schema"]));
    let printed: serde_json::Value = serde_json::from_slice(&printed.stdout).expect("one JSON object");
    let names: Vec<&String> = printed.as_object().expect("an object").keys().collect();
    assert!(!names.is_empty());
    for name in names {
        let file = std::fs::read(out.join(name)).expect("the file is there");
        let file: serde_json::Value = serde_json::from_slice(&file).expect("JSON");
        assert_eq!(file, printed[name]);
    }
}

#[test]
fn a_bad_log_filter_is_named() {
    let mut command = rankpin(&["schema"]);
    command.env("RANKPIN_LOG", "rankpin=loud").env("RUST_LOG", "info");
    let output = run(command);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(r#"RANKPIN_LOG="rankpin=loud""#), "{}", stderr(&output));
}
