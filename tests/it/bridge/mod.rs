//! `rankpin bridge` between a router, which each test plays, and an HTTP server that plays the engine.

mod answers;
pub mod engine;
mod kv;
mod life;
mod ranks;

use rankpin::wire::registration::Registration;
use serde_json::Value;

use self::engine::Engine;
use crate::support::process::Process;
use crate::support::{PATIENCE, eventually};
use crate::worker::{Attempt, Field};

/// A bridge as a process; the worker is `w`.
fn start(field: &Field, engine: &str, urls: &[&Engine], args: &[&str]) -> Process {
    let server = field.server.url();
    let mut command = crate::support::rankpin::command(&["bridge", "--worker", "w", "--engine", engine]);
    command.args(["--nats-url", &server]).args(args);
    for url in urls {
        command.args(["--engine-url", &url.url()]);
    }
    Process::start("bridge", command, field.server.dir())
}

async fn registered(field: &Field) -> Registration {
    eventually("the worker is registered", PATIENCE, async || field.registration().await).await
}

async fn unregistered(field: &Field) {
    let gone = async || field.registration().await.is_none().then_some(());
    eventually("the worker is not registered any more", PATIENCE, gone).await;
}

/// Sends a body, and takes the acceptance.
async fn ask(field: &Field, to: &str, body: Value, headers: &[(&str, &str)]) -> Attempt {
    let mut attempt = field.dispatch(to, "r", body.to_string(), headers).await;
    attempt.accepted().await;
    attempt
}
