//! Header blocks as they stand on the wire: read in place, written in one piece.

use crate::wire::header::trimmed;

/// How a block begins.
const VERSION: &str = "NATS/1.0";

/// Headers of a message that came in: text that was found sound.
#[derive(Debug, Clone, Copy)]
pub struct Block<'m>(&'m str);

/// A header block that can't be read: it is refused, and never passed on, since it breaks other clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unsound {
    /// It is not text.
    #[error("it is not UTF-8")]
    Utf8,
    /// It begins with something else, or has no end.
    #[error("it does not begin with NATS/1.0, perhaps with a status of three digits, and end with an empty line")]
    Frame,
    /// A line is no header.
    #[error("line {0} is not \"Name: value\" between CR LF")]
    Line(usize),
}

impl<'m> Block<'m> {
    /// No headers.
    pub const NONE: Self = Self("");

    /// Checks a block, and gives the status in its first line, where there is one.
    pub fn read(block: &'m [u8]) -> Result<(Self, Option<u16>), Unsound> {
        Self::of(simdutf8::basic::from_utf8(block).map_err(|_| Unsound::Utf8)?)
    }

    /// The same of a block that is text.
    pub(super) fn of(block: &'m str) -> Result<(Self, Option<u16>), Unsound> {
        let (first, lines) = block.split_at(memchr::memchr(b'\n', block.as_bytes()).ok_or(Unsound::Frame)? + 1);
        let first = first.strip_suffix("\r\n").and_then(|first| first.strip_prefix(VERSION));
        let status = status(first.ok_or(Unsound::Frame)?)?;
        let lines = lines.strip_suffix("\r\n").ok_or(Unsound::Frame)?;
        if !lines.is_empty() && !lines.ends_with("\r\n") {
            return Err(Unsound::Frame);
        }
        match Split(lines).position(|line| !line.strip_suffix('\r').is_some_and(is_sound)) {
            None => Ok((Self(lines), status)),
            Some(place) => Err(Unsound::Line(place + 1)),
        }
    }

    /// The lines of a block that was checked.
    pub(in crate::nats) fn checked(lines: &'m str) -> Self {
        Self(lines)
    }

    /// The checked lines.
    pub(in crate::nats) fn lines(&self) -> &'m str {
        self.0
    }

    /// (name, value) pairs, in their order on the wire; values without the white space around them.
    pub fn iter(&self) -> impl Iterator<Item = (&'m str, &'m str)> + Clone + use<'m> {
        split(self.0).map(|line| {
            let (name, value) = pair(line);
            (name, trimmed(value))
        })
    }

    /// The first non-blank value of a header, whatever the case of its name.
    pub fn find(&self, name: &str) -> Option<&'m str> {
        crate::wire::header::find(self.iter(), name)
    }

    /// Bytes that the lines take.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What stands behind the version: nothing, or three digits and words.
fn status(text: &str) -> Result<Option<u16>, Unsound> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let digits = text.get(..3).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).map(Some).ok_or(Unsound::Frame)
}

/// Lines, each without its LF; what stands behind the last LF is none.
#[derive(Clone)]
struct Split<'m>(&'m str);

impl<'m> Iterator for Split<'m> {
    type Item = &'m str;

    fn next(&mut self) -> Option<&'m str> {
        let end = memchr::memchr(b'\n', self.0.as_bytes())?;
        let line = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(line)
    }
}

/// Checked lines, each without its CR LF.
fn split(lines: &str) -> impl Iterator<Item = &str> + Clone {
    Split(lines).map(|line| line.strip_suffix('\r').unwrap_or(line))
}

/// Name and value of a checked line.
fn pair(line: &str) -> (&str, &str) {
    match memchr::memchr(b':', line.as_bytes()) {
        Some(colon) => (&line[..colon], &line[colon + 1..]),
        None => (line, ""),
    }
}

/// Whether a line is a header: a name of visible characters, a colon, and no line end inside.
fn is_sound(line: &str) -> bool {
    let Some(colon) = memchr::memchr(b':', line.as_bytes()) else { return false };
    colon > 0
        // Without an early end, so that many are looked at at once: of nearly all, all are good.
        && line.as_bytes()[..colon].iter().fold(true, |good, byte| good & (33..=126).contains(byte))
        && memchr::memchr(b'\r', &line.as_bytes()[colon..]).is_none()
}

/// Headers of a message to be sent.
#[derive(Debug, Clone)]
pub struct Lines(String);

impl Default for Lines {
    fn default() -> Self {
        Self::new()
    }
}

impl From<&super::super::Headers> for Lines {
    fn from(headers: &super::super::Headers) -> Self {
        let mut lines = Self::with_capacity(headers.wire_len());
        lines.0.push_str(headers.block().lines());
        lines
    }
}

