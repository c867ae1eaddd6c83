//! One connection to NATS that can be replaced: a message that kills the client library's connection task takes
//! neither the process nor the other connections along.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::Headers;
use super::login::{self, Login};
use super::tls::Tls;

/// How often the server is pinged; two unanswered pings end the connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// What a server's URL may begin with.
const SCHEMES: [&str; 2] = ["nats", "tls"];
/// How long connecting to one server may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause between two attempts to reconnect.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// Shortest pause between two new clients in place of dead ones.
const MIN_REBUILD_INTERVAL: Duration = Duration::from_millis(200);
/// How long a round trip to the server may take.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the client library may take to hand on what the server has said.
const VIOLATION_GRACE: Duration = Duration::from_millis(50);
/// Messages that one subscription holds before the newest are dropped.
const SUBSCRIPTION_CAPACITY: usize = 65_536;
/// Permission violations kept for the message at start.
pub(super) const MAX_VIOLATIONS: usize = 16;
/// How the server's report of one begins, in lower case.
pub(super) const VIOLATION_WORDS: &str = "permissions violation";

/// Where and as whom to connect.
#[derive(Clone)]
pub struct LinkOptions {
    /// Server URLs.
    pub urls: Vec<String>,
    /// Credentials file (JWT and nkey seed).
    pub creds: Option<PathBuf>,
    /// Another login; without one, what stands in the URLs.
    pub login: Option<Login>,
    /// Encryption.
    pub tls: Tls,
    /// Name of the connection, as the server lists it.
    pub name: String,
    /// Prefix of the inboxes, without the final dot.
    pub inbox_prefix: String,
}

impl LinkOptions {
    /// Options from one text of URLs with commas between, as `NATS_URL` is written.
    pub fn new(urls: &str, name: &str) -> Self {
        Self {
            urls: urls.split(',').map(|url| url.trim().to_owned()).filter(|url| !url.is_empty()).collect(),
            creds: None,
            login: None,
            tls: Tls::default(),
            name: name.to_owned(),
            inbox_prefix: "_INBOX".to_owned(),
        }
    }

    /// Looks for what would keep it from connecting anywhere: URLs that are none, files that can't be read.
    pub fn check(&self) -> Result<(), ConnectError> {
        parse_addresses(&self.urls)?;
        if let Some(path) = &self.creds {
            std::fs::read(path)
                .map_err(|e| ConnectError::Credentials { path: path.display().to_string(), problem: e.to_string() })?;
        }
        encrypted(ConnectOptions::new(), self).map(drop)
    }

    /// As whom to connect, where it is not by a credentials file.
    pub(super) fn login(&self, addresses: &[ServerAddr]) -> Login {
        self.login.clone().unwrap_or_else(|| Login::of(addresses))
    }
}

/// Without the logins that may stand in the URLs.
impl fmt::Debug for LinkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkOptions")
            .field("urls", &login::shown(&self.urls))
            .field("creds", &self.creds)
            .field("login", &self.login)
            .field("tls", &self.tls)
            .field("name", &self.name)
            .field("inbox_prefix", &self.inbox_prefix)
            .finish()
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A URL can't be read.
    #[error("{url:?} is not the URL of a NATS server ({problem}); write nats://host:4222, several with commas between")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The credentials can't be read.
    #[error("cannot read the credentials file {path}: {problem}")]
    Credentials {
        /// The file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No server answered, or it refused.
    #[error("cannot connect to NATS at {urls}: {problem}; is the server running, and may this user connect?")]
    Connect {
        /// Where it was tried.
        urls: String,
        /// What the client says.
        problem: String,
    },
    /// The server does not allow what is needed.
    #[error("the NATS server does not allow what is needed: {0}; give the user these permissions")]
    Permissions(String),
    /// The server did not answer a round trip.
    #[error("the NATS server at {0} did not answer within 5 s")]
    Silent(String),
}

/// State of a link, to be watched.
#[derive(Debug, Clone)]
pub struct LinkState {
    /// Whether the connection stands.
    pub connected: bool,
    /// When it last came to stand.
    pub since: Instant,
    /// How often it came to stand: 1 after the first connect.
    pub connects: u64,
    /// The server said that it is about to stop.
    pub lame_duck: bool,
    /// Generation of the last client that died, of which [`Link::rebuild`] makes a new one.
    pub dead: Option<u64>,
}

/// A connection that can be replaced.
#[derive(Debug, Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: LinkOptions,
    current: Mutex<(Client, u64)>,
    state: watch::Sender<LinkState>,
    rebuilding: tokio::sync::Mutex<Instant>,
    violations: Arc<Mutex<Vec<String>>>,
    slow: AtomicU64,
}

