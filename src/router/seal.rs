//! Subjects of the inbox that nobody can guess. Every worker may publish to a router's inbox, and learns its prefix with each
//! dispatch: what it could say of another one's request would be believed, if the rest could be counted up.

use std::hash::{BuildHasher as _, RandomState};

/// What stands first in such a subject: what it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    /// An attempt of a request.
    Attempt,
    /// A probe of a worker.
    Probe,
    /// A probe of the rank to which a frontend sends the body.
    Rank,
    /// The question to that frontend whether it has.
    Question,
    /// The pin of a request.
    Claim,
}

impl Topic {
    const ALL: [Self; 5] = [Self::Attempt, Self::Probe, Self::Rank, Self::Question, Self::Claim];

    fn letter(self) -> &'static str {
        match self {
            Self::Attempt => "a",
            Self::Probe => "p",
            Self::Rank => "w",
            Self::Question => "q",
            Self::Claim => "c",
        }
    }
}

/// Makes and knows these subjects. Its keys are its own, and secret: a keyed hash (SipHash) of what the subject says ends it.
#[derive(Debug, Default)]
pub struct Seal(RandomState);

impl Seal {
    /// Such a subject, behind a prefix.
    pub fn subject(&self, prefix: &str, topic: Topic, number: u64, count: u32) -> String {
        // Every request has one, so it is written without growing.
        let mut subject = String::with_capacity(prefix.len() + 48);
        let mut digits = [itoa::Buffer::new(), itoa::Buffer::new(), itoa::Buffer::new()];
        let [first, second, third] = &mut digits;
        let seal = self.of(topic, number, count);
        let numbers = [first.format(number), "-", second.format(count), "-", third.format(seal)];
        subject.push_str(prefix);
        subject.push_str(topic.letter());
        numbers.into_iter().for_each(|part| subject.push_str(part));
        subject
    }

    /// What a subject says behind its prefix; `None` where this has not made it.
    pub fn read(&self, token: &str) -> Option<(Topic, u64, u32)> {
        let topic = Topic::ALL.into_iter().find(|topic| token.starts_with(topic.letter()))?;
        let mut numbers = token.get(1..)?.splitn(3, '-');
        let (number, count) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        let sealed: u64 = numbers.next()?.parse().ok()?;
        (sealed == self.of(topic, number, count)).then_some((topic, number, count))
    }

    fn of(&self, topic: Topic, number: u64, count: u32) -> u64 {
        self.0.hash_one((topic, number, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_is_read() {
        let (seal, other) = (Seal::default(), Seal::default());
        for topic in Topic::ALL {
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
            for forged in [format!("a1-1-{sealed}"), format!("{}{}-8-{sealed}", topic.letter(), u64::MAX)] {
                assert_eq!(seal.read(&forged), None, "{forged}");
            }
        }
        for nonsense in ["", "a", "a-", "a1-2", "z1-2-3", "ä1-2-3", "a-1-2-3", "a1--2-3"] {
            assert_eq!(seal.read(nonsense), None, "{nonsense}");
        }
    }
}
