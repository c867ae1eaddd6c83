//! Strings of JSON: where they end, and what they say. All of it is safe code that compilers turn into vector
//! instructions: 32 bytes at a time where nothing special stands, 8 at a time to find what does.

use super::Flaw;

/// Bytes looked at together.
const BLOCK: usize = 32;

/// Bytes from the start of a string that stand for themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// How many, up to a quote, a backslash, a control character or the end.
    len: usize,
    /// Whether all of them are ASCII.
    ascii: bool,
}

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
    scratch: &'t mut Vec<u8>,
) -> Result<(Text<'t>, usize), Flaw> {
    let run = plain_run(&bytes[start..]);
    let mut at = start + run.len;
    let mut ascii = run.ascii;
    let escaped = bytes.get(at) == Some(&b'\\');
    if escaped {
        scratch.clear();
        let rest = if wanted {
            scratch.extend_from_slice(&bytes[start..at]);
            unescape(bytes, at, scratch)?
        } else {
            skim(bytes, at)?
        };
        at += rest.len;
        ascii &= rest.ascii;
    }
    match bytes.get(at) {
        Some(b'"') => {}
        Some(_) => return Err(Flaw::syntax("a control character in a string", at)),
        None => return Err(Flaw::syntax("the end inside a string", at)),
    }
    if !ascii {
        // Escapes are ASCII, so the raw bytes are UTF-8 where, and only where, the text is.
        check_utf8(&bytes[start..at], start)?;
    }
    let text = match (wanted, escaped) {
        (false, _) => Text::Unwanted,
        (true, false) => Text::Said(&bytes[start..at]),
        (true, true) => Text::Said(scratch),
    };
    Ok((text, at + 1))
}

/// Checks that bytes are UTF-8; `offset` is where they stand in the body.
pub(super) fn check_utf8(bytes: &[u8], offset: usize) -> Result<(), Flaw> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(Flaw::syntax("text that is not UTF-8", offset + error.valid_up_to())),
    }
}

/// Passes over the rest of a string, from an escape to what ends it.
fn skim(bytes: &[u8], start: usize) -> Result<Run, Flaw> {
    let mut at = start;
    let mut ascii = true;
    while bytes.get(at) == Some(&b'\\') {
        at = Escape::read(bytes, at)?.1;
        let run = plain_run(&bytes[at..]);
        at += run.len;
        ascii &= run.ascii;
    }
    Ok(Run { len: at - start, ascii })
}

/// Decodes the rest of a string, from an escape to what ends it.
fn unescape(bytes: &[u8], start: usize, decoded: &mut Vec<u8>) -> Result<Run, Flaw> {
    let mut at = start;
    let mut ascii = true;
    while bytes.get(at) == Some(&b'\\') {
        let (escape, behind) = Escape::read(bytes, at)?;
        at = behind;
        match escape {
            Escape::Byte(byte) => decoded.push(byte),
            Escape::Unit(unit) => at = push_unit(unit, bytes, at, decoded)?,
        }
        let run = plain_run(&bytes[at..]);
        decoded.extend_from_slice(&bytes[at..at + run.len]);
        at += run.len;
        ascii &= run.ascii;
    }
    Ok(Run { len: at - start, ascii })
}

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
        let byte = match bytes.get(at + 1) {
            Some(same @ (b'"' | b'\\' | b'/')) => *same,
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'b') => 0x08,
            Some(b'f') => 0x0c,
            Some(b'u') => {
                let unit = bytes.get(at + 2..at + 6).and_then(hex_unit);
                let unit = unit.ok_or(Flaw::syntax("\\u without four hex digits", at))?;
                return Ok((Self::Unit(unit), at + 6));
            }
            Some(_) => return Err(Flaw::syntax("an escape that JSON does not have", at)),
            None => return Err(Flaw::syntax("the end inside a string", at + 1)),
        };
        Ok((Self::Byte(byte), at + 2))
    }
}

fn hex_unit(digits: &[u8]) -> Option<u16> {
    digits.iter().try_fold(0, |unit: u16, digit| {
        let value = char::from(*digit).to_digit(16)?;
        Some(unit << 4 | u16::try_from(value).expect("a hex digit is below 16"))
    })
}

