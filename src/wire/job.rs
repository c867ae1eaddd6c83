//! What a durable job's message says of how it has been tried (protocol section 6.2).

use super::header;
use crate::core::id::RequestId;

/// How a job has been tried before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tried {
    /// How often it has failed.
    pub failures: u32,
    /// Its last attempt; 0 where there was none.
    pub attempt: u32,
}

impl Tried {
    /// Reads it off a job's headers. It counts only where the message id says the same: only then a router has written it.
    pub fn read<'h>(headers: impl Iterator<Item = (&'h str, &'h str)>, id: &RequestId) -> Self {
        let [failures, attempt, message] =
            header::find_all(headers, [header::FAILURES, header::ATTEMPT, header::MSG_ID]);
        let number = |text: Option<&str>| text.and_then(|text| text.parse().ok());
        match (number(failures), number(attempt), message) {
            (Some(failures), Some(attempt), Some(message)) if message == message_id(id, failures) => {
                Self { failures, attempt }
            }
            _ => Self::default(),
        }
    }
}

/// The message id of a job that has failed so many times, so that it is published again once.
pub fn message_id(id: &RequestId, failures: u32) -> String {
    format!("{id}.f{failures}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_routers_word_counts() {
        let id = RequestId::new("j").expect("valid");
        let read = |headers: &[(&'static str, &'static str)]| Tried::read(headers.iter().copied(), &id);
        let tried = [("Rankpin-Failures", "2"), ("Rankpin-Attempt", "19"), ("Nats-Msg-Id", "j.f2")];
        assert_eq!(read(&tried), Tried { failures: 2, attempt: 19 });
        for forged in [&tried[..2], &[tried[0], tried[1], ("Nats-Msg-Id", "j.f3")], &[tried[0], tried[2]], &tried[1..]] {
            assert_eq!(read(forged), Tried::default(), "{forged:?}");
        }
        let other = [tried[0], tried[1], ("Nats-Msg-Id", "k.f2")];
        assert_eq!(read(&other), Tried::default());
    }
}
