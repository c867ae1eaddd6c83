//! Where the text of a string stops standing for itself: at quotes, backslashes and control characters. Most bytes of a
//! body are passed here, 64 at a time.

use wide::u8x16;

/// Bytes looked at together.
const BLOCK: usize = 64;

/// A bit for each byte of one block that marks something. Places are asked for in ascending order, so that no block is
/// looked at twice.
#[derive(Debug)]
pub(super) struct Marks {
    block: usize,
    bits: u64,
}

impl Marks {
    /// Nothing was looked at.
    pub(super) fn new() -> Self {
        Self { block: usize::MAX, bits: 0 }
    }

    /// The first quote, backslash or control character from `from` on, or the end.
    pub(super) fn next(&mut self, bytes: &[u8], from: usize) -> usize {
        let mut block = from / BLOCK;
        if block != self.block {
            self.look(bytes, block);
        }
        let mut bits = self.bits & (u64::MAX << (from % BLOCK));
        while bits == 0 {
            block += 1;
            if block * BLOCK >= bytes.len() {
                return bytes.len();
            }
            self.look(bytes, block);
            bits = self.bits;
        }
        block * BLOCK + bits.trailing_zeros() as usize
    }

    fn look(&mut self, bytes: &[u8], block: usize) {
        let rest = bytes.get(block * BLOCK..).unwrap_or_default();
        self.block = block;
        self.bits = match rest.first_chunk() {
            Some(block) => marked(block),
            None => {
                let mut padded = [b' '; BLOCK];
                padded[..rest.len()].copy_from_slice(rest);
                marked(&padded)
            }
        };
    }
}

/// The bytes that mark something, the first one in the lowest bit. Sixteen bytes are compared at a time, with the
/// processor's vectors.
fn marked(block: &[u8; BLOCK]) -> u64 {
    const QUOTE: u8x16 = u8x16::new([b'"'; 16]);
    const BACKSLASH: u8x16 = u8x16::new([b'\\'; 16]);
    const LAST_CONTROL: u8x16 = u8x16::new([0x1f; 16]);
    let (lanes, _) = block.as_chunks();
    let hits = |lane: &[u8; 16]| {
        let bytes = u8x16::new(*lane);
        let control = bytes.min(LAST_CONTROL).simd_eq(bytes);
        (bytes.simd_eq(QUOTE) | bytes.simd_eq(BACKSLASH) | control).to_bitmask()
    };
    lanes.iter().enumerate().fold(0, |all, (index, lane)| all | u64::from(hits(lane)) << (16 * index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(bytes: &[u8], from: usize) -> usize {
        let mark = |byte: &u8| matches!(byte, b'"' | b'\\' | ..0x20);
        bytes.iter().skip(from).position(mark).map_or(bytes.len(), |place| from + place)
    }

    #[test]
    fn the_first_mark_is_found_wherever_it_stands() {
        for len in (0..10).chain(60..70).chain(125..132).chain([500]) {
            for end in [&b"\""[..], b"\\", b"\x1f", b"\0", b"\" \"\x00\\", b""] {
                for plain in [b'x', b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xa2, 0xdc, 0xff] {
                    let bytes = [&vec![plain; len][..], end, &[plain; 70], end].concat();
                    let mut marks = Marks::new();
                    for from in 0..=bytes.len() {
                        assert_eq!(marks.next(&bytes, from), expected(&bytes, from), "{plain:02x} {end:02x?} {from}");
                        assert_eq!(Marks::new().next(&bytes, from), expected(&bytes, from));
                    }
                }
            }
        }
    }

    #[test]
    fn every_byte_is_judged_alike_at_every_place() {
        for byte in 0..=255 {
            let marks = matches!(byte, b'"' | b'\\' | ..0x20);
            assert_eq!(marked(&[byte; BLOCK]), if marks { u64::MAX } else { 0 }, "{byte:02x}");
            for place in 0..BLOCK {
                let mut block = [b'x'; BLOCK];
                block[place] = byte;
                assert_eq!(marked(&block), u64::from(marks) << place);
            }
        }
    }
}
