//! What a worker says on the router's inbox while a request lives (protocol section 6).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Encoding;
use super::header;

/// `Rankpin-Event: accepted`.
pub const ACCEPTED: &str = "accepted";
/// `Rankpin-Event: rejected`.
pub const REJECTED: &str = "rejected";
/// `Rankpin-Event: progress`.
pub const PROGRESS: &str = "progress";
/// `Rankpin-Event: finished`.
pub const FINISHED: &str = "finished";

/// `Rankpin-Event: placed`, to a frontend that sends the body itself (protocol section 6.4).
pub const PLACED: &str = "placed";
/// `Rankpin-Event: unaccepted`: the question to it whether it has.
pub const UNACCEPTED: &str = "unaccepted";
/// `Rankpin-Event: sent`: its answer.
pub const SENT: &str = "sent";

/// Longest message that is taken over from a worker, in bytes.
pub const MAX_ERROR_TEXT_BYTES: usize = 4096;
/// Longest code word that is taken over from a worker, in bytes.
pub const MAX_CODE_WORD_BYTES: usize = 64;
/// What a rejection can mean to a frontend: statuses of errors.
const ERROR_STATUSES: std::ops::RangeInclusive<u16> = 400..=599;

/// One lifecycle event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The worker has taken the request.
    Accepted,
    /// The worker does not take it.
    Rejected(Rejection),
    /// The worker still works on it.
    Progress,
    /// The worker is done.
    Finished(Finished),
}

/// Why a worker does not take a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// 429 overloaded, 503 draining, 400 or 404 not for me.
    pub status: u16,
    /// The code word.
    pub code: String,
    /// Words for people, where the worker gave some.
    pub message: String,
    /// Seconds after which another try is worth it, where it says so.
    pub retry_after_s: Option<u32>,
}

/// Most tokens of one request that are believed: a thousand times what any model takes.
const MAX_TOKENS: u64 = 1 << 32;

/// Payload of `finished`. Unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finished {
    /// How it went.
    pub outcome: Outcome,
    /// Tokens of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = u64::MAX))]
    pub prompt_tokens: Option<u64>,
    /// Of these, tokens that the rank's prefix cache held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = u64::MAX))]
    pub cached_tokens: Option<u64>,
    /// Tokens generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = u64::MAX))]
    pub output_tokens: Option<u64>,
    /// Id by which a Responses client names this answer in its next request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_id: Option<String>,
}

/// How a request ended at the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The reply stream is whole.
    Ok,
    /// The reply stream ended in an error.
    Error,
    /// The request was cancelled.
    Cancelled,
}

impl Finished {
    /// The same without counts that can't be: they are added up, and would turn the sum.
    fn plausible(mut self) -> Self {
        for count in [&mut self.prompt_tokens, &mut self.cached_tokens, &mut self.output_tokens] {
            *count = count.filter(|tokens| *tokens <= MAX_TOKENS);
        }
        self
    }

    /// An ending without figures.
    pub fn outcome(outcome: Outcome) -> Self {
        Self { outcome, prompt_tokens: None, cached_tokens: None, output_tokens: None, response_id: None }
    }
}

/// A message on the router's inbox that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// There is no `Rankpin-Event` header.
    #[error("there is no Rankpin-Event header")]
    NoEvent,
    /// The kind is none that this version knows.
    #[error("Rankpin-Event {0:?} is not known")]
    Unknown(String),
}

impl Event {
    /// Reads an event. A `finished` whose payload can't be read still ends the request: it counts as
    /// [`Outcome::Error`].
    pub fn read<'h>(
        headers: impl Iterator<Item = (&'h str, &'h str)> + Clone,
        payload: &[u8],
    ) -> Result<Self, EventError> {
        let find = |name| header::find(headers.clone(), name);
        let [kind, content_type] = header::find_all(headers.clone(), [header::EVENT, header::CONTENT_TYPE]);
        match kind.ok_or(EventError::NoEvent)? {
            ACCEPTED => Ok(Self::Accepted),
            PROGRESS => Ok(Self::Progress),
            FINISHED => {
                let encoding = Encoding::of(content_type);
                let read: Option<Finished> = encoding.read(payload);
                Ok(Self::Finished(read.map_or_else(|| Finished::outcome(Outcome::Error), Finished::plausible)))
            }
            REJECTED => Ok(Self::Rejected(Rejection::read(find, payload))),
            other => Err(EventError::Unknown(clip(other))),
        }
    }
}

