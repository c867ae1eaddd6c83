//! What is to be written: one growing text, with large payloads beside it that are not copied.

use std::io::IoSlice;

use bytes::Bytes;

use super::block::Lines;

/// Most bytes that wait to be written, where nothing else is said; beyond, messages are refused.
pub const MAX_UNSENT: usize = 64 * 1024 * 1024;
/// A payload of so many bytes is not copied.
const BORROWED: usize = 16 * 1024;
/// A text that had to grow beyond this is given back after it was written.
const KEPT: usize = 1024 * 1024;
/// Most slices that are written at once.
pub const SLICES: usize = 64;

/// The payload of a message to be sent: a small one is copied, a large one is kept until it is written.
#[derive(Debug, Clone)]
pub enum Payload<'b> {
    /// Copied into what is to be written.
    Copied(&'b [u8]),
    /// Kept, and written from where it is.
    Kept(Bytes),
}

impl<'b> Payload<'b> {
    /// No bytes.
    pub const EMPTY: Self = Self::Copied(&[]);

    /// These bytes, of which `keep` gives a handle where they are too many to be copied.
    pub fn new(bytes: &'b [u8], keep: impl FnOnce() -> Bytes) -> Self {
        if bytes.len() < BORROWED { Self::Copied(bytes) } else { Self::Kept(keep()) }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Kept(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'b> From<&'b Bytes> for Payload<'b> {
    fn from(bytes: &'b Bytes) -> Self {
        Self::new(bytes, || bytes.clone())
    }
}

impl<'b> From<&'b [u8]> for Payload<'b> {
    fn from(bytes: &'b [u8]) -> Self {
        Self::new(bytes, || Bytes::copy_from_slice(bytes))
    }
}

/// Why a message is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// Too much waits already.
    #[error("too many bytes wait to be sent")]
    Full,
    /// The subject would be read as something else.
    #[error("the subject is empty, or has white space in it")]
    Subject,
}

/// Bytes that wait to be written.
#[derive(Debug, Default)]
pub struct Outbox {
    text: Vec<u8>,
    /// (place in the text, payload), in order.
    payloads: Vec<(usize, Bytes)>,
    length: usize,
}

impl Outbox {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Adds a message, where no more than [`MAX_UNSENT`] bytes wait.
    pub fn publish(
        &mut self,
        subject: &str,
        reply: Option<&str>,
        headers: &Lines,
        payload: Payload<'_>,
    ) -> Result<(), Unsent> {
        self.publish_up_to(MAX_UNSENT, subject, reply, headers, payload)
    }

    /// Adds a message, where no more than so many bytes wait.
    pub fn publish_up_to(
        &mut self,
        most: usize,
        subject: &str,
        reply: Option<&str>,
        headers: &Lines,
        payload: Payload<'_>,
    ) -> Result<(), Unsent> {
        if !is_subject(subject) || !reply.is_none_or(is_subject) {
            return Err(Unsent::Subject);
        }
        let block = if headers.is_empty() { 0 } else { headers.wire_len() };
        if self.length + block + payload.len() > most {
            return Err(Unsent::Full);
        }
        let before = self.text.len();
        self.text.extend_from_slice(if block == 0 { b"PUB " } else { b"HPUB " });
        for word in std::iter::once(subject).chain(reply) {
            self.text.extend_from_slice(word.as_bytes());
            self.text.push(b' ');
        }
        if block != 0 {
            self.number(block);
            self.text.push(b' ');
        }
        self.number(block + payload.len());
        self.text.extend_from_slice(b"\r\n");
        if block != 0 {
            self.text.extend_from_slice(headers.text().as_bytes());
            self.text.extend_from_slice(b"\r\n");
        }
        self.length += self.text.len() - before;
        self.payload(payload);
        self.line("");
        Ok(())
    }

    /// Adds everything that waits in another one.
    pub fn append(&mut self, other: &Self) {
        let before = self.text.len();
        self.text.extend_from_slice(&other.text);
        self.payloads.extend(other.payloads.iter().map(|(at, payload)| (before + at, payload.clone())));
        self.length += other.length;
    }

    /// Adds a line of the protocol.
    pub fn line(&mut self, line: &str) {
        self.text.extend_from_slice(line.as_bytes());
        self.text.extend_from_slice(b"\r\n");
        self.length += line.len() + 2;
    }

