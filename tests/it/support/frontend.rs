//! A frontend that speaks nothing but the protocol: sends requests, and checks every message that comes back.

use async_nats::{Client, HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::Value;

use super::PATIENCE;
use super::cluster::placement;

/// A request, before it is sent.
#[derive(Debug, Clone)]
pub struct Ask {
    subject: String,
    headers: HeaderMap,
    body: Bytes,
    reply: Reply,
}

#[derive(Debug, Clone)]
enum Reply {
    Inbox,
    On(String),
    Nowhere,
}

impl Ask {
    /// A request for model `m` with a small body and nothing else.
    pub fn new() -> Self {
        Self {
            subject: "rankpin.request.m".into(),
            headers: HeaderMap::new(),
            body: Bytes::from_static(b"{\"messages\":[]}"),
            reply: Reply::Inbox,
        }
    }

    pub fn session(self, session: &str) -> Self {
        self.header("Rankpin-Session-Id", session)
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.append(name, value);
        self
    }

    pub fn headers(self, pairs: &[(&str, &str)]) -> Self {
        pairs.iter().fold(self, |ask, (name, value)| ask.header(name, value))
    }

    pub fn id(self, id: &str) -> Self {
        self.header("Rankpin-Request-Id", id)
    }

    pub fn timeout_ms(self, ms: u64) -> Self {
        self.header("Rankpin-Timeout-Ms", &ms.to_string())
    }

    pub fn model(self, model: &str) -> Self {
        self.on(&format!("rankpin.request.{model}"))
    }

    /// Publishes on another subject.
    pub fn on(mut self, subject: &str) -> Self {
        self.subject = subject.to_owned();
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Gives another reply subject than its own inbox.
    pub fn reply_on(mut self, subject: &str) -> Self {
        self.reply = Reply::On(subject.to_owned());
        self
    }

    /// Gives no reply subject.
    pub fn without_reply(mut self) -> Self {
        self.reply = Reply::Nowhere;
        self
    }

    pub async fn send(self, client: &Client) -> Sent {
        let inbox = client.new_inbox();
        let replies = client.subscribe(inbox.clone()).await.expect("subscribes");
        let sent = match self.reply {
            Reply::Inbox => {
                client.publish_with_reply_and_headers(self.subject, inbox.clone(), self.headers, self.body).await
            }
            Reply::On(reply) => {
                client.publish_with_reply_and_headers(self.subject, reply, self.headers, self.body).await
            }
            Reply::Nowhere => client.publish_with_headers(self.subject, self.headers, self.body).await,
        };
        sent.expect("is published");
        Sent { replies, inbox }
    }
}

/// A request that was sent.
pub struct Sent {
    replies: Subscriber,
    pub inbox: String,
}

impl Sent {
    /// The next message of the reply stream.
    pub async fn next(&mut self) -> Message {
        tokio::time::timeout(PATIENCE, self.replies.next()).await.expect("a reply comes").expect("the client lives")
    }

    /// Whether nothing has come so far.
    pub fn is_silent(&mut self) -> bool {
        use futures_util::FutureExt as _;
        self.replies.next().now_or_never().is_none()
    }

    /// Reads the reply stream to its end.
    pub async fn end(mut self) -> Answer {
        let first = self.next().await;
        let mut last = first.clone();
        while !is_final(&last) {
            last = self.next().await;
        }
        Answer { first, last }
    }
}

fn is_final(message: &Message) -> bool {
    assert!(message.status.is_none(), "no router is there: {message:?}");
    find(message, "Rankpin-Final") == Some("true")
}

/// The value of a header.
pub fn find<'m>(message: &'m Message, name: &str) -> Option<&'m str> {
    let headers = message.headers.iter().flat_map(|headers| headers.iter());
    let mut found = headers.filter(|(other, _)| AsRef::<str>::as_ref(other).eq_ignore_ascii_case(name));
    found.next().and_then(|(_, values)| values.first()).map(async_nats::HeaderValue::as_str)
}

/// First and last message of a reply stream; often one and the same.
#[derive(Debug)]
pub struct Answer {
    pub first: Message,
    pub last: Message,
}

/// An error, as a frontend reads it.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    pub code: String,
    pub message: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.last, name)
    }

    /// Where it was served: `worker/rank`, `worker` without a rank, or status and code word of an error.
    pub fn at(&self) -> String {
        if let Some(Refusal { status, code, .. }) = self.refusal() {
            return format!("{status} {code}");
        }
        let worker = find(&self.first, "Rankpin-Worker").expect("the first message names the worker");
        let rank = find(&self.first, "Rankpin-Dp-Rank").map(|rank| rank.parse().expect("a rank is a number"));
        placement(worker, rank)
    }

    pub fn decision(&self) -> &str {
        find(&self.first, "Rankpin-Decision").unwrap_or_else(|| panic!("no decision: {self:?}"))
    }

    /// [`Answer::at`] and [`Answer::decision`] in one text.
    pub fn told(&self) -> String {
        format!("{} {}", self.at(), self.decision())
    }

    /// The error that ended it, if one did. Its shape is checked (protocol section 6.1).
    pub fn refusal(&self) -> Option<Refusal> {
        let status: u16 = self.header("Nats-Service-Error-Code")?.parse().expect("a status is a number");
        let code = self.header("Nats-Service-Error").expect("an error has a code word").to_owned();
        assert!(self.header("Rankpin-Request-Id").is_some(), "{self:?}");
        assert_eq!(self.header("Rankpin-Final"), Some("true"));
        let retry_after = self.header("Retry-After").map(|text| text.parse::<u32>().expect("whole seconds"));
        assert_eq!(retry_after.is_some(), matches!(status, 429 | 503), "{self:?}");
        let body: Value = serde_json::from_slice(&self.last.payload).expect("an error is JSON");
        assert_eq!(body["error"]["type"], "rankpin_error", "{body}");
        assert_eq!(body["error"]["code"], code.as_str(), "{body}");
        let message = body["error"]["message"].as_str().expect("an error has a message").to_owned();
        assert!(!message.is_empty());
        Some(Refusal { status, code, message })
    }

    /// The error of a router: besides its shape, that it carries no sequence number.
    pub fn router_refusal(&self) -> Refusal {
        let refusal = self.refusal().unwrap_or_else(|| panic!("an error was awaited: {self:?}"));
        assert_eq!(self.header("Rankpin-Seq"), None);
        refusal
    }
}
