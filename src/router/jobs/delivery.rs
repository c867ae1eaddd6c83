//! One delivery of a job: what its reply subject says, and how it is answered.

use std::time::Duration;

/// A delivery of a message of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    ack: String,
    /// How often the message was delivered, this time among them.
    pub delivered: u64,
    /// Its sequence in the stream.
    pub sequence: u64,
    /// When it was stored, in ms since 1970 by the server's clock.
    pub stored_ms: u64,
}

/// What the consumer is told of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack {
    /// It is done with.
    Done,
    /// It is worked on: the ack wait begins anew.
    InProgress,
    /// It is to be delivered again, after a pause.
    Again(Duration),
}

impl Delivery {
    /// Reads the reply subject of a delivery: `$JS.ACK.{stream}.{consumer}.{delivered}.{sequence}.{…}.{time}.{pending}`,
    /// where the server tells of them with domain and account before the stream.
    pub fn parse(reply: &str) -> Option<Self> {
        const SHORT: usize = 9;
        const LONG: usize = 11;
        let tokens: Vec<&str> = reply.split('.').take(LONG + 2).collect();
        let first = match tokens.len() {
            SHORT => 4,
            LONG.. => 6,
            _ => return None,
        };
        if tokens[..2] != ["$JS", "ACK"] {
            return None;
        }
        let number = |index: usize| tokens.get(index)?.parse::<u64>().ok();
        Some(Self {
            ack: reply.to_owned(),
            delivered: number(first)?,
            sequence: number(first + 1)?,
            stored_ms: number(first + 3)? / 1_000_000,
        })
    }

    /// Where it is answered.
    pub fn ack_subject(&self) -> &str {
        &self.ack
    }
}

impl Ack {
    /// The answer's payload.
    pub fn text(self) -> String {
        match self {
            Self::Done => "+ACK".into(),
            Self::InProgress => "+WPI".into(),
            Self::Again(pause) if pause.is_zero() => "-NAK".into(),
            Self::Again(pause) => format!("-NAK {{\"delay\": {}}}", pause.as_nanos()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_reply_subjects_are_read() {
        for reply in [
            "$JS.ACK.rankpin_jobs.router.3.17.21.1700000000000000000.5",
            "$JS.ACK.hub.acchash.rankpin_jobs.router.3.17.21.1700000000000000000.5",
            "$JS.ACK.hub.acchash.rankpin_jobs.router.3.17.21.1700000000000000000.5.random",
        ] {
            let delivery = Delivery::parse(reply).expect(reply);
            assert_eq!((delivery.delivered, delivery.sequence, delivery.stored_ms), (3, 17, 1_700_000_000_000));
            assert_eq!(delivery.ack_subject(), reply);
        }
        for other in ["_INBOX.a.b", "$JS.ACK.s.c.x.1.2.3.4", "$JS.ACK.s.c.1.2", "", "$JS.API.s.c.1.2.3.4.5"] {
            assert_eq!(Delivery::parse(other), None, "{other}");
        }
    }

    #[test]
    fn answers() {
        assert_eq!(Ack::Again(Duration::from_secs(2)).text(), "-NAK {\"delay\": 2000000000}");
        assert_eq!(Ack::Again(Duration::ZERO).text(), "-NAK");
    }
}
