//! Stored messages that break the client library: found by asking for them in JSON, where their header block is only
//! text, and deleted. Without this one such message in a bucket would end every router that mirrors it, again and
//! again.

use std::time::Duration;

use base64::Engine as _;
use serde::Deserialize;

use super::bucket::Bucket;
use super::link::{Link, LinkOptions};

/// Most stored messages that one search reads.
const MAX_READ: usize = 100_000;
/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Deserialize)]
struct Answer {
    message: Option<StoredMessage>,
}

#[derive(Debug, Deserialize)]
struct StoredMessage {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: Option<String>,
}

/// Deletes the messages after sequence `after` whose header block the client library can't read. How many.
pub async fn remove_poison(bucket: &Bucket, after: u64) -> usize {
    // A connection of its own: the one that reads the bucket is broken by what is looked for.
    let options =
        LinkOptions { name: format!("{} guard", bucket.link().options().name), ..bucket.link().options().clone() };
    let link = match Link::open(options).await {
        Ok(link) => link,
        Err(error) => {
            tracing::warn!(%error, "cannot look for what breaks the connection");
            return 0;
        }
    };
    let mut removed = 0;
    let mut next = after + 1;
    for _ in 0..MAX_READ {
        let Some(message) = read(&link, bucket, next).await else { break };
        next = message.seq + 1;
        if message.hdrs.as_deref().is_some_and(is_poison) {
            removed += 1;
            tracing::warn!(
                bucket = bucket.name(),
                subject = message.subject,
                sequence = message.seq,
                "a stored message has a header block that breaks the NATS client; deleting it"
            );
            delete(&link, bucket, message.seq).await;
        }
    }
    removed
}

async fn read(link: &Link, bucket: &Bucket, from: u64) -> Option<StoredMessage> {
    let ask = serde_json::json!({ "seq": from, "next_by_subj": ">" });
    let answer = request(link, "GET", bucket, &ask).await?;
    serde_json::from_slice::<Answer>(&answer).ok()?.message
}

async fn delete(link: &Link, bucket: &Bucket, sequence: u64) {
    let ask = serde_json::json!({ "seq": sequence, "no_erase": true });
    if request(link, "DELETE", bucket, &ask).await.is_none() {
        tracing::warn!(sequence, "the message could not be deleted; an operator has to");
    }
}

async fn request(link: &Link, verb: &str, bucket: &Bucket, ask: &serde_json::Value) -> Option<bytes::Bytes> {
    let subject = format!("$JS.API.STREAM.MSG.{verb}.{}", bucket.stream_name());
    let (client, _) = link.client();
    let answer = client.request(subject, ask.to_string().into());
    Some(tokio::time::timeout(ANSWER_TIMEOUT, answer).await.ok()?.ok()?.payload)
}

/// Whether a header block, as stored in base64, is one that the client library can't read.
fn is_poison(encoded: &str) -> bool {
    let Ok(block) = base64::prelude::BASE64_STANDARD.decode(encoded) else { return true };
    let Ok(text) = std::str::from_utf8(&block) else { return true };
    let mut lines = text.split("\r\n");
    let version = lines.next().is_some_and(|line| line.starts_with("NATS/1.0"));
    !version || lines.any(|line| !line.is_empty() && !is_sound(line))
}

fn is_sound(line: &str) -> bool {
    let Some((name, _)) = line.split_once(':') else { return false };
    let sound_name = !name.is_empty() && name.bytes().all(|b| (33..=126).contains(&b));
    sound_name && !line.contains(['\r', '\n'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_is_told_from_sound_headers() {
        let block = |text: &[u8]| base64::prelude::BASE64_STANDARD.encode(text);
        assert!(!is_poison(&block(b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n")));
        assert!(!is_poison(&block(b"NATS/1.0\r\nA: \r\nB:x:y\r\n\r\n")));
        assert!(is_poison(&block(b"NATS/1.0\r\nA: x\ry\r\n\r\n")));
        assert!(is_poison(&block(b"NATS/1.0\r\nno colon\r\n\r\n")));
        assert!(is_poison(&block(b"NATS/1.0\r\nA: \xff\r\n\r\n")));
        assert!(is_poison(&block(b"\r\n")));
    }
}
