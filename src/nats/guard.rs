//! Stored messages that break the client library: read by asking for them in JSON, where their header block is only
//! text. Without this one such message in a bucket would end every router that mirrors it, again and again.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::bucket::{Bucket, Change, Stored, Unreachable};
use super::lane::Block;
use super::link::{Link, LinkOptions};

/// Most stored messages that one search reads.
const MAX_READ: usize = 100_000;
/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Code of the answer where there is no such message.
const NOT_FOUND: u16 = 404;

#[derive(Debug, Deserialize)]
struct Answer {
    message: Option<StoredMessage>,
    error: Option<Problem>,
}

#[derive(Debug, Deserialize)]
struct Problem {
    code: u16,
    #[serde(default)]
    description: String,
}

#[derive(Debug, Deserialize)]
struct StoredMessage {
    subject: String,
    seq: u64,
    time: String,
    #[serde(default)]
    hdrs: Option<String>,
    #[serde(default)]
    data: Option<String>,
}

/// Reads on after sequence `after` without the client library's help, past what breaks it. The sound messages are
/// returned as a watch would have told them; poison is replaced by a deletion where this user may do that, so that
/// nobody else stumbles over it.
pub async fn read_past_poison(bucket: &Bucket, after: u64) -> Vec<Change> {
    // A connection of its own: the one that reads the bucket is broken by what is looked for.
    let options =
        LinkOptions { name: format!("{} guard", bucket.link().options().name), ..bucket.link().options().clone() };
    let link = match Link::open(options).await {
        Ok(link) => link,
        Err(error) => {
            tracing::warn!(%error, "cannot look for what breaks the connection");
            return Vec::new();
        }
    };
    let own = Bucket::new(link, bucket.name());
    let mut changes = Vec::new();
    let mut next = after + 1;
    while changes.len() < MAX_READ {
        let Some(message) = read(&own, next).await else { break };
        next = message.seq + 1;
        let Some(key) = message.subject.strip_prefix(&format!("$KV.{}.", own.name())).map(str::to_owned) else {
            continue;
        };
        let poison = message.hdrs.as_deref().is_some_and(is_poison);
        if poison {
            tracing::warn!(
                bucket = own.name(),
                key,
                sequence = message.seq,
                "a stored message has a header block that breaks the NATS client; it is passed over, and deleted where that is allowed"
            );
            let _ = own.delete_at(&key, message.seq).await;
        }
        changes.push(message.into_change(key, poison));
    }
    changes
}

/// Sequence of the last message that the stream's leader has; zero where it has none.
pub async fn last_kept(bucket: &Bucket) -> Result<u64, Unreachable> {
    let ask = serde_json::json!({ "last_by_subj": format!("$KV.{}.>", bucket.name()) });
    let silent = || Unreachable("the leader does not say which message is its last".into());
    let answer = request(bucket, &ask).await.ok_or_else(silent)?;
    let answer = serde_json::from_slice::<Answer>(&answer).map_err(|error| Unreachable(error.to_string()))?;
    match answer {
        Answer { message: Some(message), .. } => Ok(message.seq),
        Answer { error: Some(Problem { code: NOT_FOUND, .. }), .. } => Ok(0),
        Answer { error, .. } => Err(Unreachable(error.map(|problem| problem.description).unwrap_or_default())),
    }
}

impl StoredMessage {
    fn into_change(self, key: String, poison: bool) -> Change {
        let header = self.hdrs.and_then(|text| BASE64_STANDARD.decode(text).ok()).unwrap_or_default();
        let deleted = poison || contains(&header, b"KV-Operation:") || contains(&header, b"Nats-Marker-Reason:");
        let value = self.data.and_then(|text| BASE64_STANDARD.decode(text).ok()).unwrap_or_default();
        Change {
            key,
            stored: Stored {
                revision: self.seq,
                value: (!deleted).then(|| value.into()),
                created: humantime::parse_rfc3339(&self.time).unwrap_or_else(|_| SystemTime::now()),
            },
            pending: 1,
        }
    }
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window.eq_ignore_ascii_case(wanted))
}

async fn read(bucket: &Bucket, from: u64) -> Option<StoredMessage> {
    let ask = serde_json::json!({ "seq": from, "next_by_subj": ">" });
    let answer = request(bucket, &ask).await?;
    serde_json::from_slice::<Answer>(&answer).ok()?.message
}

async fn request(bucket: &Bucket, ask: &serde_json::Value) -> Option<bytes::Bytes> {
    let subject = format!("$JS.API.STREAM.MSG.GET.{}", bucket.stream_name());
    let (client, _) = bucket.link().client();
    let answer = client.request(subject, ask.to_string().into());
    Some(tokio::time::timeout(ANSWER_TIMEOUT, answer).await.ok()?.ok()?.payload)
}

/// Whether a header block, as stored in base64, is one that the client library can't read.
fn is_poison(encoded: &str) -> bool {
    let Ok(block) = BASE64_STANDARD.decode(encoded) else { return true };
    Block::read(&block).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_is_told_from_sound_headers() {
        let block = |text: &[u8]| BASE64_STANDARD.encode(text);
        assert!(!is_poison(&block(b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n")));
        assert!(!is_poison(&block(b"NATS/1.0\r\nA: \r\nB:x:y\r\n\r\n")));
        assert!(is_poison(&block(b"NATS/1.0\r\nA: x\ry\r\n\r\n")));
        assert!(is_poison(&block(b"NATS/1.0\r\nno colon\r\n\r\n")));
        assert!(is_poison(&block(b"NATS/1.0\r\nA: \xff\r\n\r\n")));
        assert!(is_poison(&block(b"\r\n")));
    }
}