impl Lines {
    /// No headers.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// No headers, with room for so many bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut text = String::with_capacity(VERSION.len() + capacity + 4);
        text.push_str(VERSION);
        text.push_str("\r\n");
        Self(text)
    }

    /// Adds a header. Line ends in its value become spaces: it can never forge another header.
    pub fn push(&mut self, name: &'static str, value: &str) {
        self.0.push_str(name);
        self.0.push_str(": ");
        if memchr::memchr2(b'\r', b'\n', value.as_bytes()).is_none() {
            self.0.push_str(value);
        } else {
            self.0.push_str(&value.replace(['\r', '\n'], " "));
        }
        self.0.push_str("\r\n");
    }

    /// Adds a header with one word or two, and a comma between.
    pub fn push_words(&mut self, name: &'static str, first: &'static str, second: Option<&'static str>) {
        for part in [name, ": ", first] {
            self.0.push_str(part);
        }
        for part in second.into_iter().flat_map(|second| [",", second]) {
            self.0.push_str(part);
        }
        self.0.push_str("\r\n");
    }

    /// Adds a header with a number.
    pub fn push_number(&mut self, name: &'static str, number: u64) {
        for part in [name, ": ", itoa::Buffer::new().format(number), "\r\n"] {
            self.0.push_str(part);
        }
    }

    /// Adds all of these.
    pub fn append(&mut self, others: &Self) {
        self.0.push_str(others.lines());
    }

    /// The same for the client library.
    pub fn to_headers(&self) -> super::super::Headers {
        Block::checked(self.lines()).into()
    }

    fn lines(&self) -> &str {
        &self.0[VERSION.len() + "\r\n".len()..]
    }

    /// Adds those headers of a message whose names pass, as they came.
    pub fn extend(&mut self, block: Block<'_>, pass: impl Fn(&str) -> bool) {
        for line in split(block.0) {
            if pass(pair(line).0) {
                self.0.push_str(line);
                self.0.push_str("\r\n");
            }
        }
    }

    /// Bytes that they take on the wire.
    pub fn wire_len(&self) -> usize {
        self.0.len() + "\r\n".len()
    }

    /// The whole block, as it stands on the wire.
    pub fn block(&self) -> String {
        format!("{}\r\n", self.0)
    }

    /// The block without its last, empty line.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == VERSION.len() + "\r\n".len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(block: &str) -> Vec<(&str, &str)> {
        Block::read(block.as_bytes()).expect("sound").0.iter().collect()
    }

    #[test]
    fn headers_are_read_as_they_came() {
        assert_eq!(pairs("NATS/1.0\r\nA: b\r\na:\t c : d \r\nE:\r\n\r\n"), [("A", "b"), ("a", "c : d"), ("E", "")]);
        assert_eq!(pairs("NATS/1.0\r\n\r\n"), []);
        let status = |block: &[u8]| Block::read(block).expect("sound").1;
        assert_eq!(status(b"NATS/1.0 503\r\n\r\n"), Some(503));
        assert_eq!(status(b"NATS/1.0 100 Idle Heartbeat\r\nX: y\r\n\r\n"), Some(100));
        assert_eq!(status(b"NATS/1.0\r\n\r\n"), None);
    }

    #[test]
    fn what_breaks_other_clients_is_unsound() {
        for (block, why) in [
            (&b"NATS/1.0\r\nA: x\ry\r\n\r\n"[..], Unsound::Line(1)),
            (b"NATS/1.0\r\nA: x\ny: z\r\n\r\n", Unsound::Line(1)),
            (b"NATS/1.0\r\nA: b\r\nno colon\r\n\r\n", Unsound::Line(2)),
            (b"NATS/1.0\r\n: b\r\n\r\n", Unsound::Line(1)),
            (b"NATS/1.0\r\nA b: c\r\n\r\n", Unsound::Line(1)),
            (b"NATS/1.0\r\n folded: c\r\n\r\n", Unsound::Line(1)),
            (b"NATS/1.0\r\nA: b\r\n\r\nB: c\r\n\r\n", Unsound::Line(2)),
            (b"NATS/1.0\r\nA: \xff\r\n\r\n", Unsound::Utf8),
            (b"NATS/1.0\r\nA: b\r\n", Unsound::Frame),
            (b"NATS/1.0", Unsound::Frame),
            (b"NATS/1.0 abc\r\n\r\n", Unsound::Frame),
            (b"HTTP/1.1\r\n\r\n", Unsound::Frame),
            (b"", Unsound::Frame),
        ] {
            assert_eq!(Block::read(block).err(), Some(why), "{:?}", String::from_utf8_lossy(block));
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut lines = Lines::new();
        assert!(lines.is_empty());
        lines.push("Rankpin-Decision", "a\r\nRankpin-Final: true");
        lines.push_number("Rankpin-Seq", 7);
        let (block, _) = Block::read(b"NATS/1.0\r\nKeep: 1\r\nDrop: 2\r\nkeep:3\r\n\r\n").expect("sound");
        lines.extend(block, |name| name.eq_ignore_ascii_case("keep"));
        let mut more = Lines::new();
        more.append(&lines);
        assert_eq!(more.to_headers().find("rankpin-decision"), Some("a  Rankpin-Final: true"));
        let text = more.block();
        assert_eq!(text.len(), lines.wire_len());
        let expected =
            [("Rankpin-Decision", "a  Rankpin-Final: true"), ("Rankpin-Seq", "7"), ("Keep", "1"), ("keep", "3")];
        assert_eq!(pairs(&text), expected);
    }
}
