//! The NATS client protocol, reading side: bytes → operations.

use std::ops::Range;

use bytes::buf::Limit;
use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::block::{Block, Unsound};
use super::outbox::Payload;

/// Bytes that are read at once; a message that fits is copied out of them.
const BUFFER: usize = 128 * 1024;
/// A message of more bytes is read into an allocation of its own, without a copy.
const LARGE: usize = 32 * 1024;
/// Longest line of the protocol: an INFO may name many servers.
const MAX_LINE: usize = 64 * 1024;
/// Longest message that is read: the most that a NATS server can be set to let through.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;

/// What ends a line, a header block and a payload.
const END: &[u8] = b"\r\n";

/// One operation of the server.
#[derive(Debug)]
pub enum Op {
    /// The server tells of itself, as JSON.
    Info(Bytes),
    /// A message.
    Message(Message),
    /// It wants a PONG.
    Ping,
    /// It answers a PING.
    Pong,
    /// It reports an error, in these words.
    Error(String),
    /// A line that means nothing here (`+OK`).
    Nothing,
}

/// What can't be NATS.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server does not speak the NATS protocol: {0}")]
pub struct ProtocolError(pub &'static str);

/// A message as it came in, read in place: the line that announces it and its headers, which are text, and its payload.
#[derive(Debug, Clone)]
pub struct Message {
    /// Where the ranges lie.
    text: Box<str>,
    payload: Bytes,
    subscription: u64,
    subject: Range<usize>,
    reply: Option<Range<usize>>,
    headers: Result<Range<usize>, Unsound>,
    status: Option<u16>,
}

impl Message {
    /// Number of the subscription that it came on.
    pub fn subscription(&self) -> u64 {
        self.subscription
    }

    /// Where it was published.
    pub fn subject(&self) -> &str {
        &self.text[self.subject.clone()]
    }

    /// The reply subject, if it has one.
    pub fn reply(&self) -> Option<&str> {
        self.reply.clone().map(|reply| &self.text[reply])
    }

    /// Its headers.
    pub fn headers(&self) -> Result<Block<'_>, Unsound> {
        self.headers.clone().map(|lines| Block::checked(&self.text[lines]))
    }

    /// The server's status: 503 means that nobody listens on the subject published to.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Its payload, not copied.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Its payload, to be kept.
    pub fn payload_bytes(&self) -> Bytes {
        self.payload.clone()
    }

    /// Its payload, to be sent on.
    pub fn sent_on(&self) -> Payload<'_> {
        Payload::from(&self.payload)
    }

    /// Bytes that it holds.
    pub fn size(&self) -> usize {
        self.text.len() + self.payload.len()
    }

    /// One that has come in with this header block.
    #[cfg(test)]
    pub(crate) fn of(subject: &str, reply: Option<&str>, block: &str, payload: &[u8]) -> Self {
        let headers = Block::read(block.as_bytes());
        let mut text = String::new();
        let mut add = |part: &str| {
            text.push_str(part);
            text.len() - part.len()..text.len()
        };
        let (subject, reply) = (add(subject), reply.map(&mut add));
        let status = headers.ok().and_then(|(_, status)| status);
        let headers = headers.map(|(block, _)| add(block.lines()));
        let payload = Bytes::copy_from_slice(payload);
        Self { subscription: 0, subject, reply, headers, payload, status, text: text.into() }
    }
}

/// Where the parts of a message will be in its frame.
#[derive(Debug)]
struct Head {
    subscription: u64,
    subject: Range<usize>,
    reply: Option<Range<usize>>,
    /// Length of the line that announces it, and with that where its headers begin.
    line: usize,
    headers: usize,
    total: usize,
}

impl Head {
    /// Length of the line and the headers.
    fn text(&self) -> usize {
        self.line + self.headers
    }

    /// Length of the whole frame.
    fn frame(&self) -> usize {
        self.line + self.total + END.len()
    }
}

/// A message that is read into an allocation of its own.
#[derive(Debug)]
struct Partial {
    head: Head,
    frame: Limit<BytesMut>,
}

/// Reads operations from bytes that come in pieces.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    large: Option<Partial>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { buffer: vec![0; BUFFER], start: 0, end: 0, large: None }
    }
}

