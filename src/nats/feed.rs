//! A bucket's changes, pulled over a lane: many with one request where many come.
//!
//! A server wakes up for each change that it pushes, and the router that gets it too; on a busy bucket that costs both more
//! than the change itself. So changes are asked for: what has gathered comes at once, then there is a short rest. Where
//! nothing comes the request waits at the server, and the next change is told without a delay. The server says all the while
//! that it still has the request, so a consumer that went with its server is missed soon.

use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::NO_RESPONDERS;
use super::bucket::{Bucket, Change, Stored, Unreachable};
use super::jetstream::JetStream;
use super::lane::{Lane, Lines, Message, Payload};

/// Most changes of one pull.
const BATCH: u64 = 512;
/// Messages that wait to be looked at: those of a pull, what the server says of it, and what is left of those before.
const MAX_MAIL: usize = 2048;
/// Rest after a pull that has brought something, in which more can gather.
const GATHER: Duration = Duration::from_millis(2);
/// How long a pull waits at the server for the first change.
const WAIT: Duration = Duration::from_secs(10);
/// How often the server says that it waits.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Silence after which the pull, or whoever should answer it, is gone.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long a consumer may be unknown to the server at hand after another one has made it, and the pause between pulls
/// meanwhile.
const UNKNOWN: Duration = Duration::from_secs(2);
/// See [`UNKNOWN`].
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// Age without a pull at which the server drops a consumer.
const UNUSED: Duration = Duration::from_secs(10);

/// What the server says of a pull.
mod status {
    /// It waits.
    pub const HEARTBEAT: u16 = 100;
    /// There is no more.
    pub const NO_MORE: u16 = 404;
    /// It has waited as long as it should.
    pub const TIMED_OUT: u16 = 408;
}

/// The reader's end of a subscription by which a bucket's changes come. One watch at a time: [`Feed::begin`], then
/// [`Feed::next`].
#[derive(Debug)]
pub struct Feed {
    lane: Lane,
    number: u64,
    /// Prefix of the subjects that pulls are answered on.
    inbox: String,
    mail: mpsc::Receiver<Message>,
    /// Prefix of the names of its consumers.
    name: String,
    consumers: u64,
    watch: Watch,
}

#[derive(Debug)]
struct Watch {
    consumer: String,
    /// Where it is pulled.
    subject: String,
    /// What the subjects of its messages begin with.
    prefix: String,
    begun: Instant,
    /// Number of the message that came last, by the consumer's count.
    delivered: u64,
    /// Number of the pull, which no earlier watch had, and how many changes it has brought.
    pull: u64,
    brought: u64,
    phase: Phase,
    told: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The next pull is sent then.
    Resting(Instant),
    /// Something has to be heard by then.
    Pulling(Instant),
}

/// What a feed says.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// A change.
    Change(Change),
    /// A message whose header block can't be read: whatever it was, it is no value.
    Unsound(Change),
    /// The server of the watch had no more to tell: said once.
    Told,
    /// The watch has ended, for this reason; another one has to be begun.
    Ended(String),
}

impl Feed {
    /// One that answers under the subscription `number` of a lane, on subjects that begin with `inbox`, which ends with a
    /// dot. Whoever drives the lane hands it that subscription's messages. Its consumers have names that begin with `name`.
    pub fn new(lane: Lane, number: u64, inbox: String, name: String) -> (mpsc::Sender<Message>, Self) {
        let (sender, mail) = mpsc::channel(MAX_MAIL);
        let watch = Watch::new(String::new(), "", 0);
        (sender, Self { lane, number, inbox, mail, name, consumers: 0, watch })
    }

    /// The connection by which it comes.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Begins a watch: each key's last value first, or what came from a sequence on. What an earlier one had still to tell
    /// is forgotten.
    pub async fn begin(&mut self, bucket: &Bucket, from: Option<u64>) -> Result<(), Unreachable> {
        if self.consumers == 0 {
            self.lane.subscribe(self.number, &format!("{}*", self.inbox), None);
        }
        self.consumers += 1;
        let consumer = format!("{}-{}", self.name, self.consumers);
        let start = match from {
            Some(sequence) => json!({ "deliver_policy": "by_start_sequence", "opt_start_seq": sequence }),
            None => json!({ "deliver_policy": "all" }),
        };
        let jetstream = JetStream::new(bucket.link().clone());
        let made = jetstream.create_reader(&bucket.stream_name(), &consumer, start, UNUSED).await;
        made.map_err(|error| Unreachable(error.to_string()))?;
        self.watch = Watch::new(consumer, bucket.name(), self.watch.pull);
        Ok(())
    }

    /// The next piece of news. Cancel-safe.
    pub async fn next(&mut self) -> News {
        loop {
            if let Some(news) = self.ready() {
                return news;
            }
            match self.watch.phase {
                Phase::Resting(until) => {
                    if until > Instant::now() {
                        tokio::time::sleep_until(until).await;
                    }
                    if let Err(problem) = self.pull() {
                        return News::Ended(problem);
                    }
                }
                Phase::Pulling(until) => {
                    let message = match tokio::time::timeout_at(until, self.mail.recv()).await {
                        Ok(Some(message)) => message,
                        Ok(None) => return News::Ended("nobody hands on what the connection reads".into()),
                        Err(_) => return News::Ended(format!("nothing was heard for {PATIENCE:?}")),
                    };
                    if let Some(news) = self.watch.hear(&message, &self.inbox) {
                        return news;
                    }
                }
            }
        }
    }

