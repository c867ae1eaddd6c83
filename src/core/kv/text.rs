//! Marks of a prompt from its text: the keys of section 4 where elements end, and inside long texts one every so many
//! bytes, so that prompts which part in the middle of a long text are still known to share its beginning.

use xxhash_rust::xxh3::xxh3_64;

use super::{Mark, Prompt, tokens};
use crate::core::id::Model;
use crate::core::session::derived::{Element, link, start};

/// Bytes of text between two marks inside a text.
pub const CHUNK_BYTES: usize = 4096;

/// The counted texts of one element: how long they are, and what they are at each mark inside.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ElementText {
    /// Bytes of all texts.
    pub bytes: usize,
    /// Marks inside: bytes up to there, and a hash of the chunks before.
    pub chunks: Vec<(usize, u64)>,
}

/// A place in an [`ElementText`], to go back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextPlace {
    bytes: usize,
    chunks: usize,
}

impl ElementText {
    /// A text follows.
    pub fn push(&mut self, text: &[u8]) {
        let (chunks, _) = text.as_chunks::<CHUNK_BYTES>();
        for (place, chunk) in chunks.iter().enumerate() {
            let before = self.chunks.last().map_or(0, |(_, hash)| *hash);
            self.chunks.push((self.bytes + (place + 1) * CHUNK_BYTES, link(before, xxh3_64(chunk))));
        }
        self.bytes += text.len();
    }

    /// Where it ends now.
    pub fn place(&self) -> TextPlace {
        TextPlace { bytes: self.bytes, chunks: self.chunks.len() }
    }

    /// Forgets what came after a place.
    pub fn back_to(&mut self, place: TextPlace) {
        self.bytes = place.bytes;
        self.chunks.truncate(place.chunks);
    }
}

impl Prompt {
    /// The prompt of these elements, with the texts of each.
    pub fn of(model: &Model, elements: &[Element], texts: &[ElementText]) -> Self {
        let mut marks = Vec::with_capacity(elements.len());
        let (mut key, mut bytes) = (start(model), 0);
        for (element, text) in elements.iter().zip(texts) {
            // A mark inside is no key of section 4, whatever the texts are.
            let inside = |(upto, hash): &(usize, u64)| Mark { key: link(!key, *hash), upto: tokens(bytes + upto) };
            marks.extend(text.chunks.iter().map(inside));
            key = link(key, element.hash);
            bytes += text.bytes;
            marks.push(Mark { key, upto: tokens(bytes) });
        }
        Self::new(marks, tokens(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::session::derived::{Part, Prefixes, text_hash};

    fn prompt(texts: &[&str]) -> (Prompt, Vec<Element>) {
        let element = |text: &&str| Element { part: Part::Item, hash: text_hash(text.as_bytes()).expect("it counts") };
        let elements: Vec<Element> = texts.iter().map(element).collect();
        let of = |text: &&str| {
            let mut read = ElementText::default();
            read.push(text.as_bytes());
            read
        };
        let texts: Vec<ElementText> = texts.iter().map(of).collect();
        (Prompt::of(&Model::new("m").expect("valid"), &elements, &texts), elements)
    }

    #[test]
    fn elements_end_with_the_keys_of_the_session() {
        let (prompt, elements) = prompt(&["first", "second text"]);
        let prefixes = Prefixes::of(&Model::new("m").expect("valid"), &elements).expect("they count");
        assert!(prompt.marks.iter().map(|mark| mark.key).eq(prefixes.keys().iter().copied()));
        assert_eq!((prompt.marks[0].upto, prompt.tokens), (2, 4));
    }

    #[test]
    fn long_texts_share_marks_up_to_where_they_part() {
        let common = "c".repeat(3 * CHUNK_BYTES);
        let shared = |a: &str, b: &str| {
            let (a, b) = (prompt(&["system", a]).0, prompt(&["system", b]).0);
            a.marks.iter().filter(|mark| b.marks.contains(mark)).count()
        };
        assert_eq!(shared(&format!("{common}x"), &format!("{common}y")), 4, "the first element and three chunks");
        assert_eq!(shared(&format!("{common}x"), &format!("z{common}")), 1);
        assert_eq!(shared("a", "b"), 1);
        let (prompt, _) = prompt(&[&common]);
        assert!(prompt.marks.is_sorted_by_key(|mark| mark.upto));
    }

    #[test]
    fn what_is_taken_back_leaves_nothing() {
        let mut text = ElementText::default();
        text.push(b"begin");
        let (place, before) = (text.place(), text.clone());
        text.push(&[b'x'; 2 * CHUNK_BYTES]);
        assert_eq!(text.chunks.len(), 2);
        text.back_to(place);
        assert_eq!(text, before);
    }
}
