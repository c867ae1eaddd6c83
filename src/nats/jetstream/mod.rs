//! JetStream's own API in JSON: streams, consumers, stored messages, and publishes that are acknowledged.
//!
//! Stored messages come as JSON, where their header block is only text: what breaks the client library as a message can
//! be read here, and deleted. The client library's JetStream part is not used for this: it reads messages as messages.

mod model;

use std::time::Duration;

use async_nats::Request;
use async_nats::client::RequestErrorKind;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

pub use model::{
    AckPolicy, ConsumerConfig, ConsumerInfo, Discard, Get, Retention, Storage, Stored, StoredMessage, StreamConfig,
    StreamInfo, Subjects,
};

use self::model::{Answer, GetAnswer, PublishAnswer};
use super::{Headers, Link};
use crate::wire::header;

/// How long the server may take to answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);
/// A sequence that no stream reaches: a publish that expects it stores nothing, and its refusal names the last one.
const UNREACHABLE_SEQUENCE: u64 = 1 << 62;

/// Errors of the server that are told apart here.
mod code {
    pub const STREAM_NOT_FOUND: u64 = 10_059;
    pub const CONSUMER_NOT_FOUND: u64 = 10_014;
    pub const NO_MESSAGE: u64 = 10_037;
    /// The expectation failed; the description names the sequence found.
    pub const WRONG_LAST_SEQUENCE: u64 = 10_071;
    /// The same while another message of the subject is under way in a cluster; names no sequence.
    pub const WRONG_LAST_SEQUENCE_IN_FLIGHT: u64 = 10_164;
    pub const NOT_ENABLED: u64 = 10_076;
    pub const NOT_ENABLED_FOR_ACCOUNT: u64 = 10_039;
}

/// JetStream over a connection that may be replaced.
#[derive(Debug, Clone)]
pub struct JetStream {
    link: Link,
}

/// Why the server did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JetStreamError {
    /// Another message stands under the subject than was expected.
    #[error("another message stands under the subject")]
    Lost,
    /// Another message of the subject is just being stored; what stands there is not known yet.
    #[error("another message of the subject is just being stored")]
    InFlight,
    /// There is no such stream, consumer or message.
    #[error("it is not there")]
    Missing,
    /// No stream takes what is published there.
    #[error("no stream takes messages on {0:?}; a router makes the streams when it starts")]
    NoStream(String),
    /// The server, or this account, has no JetStream.
    #[error("the server, or this account, has no JetStream")]
    NoJetStream,
    /// No answer in time: what was asked may have been done or not.
    #[error("the server does not answer on {0}; may this user publish there?")]
    NoAnswer(String),
    /// The connection is lost, and being made anew.
    #[error("there is no connection to NATS")]
    Disconnected,
    /// The server refused, in these words.
    #[error("the server refused: {0}")]
    Refused(String),
}

impl JetStream {
    /// Over this connection; nothing is asked yet.
    pub fn new(link: Link) -> Self {
        Self { link }
    }

    /// The connection it is used over.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// What a stream is, and what it holds; `None` where there is none of the name.
    pub async fn stream(&self, name: &str) -> Result<Option<StreamInfo>, JetStreamError> {
        found(self.api(&format!("STREAM.INFO.{name}"), &json!({})).await)
    }

    /// The subjects of a stream that match `filter`, from the `offset`th on, with the number of their messages.
    pub async fn subjects(&self, name: &str, filter: &str, offset: usize) -> Result<Subjects, JetStreamError> {
        let ask = json!({ "subjects_filter": filter, "offset": offset });
        let info: StreamInfo = self.api(&format!("STREAM.INFO.{name}"), &ask).await?;
        Ok(Subjects { found: info.state.subjects.unwrap_or_default(), total: info.total })
    }

    /// Makes a stream. One that is there with the same settings is no error; one with others is refused.
    pub async fn create_stream(&self, config: &StreamConfig) -> Result<StreamInfo, JetStreamError> {
        self.api(&format!("STREAM.CREATE.{}", config.name), config).await
    }

