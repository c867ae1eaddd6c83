//! Compare-and-set writes to buckets over a [`Lane`]: where a request waits for its claim, the write and its answer stay on
//! the thread that the request runs on. The client library would carry both to another thread and back.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use tokio::sync::oneshot;

use super::bucket::CasError;
use super::lane::{Lane, Lines, Message};
use super::{NO_RESPONDERS, Payload};

/// Header of the sequence that a key's last value has to have.
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
/// Error codes of a key that is at another one; the second on a replicated stream.
const WRONG_LAST_SEQUENCE: [u64; 2] = [10_071, 10_164];

/// Writes that wait for their answers.
#[derive(Debug)]
pub struct Writes {
    lane: Lane,
    /// Prefix of the subjects that they are answered on; the lane has subscribed to them.
    inbox: String,
    /// Who may publish to the inbox, a worker, can't guess an answer's subject: it is made of this and told to the server alone.
    secret: RandomState,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// As many as there are callers: who stops waiting takes its entry away.
    answers: HashMap<u64, oneshot::Sender<Result<u64, CasError>>, foldhash::fast::RandomState>,
}

/// One that waits.
struct Place<'w> {
    writes: &'w Writes,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.writes.waiting().answers.remove(&self.number);
    }
}

/// What a stream answers to a publish.
#[derive(Debug, Deserialize)]
struct Ack<'a> {
    #[serde(default)]
    seq: u64,
    #[serde(borrow, default)]
    error: Option<Problem<'a>>,
}

#[derive(Debug, Deserialize)]
struct Problem<'a> {
    #[serde(default)]
    err_code: u64,
    #[serde(borrow, default)]
    description: std::borrow::Cow<'a, str>,
}

impl Writes {
    /// Over a lane that is driven elsewhere, and that hands what comes on subjects that begin with `inbox` to
    /// [`Writes::hear`].
    pub fn new(lane: Lane, inbox: String) -> Self {
        Self { lane, inbox, secret: RandomState::new(), waiting: Mutex::default() }
    }

    /// Writes a value, or that there is none, if the key that is the subject is at sequence `expected`, and waits for the
    /// answer; who calls sets the limit.
    pub async fn write(&self, subject: &str, value: Option<&[u8]>, expected: u64) -> Result<u64, CasError> {
        let (answered, answer) = oneshot::channel();
        let number = {
            let mut waiting = self.waiting();
            waiting.next += 1;
            let number = self.secret.hash_one(waiting.next);
            waiting.answers.insert(number, answered);
            number
        };
        let _place = Place { writes: self, number };
        self.send(subject, value, expected, &format!("{}{number:x}", self.inbox))?;
        answer.await.unwrap_or_else(|_| Err(CasError::Unreachable("the answer was lost".into())))
    }

    /// Sends such a write; it is answered to `reply`.
    pub fn send(&self, subject: &str, value: Option<&[u8]>, expected: u64, reply: &str) -> Result<(), CasError> {
        if !self.lane.is_connected() {
            return Err(CasError::Unreachable("there is no connection".into()));
        }
        let mut headers = Lines::with_capacity(EXPECTED.len() + 32);
        headers.push_number(EXPECTED, expected);
        if value.is_none() {
            headers.push("KV-Operation", "DEL");
        }
        let sent = self.lane.publish(subject, Some(reply), &headers, Payload::Copied(value.unwrap_or_default()));
        sent.map_err(|error| CasError::Unreachable(error.to_string()))
    }

    /// Takes an answer. Whether its subject is one on which answers come.
    pub fn hear(&self, message: &Message) -> bool {
        let Some(number) = message.subject().strip_prefix(self.inbox.as_str()) else { return false };
        let Ok(number) = u64::from_str_radix(number, 16) else { return false };
        if let Some(waiting) = self.waiting().answers.remove(&number) {
            // Whoever waited may just have gone.
            let _ = waiting.send(answer(message));
        }
        true
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing is changed in two steps while it is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the answer to a write: the sequence that the key is at now.
pub fn answer(message: &Message) -> Result<u64, CasError> {
    match message.status() {
        Some(NO_RESPONDERS) => Err(CasError::Unreachable("no stream takes what is written there".into())),
        _ => read(message.payload()),
    }
}

/// Reads `{"stream":"NAME", "seq":N}`, as a server writes nearly all of them.
fn stored_at(payload: &[u8]) -> Option<u64> {
    let rest = payload.strip_prefix(br#"{"stream":""#)?;
    let (_stream, rest) = rest.split_at(memchr::memchr(b'"', rest)?);
    let digits = rest.strip_prefix(br#"", "seq":"#)?.strip_suffix(b"}")?;
    // Any other text is read as what it is.
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|sequence| *sequence > 0)
}

fn read(payload: &[u8]) -> Result<u64, CasError> {
    if let Some(sequence) = stored_at(payload) {
        return Ok(sequence);
    }
    match serde_json::from_slice::<Ack<'_>>(payload) {
        Ok(Ack { error: Some(error), .. }) if WRONG_LAST_SEQUENCE.contains(&error.err_code) => Err(CasError::Lost),
        Ok(Ack { error: Some(error), .. }) => Err(CasError::Refused(error.description.into_owned())),
        Ok(Ack { seq, .. }) if seq > 0 => Ok(seq),
        Ok(_) => Err(CasError::Unreachable("the answer names no sequence".into())),
        Err(error) => Err(CasError::Unreachable(format!("the answer can't be read: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_as_servers_give_them() {
        assert_eq!(read(br#"{"stream":"KV_b", "seq":12}"#), Ok(12));
        assert_eq!(stored_at(br#"{"stream":"KV_b", "seq":12}"#), Some(12));
        assert_eq!(stored_at(br#"{"stream":"KV_b", "seq":12,"duplicate":true}"#), None);
        assert_eq!(read(br#"{"stream":"KV_b","seq":12}"#), Ok(12));
        assert_eq!(read(br#"{"stream":"KV_b","domain":"d","seq":7,"duplicate":true}"#), Ok(7));
        for code in WRONG_LAST_SEQUENCE {
            let text = format!(
                r#"{{"error":{{"code":400,"err_code":{code},"description":"wrong last sequence: 5"}},"stream":"KV_b","seq":0}}"#
            );
            assert_eq!(read(text.as_bytes()), Err(CasError::Lost));
        }
        // A server that says no has been reached.
        let full = r#"{"error":{"code":503,"err_code":10077,"description":"maximum \"bytes\" exceeded"},"stream":"KV_b","seq":0}"#;
        assert_eq!(read(full.as_bytes()), Err(CasError::Refused(r#"maximum "bytes" exceeded"#.into())));
        assert_eq!(read(br#"{"error":{}}"#), Err(CasError::Refused(String::new())));
        for text in [r#"{"stream":"KV_b"}"#, "not JSON", ""] {
            assert!(matches!(read(text.as_bytes()), Err(CasError::Unreachable(_))), "{text}");
        }
    }
}
