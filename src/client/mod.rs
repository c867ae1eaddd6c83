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

use tokio::sync::{oneshot, watch};
use tracing::debug;

pub use bodies::{HEADROOM, LargeBodies};
pub use error::{Answer, ClientError};
pub use request::Request;
pub use stream::{Chunk, ReplyStream, Served};

use self::bodies::Bodies;
use self::decide::{Carrier, Decider, Held};
use self::inbox::Inbox;
use self::stream::Patience;
use crate::core::id::{Namespace, RequestId};
use crate::nats::{ConnectError, Lane, Lines, LinkOptions, LinkState, Payload};
use crate::wire::header;
use crate::wire::subject::Subjects;

/// How long a request waits for a connection that is being made anew, and to be taken by it.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of the only subscription.
const INBOX: u64 = 0;

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
    lane: Lane,
    bodies: Option<Bodies>,
    decider: Option<Arc<Decider>>,
    inbox: Arc<Inbox>,
    /// The connection on which the inbox stands, counted from 1.
    standing: watch::Receiver<Option<u64>>,
    /// Dropped with this, which ends what reads the inbox.
    _reading: oneshot::Sender<()>,
}

impl Client {
    /// Connects, and returns once the inbox stands.
    pub async fn connect(options: ClientOptions) -> Result<Self, ConnectError> {
        let lane = Lane::open(options.link.clone()).await?;
        let prefix = format!("{}.{}.", options.link.inbox_prefix, uuid::Uuid::new_v4().simple());
        let decider = options.decide_from.map(|from| Arc::new(Decider::new(from)));
        let carrier = decider.as_ref().map(|decider| Carrier { lane: lane.clone(), decider: Arc::clone(decider) });
        let inbox = Inbox::new(prefix, options.max_open, options.stream_capacity.max(1)).with_carrier(carrier);
        let inbox = Arc::new(inbox);
        lane.subscribe(INBOX, &inbox.wildcard(), None);
        let (up, standing) = watch::channel(None);
        let (reading, ended) = oneshot::channel();
        tokio::spawn(read(lane.clone(), inbox.clone(), up, ended));
        let subjects = Subjects::new(options.namespace.clone());
        let bodies = match options.large_bodies {
            Some(large) => Some(Bodies::open(large, options.link.clone(), &subjects).await?),
            None => None,
        };
        let shared = Arc::new(Shared { options, subjects, lane, bodies, decider, inbox, standing, _reading: reading });
        let client = Self { shared };
        client.shared.wait_for_inbox().await;
        // Tells too whether this user may subscribe to the inbox.
        client.shared.lane.barrier().await?;
        if let Some(decider) = &client.shared.decider {
            decider.begin(&client.shared.lane, &client.shared.subjects).await?;
        }
        Ok(client)
    }

    /// Publishes a request; its replies come on the stream. Errors here mean that it was not published, except
    /// [`ClientError::Disconnected`], after which it may have been.
    pub async fn send(&self, mut request: Request) -> Result<ReplyStream, ClientError> {
        let shared = &self.shared;
        request.headers.set(header::REQUEST_ID, request.id.as_str());
        let size = |request: &Request| request.headers.wire_len() + request.body.len();
        let max = shared.lane.max_payload();
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
        let (headers, body) = (Lines::from(&headers), Payload::from(&body));
        let published =
            shared.lane.with_room(SEND_TIMEOUT, |lane| lane.publish(&subject, Some(&reply), &headers, body.clone()));
        match published.await {
            Ok(()) => Ok(stream),
            Err(error) => {
                debug!(%error, "a request could not be published");
                Err(ClientError::Disconnected)
            }
        }
    }

    /// Waits until the cancels of the streams that were dropped have reached the server; for a process that is about to end.
    pub async fn flush_cancels(&self) {
        if let Err(error) = self.shared.lane.barrier().await {
            debug!(%error, "cancels may not have reached the server");
        }
    }

    /// Whether the connection stands.
    pub fn is_connected(&self) -> bool {
        self.shared.lane.is_connected()
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
        if let Err(error) = self.lane.publish(&self.subjects.cancel(id), None, &Lines::new(), Payload::EMPTY) {
            debug!(request_id = %id, %error, "a cancel could not be published");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(decider) = &self.decider {
            decider.stop();
        }
    }
}

/// Reads the inbox for as long as the client lives, and then until what was published is out: the last stream that is dropped
/// may have to be cancelled.
async fn read(lane: Lane, inbox: Arc<Inbox>, up: watch::Sender<Option<u64>>, ended: oneshot::Receiver<()>) {
    let mut state = lane.state();
    let follow = async {
        loop {
            note(&inbox, &up, &state.borrow_and_update());
            if state.changed().await.is_err() {
                return;
            }
        }
    };
    let end = async {
        let _ = ended.await;
        if let Err(error) = lane.barrier().await {
            debug!(%error, "the end of a client");
        }
    };
    // The first two don't end. What came before a loss is delivered before it counts: it was read before it was noticed.
    tokio::select! {
        ((), ()) = async { tokio::join!(lane.drive(|message| inbox.deliver(message)), follow) } => {}
        () = end => {}
    }
}

/// Takes over the connection's state: streams of a connection that is no more end.
fn note(inbox: &Inbox, up: &watch::Sender<Option<u64>>, state: &LinkState) {
    if state.connected {
        inbox.end_up_to(state.connects.saturating_sub(1));
        up.send_replace(Some(state.connects));
    } else {
        up.send_replace(None);
        inbox.end_up_to(state.connects);
    }
}
