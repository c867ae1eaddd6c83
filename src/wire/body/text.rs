//! Strings of JSON: where they end, and what they say.
//!
//! A text without escapes is a slice of the body. One with escapes is decoded into a scratch buffer, words of eight bytes
//! at a time. A text that is not ASCII is checked to be UTF-8 while it is still in the cache.

use super::Flaw;
use super::run::{Run, SHORT_RUN_WORDS, is_ascii, plain_run, specials};

/// Room for decoded text made at least, in bytes.
const ROOM: usize = 4096;

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
    scratch: &'t mut Scratch,
) -> Result<(Text<'t>, usize), Flaw> {
    let mut run = plain_run(&bytes[start..]);
    let escaped = bytes.get(start + run.len) == Some(&b'\\');
    if escaped && wanted {
        scratch.begin(&bytes[start..start + run.len]);
        run = run.and(scratch.decode(bytes, start + run.len)?);
    } else if escaped {
        run = run.and(skim(bytes, start + run.len)?);
    }
    let at = start + run.len;
    match bytes.get(at) {
        Some(b'"') => {}
        Some(_) => return Err(Flaw::syntax("a control character in a string", at)),
        None => return Err(Flaw::syntax("the end inside a string", at)),
    }
    if !run.ascii {
        // Escapes are ASCII, so the text is UTF-8 where what is written is, and nowhere else.
        check_utf8(&bytes[start..at], start)?;
    }
    let text = match (wanted, escaped) {
        (false, _) => Text::Unwanted,
        (true, false) => Text::Said(&bytes[start..at]),
        (true, true) => Text::Said(scratch.decoded()),
    };
    Ok((text, at + 1))
}

/// Checks that bytes are UTF-8; `offset` is where they stand in the body.
pub(super) fn check_utf8(bytes: &[u8], offset: usize) -> Result<(), Flaw> {
    match simdutf8::compat::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(Flaw::syntax("text that is not UTF-8", offset + error.valid_up_to())),
    }
}