impl Rejection {
    fn read<'h>(find: impl Fn(&'static str) -> Option<&'h str>, payload: &[u8]) -> Self {
        // A rejection without a readable code means the same as 503: somebody else may take it.
        let status = find(header::SERVICE_ERROR_CODE).and_then(|code| code.parse().ok());
        let status = status.filter(|status| ERROR_STATUSES.contains(status)).unwrap_or(503);
        let code = find(header::SERVICE_ERROR).filter(|word| is_code_word(word)).unwrap_or("rejected").to_owned();
        let message = super::reply::error_message(payload)
            .map_or_else(|| format!("the worker refused the request: {code}"), |message| clip(&message));
        let retry_after_s = find(header::RETRY_AFTER).and_then(|seconds| seconds.parse().ok());
        Self { status, code, message, retry_after_s }
    }
}

/// Whether this can be a code word: it stands in a header, in JSON, and perhaps in somebody's switch.
fn is_code_word(word: &str) -> bool {
    word.len() <= MAX_CODE_WORD_BYTES && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

fn clip(text: &str) -> String {
    let mut end = text.len().min(MAX_ERROR_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)], payload: &str) -> Result<Event, EventError> {
        Event::read(headers.iter().copied(), payload.as_bytes())
    }

    #[test]
    fn events() {
        assert_eq!(read(&[("rankpin-event", "accepted")], ""), Ok(Event::Accepted));
        assert_eq!(
            read(&[("Rankpin-Event", "finished")], r#"{"outcome":"ok","prompt_tokens":7,"x":1}"#),
            Ok(Event::Finished(Finished { prompt_tokens: Some(7), ..Finished::outcome(Outcome::Ok) }))
        );
        let absurd =
            r#"{"outcome":"ok","prompt_tokens":18446744073709551615,"cached_tokens":4294967297,"output_tokens":7}"#;
        assert_eq!(
            read(&[("Rankpin-Event", "finished")], absurd),
            Ok(Event::Finished(Finished { output_tokens: Some(7), ..Finished::outcome(Outcome::Ok) }))
        );
        assert_eq!(read(&[("Rankpin-Event", "finished")], "{"), Ok(Event::Finished(Finished::outcome(Outcome::Error))));
        assert_eq!(read(&[], ""), Err(EventError::NoEvent));
        assert_eq!(read(&[("Rankpin-Event", "done")], ""), Err(EventError::Unknown("done".into())));
        let rejected = read(
            &[("Rankpin-Event", "rejected"), ("Nats-Service-Error-Code", "429"), ("Nats-Service-Error", "overloaded")],
            "",
        );
        assert_eq!(
            rejected,
            Ok(Event::Rejected(Rejection {
                status: 429,
                code: "overloaded".into(),
                message: "the worker refused the request: overloaded".into(),
                retry_after_s: None,
            }))
        );
    }

    /// What a worker says goes to a frontend: no status that is no error, no word that is none.
    #[test]
    fn what_a_rejection_may_say() {
        let long = "x".repeat(MAX_CODE_WORD_BYTES + 1);
        let words = ["200", "0", "399", "600", "65536", "-1", "x", ""];
        for status in words {
            let headers = [("Rankpin-Event", "rejected"), ("Nats-Service-Error-Code", status)];
            let Ok(Event::Rejected(rejection)) = read(&headers, "") else { panic!("{status}") };
            assert_eq!((rejection.status, rejection.code.as_str()), (503, "rejected"), "{status}");
        }
        for (word, told) in [("too_long", "too_long"), (&long, "rejected"), ("a b", "rejected"), ("ü", "rejected")] {
            let headers =
                [("Rankpin-Event", "rejected"), ("Nats-Service-Error-Code", "400"), ("Nats-Service-Error", word)];
            let Ok(Event::Rejected(rejection)) = read(&headers, "") else { panic!("{word}") };
            assert_eq!((rejection.status, rejection.code.as_str()), (400, told), "{word}");
        }
    }
}
