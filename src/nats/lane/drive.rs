//! What keeps a lane going: one future that reads, hands on, writes, pings and reconnects.

use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_nats::ServerAddr;
use tokio::io::{AsyncWrite as _, AsyncWriteExt as _};
use tokio::time::{Interval, MissedTickBehavior};

use super::codec::{Decoder, Message, Op};
use super::handshake::{self, Connection, ServerInfo, Stream};
use super::outbox::{Outbox, SLICES};
use super::{Pinged, Shared, lock};
use crate::nats::link::{ConnectError, reconnect_delay};

/// How often the server is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How often it is asked whether it has what must not be lost, while there is such.
const ASSURE_INTERVAL: Duration = Duration::from_millis(250);
/// PINGs without an answer that end the connection.
const MAX_UNANSWERED: usize = 2;
/// Servers of a cluster that are remembered beside those that are configured.
const MAX_DISCOVERED: usize = 64;

/// Runs for ever.
pub(super) async fn drive(shared: &Shared, mut take: impl FnMut(Message)) {
    let mut discovered = Vec::new();
    let mut opened = lock(&shared.opened).take();
    let mut lost = shared.addresses[0].clone();
    loop {
        let connection = match opened.take() {
            Some(connection) => connection,
            None => reconnect(shared, &discovered, &lost).await,
        };
        lost.clone_from(&connection.address);
        discover(&mut discovered, &connection.info);
        let mut driver = Driver::new(shared, connection);
        let end = std::future::poll_fn(|context| driver.poll(context, &mut take)).await;
        discovered = driver.discovered(discovered);
        let name = shared.options.name.as_str();
        tracing::warn!(connection = name, error = %end, "the connection to NATS is lost, reconnecting");
        lose(shared);
    }
}

/// The connection is lost, and what was not written with it: it would be delivered late, and stale.
fn lose(shared: &Shared) {
    shared.mark_disconnected();
    let mut out = shared.out();
    out.clear();
    lock(&shared.pongs).clear();
    lock(&shared.assured).send_again(&mut out);
    shared.added.store(!out.is_empty(), Ordering::Release);
}

/// Connects to any server but the one that was lost, which may be stopping; to that one too where no other is there.
async fn reconnect(shared: &Shared, discovered: &[ServerAddr], lost: &ServerAddr) -> Connection {
    let is_lost = |address: &&ServerAddr| (address.host(), address.port()) == (lost.host(), lost.port());
    let all = || shared.addresses.iter().chain(discovered);
    let others = || all().filter(|address| !is_lost(address));
    let mut attempt = 0;
    loop {
        for address in others().chain(all().find(is_lost)) {
            // Whoever publishes here meanwhile is told that nobody listens: the first other server is asked at once.
            if attempt > 0 || is_lost(&address) {
                tokio::time::sleep(reconnect_delay(attempt.max(1))).await;
            }
            attempt += 1;
            match stand(shared, address).await {
                Ok(connection) => {
                    tracing::info!(connection = shared.options.name, "connected to NATS");
                    shared.mark_connected();
                    return connection;
                }
                Err(error) => {
                    tracing::debug!(connection = shared.options.name, %error, "cannot reconnect, trying on");
                }
            }
        }
    }
}

/// Connects, and subscribes anew before anything else is sent.
async fn stand(shared: &Shared, address: &ServerAddr) -> Result<Connection, ConnectError> {
    let mut connection = handshake::connect(&shared.options, address, &shared.login).await?;
    shared.max_payload.store(connection.info.max_payload, Ordering::Relaxed);
    for count in &shared.received {
        count.store(0, Ordering::Relaxed);
    }
    let lines: String = {
        let subscriptions = lock(&shared.subscriptions);
        subscriptions.iter().map(|(number, subscription)| subscription.line(*number) + "\r\n").collect()
    };
    let written = async {
        connection.stream.write_all(lines.as_bytes()).await?;
        connection.stream.flush().await
    };
    written.await.map_err(|e| ConnectError::Connect { urls: address.host().to_owned(), problem: e.to_string() })?;
    Ok(connection)
}

fn discover(known: &mut Vec<ServerAddr>, info: &ServerInfo) {
    for url in &info.connect_urls {
        if let Ok(address) = url.parse::<ServerAddr>()
            && known.len() < MAX_DISCOVERED
            && !known.iter().any(|other| (other.host(), other.port()) == (address.host(), address.port()))
        {
            known.push(address);
        }
    }
}

/// Ticks from one period on.
fn every(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// A connection at work.
struct Driver<'s> {
    shared: &'s Shared,
    stream: Stream,
    decoder: Decoder,
    /// What is being written, and how much of it is.
    writing: Outbox,
    written: usize,
    flushed: bool,
    pings: Interval,
    assuring: Interval,
    found: Vec<ServerAddr>,
}