impl Decoder {
    /// Reads what a stream has, and says how many bytes these were; none: the stream has ended. There is room as long as
    /// [`Self::decode`] is called until it has nothing. Cancel-safe.
    pub async fn read(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Result<usize, std::io::Error> {
        if let Some(large) = &mut self.large {
            return stream.read_buf(&mut large.frame).await;
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let count = stream.read(&mut self.buffer[self.end..]).await?;
        self.end += count;
        Ok(count)
    }

    /// The next operation; `None`: more bytes are needed.
    pub fn decode(&mut self) -> Result<Option<Op>, ProtocolError> {
        if let Some(large) = self.large.take_if(|large| !large.frame.has_remaining_mut()) {
            let frame = large.frame.into_inner().freeze();
            let (text, rest) = (frame.slice(..large.head.text()), frame.slice(large.head.text()..));
            return message(large.head, &text, &rest, |payload| rest.slice_ref(payload)).map(Some);
        }
        if self.large.is_some() {
            return Ok(None);
        }
        let waiting = &self.buffer[self.start..self.end];
        let Some(newline) = memchr::memchr(b'\n', waiting) else {
            let too_long = waiting.len() > MAX_LINE;
            return if too_long { Err(ProtocolError("a line does not end")) } else { Ok(None) };
        };
        let line = waiting[..newline].strip_suffix(b"\r").ok_or(ProtocolError("a line ends without CR"))?;
        let head = match line.split_first_chunk::<4>() {
            Some((b"MSG ", _)) => head(line, newline + 1, false)?,
            Some((b"HMSG", _)) => head(line, newline + 1, true)?,
            _ => {
                let op = op(line)?;
                self.start += newline + 1;
                return Ok(Some(op));
            }
        };
        self.take(head)
    }

    fn take(&mut self, head: Head) -> Result<Option<Op>, ProtocolError> {
        let waiting = &self.buffer[self.start..self.end];
        let length = head.frame();
        if let Some(frame) = waiting.get(..length) {
            let (text, rest) = frame.split_at(head.text());
            let op = message(head, text, rest, Bytes::copy_from_slice).map(Some);
            self.start += length;
            return op;
        }
        if length > LARGE {
            let mut frame = BytesMut::with_capacity(length).limit(length);
            frame.put_slice(waiting);
            self.large = Some(Partial { head, frame });
            (self.start, self.end) = (0, 0);
        }
        Ok(None)
    }
}

fn op(line: &[u8]) -> Result<Op, ProtocolError> {
    let (word, rest) = line.split_at(line.iter().position(|byte| *byte == b' ').unwrap_or(line.len()));
    Ok(match word {
        b"PING" => Op::Ping,
        b"PONG" => Op::Pong,
        b"+OK" => Op::Nothing,
        b"INFO" => Op::Info(Bytes::copy_from_slice(rest.trim_ascii())),
        b"-ERR" => Op::Error(String::from_utf8_lossy(rest).trim().trim_matches('\'').to_owned()),
        _ => return Err(ProtocolError("an operation is not known")),
    })
}

/// Reads `MSG subject subscription [reply] total`, or `HMSG subject subscription [reply] headers total`.
fn head(line: &[u8], length: usize, with_headers: bool) -> Result<Head, ProtocolError> {
    const WRONG: ProtocolError = ProtocolError("a message is announced in another way than the protocol says");
    let mut words: [Range<usize>; 6] = Default::default();
    let mut count = 0;
    for range in ranges(line) {
        *words.get_mut(count).ok_or(WRONG)? = range;
        count += 1;
    }
    let word = |index: usize| &line[words[index].clone()];
    let sizes = if with_headers { 2 } else { 1 };
    let has_reply = match count.checked_sub(3 + sizes) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(WRONG),
    };
    let total = number(word(count - 1)).ok_or(WRONG)?;
    let headers = if with_headers { number(word(count - 2)).ok_or(WRONG)? } else { 0 };
    if headers > total {
        return Err(WRONG);
    }
    if total > MAX_MESSAGE {
        return Err(ProtocolError("a message is longer than 64 MiB"));
    }
    let subscription = number(word(2)).and_then(|n| u64::try_from(n).ok()).ok_or(WRONG)?;
    let reply = has_reply.then(|| words[3].clone());
    Ok(Head { subscription, subject: words[1].clone(), reply, line: length, headers, total })
}

fn ranges(line: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += line[at..].iter().take_while(|byte| **byte == b' ').count();
        let start = at;
        at += memchr::memchr(b' ', &line[at..]).unwrap_or(line.len() - at);
        (at > start).then_some(start..at)
    })
}

