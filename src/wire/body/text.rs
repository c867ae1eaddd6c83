//! Strings of JSON: where they end, and what they say.
//!
//! A text without escapes is a slice of the body. One with escapes is decoded into a scratch buffer. Whether the body is
//! UTF-8 was found out before: here it is only looked at whether a string holds the place where it is not.

use super::Flaw;
use super::marks::Marks;

/// Room for decoded text made at first.
const ROOM: usize = 4096;
/// Bytes copied at once where a run is short, which most are: what is too much is written over. Longer ones are copied by
/// their length.
const CHUNK: usize = 64;

/// A string that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Text<'t> {
    /// What it says.
    Said(&'t [u8]),
    /// It was not wanted.
    Unwanted,
}

/// Reads a string whose opening quote stands before `start`. Gives what it says, with escapes decoded into `scratch`,
/// and the place behind its closing quote. It is checked whether it is wanted or not.
pub(super) fn read<'t>(
    bytes: &'t [u8],
    start: usize,
    wanted: bool,
    marks: &mut Marks,
    scratch: &'t mut Scratch,
) -> Result<(Text<'t>, usize), Flaw> {
    let mut at = marks.next(bytes, start);
    let escaped = bytes.get(at) == Some(&b'\\');
    if escaped && wanted {
        scratch.filled = 0;
        at = scratch.decode(bytes, start, at, marks)?;
    } else if escaped {
        at = skim(bytes, at, marks)?;
    }
    match bytes.get(at) {
        Some(b'"') => {}
        Some(_) => return Err(Flaw::syntax("a control character in a string", at)),
        None => return Err(Flaw::syntax("the end inside a string", at)),
    }
    let text = match (wanted, escaped) {
        (false, _) => Text::Unwanted,
        (true, false) => Text::Said(&bytes[start..at]),
        (true, true) => Text::Said(scratch.decoded()),
    };
    Ok((text, at + 1))
}

/// The first byte that is not UTF-8, if there is one.
pub(super) fn first_not_utf8(bytes: &[u8]) -> Option<usize> {
    // The first way is the faster one, and doesn't say where.
    simdutf8::basic::from_utf8(bytes).err()?;
    std::str::from_utf8(bytes).err().map(|error| error.valid_up_to())
}

/// That a text is not UTF-8, from this byte of the body on.
pub(super) fn not_utf8(at: usize) -> Flaw {
    Flaw::syntax("text that is not UTF-8", at)
}

/// Passes over the rest of a string, from an escape to what ends it.
fn skim(bytes: &[u8], escape: usize, marks: &mut Marks) -> Result<usize, Flaw> {
    let mut at = escape;
    while bytes.get(at) == Some(&b'\\') {
        let behind = match short_escape(bytes, at) {
            Some(_) => at + 2,
            None => unit(bytes, at).map(|_| at + UNIT_LEN)?,
        };
        at = marks.next(bytes, behind);
    }
    Ok(at)
}

/// The decoded text of the last string with escapes. It grows to the longest one and is written over by the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    buffer: Vec<u8>,
    filled: usize,
}

