//! Questions of a person: one request and its answer, or the answers of all who hear it. Not for the hot path: the client
//! library keeps something of every request that nobody answers.

use std::time::Duration;

use async_nats::Request;
use async_nats::client::RequestErrorKind;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::{ConnectError, Link, NO_RESPONDERS};

/// Most answers that are taken to one question.
const MAX_ANSWERS: usize = 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens.
    #[error("nobody listens on that subject")]
    NoResponders,
    /// Nobody answered in time; often a missing permission.
    #[error("there is no answer")]
    NoAnswer,
    /// The connection is lost.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its cluster, where it is in one.
    pub cluster: Option<String>,
    /// The most that headers and payload may take together, in bytes.
    pub max_payload: usize,
    /// Other servers of its cluster that it has told of.
    pub others: Vec<String>,
}

impl Link {
    /// Asks once.
    pub async fn ask(&self, subject: &str, timeout: Duration) -> Result<Bytes, AskError> {
        self.ask_with(subject, Bytes::new(), timeout).await
    }

    /// Asks once, with something to say.
    pub async fn ask_with(&self, subject: &str, payload: Bytes, timeout: Duration) -> Result<Bytes, AskError> {
        let (client, _) = self.client();
        let request = Request::new().payload(payload).timeout(Some(timeout));
        match client.send_request(subject.to_owned(), request).await {
            Ok(message) => Ok(message.payload),
            Err(error) => Err(match error.kind() {
                RequestErrorKind::NoResponders => AskError::NoResponders,
                RequestErrorKind::TimedOut | RequestErrorKind::InvalidSubject => AskError::NoAnswer,
                RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::Other => {
                    AskError::Connect(ConnectError::Silent(self.servers()))
                }
            }),
        }
    }

    /// Asks everybody who listens, and takes their answers until `wait` has passed.
    pub async fn ask_all(&self, subject: &str, wait: Duration) -> Result<Vec<Bytes>, AskError> {
        let (client, _) = self.client();
        let silent = || AskError::Connect(ConnectError::Silent(self.servers()));
        let inbox = client.new_inbox();
        let mut answers = client.subscribe(inbox.clone()).await.map_err(|_| silent())?;
        client.publish_with_reply(subject.to_owned(), inbox, Bytes::new()).await.map_err(|_| silent())?;
        let until = Instant::now() + wait;
        let mut taken = Vec::new();
        while let Ok(Some(message)) = tokio::time::timeout_at(until, answers.next()).await {
            if message.status.is_some_and(|status| status.as_u16() == NO_RESPONDERS) || taken.len() >= MAX_ANSWERS {
                break;
            }
            taken.push(message.payload);
        }
        Ok(taken)
    }

    /// The server that this is connected to.
    pub fn server(&self) -> Server {
        let info = self.client().0.server_info();
        Server {
            name: info.server_name,
            version: info.version,
            cluster: info.cluster,
            max_payload: info.max_payload,
            others: info.connect_urls,
        }
    }
}
