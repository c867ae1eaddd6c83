//! What JetStream's API says and is told.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::nats::Block;
use crate::nats::lane::Unsound;
use crate::wire::header;

/// A stream's settings, as far as they matter here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamConfig {
    /// Its name.
    pub name: String,
    /// What it takes.
    #[serde(default)]
    pub subjects: Vec<String>,
    /// When it lets messages go.
    pub retention: Retention,
    /// Where it keeps them.
    pub storage: Storage,
    /// On how many servers.
    pub num_replicas: usize,
    /// How long messages live; zero is for ever.
    #[serde(with = "nanoseconds", default)]
    pub max_age: Duration,
    /// Most messages; -1 is without a limit.
    pub max_msgs: i64,
    /// Most bytes; -1 is without a limit.
    pub max_bytes: i64,
    /// What gives way at a limit.
    pub discard: Discard,
    /// How long ids of messages are remembered.
    #[serde(with = "nanoseconds", default)]
    pub duplicate_window: Duration,
}

/// When a stream lets messages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Retention {
    /// By its limits alone.
    Limits,
    /// Once every consumer has acknowledged them.
    Interest,
    /// Once they are acknowledged.
    WorkQueue,
}

/// Where a stream keeps its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// On disk.
    File,
    /// In memory.
    Memory,
}

/// What gives way at a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Discard {
    /// The oldest message.
    Old,
    /// The new one: it is refused.
    New,
}

/// A stream.
#[derive(Debug, Clone, Deserialize)]
pub struct StreamInfo {
    /// Its settings.
    pub config: StreamConfig,
    /// What it holds.
    pub state: StreamState,
    #[serde(default)]
    pub(super) total: usize,
}

/// What a stream holds.
#[derive(Debug, Clone, Deserialize)]
pub struct StreamState {
    /// Number of messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sequence of the last one.
    pub last_seq: u64,
    pub(super) subjects: Option<BTreeMap<String, u64>>,
}

/// Some of a stream's subjects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subjects {
    /// Subject and number of its messages.
    pub found: BTreeMap<String, u64>,
    /// How many match in all.
    pub total: usize,
}

/// A consumer's settings, as far as they matter here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerConfig {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// The same: it stays without anybody who uses it.
    #[serde(default)]
    pub durable_name: String,
    /// What has to be acknowledged.
    pub ack_policy: AckPolicy,
    /// How long a message may be unacknowledged until it is delivered again.
    #[serde(with = "nanoseconds", default)]
    pub ack_wait: Duration,
    /// Most deliveries; -1 is without a limit.
    #[serde(default = "unlimited")]
    pub max_deliver: i64,
    /// Most messages that are delivered and not acknowledged.
    #[serde(default = "unlimited")]
    pub max_ack_pending: i64,
    /// What it delivers of the stream.
    #[serde(default)]
    pub filter_subject: String,
    /// Where it begins.
    pub deliver_policy: String,
    /// How fast it delivers.
    pub replay_policy: String,
}

/// What has to be acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckPolicy {
    /// Nothing.
    None,
    /// One acknowledges all before it.
    All,
    /// Each message.
    Explicit,
}

/// A consumer.
#[derive(Debug, Clone, Deserialize)]
pub struct ConsumerInfo {
    /// Its settings.
    pub config: ConsumerConfig,
    /// How far it has delivered.
    pub delivered: Delivered,
    /// Messages delivered and not acknowledged.
    #[serde(default)]
    pub num_ack_pending: u64,
    /// Messages not delivered yet.
    #[serde(default)]
    pub num_pending: u64,
}

/// How far a consumer has delivered.
#[derive(Debug, Clone, Deserialize)]
pub struct Delivered {
    /// The highest sequence of the stream.
    #[serde(default)]
    pub stream_seq: u64,
}

/// A message that was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Its sequence; of a duplicate that of the first one.
    pub sequence: u64,
    /// Whether it was not stored, because one of its id was.
    pub duplicate: bool,
}

/// Which message to read.
#[derive(Debug, Clone, Copy)]
pub enum Get<'s> {
    /// That of a sequence.
    Sequence(u64),
    /// The last one of a subject.
    Last(&'s str),
    /// The first one from a sequence on whose subject matches.
    Next(u64, &'s str),
}

impl Get<'_> {
    pub(super) fn ask(self) -> serde_json::Value {
        match self {
            Self::Sequence(sequence) => json!({ "seq": sequence }),
            Self::Last(subject) => json!({ "last_by_subj": subject }),
            Self::Next(from, subject) => json!({ "seq": from, "next_by_subj": subject }),
        }
    }
}

/// A message as it stands in a stream.
#[derive(Debug, Clone)]
pub struct StoredMessage {
    /// Its subject.
    pub subject: String,
    /// Its sequence.
    pub sequence: u64,
    /// When it was stored, by the server's clock.
    pub time: SystemTime,
    /// Its payload.
    pub payload: Bytes,
    block: Vec<u8>,
}

impl StoredMessage {
    /// (name, value) pairs of its headers; or why they can't be read.
    pub fn headers(&self) -> Result<Block<'_>, Unsound> {
        if self.block.is_empty() { Ok(Block::NONE) } else { Block::read(&self.block).map(|(block, _)| block) }
    }

    /// The first non-blank value of a header; none where the headers can't be read.
    pub fn find(&self, name: &str) -> Option<&str> {
        header::find(self.headers().ok()?.iter(), name)
    }
}

impl From<RawMessage> for StoredMessage {
    fn from(raw: RawMessage) -> Self {
        let decode = |text: Option<String>| BASE64_STANDARD.decode(text.unwrap_or_default()).unwrap_or_default();
        Self {
            subject: raw.subject,
            sequence: raw.seq,
            time: humantime::parse_rfc3339(&raw.time).unwrap_or(SystemTime::UNIX_EPOCH),
            payload: decode(raw.data).into(),
            block: decode(raw.hdrs),
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct RawMessage {
    subject: String,
    seq: u64,
    #[serde(default)]
    time: String,
    hdrs: Option<String>,
    data: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct GetAnswer {
    pub message: Option<RawMessage>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    pub error: Option<ApiError>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PublishAnswer {
    pub error: Option<ApiError>,
    pub seq: Option<u64>,
    #[serde(default)]
    pub duplicate: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct ApiError {
    #[serde(default)]
    pub err_code: u64,
    #[serde(default)]
    pub description: String,
}

fn unlimited() -> i64 {
    -1
}

/// Durations as JetStream writes them.
mod nanoseconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        // Written by a server that counts in signed numbers.
        let nanos = i64::deserialize(deserializer)?;
        Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
    }
}
