//! Whether anybody listens to a reply stream: a frontend that was killed can't cancel, and its request would run to its
//! end for nobody.
//!
//! Now and then a part carries a reply subject of the worker's own. Where nobody is subscribed to the part's subject, the
//! server answers there with 503, and with nothing where somebody is. That costs the worker some bytes of a message that it
//! sends anyway, and the frontend nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::cancel::{CancelReason, CancelToken};

/// How often a stream asks.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// How long nobody has to listen, asked again and again, until the request is given up: a frontend may be reconnecting, or
/// servers of a cluster may just not know of each other's subscriptions.
const GONE_AFTER: Duration = Duration::from_secs(2);

/// All reply streams that ask.
#[derive(Debug)]
pub(super) struct Interests {
    /// Prefix of the subjects on which the server answers, with the final dot.
    prefix: String,
    // No more than the worker holds requests: each has one stream.
    asked: Mutex<HashMap<Token, Asked>>,
}

/// Names a stream, in a way that nobody guesses: an answer on its subject ends its request.
type Token = u128;

#[derive(Debug)]
struct Asked {
    cancel: CancelToken,
    misses: Misses,
}

/// Questions in a row that nobody was there for.
#[derive(Debug, Default, Clone, Copy)]
struct Misses {
    /// Number of the last one, from 1.
    last: u64,
    since: Option<Instant>,
}

/// The questions of one reply stream.
#[derive(Debug)]
pub(super) struct Listener {
    interests: Arc<Interests>,
    token: Token,
    number: u64,
    last: Option<Instant>,
}

impl Misses {
    /// The server's answer to a question: nobody. Whether that has been so for long enough. A question between that was not
    /// answered so was heard by somebody.
    fn note(&mut self, number: u64, now: Instant) -> bool {
        let in_a_row = self.since.filter(|_| number == self.last + 1);
        self.last = number;
        let since = *self.since.insert(in_a_row.unwrap_or(now));
        now.saturating_duration_since(since) >= GONE_AFTER
    }
}

impl Interests {
    /// Asks are answered under this prefix, with its final dot.
    pub fn new(prefix: String) -> Self {
        Self { prefix, asked: Mutex::default() }
    }

    /// What to subscribe to, on the connection that publishes: the server answers on no other.
    pub fn wildcard(&self) -> String {
        format!("{}*", self.prefix)
    }

    /// Questions for a new stream, whose request is given up where nobody is there.
    pub fn listener(self: &Arc<Self>, cancel: CancelToken) -> Listener {
        let token = Uuid::new_v4().as_u128();
        self.lock().insert(token, Asked { cancel, misses: Misses::default() });
        Listener { interests: Arc::clone(self), token, number: 0, last: None }
    }

    /// The server says that nobody listens to what was published with this reply subject. `certain`: it has had time to
    /// learn who listens since the connection came to stand.
    pub fn nobody(&self, subject: &str, certain: bool, now: Instant) {
        let Some((token, number)) = self.parse(subject) else { return };
        let mut asked = self.lock();
        let Some(stream) = asked.get_mut(&token) else { return };
        if !certain {
            stream.misses = Misses::default();
        } else if stream.misses.note(number, now) {
            stream.cancel.cancel(CancelReason::Abandoned);
        }
    }

    fn parse(&self, subject: &str) -> Option<(Token, u64)> {
        let (token, number) = subject.strip_prefix(self.prefix.as_str())?.split_once('-')?;
        Some((Token::from_str_radix(token, 16).ok()?, number.parse().ok()?))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Token, Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// The reply subject for a part that is published now, where it is time to ask.
    pub fn ask(&mut self, now: Instant) -> Option<String> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < ASK_EVERY) {
            return None;
        }
        self.last = Some(now);
        self.number += 1;
        Some(format!("{}{:x}-{}", self.interests.prefix, self.token, self.number))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.interests.lock().remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams() -> (Arc<Interests>, CancelToken, Listener) {
        let (interests, cancel) = (Arc::new(Interests::new("i.".into())), CancelToken::default());
        let listener = interests.listener(cancel.clone());
        (interests, cancel, listener)
    }

    #[test]
    fn it_asks_now_and_then() {
        let (_, _, mut listener) = streams();
        let start = Instant::now();
        let asked: Vec<_> = (0..100).filter_map(|n| listener.ask(start + n * ASK_EVERY / 50)).collect();
        let numbers: Vec<_> = asked.iter().map(|subject| subject.split_once('-').expect("numbered").1).collect();
        assert_eq!(numbers, ["1", "2"]);
    }

    #[test]
    fn nobody_for_long_enough_ends_the_request() {
        let (interests, cancel, mut listener) = streams();
        let start = Instant::now();
        let mut at = start;
        while cancel.reason().is_none() {
            let question = listener.ask(at).expect("it is time");
            interests.nobody(&question, true, at);
            at += ASK_EVERY;
            assert!(at < start + 2 * GONE_AFTER, "it is given up in time");
        }
        assert!(at > start + GONE_AFTER, "and not before");
        assert_eq!(cancel.reason(), Some(CancelReason::Abandoned));
    }

    #[test]
    fn whoever_comes_back_goes_on() {
        let (interests, cancel, mut listener) = streams();
        let mut at = Instant::now();
        for n in 0..1000 {
            let question = listener.ask(at).expect("it is time");
            // Every seventh question is heard.
            if n % 7 != 0 {
                interests.nobody(&question, true, at);
            }
            at += ASK_EVERY;
        }
        assert_eq!(cancel.reason(), None);
    }

    #[test]
    fn after_a_reconnect_silence_says_nothing() {
        let (interests, cancel, mut listener) = streams();
        let mut at = Instant::now();
        for n in 0..100 {
            let question = listener.ask(at).expect("it is time");
            interests.nobody(&question, n % 7 != 0, at);
            at += ASK_EVERY;
        }
        assert_eq!(cancel.reason(), None);
    }

    #[test]
    fn answers_to_nothing_are_nothing() {
        let (interests, cancel, mut listener) = streams();
        let now = Instant::now();
        let question = listener.ask(now).expect("it is time");
        for subject in ["i.", "i.x-1", "i.0-", "i.9-1", "j.0-1", "i.0-99999999999999999999", &question] {
            interests.nobody(subject, true, now);
        }
        assert_eq!(cancel.reason(), None);
        drop(listener);
        assert!(interests.lock().is_empty());
        interests.nobody(&question, true, now + GONE_AFTER);
        assert_eq!(cancel.reason(), None);
    }
}
