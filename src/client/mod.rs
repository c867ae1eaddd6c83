//! The frontend library: requests in, reply streams out (protocol sections 3 and 6.1).
//!
//! ```no_run
//! use futures_util::StreamExt as _;
//! use rankpin::client::{Client, ClientOptions, Request};
//! use rankpin::core::id::{Model, SessionId};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(ClientOptions::new("nats://127.0.0.1:4222")).await?;
//! let request = Request::new(Model::new("llama")?, r#"{"model":"llama","messages":[]}"#)
//!     .session(&SessionId::named("conversation-1")?);
//! let mut replies = client.send(request).await?;
//! while let Some(chunk) = replies.next().await {
//!     println!("{} bytes", chunk?.payload.len());
//! }
//! println!("{:?}", replies.served());
//! # Ok(())
//! # }
//! ```

mod bodies;
mod decide;
mod error;
mod inbox;
pub mod jobs;
mod request;
pub mod sequence;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tracing::{debug, warn};

pub use bodies::{HEADROOM, LargeBodies};
pub use error::{Answer, ClientError};
pub use request::Request;
pub use stream::{Chunk, ReplyStream, Served};

use self::bodies::Bodies;
use self::decide::{Decider, Held};
use self::inbox::Inbox;
use self::stream::Patience;
use crate::core::id::{Namespace, RequestId};
use crate::nats::{ConnectError, Headers, Inbound, Link, LinkOptions, LinkState};
use crate::wire::header;
use crate::wire::subject::Subjects;

/// How long a request waits for a connection that is being made anew, and to be taken by it.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);
/// Cancels that wait to be published; more are dropped, and those requests run to their end.
const MAX_WAITING_CANCELS: usize = 4096;

/// How a client connects and behaves.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Where and as whom to connect.
    pub link: LinkOptions,
    /// The namespace of the routers.
    pub namespace: Namespace,
    /// How long a reply stream may be silent; before its first message the request's own timeout comes on top.
    pub idle_timeout: Duration,
    /// How long routers let a request without a timeout of its own wait for a worker, so that it is waited for.
    pub request_timeout: Duration,
    /// Most streams open at a time.
    pub max_open: usize,
    /// Messages that one stream holds for its reader, at least 1.
    pub stream_capacity: usize,
    /// How bodies travel that a message can't hold (the server's `max_payload` less [`HEADROOM`]); `None` refuses them.
    pub large_bodies: Option<LargeBodies>,
    /// Bodies from this size on, in bytes, are sent straight to their ranks where routers say which (protocol section 6.4);
    /// `None` sends all to the routers. This frontend's user has to be allowed to, as routers are: connecting fails where it
    /// is not, and where it no longer is on a later connection, bodies go to the routers.
    pub decide_from: Option<usize>,
}

impl ClientOptions {
    /// Options for servers at `urls` (commas between), with the defaults: namespace `rankpin`, 60 s of silence,
    /// 30 s for a worker to be found, 65,536 streams of 1,024 messages, no large bodies, none sent to ranks.
    pub fn new(urls: &str) -> Self {
        Self::of(LinkOptions::new(urls, "rankpin frontend"))
    }

    /// The same, for this way to connect.
    pub fn of(link: LinkOptions) -> Self {
        Self {
            link,
            namespace: Namespace::new("rankpin").expect("the default is valid"),
            idle_timeout: Duration::from_secs(60),
            request_timeout: Duration::from_secs(30),
            max_open: 65_536,
            stream_capacity: 1024,
            large_bodies: None,
            decide_from: None,
        }
    }
}

/// A frontend's connection; cheap to clone. It ends when the last clone and the last of its streams are dropped.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: ClientOptions,
    subjects: Subjects,
    link: Link,
    bodies: Option<Bodies>,
    decider: Option<Arc<Decider>>,
    inbox: Arc<Inbox>,
    /// The connection on which the inbox stands, counted from 1.
    standing: watch::Receiver<Option<u64>>,
    cancels: mpsc::Sender<Cancel>,
    reader: AbortHandle,
}

/// What the task that publishes cancels is told.
#[derive(Debug)]
enum Cancel {
    /// To cancel a request.
    Request(RequestId),
    /// To say when what came before is out.
    Flush(oneshot::Sender<()>),
}

