//! What operators do: the command line against a cluster that runs, logins of every kind, permissions.

mod access;
mod commands;
mod denials;
mod doctor;
mod metrics;
mod partitions;
mod permissions;

use std::process::Output;

use serde_json::Value;

use crate::support::rankpin::command;
use crate::support::{NatsServer, PATIENCE};

/// `rankpin` on this server with these arguments, to its end.
pub async fn output(server: &NatsServer, args: &[&str]) -> Output {
    output_with(server, args, &[("NATS_URL", &server.url())]).await
}

/// The same, with these variables and no others.
pub async fn output_with(server: &NatsServer, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = tokio::process::Command::from(command(args));
    let output = command.envs(variables.iter().copied()).current_dir(server.dir()).kill_on_drop(true).output();
    tokio::time::timeout(2 * PATIENCE, output).await.expect("it ends").expect("it starts")
}

/// What a command prints; it has to end well.
pub async fn run(server: &NatsServer, args: &[&str]) -> String {
    printed(args, output(server, args).await)
}

pub fn printed(args: &[&str], output: Output) -> String {
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What a command prints with `--json`, a value a line.
pub async fn json(server: &NatsServer, args: &[&str]) -> Vec<Value> {
    let text = run(server, &[args, &["--json"]].concat()).await;
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// What a command that fails says last.
pub async fn refused(server: &NatsServer, args: &[&str]) -> String {
    let output = output(server, args).await;
    assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).expect("UTF-8").lines().last().expect("a message").to_owned()
}
