//! Where the text of a string stops standing for itself. Most bytes of a body are passed here: short runs eight at a time
//! in a register, long ones by vector searches.

use memchr::memchr2;

/// Words of eight bytes looked at one by one before a vector search, which takes a while to set up.
pub(super) const SHORT_RUN_WORDS: usize = 4;

/// Bytes of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) len: usize,
    /// False where one of them may not be ASCII.
    pub(super) ascii: bool,
}

impl Run {
    /// This and what follows it.
    pub(super) fn and(self, next: Self) -> Self {
        Self { len: self.len + next.len, ascii: self.ascii && next.ascii }
    }
}

impl Default for Run {
    fn default() -> Self {
        Self { len: 0, ascii: true }
    }
}

/// The bytes from the start that stand for themselves: up to a quote, a backslash, a control character or the end.
pub(super) fn plain_run(bytes: &[u8]) -> Run {
    let (words, _) = bytes.as_chunks();
    let words = &words[..words.len().min(SHORT_RUN_WORDS)];
    let mut seen = 0;
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        seen |= word;
        let marks = specials(word);
        if marks != 0 {
            return Run { len: 8 * index + (marks.trailing_zeros() / 8) as usize, ascii: is_ascii(seen) };
        }
    }
    let rest = &bytes[8 * words.len()..];
    let found = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
    Run { len: 8 * words.len(), ascii: is_ascii(seen) }.and(up_to_control(&rest[..found]))
}

fn up_to_control(bytes: &[u8]) -> Run {
    // The lowest byte is found by vectors, its place is not.
    let lowest = bytes.iter().fold(u8::MAX, |lowest, byte| lowest.min(*byte));
    let control = if lowest < 0x20 { bytes.iter().position(|byte| *byte < 0x20) } else { None };
    Run { len: control.unwrap_or(bytes.len()), ascii: bytes.is_ascii() }
}

pub(super) fn is_ascii(word: u64) -> bool {
    word & (ONES << 7) == 0
}

const ONES: u64 = u64::from_le_bytes([1; 8]);

/// Sets the high bit of the first byte that is a quote, a backslash or a control character; those behind it may be
/// marked wrongly, since borrows go up.
pub(super) fn specials(word: u64) -> u64 {
    let zero = |x: u64| x.wrapping_sub(ONES) & !x;
    let quote = zero(word ^ (ONES * b'"' as u64));
    let backslash = zero(word ^ (ONES * b'\\' as u64));
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (quote | backslash | control) & (ONES << 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_at_the_first_special_byte_wherever_it_stands() {
        for len in 0..100 {
            for end in [&b"\""[..], b"\\", b"\x1f", b"\0", b"\" \"\x00\\", b"\n\"\\"] {
                for plain in [b'x', b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xa2, 0xdc, 0xff] {
                    let bytes = [&vec![plain; len][..], end, &[plain; 40]].concat();
                    assert_eq!(plain_run(&bytes).len, len, "{plain:02x} {end:02x?}");
                    assert_eq!(plain_run(&bytes[..len]), Run { len, ascii: len == 0 || plain < 0x80 });
                }
            }
        }
        for byte in 0..=255 {
            let special = matches!(byte, b'"' | b'\\' | ..0x20);
            for len in [1, 8, 40, 100] {
                assert_eq!(plain_run(&vec![byte; len]).len, if special { 0 } else { len }, "{byte:02x}");
            }
        }
    }
}
