//! What the tests share: servers, processes, and waiting without guessing how long.

pub mod cluster;
pub mod conversations;
pub mod frontend;
pub mod http;
pub mod nodes;
pub mod process;
pub mod proxy;
pub mod rankpin;
pub mod raw;
pub mod server;
pub mod worker;

pub use cluster::Cluster;
pub use frontend::Ask;
pub use nodes::Nodes;
pub use rankpin::RouterProcess;
pub use raw::RawClient;
pub use server::NatsServer;
pub use worker::{Behaviour, Worker};

use std::time::{Duration, Instant};

/// How long tests wait for what should come at once. It's long because it only counts when a test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Looks until there is something, and fails the test with the words of `what` after `deadline`.
pub async fn eventually<T>(what: &str, deadline: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "not within {deadline:?}: {what}");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// A round trip on the client's connection: what it subscribed or published before has reached the server after it.
/// `flush` alone is no such promise.
pub async fn settle(client: &async_nats::Client) {
    use futures_util::StreamExt as _;

    let inbox = client.new_inbox();
    let mut echo = client.subscribe(inbox.clone()).await.expect("the client takes the subscription");
    client.publish(inbox, bytes::Bytes::new()).await.expect("the client takes the message");
    tokio::time::timeout(PATIENCE, echo.next()).await.expect("the server answers").expect("the client lives");
}

/// What a subscription to `>` has brought so far: everything that was published before this is asked.
pub async fn so_far(client: &async_nats::Client, tap: &mut async_nats::Subscriber) -> Vec<async_nats::Message> {
    use futures_util::StreamExt as _;

    let end = client.new_inbox();
    client.publish(end.clone(), bytes::Bytes::new()).await.expect("the client takes the message");
    let mut messages = Vec::new();
    loop {
        let message =
            tokio::time::timeout(PATIENCE, tap.next()).await.expect("the end comes").expect("the client lives");
        if message.subject.as_str() == end {
            return messages;
        }
        messages.push(message);
    }
}
