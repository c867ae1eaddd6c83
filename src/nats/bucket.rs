//! One JetStream key-value bucket: compare-and-set, reads from the leader, and a watch that never goes quiet
//! without saying so. Routers, which follow a bucket for ever, have a [`super::feed::Feed`] for that.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_nats::jetstream::{self, kv, message::PublishMessage, stream};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::jetstream::{Get, JetStream};
use super::link::{Link, describe};
use super::writes::Writes;

/// How long a write or a read of the leader may take for a router; beyond, the bucket is unreachable (protocol section 5).
pub const BUCKET_TIMEOUT: Duration = Duration::from_millis(500);
/// Most writes that wait for their answer at once: more would only wait in the server's queue, and time out there.
const MAX_WRITES: usize = 512;
/// How long opening a bucket or a watch may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// A bucket, by name, over a connection that may be replaced.
#[derive(Debug, Clone)]
pub struct Bucket {
    link: Link,
    name: String,
    open: Arc<Mutex<Option<Opened>>>,
    places: Arc<Semaphore>,
    over: Option<Arc<Writes>>,
    patience: Duration,
}

#[derive(Debug, Clone)]
struct Opened {
    generation: u64,
    context: jetstream::Context,
    stream: stream::Stream<()>,
}

/// Why a compare-and-set was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CasError {
    /// The key is at another revision.
    #[error("another revision stands under the key")]
    Lost,
    /// The server did not do it, or did not say so in time.
    #[error("the bucket is unreachable: {0}")]
    Unreachable(String),
    /// The server will not store it, as where there is no room.
    #[error("the bucket takes no more: {0}")]
    Refused(String),
}

impl CasError {
    /// There was no answer within so long.
    pub fn silent(waited: Duration) -> Self {
        Self::Unreachable(silence(waited))
    }
}

/// The bucket does not answer, or is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the bucket is unreachable: {0}")]
pub struct Unreachable(pub String);

/// What a look for the bucket finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// It is there.
    There(BucketInfo),
    /// JetStream is there, the bucket is not.
    Missing,
    /// The server, or this account, has no JetStream.
    NoJetStream(String),
    /// No answer: often a missing permission, of which the server tells on the side.
    Silent(String),
}

/// A value with its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The revision.
    pub revision: u64,
    /// The value; `None` where the key was deleted.
    pub value: Option<Bytes>,
    /// When it was stored, by the server's clock.
    pub created: SystemTime,
}

/// State of the bucket's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketInfo {
    /// When the stream was made; another time means another bucket.
    pub created: SystemTime,
    /// Sequence of the first message that is still there; where there is none, the one after the last.
    pub first_sequence: u64,
    /// Sequence of the last message.
    pub last_sequence: u64,
    /// Number of messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Most messages; none or less than one is without a limit.
    pub max_messages: i64,
    /// Most bytes, likewise.
    pub max_bytes: i64,
    /// Values kept per key.
    pub history: i64,
    /// How long values live; zero is for ever.
    pub max_age: Duration,
    /// Servers that keep it.
    pub replicas: usize,
    /// Whether a message may take the place of all others, whoever has written those.
    pub rollups: bool,
    /// What whoever made it says of it.
    pub description: String,
}

/// One change, from a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// What stands there now.
    pub stored: Stored,
    /// Changes that the server still has to deliver.
    pub pending: u64,
}

/// What a watch says.
#[derive(Debug)]
pub enum Watched {
    /// A change.
    Change(Change),
    /// The watch was interrupted and goes on; changes may come late.
    Interrupted(String),
    /// The client is dead, the watch has ended.
    Dead,
}

/// A watch over a whole bucket: every key's last value first, then changes as they come.
pub struct Watch {
    stream: kv::Watch,
}

impl Bucket {
    /// A bucket of this name; nothing is asked of the server yet.
    pub fn new(link: Link, name: &str) -> Self {
        let places = Arc::new(Semaphore::new(MAX_WRITES));
        Self { link, name: name.to_owned(), open: Arc::default(), places, over: None, patience: BUCKET_TIMEOUT }
    }

