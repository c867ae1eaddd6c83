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
    /// Reads it off a job's headers. It counts only where the message id says the same, perhaps with more behind a dot:
    /// only then a router, or who sends a dead job again, has written it.
    pub fn read<'h>(headers: impl Iterator<Item = (&'h str, &'h str)>, id: &RequestId) -> Self {
        let [failures, attempt, message] =
            header::find_all(headers, [header::FAILURES, header::ATTEMPT, header::MSG_ID]);
        let number = |text: Option<&str>| text.and_then(|text| text.parse().ok());
        match (number(failures), number(attempt), message) {
            (Some(failures), Some(attempt), Some(message)) => {
                let rest = message.strip_prefix(&message_id(id, failures));
                let counts = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
                if counts { Self { failures, attempt } } else { Self::default() }
            }
            _ => Self::default(),
        }
    }
}

/// The message id of a job that has failed so many times, so that it is published again once.
pub fn message_id(id: &RequestId, failures: u32) -> String {
    format!("{id}.f{failures}")
}

/// The same where the stream has taken that id in an earlier life of the job: with the sequence of the message that is
/// replaced, which no other one has.
pub fn message_id_in_place_of(id: &RequestId, failures: u32, sequence: u64) -> String {
    format!("{id}.f{failures}.{sequence}")
}

/// The message id of a dead job that is sent again, by the sequence of its dead letter.
pub fn message_id_of_letter(id: &RequestId, letter: u64) -> String {
    format!("{id}.f0.r{letter}")
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
        assert_eq!(read(&[tried[0], tried[1], ("Nats-Msg-Id", "j.f2.77")]), Tried { failures: 2, attempt: 19 });
        assert_eq!(read(&[tried[0], tried[1], ("Nats-Msg-Id", "j.f21")]), Tried::default());
        assert_eq!(message_id_in_place_of(&id, 2, 77), "j.f2.77");
        let requeued = [("Rankpin-Failures", "0"), ("Rankpin-Attempt", "9"), ("Nats-Msg-Id", "j.f0.r5")];
        assert_eq!(
            (read(&requeued), message_id_of_letter(&id, 5)),
            (Tried { failures: 0, attempt: 9 }, "j.f0.r5".into())
        );
        for forged in [&tried[..2], &[tried[0], tried[1], ("Nats-Msg-Id", "j.f3")], &[tried[0], tried[2]], &tried[1..]]
        {
            assert_eq!(read(forged), Tried::default(), "{forged:?}");
        }
        let other = [tried[0], tried[1], ("Nats-Msg-Id", "k.f2")];
        assert_eq!(read(&other), Tried::default());
    }
}