impl Link {
    /// Connects. Errors say what is wrong and what to do.
    pub async fn open(options: LinkOptions) -> Result<Self, ConnectError> {
        let now = Instant::now();
        let (state, _) =
            watch::channel(LinkState { connected: false, since: now, connects: 0, lame_duck: false, dead: None });
        let violations = Arc::new(Mutex::new(Vec::new()));
        let (client, events) = connect(&options).await?;
        let shared = Arc::new(Shared {
            options,
            current: Mutex::new((client, 0)),
            state,
            rebuilding: tokio::sync::Mutex::new(now),
            violations,
            slow: AtomicU64::new(0),
        });
        shared.mark_connected();
        follow_events(&shared, events, 0);
        Ok(Self { shared })
    }

    /// The client of the moment, and its generation for [`Link::rebuild`].
    pub fn client(&self) -> (Client, u64) {
        let current = self.shared.current.lock().expect("no code panics while it holds this lock");
        current.clone()
    }

    /// The state, to be watched.
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.shared.state.subscribe()
    }

    /// Whether the connection stands at the moment.
    pub fn is_connected(&self) -> bool {
        self.shared.state.borrow().connected
    }

    /// The server's limit on headers and payload together, in bytes.
    pub fn max_payload(&self) -> usize {
        self.shared.current.lock().expect("no code panics while it holds this lock").0.max_payload()
    }

    /// Messages dropped because a subscription was full, as far as the client tells.
    pub fn slow_consumer_events(&self) -> u64 {
        self.shared.slow.load(Ordering::Relaxed)
    }

    /// Its servers' URLs as they may be shown: without the logins in them.
    pub fn servers(&self) -> String {
        login::shown(&self.shared.options.urls)
    }

    /// The options it was opened with.
    pub fn options(&self) -> &LinkOptions {
        &self.shared.options
    }

    /// Replaces a dead client (the end of a subscription's stream means that it is dead). Several callers may see
    /// the same death: the first one rebuilds, the others find it done. Tries until it stands.
    pub async fn rebuild(&self, dead_generation: u64) {
        let mut last = self.shared.rebuilding.lock().await;
        if self.client().1 != dead_generation {
            return;
        }
        self.shared.mark_disconnected();
        warn!(connection = %self.shared.options.name, "a message killed the NATS client; connecting anew");
        loop {
            let wait = MIN_REBUILD_INTERVAL.saturating_sub(last.elapsed());
            tokio::time::sleep(wait).await;
            *last = Instant::now();
            match connect(&self.shared.options).await {
                Ok((client, events)) => {
                    let generation = dead_generation + 1;
                    *self.shared.current.lock().expect("no code panics while it holds this lock") =
                        (client, generation);
                    self.shared.mark_connected();
                    follow_events(&self.shared, events, generation);
                    return;
                }
                Err(error) => warn!(connection = %self.shared.options.name, %error, "cannot connect anew, trying on"),
            }
        }
    }

    /// A round trip to the server on this connection: what was subscribed before it stands after it. Reports the
    /// permission violations that the server has told of by then.
    pub async fn barrier(&self) -> Result<(), ConnectError> {
        let (client, _) = self.client();
        let silent = || ConnectError::Silent(self.servers());
        let inbox = client.new_inbox();
        let round_trip = async {
            let mut echo = client.subscribe(inbox.clone()).await.ok()?;
            client.publish(inbox, bytes::Bytes::new()).await.ok()?;
            echo.next().await
        };
        let outcome = tokio::time::timeout(BARRIER_TIMEOUT, round_trip).await;
        // The server told of violations before it answered, but the client library hands errors on through tasks of
        // their own, which may run later than this one.
        tokio::time::sleep(VIOLATION_GRACE).await;
        self.check_permissions()?;
        match outcome {
            Ok(Some(_)) => Ok(()),
            _ => Err(silent()),
        }
    }

    /// The permission violations that the server has told of since the last look.
    pub fn check_permissions(&self) -> Result<(), ConnectError> {
        let mut kept = self.shared.violations.lock().expect("no code panics while it holds this lock");
        let violations = std::mem::take(&mut *kept);
        if violations.is_empty() { Ok(()) } else { Err(ConnectError::Permissions(violations.join("; "))) }
    }

    /// Publishes; returns once the client has taken the message.
    pub async fn publish(
        &self,
        subject: impl async_nats::subject::ToSubject,
        reply: Option<async_nats::Subject>,
        headers: Headers,
        payload: bytes::Bytes,
    ) -> Result<(), async_nats::PublishError> {
        let (client, _) = self.client();
        match reply {
            Some(reply) => client.publish_with_reply_and_headers(subject, reply, headers.to_map(), payload).await,
            None => client.publish_with_headers(subject, headers.to_map(), payload).await,
        }
    }
}

impl Shared {
    fn mark_connected(&self) {
        self.state.send_modify(|state| {
            state.connected = true;
            state.since = Instant::now();
            state.connects += 1;
            state.lame_duck = false;
        });
    }

    fn mark_dead(&self, generation: u64) {
        let current = self.current.lock().expect("no code panics while it holds this lock").1;
        self.state.send_modify(|state| {
            state.dead = Some(generation);
            state.connected &= current != generation;
        });
    }

