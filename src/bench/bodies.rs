//! Bodies of requests: one that is padded, where nobody reads it, or a conversation of its own for each session.

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use super::BenchError;

/// Most memory that conversations may take, in bytes.
const MAX_CONVERSATIONS_BYTES: u64 = 1 << 30;
/// Messages of a conversation's second turn: system, user, assistant, user.
const SECOND_TURN: usize = 4;

/// What is sent.
#[derive(Debug)]
pub(super) enum Bodies {
    /// The same each time.
    Padded(Bytes),
    /// One for each session.
    Conversations(Vec<Conversation>),
}

/// Which request of a conversation is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The first: system prompt and question.
    First,
    /// The second: one answer and one more question.
    Second,
    /// One much later, of the whole size.
    Late,
}

/// The requests of one conversation.
#[derive(Debug)]
pub(super) struct Conversation {
    first: Bytes,
    second: Bytes,
    late: Bytes,
}

impl Bodies {
    /// One body of `size` bytes, or as few more as a request of the engine's API needs.
    pub fn padded(size: usize) -> Self {
        const HEAD: &str = r#"{"model":"bench","messages":[{"role":"user","content":""#;
        const TAIL: &str = r#""}]}"#;
        let padding = size.saturating_sub(HEAD.len() + TAIL.len());
        Self::Padded(format!("{HEAD}{}{TAIL}", "x".repeat(padding)).into())
    }

    /// Conversations whose late turns have `size` bytes, or as few more as two turns need. They share their system
    /// prompt, and differ from the first question on.
    pub fn conversations(sessions: u64, size: usize) -> Result<Self, BenchError> {
        let needed = sessions.saturating_mul(size as u64);
        if needed > MAX_CONVERSATIONS_BYTES {
            return Err(BenchError::TooLarge { sessions, size, max: MAX_CONVERSATIONS_BYTES });
        }
        Ok(Self::Conversations((0..sessions).map(|number| Conversation::new(number, size)).collect()))
    }

    /// The body of a request of the session with this number.
    pub fn of(&self, session: u64, turn: Turn) -> Bytes {
        match self {
            Self::Padded(body) => body.clone(),
            Self::Conversations(all) => {
                let index = usize::try_from(session).unwrap_or_default() % all.len();
                let conversation = &all[index];
                let body = match turn {
                    Turn::First => &conversation.first,
                    Turn::Second => &conversation.second,
                    Turn::Late => &conversation.late,
                };
                body.clone()
            }
        }
    }
}

impl Conversation {
    fn new(number: u64, size: usize) -> Self {
        let mut writer = Writer { rng: StdRng::seed_from_u64(number), calls: 0 };
        let question = format!("This is conversation {number}. {}", writer.prose(40));
        let mut messages = vec![message("system", SYSTEM), message("user", &question)];
        let first = body(&messages);
        messages.extend([message("assistant", &writer.prose(120)), message("user", &writer.prose(20))]);
        let second = body(&messages[..SECOND_TURN]);
        let mut length = second.len();
        // The last question takes what is left, so that the size is met.
        while length + LARGEST_ROUND < size {
            let round = writer.round();
            length += round.iter().map(|message| message.to_string().len() + 1).sum::<usize>();
            messages.extend(round);
        }
        let last = messages.len() - 1;
        let question = messages[last]["content"].as_str().unwrap_or_default();
        let question = format!("{question}{}", writer.filling(size.saturating_sub(length)));
        messages[last] = message("user", &question);
        Self { first, second, late: body(&messages) }
    }
}

const SYSTEM: &str = "You are a careful assistant that works in a repository. Read before you write, run the tests, \
                      and say what you did.\nAnswer in the user's language.";

/// Most bytes that one round of [`Writer::round`] takes.
const LARGEST_ROUND: usize = 6 * 1024;

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn body(messages: &[Value]) -> Bytes {
    json!({"model": "bench", "messages": messages}).to_string().into()
}

/// Writes texts of the kinds that conversations hold. As in recorded ones of coding agents there is an escape in every 40
/// to 110 bytes, and long texts hold something that is not ASCII: both make a body slower to read.
struct Writer {
    rng: StdRng,
    calls: u32,
}

