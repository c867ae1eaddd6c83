//! Messages that are sent once more where a connection is lost before the server is known to have them.
//!
//! What was written to a connection that then ends may have reached the server, or not: nobody says. For most messages
//! that does not matter, since somebody waits with a timeout, or a gap in the numbers of a stream tells of it. The last
//! message of a stream has nothing after it that could tell. Such messages are kept until a PONG says that the server has
//! read them; after a reconnect those that are kept are sent again. Whoever has them already has stopped listening, or
//! knows them by their attempt.

use super::block::Lines;
use super::outbox::{Outbox, Payload};

/// Most bytes that are kept; a message beyond is sent once.
const MAX_KEPT: usize = 8 * 1024 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub struct Assured {
    /// Published before the PING whose PONG is awaited.
    asked: Outbox,
    /// Published since.
    new: Outbox,
}

impl Assured {
    /// Keeps a message that was published.
    pub fn keep(&mut self, subject: &str, headers: &Lines, payload: Payload<'_>) {
        let room = MAX_KEPT.saturating_sub(self.asked.len() + self.new.len());
        if payload.len() + headers.wire_len() <= room {
            // It was taken once: it has a subject, and there is room.
            let _ = self.new.publish(subject, None, headers, payload);
        }
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.new.is_empty()
    }

    /// Whether to ask the server now, by a PING, if it has what is kept; one question at a time.
    pub fn ask(&mut self) -> bool {
        let ask = self.asked.is_empty() && !self.new.is_empty();
        if ask {
            std::mem::swap(&mut self.asked, &mut self.new);
        }
        ask
    }

    /// The server has what was asked for.
    pub fn answered(&mut self) {
        self.asked.clear();
    }

    /// The connection is lost: what is kept has to be sent again, and to be asked for again.
    pub fn send_again(&mut self, out: &mut Outbox) {
        self.asked.append(&self.new);
        self.new.clear();
        std::mem::swap(&mut self.asked, &mut self.new);
        out.append(&self.new);
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;
    use crate::nats::lane::outbox::SLICES;

    fn text(outbox: &Outbox) -> String {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = outbox.slices(0, &mut slices);
        slices[..count].iter().map(|slice| String::from_utf8_lossy(slice).into_owned()).collect()
    }

    fn again(assured: &mut Assured) -> String {
        let mut out = Outbox::default();
        assured.send_again(&mut out);
        text(&out)
    }

    #[test]
    fn what_no_pong_has_answered_for_is_sent_again_in_its_order() {
        let mut assured = Assured::default();
        assert!(!assured.ask(), "there is nothing to ask for");
        assured.keep("a", &Lines::new(), b"1"[..].into());
        assert!(assured.ask());
        assured.keep("b", &Lines::new(), b"2"[..].into());
        assert!(!assured.ask(), "one question at a time");
        assert_eq!(again(&mut assured), "PUB a 1\r\n1\r\nPUB b 1\r\n2\r\n");
        // The connection is lost again before any PONG.
        assert_eq!(again(&mut assured), "PUB a 1\r\n1\r\nPUB b 1\r\n2\r\n");
        assert!(assured.ask());
        assured.keep("c", &Lines::new(), b"3"[..].into());
        assured.answered();
        assert_eq!(again(&mut assured), "PUB c 1\r\n3\r\n");
        assert!(assured.ask());
        assured.answered();
        assert!(assured.is_empty());
    }

    #[test]
    fn there_is_a_bound() {
        let mut assured = Assured::default();
        let large = bytes::Bytes::from(vec![0; MAX_KEPT]);
        assured.keep("a", &Lines::new(), b"1"[..].into());
        assured.keep("b", &Lines::new(), (&large).into());
        assert_eq!(again(&mut assured), "PUB a 1\r\n1\r\n");
    }
}