    fn mark_disconnected(&self) {
        self.state.send_modify(|state| state.connected = false);
    }

    fn handle(&self, event: Event) {
        let connection = self.options.name.as_str();
        match event {
            Event::Connected => {
                info!(connection, "connected to NATS");
                self.mark_connected();
            }
            Event::Disconnected => {
                warn!(connection, "the connection to NATS is lost, reconnecting");
                self.mark_disconnected();
            }
            Event::LameDuckMode => {
                warn!(connection, "the NATS server is about to stop");
                self.state.send_modify(|state| state.lame_duck = true);
            }
            Event::SlowConsumer(subscription) => {
                self.slow.fetch_add(1, Ordering::Relaxed);
                debug!(connection, subscription, "a subscription is full, messages are dropped");
            }
            Event::ServerError(error) => {
                warn!(connection, %error, "the NATS server reports an error");
                let text = error.to_string();
                if text.to_ascii_lowercase().contains(VIOLATION_WORDS) {
                    let mut violations = self.violations.lock().expect("no code panics while it holds this lock");
                    if violations.len() < MAX_VIOLATIONS {
                        violations.push(text);
                    }
                }
            }
            Event::ClientError(error) => debug!(connection, %error, "the NATS client reports an error"),
            Event::Draining | Event::Closed => debug!(connection, %event, "the connection ends"),
        }
    }
}

type Events = tokio::sync::mpsc::UnboundedReceiver<Event>;

fn follow_events(shared: &Arc<Shared>, mut events: Events, generation: u64) {
    let weak = Arc::downgrade(shared);
    tokio::spawn(async move {
        // The first connect is told by the return of `connect`; its event only repeats it.
        let mut told = false;
        while let Some(event) = events.recv().await {
            let Some(shared) = weak.upgrade() else { return };
            if !std::mem::replace(&mut told, true) && matches!(event, Event::Connected) {
                continue;
            }
            let current = shared.current.lock().expect("no code panics while it holds this lock").1;
            if current == generation {
                shared.handle(event);
            }
        }
        // The client lets go of its events only when its connection task has ended: it is dead.
        if let Some(shared) = weak.upgrade() {
            shared.mark_dead(generation);
        }
    });
}

async fn connect(options: &LinkOptions) -> Result<(Client, Events), ConnectError> {
    let addresses = parse_addresses(&options.urls)?;
    // Events are few (state changes and server errors), so their channel needs no bound.
    let (sender, events) = tokio::sync::mpsc::unbounded_channel();
    let connect = match &options.creds {
        Some(path) => ConnectOptions::new()
            .credentials_file(path)
            .await
            .map_err(|e| ConnectError::Credentials { path: path.display().to_string(), problem: e.to_string() })?,
        None => options.login(&addresses).apply(ConnectOptions::new()),
    };
    let client = encrypted(connect, options)?
        .name(&options.name)
        .custom_inbox_prefix(&options.inbox_prefix)
        .ping_interval(PING_INTERVAL)
        .connection_timeout(CONNECT_TIMEOUT)
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(move |event| {
            let sender = sender.clone();
            async move {
                let _ = sender.send(event);
            }
        })
        .connect(addresses)
        .await
        .map_err(|e| ConnectError::Connect { urls: login::shown(&options.urls), problem: describe(&e) })?;
    Ok((client, events))
}

fn encrypted(connect: ConnectOptions, options: &LinkOptions) -> Result<ConnectOptions, ConnectError> {
    if !options.tls.is_wanted() {
        return Ok(connect);
    }
    let config = options
        .tls
        .config()
        .map_err(|e| ConnectError::Connect { urls: login::shown(&options.urls), problem: e.to_string() })?;
    let connect = connect.tls_client_config((*config).clone()).require_tls(true);
    Ok(if options.tls.first { connect.tls_first() } else { connect })
}

/// Reads server URLs; at least one.
pub(super) fn parse_addresses(urls: &[String]) -> Result<Vec<ServerAddr>, ConnectError> {
    if urls.is_empty() {
        return Err(ConnectError::Url { url: String::new(), problem: "it is empty".into() });
    }
    let parse = |url: &String| {
        let wrong = |problem: String| ConnectError::Url { url: login::without_login(url), problem };
        let address: ServerAddr = url.parse().map_err(|e: std::io::Error| wrong(e.to_string()))?;
        if !SCHEMES.contains(&address.scheme()) {
            return Err(wrong(format!("its scheme is {}", address.scheme())));
        }
        if address.host().is_empty() {
            return Err(wrong("it names no host".into()));
        }
        Ok(address)
    };
    urls.iter().map(parse).collect()
}

/// Pause before an attempt to reconnect; attempts count from 1.
pub(super) fn reconnect_delay(attempts: usize) -> Duration {
    let exponent = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(6);
    (Duration::from_millis(50) * 2u32.pow(exponent)).min(MAX_RECONNECT_DELAY)
}

/// An error with its causes, in one line.
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = next.source();
    }
    text
}
