//! A connection for the hot path: every message of every request passes here, so its cost is ours to know.
//!
//! The client library makes a map of each message's headers, with several allocations a header, and hands each message
//! from task to task; a router spent two thirds of its time there. Here a message is one allocation that is read in
//! place, headers are carried on as the text they are, messages are handled where they are read, and what is to be
//! sent is collected and written once for everything that was read at once. A header block that would break the
//! library's connection is an error of its own message alone.

mod assured;
mod block;
mod codec;
mod drive;
mod handshake;
mod outbox;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::ServerAddr;
use futures_util::task::AtomicWaker;
use tokio::sync::{oneshot, watch};

pub use block::{Block, Lines, Unsound};
pub use codec::{Decoder, Message, Op, ProtocolError};
pub use outbox::{MAX_UNSENT, Payload, Unsent};

use self::assured::Assured;
use self::handshake::Connection;
use self::outbox::Outbox;
use super::link::{ConnectError, LinkOptions, LinkState, MAX_VIOLATIONS, VIOLATION_WORDS, parse_addresses};
use super::login::{self, Login};
use crate::core::partition::MAX_PARTITIONS;

/// How long a round trip to the server may take.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(5);
/// Most round trips that may be under way for whoever asks whether the server answers.
const MAX_ROUND_TRIPS: usize = 64;
/// Pause before a message without room is tried again.
const ROOM_AFTER: Duration = Duration::from_millis(10);
/// Subscriptions whose messages are counted: those with numbers below.
pub const MAX_COUNTED: usize = 16 + MAX_PARTITIONS as usize;

/// A connection that reconnects by itself. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Lane(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: LinkOptions,
    addresses: Vec<ServerAddr>,
    login: Login,
    out: Mutex<Outbox>,
    /// Locked after `out`, where both are.
    assured: Mutex<Assured>,
    /// Whether something was added to `out` since the driver last looked.
    added: AtomicBool,
    /// Wakes the driver.
    waker: AtomicWaker,
    /// By number.
    subscriptions: Mutex<BTreeMap<u64, Subscription>>,
    /// Messages received, by number of subscription, since the connection came to stand.
    received: [AtomicU64; MAX_COUNTED],
    /// What each PONG will be for, in the order of the PINGs.
    pongs: Mutex<VecDeque<Pinged>>,
    state: watch::Sender<LinkState>,
    connected: AtomicBool,
    max_payload: AtomicUsize,
    max_unsent: AtomicUsize,
    violations: Mutex<Vec<String>>,
    slow: AtomicU64,
    /// The first connection, until it is driven.
    opened: Mutex<Option<Connection>>,
}

/// Why the server was pinged.
#[derive(Debug)]
enum Pinged {
    /// To see that it lives.
    Alive,
    /// To know that it has what is kept in `assured`.
    Assured,
    /// Somebody waits for the answer.
    Asked(oneshot::Sender<()>),
}

#[derive(Debug, Clone)]
struct Subscription {
    subject: String,
    queue: Option<&'static str>,
}

impl Lane {
    /// Connects; nothing is read or written until [`Lane::drive`] runs. Errors say what is wrong and what to do.
    pub async fn open(options: LinkOptions) -> Result<Self, ConnectError> {
        let addresses = parse_addresses(&options.urls)?;
        let login = options.login(&addresses);
        let mut result = None;
        for address in &addresses {
            let connected = handshake::connect(&options, address, &login).await;
            let stop = connected.is_ok();
            result = Some(connected);
            if stop {
                break;
            }
        }
        let connection = result.expect("there is an address").map_err(|error| match error {
            ConnectError::Connect { problem, .. } => {
                ConnectError::Connect { urls: login::shown(&options.urls), problem }
            }
            other => other,
        })?;
        let state = LinkState { connected: false, since: Instant::now(), connects: 0, lame_duck: false, dead: None };
        let lane = Self(Arc::new(Shared {
            options,
            addresses,
            login,
            out: Mutex::default(),
            assured: Mutex::default(),
            added: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            subscriptions: Mutex::default(),
            received: std::array::from_fn(|_| AtomicU64::default()),
            pongs: Mutex::default(),
            state: watch::channel(state).0,
            connected: AtomicBool::new(false),
            max_payload: AtomicUsize::new(connection.info.max_payload),
            max_unsent: AtomicUsize::new(MAX_UNSENT),
            violations: Mutex::default(),
            slow: AtomicU64::new(0),
            opened: Mutex::new(Some(connection)),
        }));
        lane.0.mark_connected();
        Ok(lane)
    }

