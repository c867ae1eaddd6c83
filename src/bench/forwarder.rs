//! The null forwarder: the least that anything between a frontend and a worker can do.

use super::BenchError;
use crate::nats::{Block, Lane, Lines, LinkOptions, Message};

/// Queue group of the null forwarder, as a router has one.
const QUEUE: &str = "forwarder";

/// Publishes what comes in on one subject to another, reply subject, headers and payload unchanged; for ever.
pub async fn forward(options: LinkOptions, from: &str, to: &str) -> Result<(), BenchError> {
    let lane = Lane::open(options).await?;
    lane.subscribe(0, from, Some(QUEUE));
    lane.drive(|message| publish(&lane, to, &message)).await;
    Ok(())
}

fn publish(lane: &Lane, to: &str, message: &Message) {
    let block = message.headers().unwrap_or(Block::NONE);
    let mut headers = Lines::with_capacity(block.len());
    headers.extend(block, |_| true);
    // One that is too much to be sent is missed by the generator, and fails the run.
    let _ = lane.publish(to, message.reply(), &headers, message.sent_on());
}