impl Client {
    /// Connects, and returns once the inbox stands.
    pub async fn connect(options: ClientOptions) -> Result<Self, ConnectError> {
        let link = Link::open(options.link.clone()).await?;
        let prefix = format!("{}.{}.", options.link.inbox_prefix, uuid::Uuid::new_v4().simple());
        let decider = options.decide_from.map(|from| Arc::new(Decider::new(from)));
        let orders = decider.as_ref().map(|decider| {
            let (orders, ordered) = mpsc::channel(options.max_open.max(1));
            // Ends by itself once the inbox is gone.
            tokio::spawn(decide::publish(link.clone(), Arc::clone(decider), ordered));
            orders
        });
        let inbox = Inbox::new(prefix, options.max_open, options.stream_capacity.max(1)).with_orders(orders);
        let inbox = Arc::new(inbox);
        let (up, standing) = watch::channel(None);
        let reader = Reader { link: link.clone(), inbox: inbox.clone(), up };
        let reader = tokio::spawn(reader.run()).abort_handle();
        let subjects = Subjects::new(options.namespace.clone());
        let bodies = match options.large_bodies {
            Some(large) => Some(Bodies::open(large, options.link.clone(), &subjects).await?),
            None => None,
        };
        let (cancels, waiting) = mpsc::channel(MAX_WAITING_CANCELS);
        // Ends by itself once every sender is gone, after what still waits.
        tokio::spawn(publish_cancels(link.clone(), subjects.clone(), waiting));
        let shared = Arc::new(Shared { options, subjects, link, bodies, decider, inbox, standing, cancels, reader });
        let client = Self { shared };
        client.shared.wait_for_inbox().await;
        // Tells too whether this user may subscribe to the inbox.
        client.shared.link.barrier().await?;
        if let Some(decider) = &client.shared.decider {
            decider.begin(&client.shared.link, &client.shared.subjects).await?;
        }
        Ok(client)
    }

    /// Publishes a request; its replies come on the stream. Errors here mean that it was not published, except
    /// [`ClientError::Disconnected`], after which it may have been.
    pub async fn send(&self, mut request: Request) -> Result<ReplyStream, ClientError> {
        let shared = &self.shared;
        request.headers.set(header::REQUEST_ID, request.id.as_str());
        let size = |request: &Request| request.headers.wire_len() + request.body.len();
        let max = shared.link.max_payload();
        let stored = match &shared.bodies {
            Some(bodies) if size(&request) > max.saturating_sub(HEADROOM) => {
                let name = Box::pin(bodies.store(&mut request)).await?;
                Some(StoredBody { shared: shared.clone(), name })
            }
            Some(_) | None => None,
        };
        let size = size(&request);
        if size > max {
            return Err(ClientError::TooLarge { size, max });
        }
        let connection = shared.wait_for_inbox().await.ok_or(ClientError::Disconnected)?;
        let decides = |decider: &&Arc<Decider>| stored.is_none() && decider.is_allowed_on(connection);
        let question = shared.decider.as_ref().filter(decides);
        let question = question.and_then(|decider| decider.question(&request, max)).zip(request.model.as_ref());
        let (subject, held, headers, body) = match question {
            Some((question, model)) => {
                let held = Arc::new(Held::new(&request, &shared.subjects));
                (shared.subjects.decide(model), Some(held), question, bytes::Bytes::new())
            }
            None => (request.subject(&shared.subjects), None, request.headers, request.body),
        };
        let idle = request.idle_timeout.unwrap_or(shared.options.idle_timeout);
        let wait = request.timeout.unwrap_or(shared.options.request_timeout);
        let first = request.answer_timeout.unwrap_or(idle).saturating_add(wait);
        let patience = Patience { first, idle, deadline: request.deadline };

        let opened =
            shared.inbox.open(connection, held).ok_or(ClientError::TooManyOpen { max: shared.options.max_open })?;
        let reply = shared.inbox.subject(opened.token);
        // From here on the stream's drop tidies up, and cancels what may have gone out.
        let stream = ReplyStream::new(shared.clone(), request.id, opened, patience, stored);
        // A connection that was lost before the stream was opened has not ended it.
        if *shared.standing.borrow() != Some(connection) {
            return Err(ClientError::Disconnected);
        }
        let publish = shared.link.publish(subject, Some(reply.into()), headers, body);
        match tokio::time::timeout(SEND_TIMEOUT, publish).await {
            Ok(Ok(())) => Ok(stream),
            Ok(Err(error)) => {
                debug!(%error, "a request could not be published");
                Err(ClientError::Disconnected)
            }
            Err(_) => Err(ClientError::Disconnected),
        }
    }

