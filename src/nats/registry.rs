//! A worker's own key in the bucket of registrations (protocol section 7), as its owner needs it: read, put and
//! deleted by compare-and-set, with one message each.
//!
//! Routers use a [`super::bucket::Bucket`]. A worker needs less and has to get along with less: its user may be
//! allowed to publish its own key and nothing else. So the messages are written here, where the revision that a
//! refused put names can be read.

use std::time::Duration;

use async_nats::Request;
use async_nats::client::RequestErrorKind;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Deserialize;

use super::{Headers, Link};
use crate::wire::header::EXPECTED_LAST_SUBJECT_SEQUENCE;

/// How long the server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);
/// A sequence that no stream reaches: a put that expects it stores nothing, and its refusal names the revision.
const UNREACHABLE_SEQUENCE: u64 = 1 << 62;
/// The header by which a bucket tells a deletion from a value, and its values.
const OPERATION: &str = "KV-Operation";
const DELETED: &str = "DEL";
const PURGED: &str = "PURGE";
/// Header of a marker that the server itself leaves where a key ran out.
const MARKER: &str = "Nats-Marker-Reason";

/// Errors of the server that are told apart here.
mod code {
    /// The expectation failed; the description names the sequence found.
    pub const WRONG_LAST_SEQUENCE: u64 = 10071;
    /// The same while another put of the key is under way in a cluster; names no sequence.
    pub const WRONG_LAST_SEQUENCE_IN_FLIGHT: u64 = 10164;
    /// The stream has no message of the key.
    pub const NO_MESSAGE: u64 = 10037;
    /// There is no such stream.
    pub const NO_STREAM: u64 = 10059;
}

/// One key of one bucket.
#[derive(Debug, Clone)]
pub struct Registry {
    link: Link,
    bucket: String,
    key: String,
}

/// What stands under the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its revision; a compare-and-set needs it.
    pub revision: u64,
    /// The value.
    pub value: EntryValue,
}

/// The value of an [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryValue {
    /// A stored value.
    Stored(Vec<u8>),
    /// The key was deleted, or ran out; the marker keeps a revision.
    Deleted,
    /// The server did not show it: this user may not read the bucket.
    Hidden,
}

/// Why the bucket did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Another revision stands there than was expected.
    #[error("another revision stands under the key")]
    Conflict,
    /// There is no such bucket.
    #[error("there is no bucket {0:?}; a router makes it when it starts (is JetStream enabled?)")]
    NoBucket(String),
    /// No answer in time: what was asked may have been done or not.
    #[error("the server does not answer; may this user publish to {0}?")]
    NoAnswer(String),
    /// The client is dead; the generation is for [`Link::rebuild`].
    #[error("the connection to NATS ended")]
    Dead(u64),
    /// The server refused.
    #[error("the server refused: {0}")]
    Refused(String),
}

#[derive(Deserialize)]
struct Answer {
    error: Option<ApiError>,
    seq: Option<u64>,
    message: Option<StoredMessage>,
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

#[derive(Deserialize)]
struct StoredMessage {
    seq: u64,
    hdrs: Option<String>,
    data: Option<String>,
}

impl Registry {
    /// The key `key` of the bucket `bucket`; nothing is sent yet.
    pub fn new(link: Link, bucket: String, key: String) -> Self {
        Self { link, bucket, key }
    }

    /// The bucket's name.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The connection it uses.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Puts a value where the key has this revision (0: where there is none). Returns the new revision.
    pub async fn put(&self, value: &Bytes, expected: u64) -> Result<u64, RegistryError> {
        self.write(expected, None, value.clone()).await
    }

    /// Deletes the key where it has this revision.
    pub async fn delete(&self, expected: u64) -> Result<(), RegistryError> {
        self.write(expected, Some(DELETED), Bytes::new()).await.map(|_| ())
    }

    /// What stands under the key, read from the stream's leader; `None` where there is nothing. A user that may not
    /// read learns the revision alone ([`EntryValue::Hidden`]).
    pub async fn look(&self) -> Result<Option<Entry>, RegistryError> {
        let subject = format!("$JS.API.STREAM.MSG.GET.KV_{}", self.bucket);
        let request = serde_json::json!({ "last_by_subj": self.subject() }).to_string();
        let answer = match self.ask(subject, Headers::new(), request.into()).await {
            Err(RegistryError::NoAnswer(_)) => return self.revision().await,
            answer => answer?,
        };
        match (answer.error, answer.message) {
            (Some(error), _) if error.err_code == code::NO_MESSAGE => Ok(None),
            (Some(error), _) => Err(self.refusal(error)),
            (None, Some(message)) => Ok(Some(message.into_entry())),
            (None, None) => Err(RegistryError::Refused("the answer holds no message".into())),
        }
    }