impl Scratch {
    fn decoded(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    /// Decodes a string from `start` on, whose first escape stands at `escape`; gives the place of what ends it.
    fn decode(&mut self, bytes: &[u8], start: usize, escape: usize, marks: &mut Marks) -> Result<usize, Flaw> {
        let (mut plain, mut at) = (start, escape);
        while bytes.get(at) == Some(&b'\\') {
            plain = match short_escape(bytes, at) {
                Some(byte) => {
                    self.push(&bytes[plain..], at - plain, byte);
                    at + 2
                }
                None => {
                    self.push_all(&bytes[plain..at]);
                    self.decode_units(bytes, at)?
                }
            };
            at = marks.next(bytes, plain);
        }
        self.push_all(&bytes[plain..at]);
        Ok(at)
    }

    /// Decodes code units, one after the other; gives the place behind the last.
    fn decode_units(&mut self, bytes: &[u8], start: usize) -> Result<usize, Flaw> {
        let mut at = start;
        loop {
            let (decoded, behind) = scalar(bytes, at)?;
            self.make_room(decoded.len_utf8());
            self.filled += decoded.encode_utf8(&mut self.buffer[self.filled..]).len();
            at = behind;
            if bytes.get(at..at + 2) != Some(b"\\u") {
                return Ok(at);
            }
        }
    }

    /// Takes over the first `len` bytes, and `last` behind them.
    #[inline]
    fn push(&mut self, bytes: &[u8], len: usize, last: u8) {
        let slot = self.buffer[self.filled..].first_chunk_mut::<{ CHUNK + 1 }>();
        match (bytes.first_chunk::<CHUNK>(), slot) {
            (Some(chunk), Some(slot)) if len <= CHUNK => {
                slot[..CHUNK].copy_from_slice(chunk);
                slot[len] = last;
                self.filled += len + 1;
            }
            _ => {
                self.push_all(&bytes[..len]);
                self.push_all(&[last]);
            }
        }
    }

    /// Takes these bytes over, and makes room for more.
    fn push_all(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len() + CHUNK + 1);
        self.buffer[self.filled..][..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    fn make_room(&mut self, more: usize) {
        let needed = self.filled + more;
        if self.buffer.len() < needed {
            self.buffer.resize(needed.max(2 * self.buffer.len()).max(ROOM), 0);
        }
    }
}

/// What the escapes of two bytes stand for, by their second byte; 0 where there is none.
const SHORT_ESCAPES: [u8; 256] = {
    let mut table = [0; 256];
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table[b'/' as usize] = b'/';
    table[b'b' as usize] = 0x08;
    table[b'f' as usize] = 0x0c;
    table[b'n' as usize] = b'\n';
    table[b'r' as usize] = b'\r';
    table[b't' as usize] = b'\t';
    table
};

/// What the escape of two bytes at `at` stands for; `None` where it is none of these.
fn short_escape(bytes: &[u8], at: usize) -> Option<u8> {
    let byte = SHORT_ESCAPES[usize::from(*bytes.get(at + 1)?)];
    (byte != 0).then_some(byte)
}

/// Bytes of a code unit's escape: `\uXXXX`.
const UNIT_LEN: usize = 6;

/// The code unit whose escape stands at `at`; whatever else stands there is no escape that JSON has.
fn unit(bytes: &[u8], at: usize) -> Result<u16, Flaw> {
    match bytes.get(at + 1) {
        Some(b'u') => {}
        Some(_) => return Err(Flaw::syntax("an escape that JSON does not have", at)),
        None => return Err(Flaw::syntax("the end inside a string", at + 1)),
    }
    let digits = bytes.get(at + 2..).and_then(|digits| digits.first_chunk());
    digits.and_then(hex_unit).ok_or(Flaw::syntax("\\u without four hex digits", at))
}

/// The character of the code unit at `at` or, where that is the first half of a surrogate pair, of both halves; gives the
/// place behind. A lone surrogate is U+FFFD (protocol section 4).
fn scalar(bytes: &[u8], at: usize) -> Result<(char, usize), Flaw> {
    let (first, behind) = (unit(bytes, at)?, at + UNIT_LEN);
    if let Some(scalar) = char::from_u32(u32::from(first)) {
        return Ok((scalar, behind));
    }
    if bytes.get(behind..behind + 2) == Some(b"\\u")
        && let Some(Ok(scalar)) = char::decode_utf16([first, unit(bytes, behind)?]).next()
    {
        return Ok((scalar, behind + UNIT_LEN));
    }
    // Another unit that follows is read again, on its own.
    Ok((char::REPLACEMENT_CHARACTER, behind))
}

fn hex_unit(digits: &[u8; 4]) -> Option<u16> {
    let values = digits.map(|digit| HEX[usize::from(digit)]);
    // Only what is no digit sets a bit above the fourth.
    if values.iter().fold(0, |all, value| all | value) > 0xf {
        return None;
    }
    Some(values.iter().fold(0, |unit, value| unit << 4 | u16::from(*value)))
}

/// Values of hex digits, 0xff for other bytes.
const HEX: [u8; 256] = {
    let mut table = [0xff; 256];
    let mut value = 0u8;
    while value < 16 {
        table[b"0123456789abcdef"[value as usize] as usize] = value;
        table[b"0123456789ABCDEF"[value as usize] as usize] = value;
        value += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::super::FlawKind;
    use super::*;

    fn decoded(string: &str) -> Result<String, &'static str> {
        let bytes = format!("{string}\"");
        let (mut scratch, mut unused) = (Scratch::default(), Scratch::default());
        let skimmed = read(bytes.as_bytes(), 0, false, &mut Marks::new(), &mut unused).map(|read| read.1);
        match read(bytes.as_bytes(), 0, true, &mut Marks::new(), &mut scratch) {
            Ok((Text::Said(text), end)) => {
                assert_eq!(skimmed, Ok(end));
                Ok(String::from_utf8(text.to_vec()).expect("UTF-8"))
            }
            Ok((Text::Unwanted, _)) => panic!("it was wanted"),
            Err(Flaw { kind: FlawKind::Syntax(problem), at }) => {
                assert_eq!(skimmed, Err(Flaw::syntax(problem, at)));
                Err(problem)
            }
            Err(Flaw { kind: FlawKind::Twice(_), .. }) => panic!("no names here"),
        }
    }

    #[test]
    fn escapes_are_decoded() {
        for before in ["", "1234567", "a run that is longer than four words of eight bytes: é"] {
            for (escaped, text) in [
                (r#"a\n\u00e9\/é\\\"\b\f\r\t"#, "a\né/é\\\"\u{8}\u{c}\r\t"),
                (r"\ud83d\uDE00!", "😀!"),
                (r"\ud83d\ud83d\ude00\ude00", "\u{fffd}😀\u{fffd}"),
                (r"\ud83d\u0041\ud83d", "\u{fffd}A\u{fffd}"),
                (r"\ud83d\n\u0000", "\u{fffd}\n\0"),
            ] {
                let twice = format!("{before}{escaped}{before}{escaped}");
                assert_eq!(decoded(&twice), Ok(format!("{before}{text}{before}{text}")));
            }
            for bad in [r"\x", r"\u00g0", r"\u12", r"\ud83d\u12", r"\u+123", r"\ud83d\x", "a\nb", r"\na", "\0"] {
                let string = format!("{before}{bad}");
                let good = bad == r"\na";
                assert_eq!(decoded(&string).is_ok(), good, "{string}");
                assert!(decoded(&format!("{string}\u{1f}{before}")).is_err(), "{string}");
            }
        }
    }

    #[test]
    fn texts_of_every_length_are_decoded() {
        for len in [CHUNK - 9, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 1000 * CHUNK] {
            for piece in [r"\n", r"1234567\t", r"\u00e9", "x"] {
                let text = piece.repeat(len / piece.len());
                let plain = piece.replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\u00e9", "é");
                assert_eq!(decoded(&text), Ok(plain.repeat(len / piece.len())));
                let after = format!(r"\r{text}");
                assert_eq!(decoded(&after), Ok(format!("\r{}", plain.repeat(len / piece.len()))));
            }
        }
    }
}