    /// The next piece of news, where it is here already.
    pub fn ready(&mut self) -> Option<News> {
        while matches!(self.watch.phase, Phase::Pulling(_)) {
            let message = self.mail.try_recv().ok()?;
            if let Some(news) = self.watch.hear(&message, &self.inbox) {
                return Some(news);
            }
        }
        None
    }

    fn pull(&mut self) -> Result<(), String> {
        let watch = &mut self.watch;
        watch.pull += 1;
        watch.brought = 0;
        watch.phase = Phase::Pulling(Instant::now() + PATIENCE);
        let ask = json!({
            "batch": BATCH,
            "no_wait": true,
            "expires": nanoseconds(WAIT),
            "idle_heartbeat": nanoseconds(HEARTBEAT),
        });
        let reply = format!("{}{}", self.inbox, watch.pull);
        let sent =
            self.lane.publish(&watch.subject, Some(&reply), &Lines::new(), Payload::Copied(ask.to_string().as_bytes()));
        sent.map_err(|error| error.to_string())
    }
}

/// Where a consumer of a bucket is pulled.
pub fn pulled_at(bucket: &str, consumer: &str) -> String {
    format!("$JS.API.CONSUMER.MSG.NEXT.KV_{bucket}.{consumer}")
}

impl Watch {
    fn new(consumer: String, bucket: &str, pull: u64) -> Self {
        let now = Instant::now();
        Self {
            subject: pulled_at(bucket, &consumer),
            prefix: format!("$KV.{bucket}."),
            consumer,
            begun: now,
            delivered: 0,
            pull,
            brought: 0,
            phase: Phase::Resting(now),
            told: false,
        }
    }

    fn hear(&mut self, message: &Message, inbox: &str) -> Option<News> {
        let now = Instant::now();
        let Some(status) = message.status() else { return self.take(message, now) };
        let about = message.subject().strip_prefix(inbox).and_then(|number| number.parse().ok());
        if about != Some(self.pull) {
            // Of a pull that is over.
            return None;
        }
        match status {
            status::HEARTBEAT => self.phase = Phase::Pulling(now + PATIENCE),
            status::NO_MORE | status::TIMED_OUT => {
                let rest = if self.brought == 0 { Duration::ZERO } else { GATHER };
                self.phase = Phase::Resting(now + rest);
                if !std::mem::replace(&mut self.told, true) {
                    return Some(News::Told);
                }
            }
            NO_RESPONDERS if self.delivered == 0 && now < self.begun + UNKNOWN => {
                self.phase = Phase::Resting(now + ASK_AGAIN);
            }
            NO_RESPONDERS => return Some(News::Ended("its consumer is gone".into())),
            status => return Some(News::Ended(format!("the server answers a pull with status {status}"))),
        }
        None
    }

    fn take(&mut self, message: &Message, now: Instant) -> Option<News> {
        let delivery = message.reply().and_then(Delivery::parse)?;
        let key = message.subject().strip_prefix(&self.prefix)?;
        if delivery.consumer != self.consumer {
            // Of a watch that is over.
            return None;
        }
        if delivery.number != self.delivered + 1 {
            let (last, found) = (self.delivered, delivery.number);
            return Some(News::Ended(format!("change {found} came after change {last}")));
        }
        self.delivered += 1;
        self.brought += 1;
        self.phase = if self.brought < BATCH { Phase::Pulling(now + PATIENCE) } else { Phase::Resting(now) };
        let headers = message.headers();
        let gone = headers.is_ok_and(|block| {
            block.iter().any(|(name, _)| {
                name.eq_ignore_ascii_case("KV-Operation") || name.eq_ignore_ascii_case("Nats-Marker-Reason")
            })
        });
        let value = (headers.is_ok() && !gone).then(|| message.payload_bytes());
        let stored = Stored { revision: delivery.sequence, value, created: delivery.stored };
        let change = Change { key: key.to_owned(), stored, pending: delivery.pending };
        Some(if headers.is_ok() { News::Change(change) } else { News::Unsound(change) })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What the reply subject of a delivered message says.
#[derive(Debug, PartialEq, Eq)]
struct Delivery<'a> {
    consumer: &'a str,
    /// Sequence in the stream.
    sequence: u64,
    /// Sequence of the delivery.
    number: u64,
    stored: SystemTime,
    pending: u64,
}

impl<'a> Delivery<'a> {
    /// Reads `$JS.ACK.STREAM.CONSUMER.TRIES.SEQUENCE.NUMBER.NANOSECONDS.PENDING`, or the longer form with a domain and an
    /// account before the stream.
    fn parse(reply: &'a str) -> Option<Self> {
        const SHORT: usize = 7;
        const MOST: usize = 9;
        let rest = reply.strip_prefix("$JS.ACK.")?;
        let mut ends = memchr::memchr_iter(b'.', rest.as_bytes()).chain([rest.len()]);
        let mut parts = [""; MOST];
        let (mut count, mut begin) = (0, 0);
        for (part, end) in parts.iter_mut().zip(&mut ends) {
            *part = &rest[begin..end];
            (count, begin) = (count + 1, end + 1);
        }
        let [consumer, _tries, sequence, delivered, nanoseconds, pending] =
            if count == SHORT { parts[1..SHORT].first_chunk() } else { parts[3..].first_chunk() }.copied()?;
        let number = |text: &str| text.parse::<u64>().ok();
        let (sequence, delivered) = (number(sequence)?, number(delivered)?);
        let (nanoseconds, pending) = (number(nanoseconds)?, number(pending)?);
        let stored = SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds);
        Some(Self { consumer, sequence, number: delivered, stored, pending })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INBOX: &str = "_INBOX.r.w0.";