    /// What a consumer is, and how far it has come; `None` where there is none of the name, or no such stream.
    pub async fn consumer(&self, stream: &str, name: &str) -> Result<Option<ConsumerInfo>, JetStreamError> {
        found(self.api(&format!("CONSUMER.INFO.{stream}.{name}"), &json!({})).await)
    }

    /// Makes a durable consumer. One that is there with the same settings is no error; one with others is refused.
    pub async fn create_consumer(&self, stream: &str, config: &ConsumerConfig) -> Result<ConsumerInfo, JetStreamError> {
        let subject = format!("CONSUMER.CREATE.{stream}.{}.{}", config.name, config.filter_subject);
        self.api(&subject, &json!({ "stream_name": stream, "config": config, "action": "create" })).await
    }

    /// Makes a consumer of a whole stream for one reader: kept in memory by one server, with nothing to acknowledge, pulled,
    /// and gone once nobody has pulled for so long. It starts where `start` says, in the words of JetStream's API.
    pub async fn create_reader(
        &self,
        stream: &str,
        name: &str,
        mut start: serde_json::Value,
        unused: Duration,
    ) -> Result<(), JetStreamError> {
        let fixed = [
            ("name", json!(name)),
            ("ack_policy", json!(AckPolicy::None)),
            ("replay_policy", json!("instant")),
            ("mem_storage", json!(true)),
            ("num_replicas", json!(1)),
            ("inactive_threshold", json!(u64::try_from(unused.as_nanos()).unwrap_or(u64::MAX))),
        ];
        for (key, value) in fixed {
            start[key] = value;
        }
        let ask = json!({ "stream_name": stream, "config": start, "action": "create" });
        self.api::<serde_json::Value>(&format!("CONSUMER.CREATE.{stream}.{name}"), &ask).await.map(drop)
    }

    /// A stored message, read from the stream's leader; `None` where there is none, or no such stream.
    pub async fn get(&self, stream: &str, which: Get<'_>) -> Result<Option<StoredMessage>, JetStreamError> {
        let answer: Option<GetAnswer> = found(self.api(&format!("STREAM.MSG.GET.{stream}"), &which.ask()).await)?;
        Ok(answer.and_then(|answer| answer.message).map(Into::into))
    }

    /// Deletes a message.
    pub async fn delete(&self, stream: &str, sequence: u64) -> Result<(), JetStreamError> {
        let ask = json!({ "seq": sequence, "no_erase": true });
        self.api::<serde_json::Value>(&format!("STREAM.MSG.DELETE.{stream}"), &ask).await.map(drop)
    }

    /// Deletes all messages whose subject matches.
    pub async fn purge(&self, stream: &str, filter: &str) -> Result<(), JetStreamError> {
        let ask = json!({ "filter": filter });
        self.api::<serde_json::Value>(&format!("STREAM.PURGE.{stream}"), &ask).await.map(drop)
    }

    /// Publishes, and waits until the message is stored.
    pub async fn store(&self, subject: &str, headers: Headers, payload: Bytes) -> Result<Stored, JetStreamError> {
        let answer = self.ask(subject, headers, payload).await.map_err(|error| match error {
            JetStreamError::NoJetStream => JetStreamError::NoStream(subject.to_owned()),
            other => other,
        })?;
        let answer: PublishAnswer = read(&answer)?;
        match (answer.error, answer.seq) {
            (Some(error), _) => Err(error.into()),
            (None, Some(sequence)) => Ok(Stored { sequence, duplicate: answer.duplicate }),
            (None, None) => Err(JetStreamError::Refused("the answer holds no sequence".into())),
        }
    }

    /// The same where the subject's last message is the one of this sequence (0: where it has none); else
    /// [`JetStreamError::Lost`].
    pub async fn store_at(
        &self,
        subject: &str,
        mut headers: Headers,
        payload: Bytes,
        expected: u64,
    ) -> Result<Stored, JetStreamError> {
        headers.set(header::EXPECTED_LAST_SUBJECT_SEQUENCE, &expected.to_string());
        self.store(subject, headers, payload).await
    }