    fn payload(&mut self, payload: Payload<'_>) {
        self.length += payload.len();
        match payload {
            Payload::Copied(bytes) => self.text.extend_from_slice(bytes),
            Payload::Kept(bytes) => self.payloads.push((self.text.len(), bytes)),
        }
    }

    fn number(&mut self, number: usize) {
        self.text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// The bytes from a place on, in at most [`SLICES`] slices; how many there are.
    pub fn slices<'b>(&'b self, mut from: usize, slices: &mut [IoSlice<'b>; SLICES]) -> usize {
        let mut count = 0;
        let mut add = |piece: &'b [u8]| {
            let skipped = from.min(piece.len());
            from -= skipped;
            if skipped < piece.len() && count < SLICES {
                slices[count] = IoSlice::new(&piece[skipped..]);
                count += 1;
            }
        };
        let mut begun = 0;
        for (at, payload) in &self.payloads {
            add(&self.text[begun..*at]);
            add(payload);
            begun = *at;
        }
        add(&self.text[begun..]);
        count
    }

    /// Forgets everything, and keeps the room for what comes.
    pub fn clear(&mut self) {
        self.text.clear();
        self.text.shrink_to(KEPT);
        self.payloads.clear();
        self.length = 0;
    }
}

/// Whether the protocol would read this as one subject. Anything else could be read as another operation.
fn is_subject(subject: &str) -> bool {
    !subject.is_empty() && subject.bytes().all(|byte| byte > b' ')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(outbox: &Outbox, step: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < outbox.len() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = outbox.slices(all.len(), &mut slices);
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).take(step).collect();
            assert!(!bytes.is_empty());
            all.extend(bytes);
        }
        all
    }

    #[test]
    fn messages_as_the_protocol_has_them() {
        let mut outbox = Outbox::default();
        let mut headers = Lines::new();
        outbox.publish("a", None, &headers, b"hi"[..].into()).expect("sent");
        headers.push("N", "v");
        outbox.publish("b", Some("r"), &headers, b"x"[..].into()).expect("sent");
        outbox.line("PING");
        let expected = "PUB a 2\r\nhi\r\nHPUB b r 18 19\r\nNATS/1.0\r\nN: v\r\n\r\nx\r\nPING\r\n";
        assert_eq!(String::from_utf8_lossy(&written(&outbox, 1000)), expected);
        outbox.clear();
        assert!(outbox.is_empty());
    }

    #[test]
    fn no_subject_smuggles_an_operation() {
        let mut outbox = Outbox::default();
        for (subject, reply) in
            [("", None), ("a b", None), ("a\r\nPUB b 0\r\n", None), ("a", Some("r\n")), ("a", Some(""))]
        {
            assert_eq!(outbox.publish(subject, reply, &Lines::new(), Payload::EMPTY), Err(Unsent::Subject));
        }
        assert!(outbox.is_empty());
    }

    #[test]
    fn there_is_a_bound() {
        let mut outbox = Outbox::default();
        let payload = Bytes::from(vec![0; MAX_UNSENT / 2]);
        outbox.publish("a", None, &Lines::new(), (&payload).into()).expect("room");
        assert_eq!(outbox.publish("a", None, &Lines::new(), (&payload).into()), Err(Unsent::Full));
        outbox.publish_up_to(2 * MAX_UNSENT, "a", None, &Lines::new(), (&payload).into()).expect("room");
    }

    proptest! {
        #[test]
        fn payloads_large_and_small_keep_their_order(
            sizes in prop::collection::vec(prop_oneof![0usize..40, 16_000usize..17_000], 0..80),
            step in 1usize..70_000,
        ) {
            let mut outbox = Outbox::default();
            let mut expected = Vec::new();
            for (n, size) in sizes.iter().enumerate() {
                let payload = Bytes::from(vec![b'a' + u8::try_from(n % 26).expect("few"); *size]);
                outbox.publish("s", None, &Lines::new(), (&payload).into()).expect("room");
                expected.extend_from_slice(format!("PUB s {size}\r\n").as_bytes());
                expected.extend_from_slice(&payload);
                expected.extend_from_slice(b"\r\n");
            }
            prop_assert_eq!(outbox.len(), expected.len());
            prop_assert_eq!(&written(&outbox, step), &expected);
            let twice = expected.repeat(2);
            let once = std::mem::take(&mut outbox);
            outbox.append(&once);
            outbox.append(&once);
            prop_assert_eq!(written(&outbox, step), twice);
        }
    }
}
