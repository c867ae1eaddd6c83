//! The tokens of an answer: made-up words, or a text that a script says.

use super::cache::BYTES_PER_TOKEN;

/// Where tokens come from.
pub(super) enum Speech {
    /// Words that depend on the prompt alone, one token each.
    MadeUp {
        /// Hash of the prompt.
        seed: u64,
        /// How many there are.
        length: u64,
    },
    /// A text in pieces of a token each.
    Given(Vec<String>),
}

const TABLE: [&str; 16] = [
    "the ", "sun ", "and ", "sea ", "are ", "not ", "one ", "but ", "how ", "far ", "you ", "see ", "can ", "say ",
    "who ", "is, ",
];

impl Speech {
    /// Words made up for a prompt.
    pub(super) fn made_up(prompt: &str, length: u64) -> Self {
        Self::MadeUp { seed: xxhash_rust::xxh3::xxh3_64(prompt.as_bytes()), length }
    }

    /// A text.
    pub(super) fn given(text: &str) -> Self {
        let mut pieces: Vec<String> = Vec::new();
        for character in text.chars() {
            match pieces.last_mut() {
                Some(piece) if piece.len() + character.len_utf8() <= BYTES_PER_TOKEN => piece.push(character),
                Some(_) | None => pieces.push(character.to_string()),
            }
        }
        Self::Given(pieces)
    }

    /// How many tokens there are.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::MadeUp { length, .. } => *length,
            Self::Given(pieces) => pieces.len() as u64,
        }
    }

    /// One of them.
    #[expect(clippy::cast_possible_truncation, reason = "the remainder is below the length of the table")]
    pub(super) fn at(&self, token: u64) -> &str {
        match self {
            Self::MadeUp { seed, .. } => {
                let draw = xxhash_rust::xxh3::xxh3_64_with_seed(&token.to_le_bytes(), *seed);
                TABLE[(draw % TABLE.len() as u64) as usize]
            }
            Self::Given(pieces) => usize::try_from(token).ok().and_then(|at| pieces.get(at)).map_or("", String::as_str),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_token() {
        assert!(TABLE.iter().all(|word| word.len() == BYTES_PER_TOKEN));
        let (a, b) = (Speech::made_up("a", 64), Speech::made_up("b", 64));
        assert!((0..64).any(|i| a.at(i) != b.at(i)));
    }

    #[test]
    fn a_text_is_said_as_it_is() {
        for text in ["", "All done: ä€𝄞.", "x"] {
            let speech = Speech::given(text);
            assert_eq!((0..speech.len()).map(|at| speech.at(at)).collect::<String>(), text);
        }
    }
}