    /// The revision alone, for which the right to publish the key is enough.
    async fn revision(&self) -> Result<Option<Entry>, RegistryError> {
        let mut headers = Headers::new();
        headers.set(EXPECTED_LAST_SUBJECT_SEQUENCE, &UNREACHABLE_SEQUENCE.to_string());
        let answer = self.ask(self.subject(), headers, Bytes::new()).await?;
        let Some(error) = answer.error else {
            return Err(RegistryError::Refused("the stream ignores Nats-Expected-Last-Subject-Sequence".into()));
        };
        if error.err_code != code::WRONG_LAST_SEQUENCE {
            return Err(self.refusal(error));
        }
        let digits = error.description.rsplit(' ').next().unwrap_or_default();
        match digits.parse() {
            Ok(0) => Ok(None),
            Ok(revision) => Ok(Some(Entry { revision, value: EntryValue::Hidden })),
            Err(_) => Err(RegistryError::Refused(error.description)),
        }
    }

    async fn write(&self, expected: u64, operation: Option<&str>, value: Bytes) -> Result<u64, RegistryError> {
        let mut headers = Headers::new();
        headers.set(EXPECTED_LAST_SUBJECT_SEQUENCE, &expected.to_string());
        if let Some(operation) = operation {
            headers.set(OPERATION, operation);
        }
        let answer = self.ask(self.subject(), headers, value).await?;
        match (answer.error, answer.seq) {
            (Some(error), _) => Err(self.refusal(error)),
            (None, Some(revision)) => Ok(revision),
            (None, None) => Err(RegistryError::Refused("the answer holds no revision".into())),
        }
    }

    async fn ask(&self, subject: String, headers: Headers, payload: Bytes) -> Result<Answer, RegistryError> {
        let (client, generation) = self.link.client();
        let request = Request::new().headers(headers.to_map()).payload(payload).timeout(Some(ANSWER_TIMEOUT));
        let sent = client.send_request(subject.clone(), request);
        // Its own timeout begins once the client has taken the message, which may wait while there is no connection.
        let sent = tokio::time::timeout(ANSWER_TIMEOUT + ANSWER_TIMEOUT / 2, sent).await;
        let message = sent.map_err(|_| RegistryError::NoAnswer(subject.clone()))?.map_err(|e| match e.kind() {
            RequestErrorKind::NoResponders => RegistryError::NoBucket(self.bucket.clone()),
            RequestErrorKind::TimedOut => RegistryError::NoAnswer(subject),
            RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
                RegistryError::Refused(e.to_string())
            }
            RequestErrorKind::Other => RegistryError::Dead(generation),
        })?;
        serde_json::from_slice(&message.payload)
            .map_err(|e| RegistryError::Refused(format!("the answer can't be read: {e}")))
    }

    fn refusal(&self, error: ApiError) -> RegistryError {
        match error.err_code {
            code::WRONG_LAST_SEQUENCE | code::WRONG_LAST_SEQUENCE_IN_FLIGHT => RegistryError::Conflict,
            code::NO_STREAM => RegistryError::NoBucket(self.bucket.clone()),
            _ => RegistryError::Refused(error.description),
        }
    }

    fn subject(&self) -> String {
        format!("$KV.{}.{}", self.bucket, self.key)
    }
}

impl StoredMessage {
    fn into_entry(self) -> Entry {
        let decode = |text: Option<String>| BASE64_STANDARD.decode(text.unwrap_or_default()).unwrap_or_default();
        let value =
            if is_marker(&decode(self.hdrs)) { EntryValue::Deleted } else { EntryValue::Stored(decode(self.data)) };
        Entry { revision: self.seq, value }
    }
}

/// Whether the header block of a stored message says that the key is gone.
fn is_marker(block: &[u8]) -> bool {
    String::from_utf8_lossy(block).lines().filter_map(|line| line.split_once(':')).any(|(name, value)| {
        let operation = name.eq_ignore_ascii_case(OPERATION) && [DELETED, PURGED].contains(&value.trim());
        operation || name.eq_ignore_ascii_case(MARKER)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(hdrs: Option<&[u8]>) -> Entry {
        let hdrs = hdrs.map(|block| BASE64_STANDARD.encode(block));
        StoredMessage { seq: 7, hdrs, data: Some(BASE64_STANDARD.encode("v")) }.into_entry()
    }

    #[test]
    fn deletions_are_told_from_values() {
        assert_eq!(entry(None), Entry { revision: 7, value: EntryValue::Stored(b"v".into()) });
        let put = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 3\r\n\r\n";
        assert_eq!(entry(Some(put)).value, EntryValue::Stored(b"v".into()));
        for marker in ["KV-Operation: DEL", "KV-Operation:PURGE", "Nats-Marker-Reason: MaxAge"] {
            assert_eq!(entry(Some(format!("NATS/1.0\r\n{marker}\r\n\r\n").as_bytes())).value, EntryValue::Deleted);
        }
    }
}