    fn watch() -> Watch {
        let mut watch = Watch::new("c-1".into(), "b", 1);
        watch.phase = Phase::Pulling(Instant::now());
        watch
    }

    fn told(number: u64, pending: u64) -> String {
        format!("$JS.ACK.KV_b.c-1.1.{}.{number}.1796133215054839376.{pending}", number + 10)
    }

    fn status(pull: u64, status: u16) -> Message {
        Message::of(&format!("{INBOX}{pull}"), None, &format!("NATS/1.0 {status} Words\r\n\r\n"), b"")
    }

    #[test]
    fn both_forms_of_a_delivery_are_read() {
        let short = Delivery::parse("$JS.ACK.KV_b.c1.2.9.8.1000000000.3").expect("it is one");
        assert_eq!(short, Delivery::parse("$JS.ACK.hub.a1b2.KV_b.c1.2.9.8.1000000000.3.token").expect("it is one"));
        assert_eq!((short.consumer, short.sequence, short.number, short.pending), ("c1", 9, 8, 3));
        assert_eq!(short.stored, SystemTime::UNIX_EPOCH + Duration::from_secs(1));
        for text in ["", "x", "$JS.ACK", "$JS.ACK.KV_b.c1.2.9.8.x.3", "$JS.ACK.KV_b.c1.2.9"] {
            assert_eq!(Delivery::parse(text), None, "{text}");
        }
    }

    #[tokio::test]
    async fn changes_come_in_their_order_and_a_gap_ends_the_watch() {
        let mut watch = watch();
        let sound = "NATS/1.0\r\n\r\n";
        let mut hear =
            |number, block, payload| watch.hear(&Message::of("$KV.b.k", Some(&told(number, 0)), block, payload), INBOX);
        let Some(News::Change(change)) = hear(1, sound, b"v") else { panic!("a change") };
        assert_eq!((change.key.as_str(), change.stored.revision), ("k", 11));
        assert_eq!(change.stored.value.as_deref(), Some(b"v".as_slice()));
        for (number, block) in
            [(2, "NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"), (3, "NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n")]
        {
            let Some(News::Change(change)) = hear(number, block, b"") else { panic!("a change") };
            assert_eq!(change.stored.value, None);
        }
        assert!(
            matches!(hear(4, "NATS/1.0\r\nno colon\r\n\r\n", b"v"), Some(News::Unsound(change)) if change.stored.value.is_none())
        );
        assert!(matches!(hear(6, sound, b"v"), Some(News::Ended(_))));
    }

    #[tokio::test]
    async fn what_an_earlier_watch_or_pull_had_to_tell_is_forgotten() {
        let mut watch = watch();
        watch.pull = 2;
        let other = Message::of("$KV.b.k", Some("$JS.ACK.KV_b.c-0.1.9.1.1.0"), "NATS/1.0\r\n\r\n", b"v");
        assert_eq!(watch.hear(&other, INBOX), None);
        for code in [404, 408, 503, 409, 100] {
            assert_eq!(watch.hear(&status(1, code), INBOX), None);
        }
        assert!(matches!(watch.phase, Phase::Pulling(_)));
    }

    #[tokio::test]
    async fn the_end_of_a_pull_is_told_once_and_the_next_one_follows() {
        let mut watch = watch();
        assert_eq!(watch.hear(&status(1, 404), INBOX), Some(News::Told));
        assert!(matches!(watch.phase, Phase::Resting(until) if until <= Instant::now()));
        (watch.pull, watch.brought) = (2, 5);
        assert_eq!(watch.hear(&status(2, 404), INBOX), None);
        assert!(matches!(watch.phase, Phase::Resting(until) if until > Instant::now()));
    }

    #[tokio::test]
    async fn a_consumer_may_be_unknown_at_first_and_not_later() {
        let mut watch = watch();
        assert_eq!(watch.hear(&status(1, NO_RESPONDERS), INBOX), None);
        assert!(matches!(watch.phase, Phase::Resting(_)));
        watch.delivered = 1;
        assert!(matches!(watch.hear(&status(1, NO_RESPONDERS), INBOX), Some(News::Ended(_))));
        assert!(matches!(watch.hear(&status(1, 409), INBOX), Some(News::Ended(_))));
    }
}