/// Decodes a code unit and, where it is the first half of a surrogate pair, the second; `at` is behind the unit. A lone
/// surrogate is U+FFFD (protocol section 4).
fn push_unit(unit: u16, bytes: &[u8], at: usize, decoded: &mut Vec<u8>) -> Result<usize, Flaw> {
    let (decoded_char, behind) = match (char::from_u32(u32::from(unit)), unit) {
        (Some(scalar), _) => (scalar, at),
        (None, 0xd800..=0xdbff) if bytes.get(at..at + 2) == Some(b"\\u") => {
            let (Escape::Unit(second), behind) = Escape::read(bytes, at)? else {
                return Err(Flaw::syntax("\\u without four hex digits", at));
            };
            match char::decode_utf16([unit, second]).next() {
                Some(Ok(scalar)) => (scalar, behind),
                // The second unit is read again, on its own.
                Some(Err(_)) | None => (char::REPLACEMENT_CHARACTER, at),
            }
        }
        (None, _) => (char::REPLACEMENT_CHARACTER, at),
    };
    decoded.extend_from_slice(decoded_char.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(behind)
}

fn is_special(byte: u8) -> bool {
    byte == b'"' || byte == b'\\' || byte < 0x20
}

/// Finds the first byte that doesn't stand for itself.
fn plain_run(bytes: &[u8]) -> Run {
    let mut seen = [0u8; BLOCK];
    let mut blocks = bytes.chunks_exact(BLOCK);
    let mut len = 0;
    for block in blocks.by_ref() {
        let special = block.iter().fold(0u8, |hit, byte| hit | u8::from(is_special(*byte)));
        if special != 0 {
            break;
        }
        for (all, byte) in seen.iter_mut().zip(block) {
            *all |= byte;
        }
        len += BLOCK;
    }
    let mut high = seen.iter().fold(0, |high, byte| high | byte);
    let tail = &bytes[len..];
    let mut words = tail.chunks_exact(8);
    for word in words.by_ref() {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        match specials(word) {
            0 => {
                high |= fold_high(word);
                len += 8;
            }
            marks => {
                let place = marks.trailing_zeros() / 8;
                let before = word & ((1u64 << (8 * place)) - 1);
                return Run { len: len + place as usize, ascii: (high | fold_high(before)) < 0x80 };
            }
        }
    }
    for byte in words.remainder() {
        if is_special(*byte) {
            break;
        }
        high |= byte;
        len += 1;
    }
    Run { len, ascii: high < 0x80 }
}

const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGHS: u64 = ONES << 7;

/// Sets the high bit of the first byte that is special; bytes behind it may be marked wrongly, since borrows go up.
fn specials(word: u64) -> u64 {
    let zero = |x: u64| x.wrapping_sub(ONES) & !x;
    let quote = zero(word ^ (ONES * u64::from(b'"')));
    let backslash = zero(word ^ (ONES * u64::from(b'\\')));
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (quote | backslash | control) & HIGHS
}

/// 0x80 where a byte of the word is not ASCII, else 0.
fn fold_high(word: u64) -> u8 {
    if word & HIGHS == 0 { 0 } else { 0x80 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_at_the_first_special_byte_wherever_it_stands() {
        for len in 0..100 {
            for end in [&b"\""[..], b"\\", b"\x1f", b"\0", b"\" \"\x00\\", b""] {
                let plain = vec![b'x'; len];
                let bytes = [&plain[..], end, &[0x80; 3][..end.len().min(3)]].concat();
                assert_eq!(plain_run(&bytes), Run { len, ascii: true }, "{len} {end:?}");
                for high in 0..len {
                    let mut bytes = bytes.clone();
                    bytes[high] = 0xff;
                    assert_eq!(plain_run(&bytes), Run { len, ascii: false }, "{len} {end:?} {high}");
                }
            }
        }
        for byte in 0..=255 {
            let len = usize::from(!is_special(byte));
            assert_eq!(plain_run(&[byte]).len, len);
            assert_eq!(plain_run(&[&[byte][..], &[b'"'; 40]].concat()).len, len);
        }
    }

    fn decoded(string: &str) -> Result<String, &'static str> {
        let bytes = format!("{string}\"");
        let mut scratch = Vec::new();
        let skimmed = read(bytes.as_bytes(), 0, false, &mut Vec::new()).map(|read| read.1);
        match read(bytes.as_bytes(), 0, true, &mut scratch) {
            Ok((Text::Said(text), end)) => {
                assert_eq!(skimmed, Ok(end));
                Ok(String::from_utf8(text.to_vec()).expect("UTF-8"))
            }
            Ok((Text::Unwanted, _)) => panic!("it was wanted"),
            Err(flaw) => {
                assert_eq!(skimmed, Err(flaw));
                match flaw.kind {
                    super::super::FlawKind::Syntax(problem) => Err(problem),
                    super::super::FlawKind::Twice(_) => panic!("no names here"),
                }
            }
        }
    }

    #[test]
    fn escapes_are_decoded() {
        assert_eq!(decoded(r"a\n\u00e9\/é").as_deref(), Ok("a\né/é"));
        assert_eq!(decoded(r"\ud83d\uDE00!").as_deref(), Ok("😀!"));
        assert_eq!(decoded(r"\ud83d\ud83d\ude00\ude00").as_deref(), Ok("\u{fffd}😀\u{fffd}"));
        assert_eq!(decoded(r"\ud83d\u0041\ud83d").as_deref(), Ok("\u{fffd}A\u{fffd}"));
        assert_eq!(decoded(r"\ud83d\n").as_deref(), Ok("\u{fffd}\n"));
        for bad in [r"\x", r"\u00g0", r"\u12", r"\ud83d\u12", r"\u+123", "a\nb", "a\u{0}"] {
            assert!(decoded(bad).is_err(), "{bad}");
        }
    }
}
