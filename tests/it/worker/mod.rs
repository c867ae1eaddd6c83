//! The worker library against a real server: each test plays the router, and speaks nothing but the protocol.

mod liveness;
mod registration;
mod requests;

use std::time::{Duration, Instant, SystemTime};

use async_nats::jetstream::kv;
use async_nats::{Client, HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use rankpin::core::id::{DpRank, Model, Namespace, RankRange, WorkerId};
use rankpin::nats::LinkOptions;
use rankpin::wire::Encoding;
use rankpin::wire::event::{Event, Finished, Outcome};
use rankpin::wire::load::LoadReport;
use rankpin::wire::registration::Registration;
use rankpin::wire::reply::ReplyHead;
use rankpin::worker::{Engine, EngineRequest, Failure, Refusal, ReplyStream, Worker, WorkerError, WorkerOptions};
use serde_json::Value;

use crate::support::{NatsServer, PATIENCE, eventually, settle};

/// Does what a request's body says.
struct Scripted;

impl Engine for Scripted {
    async fn serve(&self, request: EngineRequest, replies: &mut ReplyStream) -> Result<Finished, Failure> {
        match &request.payload[..] {
            b"stream" => {
                replies.set_content_type("application/json");
                for part in ["a", "b"] {
                    replies.send(part.into()).await?;
                }
            }
            b"whole" => replies.finish("all".into()).await?,
            b"hang" => {
                replies.send("begun".into()).await?;
                request.cancel.cancelled().await;
                let mut finished = Finished::outcome(Outcome::Ok);
                finished.output_tokens = Some(7);
                return Ok(finished);
            }
            b"endless" => loop {
                replies.send("x".into()).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            },
            b"deaf" => std::future::pending().await,
            b"panic" => panic!("as the test wants it"),
            b"refuse" => return Err(Refusal::invalid("no").into()),
            b"refuse late" => {
                replies.send("begun".into()).await?;
                return Err(Refusal::overloaded("full").into());
            }
            b"large" => replies.finish(vec![0; 4096].into()).await?,
            other => panic!("no script for {other:?}"),
        }
        let mut finished = Finished::outcome(Outcome::Ok);
        finished.prompt_tokens = Some(request.payload.len() as u64);
        Ok(finished)
    }
}

/// A server with the bucket that a router would have made.
pub struct Field {
    pub server: NatsServer,
    pub client: Client,
    pub bucket: kv::Store,
}

impl Field {
    pub async fn new() -> Self {
        Self::on(NatsServer::start()).await
    }

    pub async fn on(server: NatsServer) -> Self {
        let client = server.client().await;
        let bucket = make_bucket(&client).await;
        Self { server, client, bucket }
    }

    /// On a server whose bucket a router has made.
    pub async fn of(server: NatsServer) -> Self {
        let client = server.client().await;
        let bucket = async_nats::jetstream::new(client.clone()).get_key_value("rankpin_workers").await;
        Self { server, client, bucket: bucket.expect("the router has made it") }
    }

    fn options(&self, start: u32, size: u32) -> WorkerOptions {
        let ranks = RankRange::new(start, size).expect("valid");
        let model = Model::new("m").expect("valid");
        WorkerOptions::new(
            LinkOptions::new(&self.server.url(), "test-worker"),
            Namespace::new("rankpin").expect("valid"),
            WorkerId::new("w").expect("valid"),
            vec![model],
            ranks,
        )
    }

    pub async fn worker(&self, start: u32, size: u32) -> Worker {
        start_worker(self.options(start, size)).await
    }

    /// A worker of one rank, whose engine may be silent for so long in the middle of an answer.
    pub async fn worker_with_idle_timeout(&self, timeout: Duration) -> Worker {
        start_worker(WorkerOptions { stream_idle_timeout: timeout, ..self.options(0, 1) }).await
    }

    /// The registration, as it stands in the bucket.
    pub async fn registration(&self) -> Option<Registration> {
        let value = self.bucket.get("w").await.expect("the bucket answers")?;
        serde_json::from_slice(&value).ok()
    }

    async fn revision(&self) -> Option<u64> {
        let entry = self.bucket.entry("w").await.expect("the bucket answers")?;
        (entry.operation == kv::Operation::Put).then_some(entry.revision)
    }

    /// Dispatches as a router does.
    pub async fn dispatch(&self, subject: &str, id: &str, payload: impl Into<Bytes>, more: &[(&str, &str)]) -> Attempt {
        let (inbox, reply_to) = (self.client.new_inbox(), self.client.new_inbox());
        let events = self.client.subscribe(inbox.clone()).await.expect("subscribed");
        let replies = self.client.subscribe(reply_to.clone()).await.expect("subscribed");
        let mut headers = HeaderMap::new();
        let own = [("Rankpin-Request-Id", id), ("Rankpin-Reply-To", &reply_to), ("Rankpin-Decision", "placed")];
        for (name, value) in own.iter().chain(more) {
            headers.insert(*name, *value);
        }
        let subject = format!("rankpin.worker.w.{subject}");
        self.client.publish_with_reply_and_headers(subject, inbox, headers, payload.into()).await.expect("published");
        Attempt { events, replies }
    }

    pub async fn cancel(&self, id: &str, attempt: &str) {
        self.publish("rankpin.worker.w.cancel", &[("Rankpin-Request-Id", id), ("Rankpin-Attempt", attempt)]).await;
    }

    /// Publishes headers and nothing else.
    pub async fn publish(&self, subject: &'static str, pairs: &[(&str, &str)]) {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, *value);
        }
        self.client.publish_with_headers(subject, headers, Bytes::new()).await.expect("published");
    }
}