    /// Sequence of a subject's last message, 0 where it has none. The right to publish there is enough for that, and the
    /// message itself, which may be large, is not read.
    pub async fn last_sequence(&self, subject: &str) -> Result<u64, JetStreamError> {
        let mut headers = Headers::new();
        headers.set(header::EXPECTED_LAST_SUBJECT_SEQUENCE, &UNREACHABLE_SEQUENCE.to_string());
        let answer = self.ask(subject, headers, Bytes::new()).await.map_err(|error| match error {
            JetStreamError::NoJetStream => JetStreamError::NoStream(subject.to_owned()),
            other => other,
        })?;
        let answer: PublishAnswer = read(&answer)?;
        let Some(error) = answer.error else {
            return Err(JetStreamError::Refused("the stream ignores Nats-Expected-Last-Subject-Sequence".into()));
        };
        if error.err_code != code::WRONG_LAST_SEQUENCE {
            return Err(error.into());
        }
        let digits = error.description.rsplit(' ').next().unwrap_or_default();
        digits.parse().map_err(|_| JetStreamError::Refused(error.description))
    }

    async fn api<T: DeserializeOwned>(&self, what: &str, ask: &impl Serialize) -> Result<T, JetStreamError> {
        let subject = format!("$JS.API.{what}");
        let ask = serde_json::to_vec(ask).expect("what is asked is plain data");
        let answer = self.ask(&subject, Headers::new(), ask.into()).await?;
        match read::<Answer>(&answer)?.error {
            Some(error) => Err(error.into()),
            None => read(&answer),
        }
    }

    async fn ask(&self, subject: &str, headers: Headers, payload: Bytes) -> Result<Bytes, JetStreamError> {
        if !self.link.is_connected() {
            // It would be sent once the connection is back, when nobody waits for it any more.
            return Err(JetStreamError::Disconnected);
        }
        let (client, generation) = self.link.client();
        let mut request = Request::new().payload(payload).timeout(Some(ANSWER_TIMEOUT));
        if headers.iter().next().is_some() {
            request = request.headers(headers.to_map());
        }
        // Its own timeout begins once the client has taken the message, which may wait while there is no connection.
        let sent = tokio::time::timeout(ANSWER_TIMEOUT * 2, client.send_request(subject.to_owned(), request)).await;
        let no_answer = || JetStreamError::NoAnswer(subject.to_owned());
        match sent {
            Ok(Ok(message)) => Ok(message.payload),
            Ok(Err(error)) => match error.kind() {
                RequestErrorKind::NoResponders => Err(JetStreamError::NoJetStream),
                RequestErrorKind::TimedOut => Err(no_answer()),
                RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
                    Err(JetStreamError::Refused(error.to_string()))
                }
                RequestErrorKind::Other => {
                    // The client is dead; whoever finds it first builds a new one.
                    let _ = tokio::time::timeout(ANSWER_TIMEOUT, self.link.rebuild(generation)).await;
                    Err(JetStreamError::Disconnected)
                }
            },
            Err(_) => Err(no_answer()),
        }
    }
}

fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T, JetStreamError> {
    serde_json::from_slice(answer).map_err(|e| JetStreamError::Refused(format!("the answer can't be read: {e}")))
}

fn found<T>(answer: Result<T, JetStreamError>) -> Result<Option<T>, JetStreamError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(JetStreamError::Missing) => Ok(None),
        Err(error) => Err(error),
    }
}

impl From<model::ApiError> for JetStreamError {
    fn from(error: model::ApiError) -> Self {
        match error.err_code {
            code::STREAM_NOT_FOUND | code::CONSUMER_NOT_FOUND | code::NO_MESSAGE => Self::Missing,
            code::WRONG_LAST_SEQUENCE => Self::Lost,
            code::WRONG_LAST_SEQUENCE_IN_FLIGHT => Self::InFlight,
            code::NOT_ENABLED | code::NOT_ENABLED_FOR_ACCOUNT => Self::NoJetStream,
            code => Self::Refused(format!("{} (error {code})", error.description)),
        }
    }
}
