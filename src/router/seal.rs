//! Subjects of the inbox that nobody can guess. Every worker may publish to a router's inbox, and learns its prefix with each
//! dispatch: what it could say of another one's request would be believed, if the rest could be counted up.

use std::hash::{BuildHasher as _, RandomState};

/// What such a subject is about; its letter stands first in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Topic {
    /// An attempt of a request.
    Attempt = b'a',
    /// A probe of a worker.
    Probe = b'p',
    /// A probe of the rank to which a frontend sends the body.
    Rank = b'w',
    /// The question to that frontend whether it has.
    Question = b'q',
    /// The pin of a request.
    Claim = b'c',
}

impl Topic {
    fn of(letter: u8) -> Option<Self> {
        [Self::Attempt, Self::Probe, Self::Rank, Self::Question, Self::Claim]
            .into_iter()
            .find(|topic| topic.letter() == letter)
    }

    fn letter(self) -> u8 {
        self as u8
    }
}

/// Makes and knows these subjects. Its keys are its own, and secret: a keyed hash (SipHash) of what the subject says ends it.
#[derive(Debug, Default)]
pub struct Seal(RandomState);

impl Seal {
    /// Such a subject, behind a prefix.
    pub fn subject(&self, prefix: &str, topic: Topic, number: u64, count: u32) -> String {
        // Every request has one, so it is written without growing.
        let mut subject = String::with_capacity(prefix.len() + 56);
        subject.push_str(prefix);
        subject.push(topic.letter().into());
        let mut buffer = itoa::Buffer::new();
        for part in [number, count.into()] {
            subject.push_str(buffer.format(part));
            subject.push('-');
        }
        subject.push_str(buffer.format(self.of(topic, number, count)));
        subject
    }

    /// What a subject says behind its prefix; `None` where this has not made it.
    pub fn read(&self, token: &str) -> Option<(Topic, u64, u32)> {
        let (letter, rest) = token.as_bytes().split_first()?;
        let topic = Topic::of(*letter)?;
        let (number, rest) = digits(rest)?;
        let (count, rest) = digits(rest.strip_prefix(b"-")?)?;
        let (sealed, rest) = digits(rest.strip_prefix(b"-")?)?;
        let count = u32::try_from(count).ok()?;
        (rest.is_empty() && sealed == self.of(topic, number, count)).then_some((topic, number, count))
    }

    fn of(&self, topic: Topic, number: u64, count: u32) -> u64 {
        self.0.hash_one((number, u64::from(topic.letter()) << 32 | u64::from(count)))
    }
}

/// A number, and what follows it.
fn digits(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut number, mut length) = (0_u64, 0);
    for digit in text.iter().map_while(|byte| byte.is_ascii_digit().then(|| byte - b'0')) {
        number = number.checked_mul(10)?.checked_add(digit.into())?;
        length += 1;
    }
    (length > 0).then(|| (number, &text[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_is_read() {
        let (seal, other) = (Seal::default(), Seal::default());
        for topic in [Topic::Attempt, Topic::Probe, Topic::Rank, Topic::Question, Topic::Claim] {
            let subject = seal.subject("_INBOX_ns_router.id.", topic, u64::MAX, 7);
            let token = subject.strip_prefix("_INBOX_ns_router.id.").expect("the prefix");
            assert!(!token.contains(['.', ' ', '*', '>']), "one token");
            assert_eq!(seal.read(token), Some((topic, u64::MAX, 7)));
            assert_eq!(other.read(token), None, "another router's");
            let (body, _) = token.rsplit_once('-').expect("it ends in the seal");
            for forged in
                [body.to_owned(), format!("{body}-"), format!("{body}-0"), format!("{token}0"), token[1..].into()]
            {
                assert_eq!(seal.read(&forged), None, "{forged}");
            }
            let (_, sealed) = token.rsplit_once('-').expect("it ends in the seal");
            for forged in [format!("a1-1-{sealed}"), format!("{}{}-8-{sealed}", &token[..1], u64::MAX)] {
                assert_eq!(seal.read(&forged), None, "{forged}");
            }
        }
        for nonsense in
            ["", "a", "a-", "a1-2", "z1-2-3", "ä1-2-3", "a-1-2-3", "a1--2-3", "a99999999999999999999999-1-1"]
        {
            assert_eq!(seal.read(nonsense), None, "{nonsense}");
        }
    }
}
