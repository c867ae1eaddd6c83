//! What happens when something breaks: frontends, workers and servers that die, freeze or are full. `docs/reliability.md`
//! has what is promised in each case, with the test that shows it.

mod gone;
mod limits;
mod moved;
mod nodes;
mod recorded;

use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use rankpin::client::{Client, ClientError, ClientOptions, ReplyStream, Request};
use rankpin::core::id::{Model, SessionId};

use crate::support::process::Process;
use crate::support::rankpin::command;
use crate::support::{PATIENCE, eventually};

/// How long tests wait for what elections and reconnects take by rule.
pub const LONG: Duration = Duration::from_secs(90);

/// A simulated worker of model `m`, as a process.
pub fn sim(urls: &str, dir: &Path, name: &str, args: &[&str]) -> Process {
    let mut command = command(&["sim", "--worker", name, "--model", "m", "--nats-url", urls]);
    command.args(args);
    Process::start(&format!("sim-{name}"), command, dir)
}

/// A request of a session for model `m` whose answer is streamed.
pub fn turn(session: &str, tokens: u32) -> Request {
    let body = format!(
        r#"{{"model":"m","stream":true,"max_tokens":{tokens},"messages":[{{"role":"user","content":"tell of {session}"}}]}}"#
    );
    let request = Request::new(Model::new("m").expect("valid"), body);
    request.session(&SessionId::named(session).expect("valid"))
}

pub async fn frontend(urls: &str) -> Client {
    let options = ClientOptions { idle_timeout: PATIENCE, ..ClientOptions::new(urls) };
    Client::connect(options).await.expect("a server takes connections")
}

/// Where a request was served, and in how many messages; or why not.
pub async fn collect(mut stream: ReplyStream) -> Result<(String, usize), ClientError> {
    let mut chunks = 0;
    let mut placement = String::new();
    while let Some(chunk) = stream.next().await {
        chunk?;
        chunks += 1;
        if let Some(served) = stream.served() {
            placement = served.placement.to_string();
        }
    }
    Ok((placement, chunks))
}

/// Sends a turn and reads its answer to the end.
pub async fn ask(client: &Client, session: &str) -> Result<String, ClientError> {
    let stream = client.send(turn(session, 4)).await?;
    collect(stream).await.map(|(placement, _)| placement)
}

/// Asks until a turn is served: everything needed is known by then.
pub async fn served(client: &Client, session: &str) -> String {
    eventually("a turn is served", LONG, async || ask(client, session).await.ok()).await
}