    /// The same with more time for a write or a read of the leader: for people, who can wait where a request can't.
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The same, written to over a lane.
    pub fn written_over(self, writes: &Arc<Writes>) -> Self {
        Self { over: Some(Arc::clone(writes)), ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of its stream.
    pub fn stream_name(&self) -> String {
        format!("KV_{}", self.name)
    }

    /// The connection it is used over.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// How long opening the bucket or a watch may take.
    fn opening(&self) -> Duration {
        OPEN_TIMEOUT.max(self.patience)
    }

    fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.name)
    }

    /// The context of the client of the moment; a new one only where the client was replaced.
    async fn opened(&self) -> Result<Opened, Unreachable> {
        let (client, generation) = self.link.client();
        {
            let open = self.open.lock().expect("no code panics while it holds this lock");
            if let Some(opened) = open.as_ref().filter(|opened| opened.generation == generation) {
                return Ok(opened.clone());
            }
        }
        let mut context = jetstream::new(client);
        // Beyond ours, which says what was waited for.
        context.set_timeout(self.opening() * 2);
        let stream = context.get_stream_no_info(self.stream_name()).await.map_err(|e| Unreachable(describe(&e)))?;
        let opened = Opened { generation, context, stream };
        *self.open.lock().expect("no code panics while it holds this lock") = Some(opened.clone());
        Ok(opened)
    }

    /// Stores a value if the key is at revision `expected` (0: it has none, or its last one has expired). Returns the
    /// new revision.
    pub async fn put_at(&self, key: &str, value: Bytes, expected: u64) -> Result<u64, CasError> {
        self.write(key, Some(value), expected).await
    }

    /// Deletes a key if it is at revision `expected`.
    pub async fn delete_at(&self, key: &str, expected: u64) -> Result<u64, CasError> {
        self.write(key, None, expected).await
    }

    /// A place among the writes, where one is free at once.
    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Sends what [`Bucket::put_at`] does, for who has a place. The answer comes to `reply`, as
    /// [`super::writes::answer`] reads it.
    pub fn send(&self, key: &str, value: &[u8], expected: u64, reply: &str) -> Result<(), CasError> {
        match &self.over {
            Some(writes) => writes.send(&self.subject(key), Some(value), expected, reply),
            None => Err(CasError::Unreachable("answers are not heard".into())),
        }
    }

    async fn write(&self, key: &str, value: Option<Bytes>, expected: u64) -> Result<u64, CasError> {
        // The wait for a place among the writes is no silence of the bucket: the time for its answer begins after it.
        let _place = self.places.acquire().await.map_err(|e| CasError::Unreachable(e.to_string()))?;
        let written = match &self.over {
            Some(writes) => {
                let subject = self.subject(key);
                let write = writes.write(&subject, value.as_deref(), expected);
                tokio::time::timeout(self.patience, write).await
            }
            None => tokio::time::timeout(self.patience, self.publish_at(key, value, expected)).await,
        };
        written.unwrap_or_else(|_| Err(CasError::silent(self.patience)))
    }

    async fn publish_at(&self, key: &str, value: Option<Bytes>, expected: u64) -> Result<u64, CasError> {
        if !self.link.is_connected() {
            return Err(CasError::Unreachable("there is no connection".into()));
        }
        let opened = self.opened().await.map_err(|e| CasError::Unreachable(e.0))?;
        let message = PublishMessage::build().expected_last_subject_sequence(expected);
        let message = match value {
            Some(value) => message.payload(value),
            None => message.header("KV-Operation", "DEL"),
        };
        let write = async { opened.context.send_publish(self.subject(key), message).await?.await };
        match write.await {
            Ok(ack) => Ok(ack.sequence),
            Err(error) if is_lost_race(&error) => Err(CasError::Lost),
            Err(error) => Err(CasError::Unreachable(describe(&error))),
        }
    }