pub async fn make_bucket(client: &Client) -> kv::Store {
    let config = kv::Config {
        bucket: "rankpin_workers".into(),
        history: 1,
        max_age: Duration::from_secs(30),
        ..kv::Config::default()
    };
    async_nats::jetstream::new(client.clone()).create_key_value(config).await.expect("the bucket is made")
}

async fn start_worker(options: WorkerOptions) -> Worker {
    tokio::time::timeout(PATIENCE, Worker::start(options, Scripted)).await.expect("in time").expect("it starts")
}

/// What the router and the frontend hear of one attempt.
pub struct Attempt {
    pub events: Subscriber,
    pub replies: Subscriber,
}

impl Attempt {
    pub async fn event(&mut self) -> Event {
        let message = next(&mut self.events).await;
        assert_eq!(message.status, None, "somebody listens");
        Event::read(pairs(&message), &message.payload).expect("an event")
    }

    pub async fn reply(&mut self) -> (ReplyHead, Bytes) {
        let message = next(&mut self.replies).await;
        (ReplyHead::read(pairs(&message)), message.payload)
    }

    pub async fn accepted(&mut self) {
        assert_eq!(self.event().await, Event::Accepted);
    }

    pub async fn finished(&mut self, outcome: Outcome) -> Finished {
        loop {
            match self.event().await {
                // On a slow machine it takes long enough for one.
                Event::Progress => {}
                Event::Finished(finished) if finished.outcome == outcome => return finished,
                other => panic!("awaited {outcome:?}, came {other:?}"),
            }
        }
    }

    pub async fn rejected(&mut self) -> (u16, String) {
        match self.event().await {
            Event::Rejected(rejection) => (rejection.status, rejection.code),
            other => panic!("awaited a rejection, came {other:?}"),
        }
    }

    /// Whether nothing came so far on either side.
    pub fn is_silent(&mut self) -> bool {
        use futures_util::FutureExt as _;
        self.events.next().now_or_never().is_none() && self.replies.next().now_or_never().is_none()
    }
}

pub async fn next(subscriber: &mut Subscriber) -> Message {
    tokio::time::timeout(PATIENCE, subscriber.next()).await.expect("a message comes").expect("the client lives")
}

pub fn pairs(message: &Message) -> impl Iterator<Item = (&str, &str)> + Clone {
    let headers = message.headers.iter().flat_map(|headers| headers.iter());
    headers.flat_map(|(name, values)| values.iter().map(move |value| (name.as_ref(), value.as_str())))
}

fn error_code(payload: &[u8]) -> String {
    let body: Value = serde_json::from_slice(payload).expect("an error is JSON");
    assert_eq!(body["error"]["type"], "rankpin_error");
    body["error"]["code"].as_str().expect("a code word").to_owned()
}

fn unix_ms() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis()
}