    /// Waits until the cancels of the streams that were dropped have reached the server; for a process that is about to end.
    pub async fn flush_cancels(&self) {
        let (out, is_out) = oneshot::channel();
        if self.shared.cancels.send(Cancel::Flush(out)).await.is_ok() {
            let _ = is_out.await;
        }
        if let Err(error) = self.shared.link.barrier().await {
            debug!(%error, "cancels may not have reached the server");
        }
    }

    /// Whether the connection stands.
    pub fn is_connected(&self) -> bool {
        self.shared.link.is_connected()
    }

    /// How many reply streams are open.
    pub fn open_streams(&self) -> usize {
        self.shared.inbox.len()
    }
}

/// A body in the object store, which goes when the request has ended.
#[derive(Debug)]
struct StoredBody {
    shared: Arc<Shared>,
    name: String,
}

impl Drop for StoredBody {
    fn drop(&mut self) {
        if let Some(bodies) = &self.shared.bodies {
            bodies.forget(std::mem::take(&mut self.name));
        }
    }
}

impl Shared {
    /// The connection on which the inbox stands, waiting a little for one.
    async fn wait_for_inbox(&self) -> Option<u64> {
        let mut standing = self.standing.clone();
        let wait = async { standing.wait_for(Option::is_some).await.ok().and_then(|connection| *connection) };
        tokio::time::timeout(SEND_TIMEOUT, wait).await.ok().flatten()
    }

    fn cancel(&self, id: &RequestId) {
        if self.cancels.try_send(Cancel::Request(id.clone())).is_err() {
            warn!(request_id = %id, "too many cancels wait, this request is not cancelled");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.reader.abort();
        if let Some(decider) = &self.decider {
            decider.stop();
        }
    }
}

async fn publish_cancels(link: Link, subjects: Subjects, mut waiting: mpsc::Receiver<Cancel>) {
    while let Some(cancel) = waiting.recv().await {
        let id = match cancel {
            Cancel::Request(id) => id,
            Cancel::Flush(out) => {
                let _ = out.send(());
                continue;
            }
        };
        if let Err(error) = link.publish(subjects.cancel(&id), None, Headers::new(), bytes::Bytes::new()).await {
            debug!(request_id = %id, %error, "a cancel could not be published");
        }
    }
}

/// Reads the inbox, for as long as the client lives.
struct Reader {
    link: Link,
    inbox: Arc<Inbox>,
    up: watch::Sender<Option<u64>>,
}

impl Reader {
    async fn run(self) {
        let mut state = self.link.state();
        loop {
            let (client, generation) = self.link.client();
            if let Ok(messages) = client.subscribe(self.inbox.wildcard()).await {
                self.note(&state.borrow_and_update().clone());
                self.read(messages.map(Inbound::from), &mut state).await;
            }
            // The end of the subscription means that the client is dead.
            self.up.send_replace(None);
            self.inbox.end_up_to(u64::MAX);
            self.link.rebuild(generation).await;
        }
    }

    async fn read(
        &self,
        mut messages: impl futures_util::Stream<Item = Inbound> + Unpin,
        state: &mut watch::Receiver<LinkState>,
    ) {
        loop {
            // Cancel-safe: both arms only take what is ready. What came before a loss is read before it counts.
            tokio::select! {
                biased;
                message = messages.next() => match message {
                    Some(message) => self.inbox.deliver(message),
                    None => return,
                },
                Ok(()) = state.changed() => self.note(&state.borrow_and_update().clone()),
            }
        }
    }

    /// Takes over the connection's state: streams of a connection that is no more end.
    fn note(&self, state: &LinkState) {
        if state.connected {
            self.inbox.end_up_to(state.connects.saturating_sub(1));
            self.up.send_replace(Some(state.connects));
        } else {
            self.up.send_replace(None);
            self.inbox.end_up_to(state.connects);
        }
    }
}