    /// Reads, hands each message to `take` at once, writes, and reconnects; for ever. Whatever `take` publishes is
    /// written together once all that was read is taken.
    pub async fn drive(&self, take: impl FnMut(Message)) {
        drive::drive(&self.0, take).await;
    }

    /// Publishes. While the connection is lost messages wait for it; what was not written yet when it was lost is
    /// lost with it.
    pub fn publish(
        &self,
        subject: &str,
        reply: Option<&str>,
        headers: &Lines,
        payload: Payload<'_>,
    ) -> Result<(), Unsent> {
        self.0.out().publish_up_to(self.max_unsent(), subject, reply, headers, payload)?;
        self.0.wake();
        Ok(())
    }

    /// Publishes what nobody would miss in time if it were lost: where the connection ends before the server is known to
    /// have it, it is sent once more after the reconnect. So it may arrive twice.
    pub fn publish_assured(&self, subject: &str, headers: &Lines, payload: Payload<'_>) -> Result<(), Unsent> {
        {
            let mut out = self.0.out();
            out.publish_up_to(self.max_unsent(), subject, None, headers, payload.clone())?;
            lock(&self.0.assured).keep(subject, headers, payload);
        }
        self.0.wake();
        Ok(())
    }

    /// Lets so many bytes wait to be written, in place of 64 MiB: for whoever passes large messages on and bounds them
    /// elsewhere.
    pub fn let_wait(&self, bytes: usize) {
        self.0.max_unsent.store(bytes, Ordering::Relaxed);
    }

    fn max_unsent(&self) -> usize {
        self.0.max_unsent.load(Ordering::Relaxed)
    }

    /// Publishes in this way once there is room, which is missing for long only while there is no connection; gives up
    /// after a time.
    pub async fn with_room(
        &self,
        within: Duration,
        publish: impl Fn(&Self) -> Result<(), Unsent>,
    ) -> Result<(), Unsent> {
        let until = Instant::now() + within;
        loop {
            match publish(self) {
                Err(Unsent::Full) if Instant::now() < until => tokio::time::sleep(ROOM_AFTER).await,
                sent => return sent,
            }
        }
    }

    /// Subscribes, under a number that its messages will have; anew after each reconnect.
    pub fn subscribe(&self, number: u64, subject: &str, queue: Option<&'static str>) {
        let subscription = Subscription { subject: subject.to_owned(), queue };
        let line = subscription.line(number);
        lock(&self.0.subscriptions).insert(number, subscription);
        self.0.out().line(&line);
        self.0.wake();
    }

    /// Leaves: the server is told to send at most `more` further messages, beyond those that were received. What is on
    /// its way still arrives. Its number is below [`MAX_COUNTED`].
    pub fn leave_after(&self, number: u64, more: u64) {
        assert!(number < MAX_COUNTED as u64, "messages are counted of subscriptions from 0 to {MAX_COUNTED}");
        lock(&self.0.subscriptions).remove(&number);
        let most = self.received(number) + more;
        self.0.out().line(&format!("UNSUB {number} {most}"));
        self.0.wake();
    }

    /// Ends a subscription.
    pub fn unsubscribe(&self, number: u64) {
        lock(&self.0.subscriptions).remove(&number);
        self.0.out().line(&format!("UNSUB {number}"));
        self.0.wake();
    }

