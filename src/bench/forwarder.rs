//! The null forwarder: the least that anything between a frontend and a worker can do.

use futures_util::StreamExt as _;

use super::BenchError;
use crate::nats::{Inbound, Link, LinkOptions};

/// Queue group of the null forwarder, as a router has one.
const QUEUE: &str = "forwarder";

/// Publishes what comes in on one subject to another, reply subject, headers and payload unchanged; until the
/// connection is lost.
pub async fn forward(options: LinkOptions, from: &str, to: &str) -> Result<(), BenchError> {
    let link = Link::open(options).await?;
    let (client, _) = link.client();
    let subscribed = client.queue_subscribe(from.to_owned(), QUEUE.to_owned()).await;
    let mut messages = subscribed.map_err(|_| BenchError::ConnectionLost)?.map(Inbound::from);
    while let Some(message) = messages.next().await {
        let publish = link.publish(to.to_owned(), message.reply, message.headers, message.payload);
        publish.await.map_err(|_| BenchError::ConnectionLost)?;
    }
    Err(BenchError::ConnectionLost)
}