    /// What stands under a key, from the stream's leader: unlike a direct read it is never behind an acknowledged
    /// write.
    pub async fn read_leader(&self, key: &str) -> Result<Option<Stored>, Unreachable> {
        if !self.link.is_connected() {
            return Err(Unreachable("there is no connection".into()));
        }
        let opened = self.opened().await?;
        let subject = self.subject(key);
        let read = opened.stream.get_last_raw_message_by_subject(&subject);
        match tokio::time::timeout(self.patience, read).await {
            Ok(Ok(message)) => {
                let deleted = message.headers.get("KV-Operation").is_some()
                    || message.headers.get("Nats-Marker-Reason").is_some();
                Ok(Some(Stored {
                    revision: message.sequence,
                    value: (!deleted).then_some(message.payload),
                    created: system_time(message.time.unix_timestamp_nanos()),
                }))
            }
            Ok(Err(error)) if error.kind() == stream::LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Ok(Err(error)) => Err(Unreachable(describe(&error))),
            Err(_) => Err(Unreachable(silence(self.patience))),
        }
    }

    /// Sequence of the last message that the stream's leader has; zero where it has none.
    pub async fn last_kept(&self) -> Result<u64, Unreachable> {
        let everything = self.subject(">");
        let last = JetStream::new(self.link.clone());
        let last = last.get(&self.stream_name(), Get::Last(&everything)).await;
        last.map(|message| message.map_or(0, |message| message.sequence)).map_err(|e| Unreachable(e.to_string()))
    }

    /// State of the bucket's stream.
    pub async fn info(&self) -> Result<BucketInfo, Unreachable> {
        match self.look().await {
            Look::There(info) => Ok(info),
            Look::Missing => Err(Unreachable(NO_BUCKET.into())),
            Look::NoJetStream(problem) | Look::Silent(problem) => Err(Unreachable(problem)),
        }
    }

    /// Looks for the bucket.
    pub async fn look(&self) -> Look {
        let opened = match self.opened().await {
            Ok(opened) => opened,
            Err(error) => return Look::Silent(error.0),
        };
        match tokio::time::timeout(self.opening(), opened.stream.get_info()).await {
            Ok(Ok(info)) => Look::There(BucketInfo {
                created: system_time(info.created.unix_timestamp_nanos()),
                first_sequence: info.state.first_sequence,
                last_sequence: info.state.last_sequence,
                messages: info.state.messages,
                bytes: info.state.bytes,
                max_messages: info.config.max_messages,
                max_bytes: info.config.max_bytes,
                history: info.config.max_messages_per_subject,
                max_age: info.config.max_age,
                replicas: info.config.num_replicas,
                rollups: info.config.allow_rollup,
                description: info.config.description.unwrap_or_default(),
            }),
            Ok(Err(error)) => {
                let cause =
                    std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<jetstream::Error>());
                match (error.kind(), cause.map(jetstream::Error::error_code)) {
                    (_, Some(jetstream::ErrorCode::STREAM_NOT_FOUND)) => Look::Missing,
                    (
                        _,
                        Some(
                            jetstream::ErrorCode::JETSTREAM_NOT_ENABLED
                            | jetstream::ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT,
                        ),
                    )
                    | (jetstream::context::RequestErrorKind::NoResponders, _) => Look::NoJetStream(describe(&error)),
                    _ => Look::Silent(describe(&error)),
                }
            }
            Err(_) => Look::Silent(silence(self.opening())),
        }
    }

    /// Watches the whole bucket: every key's value first.
    pub async fn watch(&self) -> Result<Watch, Unreachable> {
        let opened = self.opened().await?;
        let open = async {
            let store = opened.context.get_key_value(&self.name).await.map_err(|e| describe(&e))?;
            store.watch_with_history(">").await.map_err(|e| describe(&e))
        };
        match tokio::time::timeout(self.opening(), open).await {
            Ok(Ok(stream)) => Ok(Watch { stream }),
            Ok(Err(problem)) => Err(Unreachable(problem)),
            Err(_) => Err(Unreachable(silence(self.opening()))),
        }
    }

    /// What stands under every key at the moment; deleted keys may be among them, without a value.
    pub async fn all(&self) -> Result<Vec<Change>, Unreachable> {
        let mut found = Vec::new();
        if self.info().await?.messages == 0 {
            return Ok(found);
        }
        let read = async {
            let mut watch = self.watch().await?;
            loop {
                match watch.next().await {
                    Watched::Change(change) => found.push(change),
                    Watched::Interrupted(problem) => return Err(Unreachable(problem)),
                    Watched::Dead => return Err(Unreachable("the connection was lost".into())),
                }
                if found.last().is_some_and(|change| change.pending == 0) {
                    return Ok(());
                }
            }
        };
        match tokio::time::timeout(OPEN_TIMEOUT, read).await {
            Ok(read) => read.map(|()| found),
            Err(_) => Err(Unreachable(silence(OPEN_TIMEOUT))),
        }
    }

    /// Makes the bucket, kept by one server. Somebody else may make the same one at the same moment.
    pub async fn create(&self, history: i64, max_age: Duration) -> Result<(), Unreachable> {
        self.create_on(1, history, max_age, "").await
    }

    /// Makes the bucket, kept by so many servers, with a description.
    pub async fn create_on(
        &self,
        replicas: usize,
        history: i64,
        max_age: Duration,
        description: &str,
    ) -> Result<(), Unreachable> {
        let opened = self.opened().await?;
        // As the library makes buckets, but for one thing: who may write one key could take all others away with the header
        // `Nats-Rollup: all`.
        let config = stream::Config {
            name: self.stream_name(),
            subjects: vec![format!("$KV.{}.>", self.name)],
            max_messages_per_subject: history,
            description: (!description.is_empty()).then(|| description.to_owned()),
            max_age,
            num_replicas: replicas,
            discard: stream::DiscardPolicy::New,
            deny_delete: true,
            allow_direct: true,
            allow_rollup: false,
            ..Default::default()
        };
        opened.context.create_stream(config).await.map(drop).map_err(|e| Unreachable(describe(&e)))
    }
}

