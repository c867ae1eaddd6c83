//! What ranks are expected to have in their prefix caches, from what the router itself knows (policy `kv`).
//!
//! A prompt is a chain of [`Mark`]s: keys of its prefixes, each with the tokens up to there. The [`Index`] remembers
//! which marks of which prompts went to which rank, and gives up what a cache of that size would have given up.

mod index;
mod sessions;
mod text;

use std::sync::Arc;

pub use index::{Expected, Held, Index, MAX_ENTRIES, MAX_RANK_ENTRIES, RankNumber};
pub use sessions::MAX_SESSIONS;
pub use text::{CHUNK_BYTES, ElementText, TextPlace};

/// Bytes of text that count as one token, where only bytes are known. Engines differ; what `finished` says corrects it
/// where it matters.
pub const BYTES_PER_TOKEN: u32 = 4;
/// Most marks of one prompt; what lies beyond is not expected anywhere.
pub const MAX_MARKS: usize = 8_192;

/// The end of a prefix of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Names the whole prefix up to here.
    pub key: u64,
    /// Its tokens.
    pub upto: u32,
}

/// A prompt, as far as placing it goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    /// Its marks, shortest prefix first; none where its text was not read.
    pub marks: Arc<[Mark]>,
    /// All its tokens, as far as is known.
    pub tokens: u32,
}

impl Prompt {
    /// A prompt of which only the size is known.
    pub fn of_bytes(bytes: usize) -> Self {
        Self { marks: Arc::default(), tokens: tokens(bytes) }
    }

    /// A prompt of these marks, in order; `tokens` is at least what the last mark says.
    pub fn new(mut marks: Vec<Mark>, tokens: u32) -> Self {
        marks.truncate(MAX_MARKS);
        let last = marks.last().map_or(0, |mark| mark.upto);
        Self { marks: marks.into(), tokens: tokens.max(last) }
    }
}

/// Tokens of so many bytes of text.
pub fn tokens(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_TOKEN as usize)).unwrap_or(u32::MAX)
}