impl Writer {
    /// A call of a tool, its result, an answer and the next question.
    fn round(&mut self) -> Vec<Value> {
        self.calls += 1;
        let id = format!("call_{}", self.calls);
        let arguments = json!({"path": format!("src/{}.rs", self.word()), "why": self.prose(8)}).to_string();
        let call = json!({"id": id, "type": "function", "function": {"name": "read_file", "arguments": arguments}});
        vec![
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "content": self.code()}),
            message("assistant", &self.prose(150)),
            message("user", &self.prose(25)),
        ]
    }

    fn word(&mut self) -> &'static str {
        pick(&mut self.rng, &WORDS)
    }

    /// So many words, with a paragraph now and then, and more seldom a word that JSON escapes or that is not ASCII.
    fn prose(&mut self, words: usize) -> String {
        let mut text = self.word().to_owned();
        for _ in 1..words {
            text.push_str(if self.rng.random_range(0..60) == 0 { ".\n\n" } else { " " });
            text.push_str(if self.rng.random_range(0..60) == 0 {
                pick(&mut self.rng, &ODD_WORDS)
            } else {
                self.word()
            });
        }
        text
    }

    /// Words of so many bytes in all, none of which is escaped.
    fn filling(&mut self, len: usize) -> String {
        let mut text = String::new();
        while text.len() < len {
            text.push(' ');
            text.push_str(self.word());
        }
        text.truncate(len);
        text
    }

    /// Lines of a file.
    fn code(&mut self) -> String {
        let lines = self.rng.random_range(10..40);
        let line = |_| {
            let [name, function, one, other] = [(); 4].map(|()| self.word());
            match self.rng.random_range(0..4) {
                0 => format!("        let {name} = {function}(\"{one}\", {other});\n"),
                _ => format!("        let {name} = {function}(self.{one}, {other})?;\n"),
            }
        };
        (0..lines).map(line).collect()
    }
}

fn pick(rng: &mut StdRng, words: &[&'static str]) -> &'static str {
    words[rng.random_range(0..words.len())]
}

const WORDS: [&str; 43] = [
    "the",
    "router",
    "keeps",
    "every",
    "turn",
    "of",
    "a",
    "conversation",
    "on",
    "its",
    "rank",
    "where",
    "cache",
    "holds",
    "what",
    "was",
    "said",
    "before",
    "and",
    "moves",
    "it",
    "only",
    "when",
    "worker",
    "lost",
    "then",
    "pins",
    "are",
    "written",
    "again",
    "by",
    "so",
    "that",
    "replicas",
    "agree",
    "prefix",
    "question",
    "answer",
    "tokens",
    "because",
    "bound",
    "named",
    "compare_and_set",
];
const ODD_WORDS: [&str; 5] = ["naïve", "schlüssel", "\"quoted\"", "path\\to", "列"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::id::Model;
    use crate::core::session::derived::Prefixes;
    use crate::wire::Encoding;
    use crate::wire::body::{Wanted, read};

    fn prefixes(body: &Bytes) -> Prefixes {
        let reading = read(body, Encoding::Json, Wanted { elements: true, ..Wanted::default() }).expect("valid");
        reading.prefixes(&Model::new("bench").expect("valid")).expect("it has messages")
    }

    #[test]
    fn bodies_have_the_size_asked_for_and_are_requests() {
        assert_eq!(Bodies::padded(1024).of(0, Turn::Late).len(), 1024);
        let least: Value = serde_json::from_slice(&Bodies::padded(0).of(0, Turn::First)).expect("JSON");
        assert_eq!(least["model"], "bench");
        for size in [4 << 10, 64 << 10, 100_000] {
            let bodies = Bodies::conversations(2, size).expect("not too large");
            assert_eq!(bodies.of(1, Turn::Late).len(), size);
        }
        assert!(Bodies::conversations(1, 0).expect("small").of(0, Turn::Late).len() < 3000);
        assert!(Bodies::conversations(u64::MAX, 1024).is_err());
    }

    #[test]
    fn escapes_are_as_frequent_as_in_recorded_conversations() {
        let bodies = Bodies::conversations(3, 64 << 10).expect("not too large");
        for session in 0..3 {
            let body = bodies.of(session, Turn::Late);
            // An escaped backslash is two bytes, and rare.
            let escapes = body.iter().filter(|byte| **byte == b'\\').count();
            assert!((40..110).contains(&(body.len() / escapes)), "one of {} bytes", body.len() / escapes);
        }
    }

    #[test]
    fn a_late_turn_continues_the_second_and_no_other_conversation() {
        let bodies = Bodies::conversations(2, 64 << 10).expect("not too large");
        let of = |session, turn| prefixes(&bodies.of(session, turn));
        let (first, second, late) = (of(0, Turn::First), of(0, Turn::Second), of(0, Turn::Late));
        assert!(second.keys().starts_with(first.keys()));
        assert_eq!(second.last_assistant(), Some(late.keys()[2]));
        assert!(late.keys().len() > 30, "{} messages", late.keys().len());
        let other = of(1, Turn::Late);
        assert_eq!(late.keys()[0], other.keys()[0], "they share their system prompt");
        assert!(late.keys()[1..].iter().all(|key| !other.keys().contains(key)));
    }
}