impl Watch {
    /// The next change. Cancel-safe: nothing is lost where the future is dropped.
    pub async fn next(&mut self) -> Watched {
        // The client library's watch panics where it is polled on after its client has died.
        let next = AssertUnwindSafe(self.stream.next()).catch_unwind().await;
        match next.unwrap_or(None) {
            Some(Ok(entry)) => Watched::Change(Change {
                key: entry.key,
                stored: Stored {
                    revision: entry.revision,
                    value: (entry.operation == kv::Operation::Put).then_some(entry.value),
                    created: system_time(entry.created.unix_timestamp_nanos()),
                },
                pending: entry.delta,
            }),
            Some(Err(error)) => Watched::Interrupted(describe(&error)),
            None => Watched::Dead,
        }
    }
}

/// The problem where JetStream is there, and the bucket is not.
pub const NO_BUCKET: &str = "there is no such bucket";

/// How problems begin that are only silence.
const NO_ANSWER: &str = "no answer within";

fn silence(waited: Duration) -> String {
    format!("{NO_ANSWER} {waited:?}")
}

/// Whether a problem is that nothing was answered in time: then it is not known whether a write was done.
pub fn is_silence(problem: &str) -> bool {
    problem.starts_with(NO_ANSWER)
}

fn system_time(unix_nanos: i128) -> SystemTime {
    let nanos = u64::try_from(unix_nanos.max(0)).unwrap_or(u64::MAX);
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
}

/// A lost race has its own error kind, and on a replicated stream sometimes error code 10164 under another kind.
fn is_lost_race(error: &jetstream::context::PublishError) -> bool {
    const WRONG_LAST_SEQUENCE_CONSTANT: u64 = 10_164;
    if error.kind() == jetstream::context::PublishErrorKind::WrongLastSequence {
        return true;
    }
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<jetstream::Error>());
    cause.is_some_and(|cause| cause.error_code().0 == WRONG_LAST_SEQUENCE_CONSTANT)
}