fn number(word: &[u8]) -> Option<usize> {
    let digits = !word.is_empty() && word.len() <= 18 && word.iter().all(u8::is_ascii_digit);
    digits.then(|| word.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}

/// The message of a frame: its line and headers, the rest, and how the payload there is kept.
fn message(head: Head, text: &[u8], rest: &[u8], keep: impl FnOnce(&[u8]) -> Bytes) -> Result<Op, ProtocolError> {
    let payload = rest.strip_suffix(END).ok_or(ProtocolError("a message is longer than announced"))?;
    let (text, block) = match simdutf8::basic::from_utf8(text) {
        Ok(text) => (text, Block::of(&text[head.line..])),
        Err(_) => match simdutf8::basic::from_utf8(&text[..head.line]) {
            Ok(line) => (line, Err(Unsound::Utf8)),
            // Nobody can be answered there, and no subject of ours is like that.
            Err(_) => return Ok(Op::Nothing),
        },
    };
    let (headers, status) = match block {
        _ if head.headers == 0 => (Ok(0..0), None),
        Ok((block, status)) => {
            let end = text.len() - END.len();
            (Ok(end - block.lines().len()..end), status)
        }
        Err(unsound) => (Err(unsound), None),
    };
    let Head { subscription, subject, reply, .. } = head;
    let (text, payload) = (text.into(), keep(payload));
    Ok(Op::Message(Message { subscription, subject, reply, headers, payload, status, text }))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    /// All operations of bytes that come in pieces of these sizes, in turn.
    fn read(bytes: &[u8], pieces: &[usize]) -> Result<Vec<Op>, ProtocolError> {
        let mut decoder = Decoder::default();
        let (mut ops, mut rest, mut turn) = (Vec::new(), bytes, 0);
        while !rest.is_empty() {
            let piece = pieces[turn % pieces.len()].min(rest.len());
            turn += 1;
            let count = decoder.read(&mut &rest[..piece]).now_or_never().expect("at once").expect("no errors");
            assert!(count > 0, "there is room");
            rest = &rest[count..];
            while let Some(op) = decoder.decode()? {
                ops.push(op);
            }
        }
        Ok(ops)
    }

    fn messages(bytes: &[u8], pieces: &[usize]) -> Vec<Message> {
        let ops = read(bytes, pieces).expect("the protocol");
        ops.into_iter().filter_map(|op| if let Op::Message(message) = op { Some(message) } else { None }).collect()
    }

    #[test]
    fn operations() {
        let text = b"INFO {\"a\":1} \r\nPING\r\nPONG\r\n+OK\r\n-ERR 'Permissions Violation'\r\n";
        let ops = read(text, &[3]).expect("the protocol");
        assert!(matches!(&ops[0], Op::Info(json) if json == "{\"a\":1}"));
        assert!(matches!(ops[1..4], [Op::Ping, Op::Pong, Op::Nothing]));
        assert!(matches!(&ops[4], Op::Error(words) if words == "Permissions Violation"));
    }

    #[test]
    fn messages_with_and_without_headers_and_reply() {
        let text = b"MSG a.b 7 2\r\nhi\r\nHMSG a 8 r.1 18 21\r\nNATS/1.0\r\nA: b\r\n\r\nxyz\r\nMSG c 9 r 0\r\n\r\n";
        let all = messages(text, &[1]);
        assert_eq!((all[0].subject(), all[0].subscription(), all[0].reply()), ("a.b", 7, None));
        assert_eq!(all[0].payload(), b"hi");
        assert_eq!(all[1].reply(), Some("r.1"));
        assert_eq!(all[1].headers().expect("sound").find("a"), Some("b"));
        assert_eq!(all[1].payload_bytes(), "xyz");
        assert_eq!((all[2].subject(), all[2].payload(), all[2].reply()), ("c", &b""[..], Some("r")));
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn nobody_listens() {
        let all = messages(b"HMSG inbox.1 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", &[100]);
        assert_eq!(all[0].status(), Some(503));
        assert_eq!(all[0].headers().expect("sound").iter().count(), 0);
    }

    #[test]
    fn bad_headers_spoil_only_their_message() {
        let all = messages(b"HMSG a 1 r 18 19\r\nNATS/1.0\r\n\xff: b\r\n\r\nx\r\nMSG a 1 1\r\ny\r\n", &[5]);
        assert!(all[0].headers().is_err());
        assert_eq!((all[0].reply(), all[1].payload()), (Some("r"), &b"y"[..]));
    }

    #[test]
    fn what_is_not_the_protocol_is_told() {
        for text in [
            &b"HTTP/1.1 400\r\n"[..],
            b"MSG a 1\r\n",
            b"MSG a x 1\r\n",
            b"MSG a 1 r s t 1\r\n",
            b"HMSG a 1 9 2\r\n",
            b"MSG a 1 99999999999\r\n",
            b"MSG a 1 1\r\nxyz\r\n",
            b"PING\n",
        ] {
            assert!(read(text, &[100]).is_err(), "{:?}", String::from_utf8_lossy(text));
        }
        assert!(read(&[b'x'; MAX_LINE + 10], &[4096]).is_err());
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            sizes in prop::collection::vec(prop_oneof![0usize..200, 30_000usize..140_000], 1..8),
            pieces in prop::collection::vec(1usize..50_000, 1..6),
        ) {
            let mut text = Vec::new();
            for (n, size) in sizes.iter().enumerate() {
                text.extend_from_slice(format!("HMSG s.{n} {n} 18 {}\r\nNATS/1.0\r\nN: {}\r\n\r\n", size + 18, n % 10).as_bytes());
                text.extend(std::iter::repeat_n(b'a' + u8::try_from(n).expect("few"), *size));
                text.extend_from_slice(b"\r\nPING\r\n");
            }
            let all = messages(&text, &pieces);
            prop_assert_eq!(all.len(), sizes.len());
            for (n, (message, size)) in all.iter().zip(&sizes).enumerate() {
                prop_assert_eq!(message.subject(), format!("s.{n}"));
                prop_assert_eq!(message.payload().len(), *size);
                prop_assert!(message.payload().iter().all(|byte| usize::from(byte - b'a') == n));
                let value = (n % 10).to_string();
                prop_assert_eq!(message.headers().expect("sound").find("n"), Some(value.as_str()));
            }
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), piece in 1usize..64) {
            let _ = read(&bytes, &[piece]);
        }
    }
}