/// Passes over the rest of a string, from an escape to what ends it.
fn skim(bytes: &[u8], start: usize) -> Result<Run, Flaw> {
    let mut all = Run::default();
    while bytes.get(start + all.len) == Some(&b'\\') {
        all.len = Escape::read(bytes, start + all.len)?.1 - start;
        all = all.and(plain_run(&bytes[start + all.len..]));
    }
    Ok(all)
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

    fn begin(&mut self, plain: &[u8]) {
        self.filled = 0;
        self.push(plain);
    }

    /// Decodes the rest of a string, from an escape to what ends it.
    fn decode(&mut self, bytes: &[u8], start: usize) -> Result<Run, Flaw> {
        let mut all = Run::default();
        loop {
            all = all.and(self.decode_words(&bytes[start + all.len..]));
            let at = start + all.len;
            match bytes.get(at) {
                Some(b'\\') => {
                    let units = self.decode_units(&bytes[at..]);
                    let behind = if units > 0 { at + units } else { self.decode_escape(bytes, at)? };
                    all.len = behind - start;
                }
                Some(b'"' | ..=0x1f) | None => return Ok(all),
                Some(_) => {
                    let run = plain_run(&bytes[at..]);
                    self.push(&bytes[at..at + run.len]);
                    all = all.and(run);
                }
            }
        }
    }

    /// Copies words and decodes the escapes of two bytes among them, up to anything else. A whole word is copied
    /// before it is known how much of it counts: what is too much is written over.
    fn decode_words(&mut self, bytes: &[u8]) -> Run {
        self.make_room(ROOM);
        let mut input = bytes;
        let mut room = &mut self.buffer[self.filled..];
        let before = room.len();
        let mut plain_words = 0;
        let mut seen = 0;
        while let (Some(bytes), Some(slot)) = (input.first_chunk(), room.first_chunk_mut()) {
            *slot = *bytes;
            let word = u64::from_le_bytes(*bytes);
            seen |= word;
            let marks = specials(word);
            if marks == 0 {
                (input, room) = (&input[8..], &mut room[8..]);
                plain_words += 1;
                if plain_words == SHORT_RUN_WORDS {
                    break;
                }
                continue;
            }
            let place = (marks.trailing_zeros() / 8) as usize;
            let escaped = match input.get(place..) {
                Some([b'\\', escape, ..]) => SHORT_ESCAPES[usize::from(*escape)],
                Some(_) | None => 0,
            };
            if escaped == 0 {
                (input, room) = (&input[place..], &mut room[place..]);
                break;
            }
            room[place] = escaped;
            (input, room) = (&input[place + 2..], &mut room[place + 1..]);
            plain_words = 0;
        }
        self.filled += before - room.len();
        Run { len: bytes.len() - input.len(), ascii: is_ascii(seen) }
    }

    /// Decodes the code units, one after the other, that are characters by themselves; gives how many bytes they take.
    fn decode_units(&mut self, bytes: &[u8]) -> usize {
        self.make_room(ROOM);
        let mut input = bytes;
        let mut room = &mut self.buffer[self.filled..];
        let before = room.len();
        while let ([b'\\', b'u', digits @ ..], true) = (input, room.len() >= 4)
            && let Some(unit) = digits.first_chunk().and_then(hex_unit)
            && let Some(decoded) = char::from_u32(u32::from(unit))
        {
            let len = decoded.encode_utf8(room).len();
            (input, room) = (&input[6..], &mut room[len..]);
        }
        self.filled += before - room.len();
        bytes.len() - input.len()
    }

    fn decode_escape(&mut self, bytes: &[u8], at: usize) -> Result<usize, Flaw> {
        let (escape, behind) = Escape::read(bytes, at)?;
        match escape {
            Escape::Byte(byte) => {
                self.push(&[byte]);
                Ok(behind)
            }
            Escape::Unit(unit) => {
                let (decoded, behind) = Escape::scalar(unit, bytes, behind)?;
                self.push(decoded.encode_utf8(&mut [0; 4]).as_bytes());
                Ok(behind)
            }
        }
    }

    fn push(&mut self, text: &[u8]) {
        self.make_room(text.len());
        self.buffer[self.filled..self.filled + text.len()].copy_from_slice(text);
        self.filled += text.len();
    }

    fn make_room(&mut self, more: usize) {
        let needed = self.filled + more;
        if self.buffer.len() < needed {
            self.buffer.resize(needed.max(2 * self.buffer.len()), 0);
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

/// One escape sequence.
enum Escape {
    /// It stands for one ASCII character.
    Byte(u8),
    /// `\uXXXX`, a UTF-16 code unit.
    Unit(u16),
}

impl Escape {
    /// Reads the escape whose backslash stands at `at`; gives the place behind it.
    fn read(bytes: &[u8], at: usize) -> Result<(Self, usize), Flaw> {
        let Some(escape) = bytes.get(at + 1) else {
            return Err(Flaw::syntax("the end inside a string", at + 1));
        };
        if *escape == b'u' {
            let unit = bytes.get(at + 2..).and_then(|digits| hex_unit(digits.first_chunk()?));
            let unit = unit.ok_or(Flaw::syntax("\\u without four hex digits", at))?;
            return Ok((Self::Unit(unit), at + 6));
        }
        match SHORT_ESCAPES[usize::from(*escape)] {
            0 => Err(Flaw::syntax("an escape that JSON does not have", at)),
            byte => Ok((Self::Byte(byte), at + 2)),
        }
    }

    /// The character of a code unit and, where that is the first half of a surrogate pair, the second half, whose escape
    /// stands at `at`. Gives the place behind. A lone surrogate is U+FFFD (protocol section 4).
    fn scalar(unit: u16, bytes: &[u8], at: usize) -> Result<(char, usize), Flaw> {
        if let Some(scalar) = char::from_u32(u32::from(unit)) {
            return Ok((scalar, at));
        }
        if bytes.get(at..at + 2) == Some(b"\\u")
            && let (Self::Unit(second), behind) = Self::read(bytes, at)?
            && let Some(Ok(scalar)) = char::decode_utf16([unit, second]).next()
        {
            return Ok((scalar, behind));
        }
        // Another unit that follows is read again, on its own.
        Ok((char::REPLACEMENT_CHARACTER, at))
    }
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
        let skimmed = read(bytes.as_bytes(), 0, false, &mut unused).map(|read| read.1);
        match read(bytes.as_bytes(), 0, true, &mut scratch) {
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
    fn texts_longer_than_the_room_are_decoded() {
        for len in [ROOM - 9, ROOM - 1, ROOM, ROOM + 1, 3 * ROOM, 10 * ROOM] {
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
