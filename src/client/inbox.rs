//! One wildcard inbox for all the reply streams of a client: `{prefix}.{client}.{token}`, one token per stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use tokio::sync::mpsc;

use super::decide::{self, Carrier, Held, Order};
use crate::nats::Message;

/// Why a stream's messages end before its last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its buffer was full.
    Overflow,
    /// The connection was lost.
    Disconnected,
}

/// The streams that are open.
#[derive(Debug)]
pub(super) struct Inbox {
    prefix: String,
    max_open: usize,
    capacity: usize,
    /// Publishes bodies that this frontend sends to their ranks.
    carrier: Option<Carrier>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next_token: u64,
    streams: HashMap<u64, Slot>,
}

#[derive(Debug)]
struct Slot {
    messages: mpsc::Sender<Message>,
    ending: Arc<OnceLock<Ending>>,
    /// The connection that its request goes out on.
    connection: u64,
    /// Its body, while it waits for its place.
    held: Option<Arc<Held>>,
}

/// The reading end of one stream.
#[derive(Debug)]
pub(super) struct Opened {
    /// Its place in the inbox.
    pub token: u64,
    /// What comes in.
    pub messages: mpsc::Receiver<Message>,
    /// Why `messages` ended, where it ended early.
    pub ending: Arc<OnceLock<Ending>>,
}

impl Inbox {
    /// An inbox under a prefix (with its final dot) of at most `max_open` streams of `capacity` messages each.
    pub fn new(prefix: String, max_open: usize, capacity: usize) -> Self {
        Self { prefix, max_open, capacity, carrier: None, open: Mutex::default() }
    }

    /// With somebody who publishes bodies that are held.
    pub fn with_carrier(self, carrier: Option<Carrier>) -> Self {
        Self { carrier, ..self }
    }

    /// What to subscribe to.
    pub fn wildcard(&self) -> String {
        format!("{}*", self.prefix)
    }

    /// The reply subject of one stream.
    pub fn subject(&self, token: u64) -> String {
        format!("{}{token}", self.prefix)
    }

    /// Opens a stream on a connection, counted from 1; `None` where too many are open.
    pub fn open(&self, connection: u64, held: Option<Arc<Held>>) -> Option<Opened> {
        let (sender, messages) = mpsc::channel(self.capacity);
        let ending = Arc::new(OnceLock::new());
        let mut open = self.lock();
        if open.streams.len() >= self.max_open {
            return None;
        }
        let token = open.next_token;
        open.next_token += 1;
        open.streams.insert(token, Slot { messages: sender, ending: ending.clone(), connection, held });
        Some(Opened { token, messages, ending })
    }

    /// Forgets a stream.
    pub fn close(&self, token: u64) {
        self.lock().streams.remove(&token);
    }

    /// Hands a message to its stream; one of a stream that is closed is dropped.
    pub fn deliver(&self, message: Message) {
        let token = message.subject().strip_prefix(self.prefix.as_str()).and_then(|token| token.parse().ok());
        let Some(token) = token else { return };
        let mut open = self.lock();
        let Some(slot) = open.streams.get_mut(&token) else { return };
        if self.is_carried_out(slot, &message) {
            return;
        }
        match slot.messages.try_send(message) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                // Waiting would hold up every other stream of this client.
                let _ = slot.ending.set(Ending::Overflow);
                open.streams.remove(&token);
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                open.streams.remove(&token);
            }
        }
    }

    /// Does what a message asks for that is about a body which is held, and says whether it was one. With the first of any
    /// other the body has arrived, or the request has ended.
    fn is_carried_out(&self, slot: &mut Slot, message: &Message) -> bool {
        let (Some(held), Some(carrier)) = (&slot.held, &self.carrier) else { return false };
        let order = decide::sort(message);
        if let Some(order) = order {
            carrier.carry_out(held, order, message);
        }
        match order {
            Some(Order::Place | Order::Answer) => {}
            Some(Order::Usual(_)) | None => slot.held = None,
        }
        order.is_some()
    }

    /// Ends the streams of this connection and of those before it: it is lost.
    pub fn end_up_to(&self, connection: u64) {
        self.lock().streams.retain(|_, slot| {
            let lost = slot.connection <= connection;
            if lost {
                let _ = slot.ending.set(Ending::Disconnected);
            }
            !lost
        });
    }

    /// How many streams are open.
    pub fn len(&self) -> usize {
        self.lock().streams.len()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no code panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(subject: &str) -> Message {
        Message::of(subject, None, "NATS/1.0\r\n\r\n", b"")
    }

    #[test]
    fn messages_find_their_stream_and_nothing_else_does() {
        let inbox = Inbox::new("_INBOX.c.".into(), 2, 8);
        let mut first = inbox.open(1, None).expect("room");
        let mut second = inbox.open(1, None).expect("room");
        assert!(inbox.open(1, None).is_none(), "two are the most");
        inbox.deliver(message(&inbox.subject(second.token)));
        inbox.deliver(message("_INBOX.c.x"));
        inbox.deliver(message("_INBOX.c.99"));
        assert!(second.messages.try_recv().is_ok());
        assert!(first.messages.try_recv().is_err());
        inbox.close(first.token);
        assert_eq!(inbox.len(), 1);
    }

    #[test]
    fn a_full_stream_ends_after_what_it_holds() {
        let inbox = Inbox::new("i.".into(), 2, 1);
        let mut stream = inbox.open(1, None).expect("room");
        inbox.deliver(message(&inbox.subject(stream.token)));
        inbox.deliver(message(&inbox.subject(stream.token)));
        assert!(stream.messages.try_recv().is_ok());
        assert_eq!(stream.messages.try_recv().err(), Some(mpsc::error::TryRecvError::Disconnected));
        assert_eq!(stream.ending.get(), Some(&Ending::Overflow));
    }

    #[test]
    fn a_lost_connection_ends_its_own_streams_and_older_ones() {
        let inbox = Inbox::new("i.".into(), 2, 1);
        let (old, new) = (inbox.open(1, None).expect("room"), inbox.open(2, None).expect("room"));
        inbox.end_up_to(1);
        assert_eq!((old.ending.get(), new.ending.get()), (Some(&Ending::Disconnected), None));
        assert_eq!(inbox.len(), 1);
    }
}
