//! The prefix cache of one rank: blocks of prompt text, found by everything up to their end, least recently used
//! given up first.

use std::collections::{BTreeMap, HashMap};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of text that count as one token.
pub(super) const BYTES_PER_TOKEN: usize = 4;

/// Identity of a block: the hash of the whole text up to its end.
pub(super) type BlockId = u64;

/// Tokens of a text.
pub(super) fn tokens(text: &str) -> u64 {
    text.len().div_ceil(BYTES_PER_TOKEN) as u64
}

/// The full blocks of a text; a rest that fills no block is none. Texts of different models share nothing.
pub(super) fn blocks(model: &str, text: &str, block_tokens: u32) -> Vec<BlockId> {
    let size = block_tokens as usize * BYTES_PER_TOKEN;
    let start = xxh3_64_with_seed(model.as_bytes(), 0);
    let chained = text.as_bytes().chunks_exact(size).scan(start, |before, block| {
        *before = xxh3_64_with_seed(block, *before);
        Some(*before)
    });
    chained.collect()
}

/// Blocks held, up to a bound.
#[derive(Debug)]
pub(super) struct PrefixCache {
    capacity: usize,
    last_use: HashMap<BlockId, u64>,
    by_use: BTreeMap<u64, BlockId>,
    clock: u64,
}

impl PrefixCache {
    /// A cache of so many blocks.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, last_use: HashMap::new(), by_use: BTreeMap::new(), clock: 0 }
    }

    /// How many blocks it holds.
    pub(super) fn used(&self) -> usize {
        self.last_use.len()
    }

    /// How many leading blocks of a text it holds. They count as used now.
    pub(super) fn hit(&mut self, blocks: &[BlockId]) -> usize {
        let run = blocks.iter().take_while(|block| self.last_use.contains_key(block)).count();
        self.touch(&blocks[..run]);
        run
    }

    /// Takes the blocks of a text in. Of a text larger than the cache its beginning is kept.
    pub(super) fn insert(&mut self, blocks: &[BlockId]) {
        self.touch(&blocks[..blocks.len().min(self.capacity)]);
        while self.last_use.len() > self.capacity {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.last_use.remove(&oldest);
        }
    }

    /// Marks blocks as used, the first one last: a text is given up from its end, since a block without those
    /// before it can't be hit.
    fn touch(&mut self, blocks: &[BlockId]) {
        for block in blocks.iter().rev() {
            self.clock += 1;
            if let Some(before) = self.last_use.insert(*block, self.clock) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.clock, *block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_its_whole_prefix() {
        let a = blocks("m", "aaaabbbbcccc", 1);
        let b = blocks("m", "xxxxbbbbcccc", 1);
        assert_eq!(a.len(), 3);
        assert!(a.iter().all(|block| !b.contains(block)));
        assert_eq!(blocks("m", "aaaabbbb", 1), a[..2]);
        assert_eq!(blocks("m", "aaaabbbbccc", 1), a[..2], "the rest is no block");
        assert_ne!(blocks("n", "aaaa", 1), a[..1]);
        assert_eq!((tokens(""), tokens("a"), tokens("aaaa"), tokens("aaaaa")), (0, 1, 1, 2));
    }

    #[test]
    fn hits_are_the_longest_leading_run() {
        let mut cache = PrefixCache::new(8);
        cache.insert(&[1, 2, 3]);
        assert_eq!(cache.hit(&[1, 2, 4, 3]), 2);
        assert_eq!(cache.hit(&[2, 3]), 2);
        assert_eq!(cache.hit(&[9, 1]), 0);
    }

    #[test]
    fn the_least_recently_used_goes_from_its_end() {
        let mut cache = PrefixCache::new(4);
        cache.insert(&[1, 2, 3]);
        cache.insert(&[11, 12]);
        assert_eq!(cache.used(), 4);
        assert_eq!(cache.hit(&[1, 2, 3]), 2, "3 went first");
        cache.insert(&[21, 22]);
        assert_eq!(cache.hit(&[11, 12]), 0, "1 and 2 were used later");
        assert_eq!(cache.hit(&[1, 2]), 2);
    }

    #[test]
    fn a_text_larger_than_the_cache_keeps_its_beginning() {
        let mut cache = PrefixCache::new(2);
        cache.insert(&[1, 2, 3, 4]);
        assert_eq!(cache.hit(&[1, 2, 3, 4]), 2);
        assert_eq!((cache.used(), cache.by_use.len()), (2, 2));
    }
}