impl<'s> Driver<'s> {
    fn new(shared: &'s Shared, connection: Connection) -> Self {
        let Connection { stream, decoder, .. } = connection;
        let pings = every(PING_INTERVAL);
        Self {
            shared,
            stream,
            decoder,
            writing: Outbox::default(),
            written: 0,
            flushed: true,
            pings,
            assuring: every(ASSURE_INTERVAL),
            found: Vec::new(),
        }
    }

    fn discovered(self, mut known: Vec<ServerAddr>) -> Vec<ServerAddr> {
        known.extend(self.found);
        known.truncate(MAX_DISCOVERED);
        known
    }

    /// Ready when the connection is lost.
    fn poll(&mut self, context: &mut Context<'_>, take: &mut impl FnMut(Message)) -> Poll<std::io::Error> {
        // Registered before anything is looked at: what is added from here on wakes this future.
        self.shared.waker.register(context.waker());
        if self.pings.poll_tick(context).is_ready()
            && let Err(error) = self.ping()
        {
            return Poll::Ready(error);
        }
        self.poll_assured(context);
        loop {
            // What was read ahead comes first.
            let progress = match self.hand_on(take) {
                Ok(progress) => progress,
                Err(error) => return Poll::Ready(error),
            };
            if let Poll::Ready(Err(error)) = self.poll_write(context) {
                return Poll::Ready(error);
            }
            match self.poll_read(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending if progress => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn ping(&mut self) -> Result<(), std::io::Error> {
        let mut out = self.shared.out();
        let mut pongs = lock(&self.shared.pongs);
        if pongs.iter().filter(|pinged| matches!(pinged, Pinged::Alive)).count() >= MAX_UNANSWERED {
            return Err(std::io::Error::other("the server does not answer pings"));
        }
        pongs.push_back(Pinged::Alive);
        out.line("PING");
        self.shared.added.store(true, Ordering::Release);
        Ok(())
    }

    /// Asks whether the server has what must not be lost, when it is time. The timer runs only while there is such.
    fn poll_assured(&mut self, context: &mut Context<'_>) {
        while !lock(&self.shared.assured).is_empty() && self.assuring.poll_tick(context).is_ready() {
            let mut out = self.shared.out();
            if lock(&self.shared.assured).ask() {
                lock(&self.shared.pongs).push_back(Pinged::Assured);
                out.line("PING");
                self.shared.added.store(true, Ordering::Release);
            }
        }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        match ready!(pin!(self.decoder.read(&mut self.stream)).poll(context))? {
            0 => Poll::Ready(Err(std::io::Error::other("the server has closed it"))),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Handles everything that was read. Whether there was anything.
    fn hand_on(&mut self, take: &mut impl FnMut(Message)) -> Result<bool, std::io::Error> {
        let mut any = false;
        while let Some(op) = self.decoder.decode().map_err(std::io::Error::other)? {
            any = true;
            match op {
                Op::Message(message) => {
                    let number = usize::try_from(message.subscription()).unwrap_or(usize::MAX);
                    if let Some(count) = self.shared.received.get(number) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    take(message);
                }
                Op::Ping => {
                    self.shared.out().line("PONG");
                    self.shared.added.store(true, Ordering::Release);
                }
                Op::Pong => {
                    let pinged = lock(&self.shared.pongs).pop_front();
                    match pinged {
                        Some(Pinged::Assured) => lock(&self.shared.assured).answered(),
                        // Whoever waited may have gone.
                        Some(Pinged::Asked(waiting)) => drop(waiting.send(())),
                        Some(Pinged::Alive) | None => {}
                    }
                }
                Op::Info(json) => self.hear_info(&json),
                Op::Error(words) => self.shared.hear_error(words),
                Op::Nothing => {}
            }
        }
        Ok(any)
    }

    fn hear_info(&mut self, json: &[u8]) {
        let Ok(info) = serde_json::from_slice::<ServerInfo>(json) else { return };
        discover(&mut self.found, &info);
        if info.lame_duck {
            tracing::warn!(connection = self.shared.options.name, "the NATS server is about to stop");
            self.shared.state.send_modify(|state| state.lame_duck = true);
        }
    }

    /// Writes what waits, as far as the connection takes it.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        loop {
            if self.written == self.writing.len() {
                self.writing.clear();
                self.written = 0;
                if self.shared.added.swap(false, Ordering::AcqRel) {
                    std::mem::swap(&mut *self.shared.out(), &mut self.writing);
                }
                if self.writing.is_empty() {
                    return self.poll_flush(context);
                }
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.writing.slices(self.written, &mut slices);
            let wrote = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..count]))?;
            if wrote == 0 {
                return Poll::Ready(Err(std::io::Error::other("the connection takes no more bytes")));
            }
            self.written += wrote;
            self.flushed = false;
        }
    }

    /// Encrypted connections keep bytes back until they are flushed.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        if !self.flushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.flushed = true;
        }
        Poll::Ready(Ok(()))
    }
}