    /// Messages received on a subscription since the connection came to stand; 0 where they are not counted.
    pub fn received(&self, number: u64) -> u64 {
        let index = usize::try_from(number).unwrap_or(MAX_COUNTED);
        self.0.received.get(index).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// A round trip to the server: what was subscribed and published before it is done after it. Reports the
    /// permission violations that the server has told of by then.
    pub async fn barrier(&self) -> Result<(), ConnectError> {
        let (told, pong) = oneshot::channel();
        {
            // Both under the lock: the order of the PINGs is that of who waits.
            let mut out = self.0.out();
            lock(&self.0.pongs).push_back(Pinged::Asked(told));
            out.line("PING");
        }
        self.0.wake();
        let answered = tokio::time::timeout(BARRIER_TIMEOUT, pong).await;
        self.check_permissions()?;
        match answered {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ConnectError::Silent(self.servers())),
        }
    }

    /// Whether the server answers a round trip within a time. Where as many wait for one already as may, it does not.
    pub async fn answers(&self, within: Duration) -> bool {
        let (told, pong) = oneshot::channel();
        {
            let mut out = self.0.out();
            let mut pongs = lock(&self.0.pongs);
            if !self.is_connected() || pongs.len() >= MAX_ROUND_TRIPS {
                return false;
            }
            pongs.push_back(Pinged::Asked(told));
            out.line("PING");
        }
        self.0.wake();
        matches!(tokio::time::timeout(within, pong).await, Ok(Ok(())))
    }

    /// The permission violations that the server has told of since the last look.
    pub fn check_permissions(&self) -> Result<(), ConnectError> {
        let violations = std::mem::take(&mut *lock(&self.0.violations));
        if violations.is_empty() { Ok(()) } else { Err(ConnectError::Permissions(violations.join("; "))) }
    }

    /// The state, to be watched.
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.0.state.subscribe()
    }

    /// How often the connection came to stand: 1 after the first connect.
    pub fn connects(&self) -> u64 {
        self.0.state.borrow().connects
    }

    /// Whether the connection stands at the moment.
    pub fn is_connected(&self) -> bool {
        self.0.connected.load(Ordering::Relaxed)
    }

    /// The server's limit on headers and payload together, in bytes.
    pub fn max_payload(&self) -> usize {
        self.0.max_payload.load(Ordering::Relaxed)
    }

    /// Times that the server has cut this connection off because it did not read fast enough.
    pub fn slow_consumer_events(&self) -> u64 {
        self.0.slow.load(Ordering::Relaxed)
    }

    /// Its servers' URLs as they may be shown: without the logins in them.
    pub fn servers(&self) -> String {
        login::shown(&self.0.options.urls)
    }
}

impl Shared {
    fn out(&self) -> MutexGuard<'_, Outbox> {
        lock(&self.out)
    }

    fn wake(&self) {
        if !self.added.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    fn mark_connected(&self) {
        self.connected.store(true, Ordering::Relaxed);
        self.state.send_modify(|state| {
            state.connected = true;
            state.since = Instant::now();
            state.connects += 1;
            state.lame_duck = false;
        });
    }

    fn mark_disconnected(&self) {
        self.connected.store(false, Ordering::Relaxed);
        self.state.send_modify(|state| state.connected = false);
    }

    /// The server reports an error. Those that end the connection end it by themselves.
    fn hear_error(&self, words: String) {
        let connection = self.options.name.as_str();
        tracing::warn!(connection, error = words, "the NATS server reports an error");
        let lower = words.to_ascii_lowercase();
        if lower.contains("slow consumer") {
            self.slow.fetch_add(1, Ordering::Relaxed);
        }
        if lower.contains(VIOLATION_WORDS) {
            let mut violations = lock(&self.violations);
            if violations.len() < MAX_VIOLATIONS {
                violations.push(words);
            }
        }
    }
}

impl Subscription {
    fn line(&self, number: u64) -> String {
        let Self { subject, queue } = self;
        match queue {
            Some(queue) => format!("SUB {subject} {queue} {number}"),
            None => format!("SUB {subject} {number}"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whatever panicked while it was held has left whole values: nothing here is changed in two steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
