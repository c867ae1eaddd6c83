//! The connection on which a worker speaks: events to routers, replies to frontends.
//!
//! It is a lane: whoever sees a reply subject of the worker's may publish there, and no header block kills a lane.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::cancel::CancelToken;
use super::interest::{Interests, Listener};
use crate::nats::{ConnectError, Lane, Lines, LinkOptions, NO_RESPONDERS, Payload, Unsent};

/// Number of the only subscription.
const INTEREST: u64 = 0;
/// After its own reconnect a worker takes nobody for gone for this long: frontends may come back after it.
const RECONNECT_GRACE: Duration = Duration::from_secs(5);
/// How long a message may wait for room. There is none for long only while there is no connection.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Outlet {
    lane: Lane,
    interests: Arc<Interests>,
}

impl Outlet {
    /// Connects, with what drives it for as long as it is kept. Waits until the server has what it subscribes to, which
    /// tells too whether its user may.
    pub async fn open(options: LinkOptions) -> Result<(Self, JoinSet<()>), ConnectError> {
        let prefix = format!("{}.{}.", options.inbox_prefix, Uuid::new_v4().simple());
        let lane = Lane::open(options).await?;
        let interests = Arc::new(Interests::new(prefix));
        lane.subscribe(INTEREST, &interests.wildcard(), None);
        let outlet = Self { lane, interests };
        let mut driver = JoinSet::new();
        driver.spawn(outlet.clone().drive());
        outlet.barrier().await?;
        Ok((outlet, driver))
    }

    /// Reads and writes, for ever.
    async fn drive(self) {
        let state = self.lane.state();
        let take = |message: crate::nats::Message| {
            if message.status() == Some(NO_RESPONDERS) {
                let certain = {
                    let state = state.borrow();
                    state.connects == 1 || state.since.elapsed() >= RECONNECT_GRACE
                };
                self.interests.nobody(message.subject(), certain, Instant::now());
            }
        };
        self.lane.drive(take).await;
    }

    /// Publishes; returns once there was room for the message.
    pub async fn publish(&self, to: &str, reply: Option<&str>, headers: &Lines, payload: &Bytes) -> Result<(), String> {
        self.with_room(|lane| lane.publish(to, reply, headers, Payload::from(payload))).await
    }

    /// Publishes what nobody would miss in time; see [`Lane::publish_assured`].
    pub async fn publish_assured(&self, to: &str, headers: &Lines, payload: &Bytes) -> Result<(), String> {
        self.with_room(|lane| lane.publish_assured(to, headers, Payload::from(payload))).await
    }

    async fn with_room(&self, publish: impl Fn(&Lane) -> Result<(), Unsent>) -> Result<(), String> {
        // A fast engine must not keep its thread to itself: what it says has to be written, too.
        tokio::task::consume_budget().await;
        self.lane.with_room(SEND_TIMEOUT, publish).await.map_err(|problem| problem.to_string())
    }

    /// Questions for a new reply stream, whose request is given up where nobody listens.
    pub fn listener(&self, cancel: CancelToken) -> Listener {
        self.interests.listener(cancel)
    }

    /// The server's limit on headers and payload together, in bytes.
    pub fn max_payload(&self) -> usize {
        self.lane.max_payload()
    }

    /// A round trip: what was published before it has reached the server.
    pub async fn barrier(&self) -> Result<(), ConnectError> {
        self.lane.barrier().await
    }
}
