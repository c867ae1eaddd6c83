//! The null forwarder: the least that anything between a frontend and a worker can do.

use std::collections::HashMap;

use super::BenchError;
use crate::core::hash::PinKey;
use crate::nats::bucket::Bucket;
use crate::nats::{Block, Lane, Lines, Link, LinkOptions, Message, Payload};
use crate::wire::header;

/// Queue group of the null forwarder, as a router has one.
const QUEUE: &str = "forwarder";
/// Bytes that may wait to be written: as many as a router lets wait.
const MAX_UNSENT: usize = 1 << 30;
/// Numbers of its subscriptions.
const REQUESTS: u64 = 0;
const ANSWERS: u64 = 1;
/// A value as large as a named session's pin.
const VALUE: &[u8] = br#"{"v":1,"session":"a conversation's name of 36 characters","model":"bench","worker":"echo","dp_rank":0,"origin":"named"}"#;

/// Publishes what comes in on one subject to another, reply subject, headers and payload unchanged; for ever.
pub async fn forward(options: LinkOptions, from: &str, to: &str) -> Result<(), BenchError> {
    let lane = Lane::open(options).await?;
    lane.let_wait(MAX_UNSENT);
    lane.subscribe(REQUESTS, from, Some(QUEUE));
    lane.drive(|message| publish(&lane, to, &message)).await;
    Ok(())
}

/// The same, once it has stored a value under a key of its own for each message, as long and as scattered as those of pins: the least that a router can do that pins
/// a session before it sends its first turn on. The bucket is there.
pub async fn forward_and_store(options: LinkOptions, from: &str, to: &str, bucket: &str) -> Result<(), BenchError> {
    let inbox = format!("{}.{}.", options.inbox_prefix, uuid::Uuid::new_v4().simple());
    let run = uuid::Uuid::new_v4().simple().to_string();
    let lane = Lane::open(options).await?;
    lane.subscribe(REQUESTS, from, Some(QUEUE));
    lane.subscribe(ANSWERS, &format!("{inbox}*"), None);
    let (mut serial, mut waiting) = (0_u64, HashMap::<u64, Message>::new());
    lane.drive(|message| {
        if message.subscription() == ANSWERS {
            let stored = message.subject().strip_prefix(&inbox).and_then(|serial| serial.parse().ok());
            // What is not stored is not sent on, is missed by the generator, and fails the run.
            if let Some(message) = stored.and_then(|serial| waiting.remove(&serial)) {
                publish(&lane, to, &message);
            }
            return;
        }
        let mut headers = Lines::new();
        headers.push_number(header::EXPECTED_LAST_SUBJECT_SEQUENCE, 0);
        let key = format!("$KV.{bucket}.{}", PinKey::of("", &run, &serial.to_string()));
        if lane.publish(&key, Some(&format!("{inbox}{serial}")), &headers, Payload::from(VALUE)).is_ok() {
            waiting.insert(serial, message);
        }
        serial += 1;
    })
    .await;
    Ok(())
}

/// Makes the bucket for that.
pub(super) async fn make_bucket(link: &Link, name: &str) -> Result<(), BenchError> {
    let bucket = Bucket::new(link.clone(), name);
    bucket.create(1, std::time::Duration::from_secs(3600)).await.map_err(|error| BenchError::Bucket(error.0))
}

fn publish(lane: &Lane, to: &str, message: &Message) {
    let block = message.headers().unwrap_or(Block::NONE);
    let mut headers = Lines::with_capacity(block.len());
    headers.extend(block, |_| true);
    // One that is too much to be sent is missed by the generator, and fails the run.
    let _ = lane.publish(to, message.reply(), &headers, message.sent_on());
}
