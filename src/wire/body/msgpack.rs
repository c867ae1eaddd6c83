//! MessagePack, told to the counter as it is read. What a length field claims is never reserved, only read.

use super::counter::{Container, Counter, Counts, Scalar};
use super::text::{first_not_utf8, not_utf8};
use super::{Flaw, MAX_LEVELS};

/// Reads a body: one value and nothing after it.
pub(super) fn read(body: &[u8], counter: &mut Counter) -> Result<(), Flaw> {
    let mut reader = Reader { bytes: body, at: 0 };
    reader.read(counter)?;
    if reader.at < body.len() {
        return Err(Flaw::syntax("bytes after the value", reader.at));
    }
    Ok(())
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// A value, or the head of a container with how many values it holds (a map two for each pair).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'b> {
    Text(&'b [u8]),
    Scalar(Scalar),
    Open(Container, u64),
}

/// An open container.
#[derive(Debug, Clone, Copy)]
struct Level {
    container: Container,
    /// Values still to come, names included.
    left: u64,
}

impl<'b> Reader<'b> {
    fn read(&mut self, counter: &mut Counter) -> Result<(), Flaw> {
        let mut levels: Vec<Level> = Vec::new();
        loop {
            let mut is_name = false;
            if let Some(level) = levels.last_mut() {
                is_name = level.container == Container::Object && level.left.is_multiple_of(2);
                level.left -= 1;
            }
            let start = self.at;
            match self.token()? {
                Token::Text(name) if is_name => {
                    if counter.wants_key() {
                        counter.key(name).map_err(|field| Flaw::twice(field, start))?;
                    }
                }
                Token::Text(text) if counter.wants_text() => counter.text(text),
                Token::Text(_) => counter.scalar(Scalar::Other),
                Token::Scalar(_) if is_name => counter.nameless_key(Counts::Value),
                Token::Scalar(scalar) => counter.scalar(scalar),
                Token::Open(_, left) if levels.len() == MAX_LEVELS => {
                    counter.too_deep();
                    self.pass_over(left)?;
                }
                Token::Open(container, left) => {
                    if is_name {
                        counter.nameless_key(Counts::Nothing);
                    }
                    counter.open(container);
                    levels.push(Level { container, left });
                }
            }
            while let Some(Level { container, left: 0 }) = levels.last().copied() {
                levels.pop();
                counter.close(container);
            }
            if levels.is_empty() {
                return Ok(());
            }
        }
    }

    /// Checks values of which nothing counts. How they nest doesn't matter any more, so one count is enough.
    fn pass_over(&mut self, values: u64) -> Result<(), Flaw> {
        let mut left = values;
        while left > 0 {
            left -= 1;
            if let Token::Open(_, more) = self.token()? {
                left = left.saturating_add(more);
            }
        }
        Ok(())
    }

    fn token(&mut self) -> Result<Token<'b>, Flaw> {
        let start = self.at;
        let head = self.take(1)?[0];
        Ok(match head {
            0x00..=0x7f | 0xe0..=0xff => Token::Scalar(Scalar::Other),
            0x80..=0x8f => Token::Open(Container::Object, 2 * u64::from(head & 0x0f)),
            0x90..=0x9f => Token::Open(Container::Array, u64::from(head & 0x0f)),
            0xa0..=0xbf => self.text(u64::from(head & 0x1f))?,
            0xc0 => Token::Scalar(Scalar::Null),
            0xc1 => return Err(Flaw::syntax("a byte that MessagePack does not use", start)),
            0xc2 | 0xc3 => Token::Scalar(Scalar::Other),
            // bin and ext have a length; ext has a byte for its type besides.
            0xc4..=0xc6 => {
                let len = self.number(1 << (head - 0xc4))?;
                self.data(len)?
            }
            0xc7..=0xc9 => {
                let len = self.number(1 << (head - 0xc7))?;
                self.data(len + 1)?
            }
            0xca => self.data(4)?,
            0xcb => self.data(8)?,
            0xcc..=0xcf => self.data(1 << (head - 0xcc))?,
            0xd0..=0xd3 => self.data(1 << (head - 0xd0))?,
            0xd4..=0xd8 => self.data(1 + (1 << (head - 0xd4)))?,
            0xd9..=0xdb => {
                let len = self.number(1 << (head - 0xd9))?;
                self.text(len)?
            }
            0xdc | 0xdd => Token::Open(Container::Array, self.number(2 << (head - 0xdc))?),
            0xde | 0xdf => Token::Open(Container::Object, 2 * self.number(2 << (head - 0xde))?),
        })
    }

    fn text(&mut self, len: u64) -> Result<Token<'b>, Flaw> {
        let bytes = self.take(len)?;
        match first_not_utf8(bytes) {
            None => Ok(Token::Text(bytes)),
            Some(place) => Err(not_utf8(self.at - bytes.len() + place)),
        }
    }

    /// A value whose bytes don't matter.
    fn data(&mut self, len: u64) -> Result<Token<'b>, Flaw> {
        self.take(len)?;
        Ok(Token::Scalar(Scalar::Other))
    }

    /// A big-endian number of 1, 2 or 4 bytes.
    fn number(&mut self, len: u64) -> Result<u64, Flaw> {
        Ok(self.take(len)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn take(&mut self, len: u64) -> Result<&'b [u8], Flaw> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(len).ok().and_then(|len| rest.get(..len));
        let taken = taken.ok_or(Flaw::syntax("the end inside a value", self.bytes.len()))?;
        self.at += taken.len();
        Ok(taken)
    }
}
