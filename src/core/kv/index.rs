//! The index: which rank is expected to hold which prefixes.
//!
//! Each rank has a list of its marks by last use, bounded by what its cache holds. A prompt's marks are used from its
//! end to its beginning, so that a mark is never given up before those behind it: of the ranks that hold a mark, all
//! hold what lies before it. A look-up therefore goes from the end of a prompt to its beginning, and is over with a mark
//! as soon as everybody who holds it was seen.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroU32;

use super::sessions::Sessions;
use super::{Mark, Prompt};

/// Most entries of all ranks together, of some 60 bytes each. Beyond, a rank that learns gives up its own oldest.
pub const MAX_ENTRIES: usize = 1 << 22;
/// Most entries of one rank, whatever it says of its cache.
pub const MAX_RANK_ENTRIES: usize = 1 << 18;
/// No entry.
const NONE: u32 = u32::MAX;

/// A rank's place in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RankNumber(NonZeroU32);

impl RankNumber {
    fn new(number: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(number))
    }

    #[inline]
    pub(super) fn number(self) -> u32 {
        self.0.get() - 1
    }
}

/// What was expected of a dispatch, to be compared with what its worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// How many of them the rank was expected to hold.
    pub held: u32,
    /// When what it held was last used there, by the rank's own clock.
    pub used_at: u32,
}

/// What each rank is expected to hold of one prompt, in tokens.
#[derive(Debug)]
pub struct Held(Vec<u32>);

impl Held {
    /// Of this rank.
    #[inline]
    pub fn at(&self, rank: RankNumber) -> u32 {
        self.0.get(rank.number() as usize).copied().unwrap_or(0)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Index {
    by_key: HashMap<u64, Holders, Keys>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    ranks: Vec<Cache>,
    free_ranks: Vec<u32>,
    pub(super) sessions: Sessions,
}

/// Who holds a mark, with the entry that says so, sorted.
type Holders = Vec<(u32, u32)>;

/// One mark at one rank.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: u64,
    /// The mark before it; 0 where it is the first.
    before: u64,
    /// Tokens between that and this.
    tokens: u32,
    rank: u32,
    newer: u32,
    older: u32,
    used_at: u32,
}

/// What one rank holds.
#[derive(Debug)]
struct Cache {
    newest: u32,
    oldest: u32,
    entries: usize,
    tokens: u64,
    capacity: u64,
    clock: u32,
}

impl Index {
    /// Makes room for a rank whose cache holds so many tokens.
    pub fn add(&mut self, capacity: Option<u64>) -> RankNumber {
        let capacity = capacity.unwrap_or(u64::MAX);
        let cache = Cache { newest: NONE, oldest: NONE, entries: 0, tokens: 0, capacity, clock: 0 };
        match self.free_ranks.pop() {
            Some(number) => {
                self.ranks[number as usize] = cache;
                RankNumber::new(number)
            }
            None => {
                self.ranks.push(cache);
                RankNumber::new(u32::try_from(self.ranks.len() - 1).expect("there are at most MAX_WORKERS × MAX_RANKS"))
            }
        }
    }

    /// The rank is gone, with all that was known of it.
    pub fn remove(&mut self, rank: RankNumber) {
        self.clear(rank);
        self.free_ranks.push(rank.number());
    }

    /// Nothing is expected of the rank any more.
    pub fn clear(&mut self, rank: RankNumber) {
        while self.forget_oldest(rank.number()) {}
        self.sessions.clear(rank.number());
    }

    /// Entries of all ranks.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether nothing is expected of anybody.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens that a rank is expected to hold in all.
    pub fn tokens_at(&self, rank: RankNumber) -> u64 {
        self.ranks[rank.number() as usize].tokens
    }

    /// What every rank is expected to hold of a prompt. `session`: its hash, for ranks of which only events are known.
    pub fn expected(&self, prompt: &Prompt, session: Option<u64>) -> Held {
        let mut held = vec![0; self.ranks.len()];
        let mut seen = 0;
        for mark in prompt.marks.iter().rev() {
            let Some(holders) = self.by_key.get(&mark.key) else { continue };
            if holders.len() <= seen {
                continue;
            }
            for &(rank, _) in holders {
                let at = &mut held[rank as usize];
                seen += usize::from(*at == 0);
                *at = (*at).max(mark.upto);
            }
        }
        for &(rank, tokens) in session.map_or(&[][..], |session| self.sessions.of(session)) {
            let at = &mut held[rank as usize];
            *at = (*at).max(tokens.min(prompt.tokens));
        }
        Held(held)
    }

    /// The prompt goes to a rank, which will hold it. What was expected of that before, and how many of its marks the
    /// rank is known to have had.
    pub fn learn(&mut self, rank: RankNumber, prompt: &Prompt) -> (Expected, usize) {
        let known = prompt.marks.iter().rposition(|mark| self.find(rank.number(), mark.key).is_some());
        let (held, used_at) = known.map_or((0, 0), |place| {
            let mark = prompt.marks[place];
            let entry = self.find(rank.number(), mark.key).expect("it was just found");
            (mark.upto, self.entries[entry as usize].used_at)
        });
        self.take(rank, None, &prompt.marks);
        self.shrink(rank.number());
        (Expected { tokens: prompt.tokens, held, used_at }, known.map_or(0, |place| place + 1))
    }

    /// Another router has sent a rank a prompt: the part behind a mark that it knew the rank to have, where there is one.
    pub fn learn_tail(&mut self, rank: RankNumber, behind: Option<Mark>, tail: &[Mark]) {
        self.take(rank, behind, tail);
        let mut next = behind.map_or(0, |mark| mark.key);
        for _ in 0..super::MAX_MARKS {
            let Some(entry) = self.find(rank.number(), next) else { break };
            self.use_again(rank.number(), entry);
            next = self.entries[entry as usize].before;
        }
        self.shrink(rank.number());
    }

    /// A worker says that less of a prompt was cached than was expected: what had not been used since that was last
    /// used there must be gone too.
    pub fn correct(&mut self, rank: RankNumber, used_at: u32) {
        loop {
            let oldest = self.ranks[rank.number() as usize].oldest;
            if oldest == NONE || self.entries[oldest as usize].used_at > used_at {
                return;
            }
            self.forget_oldest(rank.number());
        }
    }

    /// Gives up tokens from the end of the prompt that ends with this mark: with which it ends then, and what of the
    /// tokens is less than the part before that.
    pub(super) fn trim(&mut self, rank: u32, mut last: u64, mut tokens: u32) -> (u64, u32) {
        while let Some(entry) = self.find(rank, last) {
            let Entry { before, tokens: own, .. } = self.entries[entry as usize];
            if own > tokens {
                break;
            }
            tokens -= own;
            self.forget(entry);
            last = before;
        }
        (last, tokens)
    }

    fn take(&mut self, rank: RankNumber, behind: Option<Mark>, marks: &[Mark]) {
        let cache = &mut self.ranks[rank.number() as usize];
        cache.clock = cache.clock.saturating_add(1);
        let capacity = cache.capacity;
        // Of a prompt larger than the cache its beginning is kept.
        let fits = marks.partition_point(|mark| u64::from(mark.upto) <= capacity);
        for place in (0..fits).rev() {
            let before = place.checked_sub(1).map_or(behind, |before| Some(marks[before]));
            let (before, from) = before.map_or((0, 0), |mark| (mark.key, mark.upto));
            let mark = marks[place];
            match self.find(rank.number(), mark.key) {
                Some(entry) => self.use_again(rank.number(), entry),
                None => self.insert(rank.number(), mark.key, before, mark.upto.saturating_sub(from)),
            }
        }
    }

    fn shrink(&mut self, rank: u32) {
        while self.ranks[rank as usize].tokens > self.ranks[rank as usize].capacity && self.forget_oldest(rank) {}
    }

    fn find(&self, rank: u32, key: u64) -> Option<u32> {
        let holders = self.by_key.get(&key)?;
        let at = holders.binary_search_by_key(&rank, |(rank, _)| *rank).ok()?;
        Some(holders[at].1)
    }

    fn insert(&mut self, rank: u32, key: u64, before: u64, tokens: u32) {
        let full = self.len() >= MAX_ENTRIES || self.ranks[rank as usize].entries >= MAX_RANK_ENTRIES;
        if full && !self.forget_oldest(rank) {
            return;
        }
        let cache = &mut self.ranks[rank as usize];
        cache.tokens += u64::from(tokens);
        cache.entries += 1;
        let entry = Entry { key, before, tokens, rank, newer: NONE, older: NONE, used_at: cache.clock };
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = entry;
                number
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("there are at most MAX_ENTRIES")
            }
        };
        let holders = self.by_key.entry(key).or_default();
        let at = holders.partition_point(|(other, _)| *other < rank);
        holders.insert(at, (rank, number));
        self.link(rank, number);
    }

    fn use_again(&mut self, rank: u32, entry: u32) {
        self.unlink(rank, entry);
        self.entries[entry as usize].used_at = self.ranks[rank as usize].clock;
        self.link(rank, entry);
    }

    fn forget_oldest(&mut self, rank: u32) -> bool {
        match self.ranks[rank as usize].oldest {
            NONE => false,
            oldest => {
                self.forget(oldest);
                true
            }
        }
    }

    fn forget(&mut self, number: u32) {
        let Entry { key, tokens, rank, .. } = self.entries[number as usize];
        self.unlink(rank, number);
        let cache = &mut self.ranks[rank as usize];
        cache.tokens -= u64::from(tokens);
        cache.entries -= 1;
        if let Some(holders) = self.by_key.get_mut(&key) {
            holders.retain(|(_, other)| *other != number);
            if holders.is_empty() {
                self.by_key.remove(&key);
            }
        }
        self.free.push(number);
    }

    fn link(&mut self, rank: u32, entry: u32) {
        let cache = &mut self.ranks[rank as usize];
        let newest = std::mem::replace(&mut cache.newest, entry);
        if newest == NONE {
            cache.oldest = entry;
        } else {
            self.entries[newest as usize].newer = entry;
        }
        let this = &mut self.entries[entry as usize];
        (this.newer, this.older) = (NONE, newest);
    }

    fn unlink(&mut self, rank: u32, entry: u32) {
        let Entry { newer, older, .. } = self.entries[entry as usize];
        let cache = &mut self.ranks[rank as usize];
        if newer == NONE {
            cache.newest = older;
        }
        if older == NONE {
            cache.oldest = newer;
        }
        if newer != NONE {
            self.entries[newer as usize].older = older;
        }
        if older != NONE {
            self.entries[older as usize].newer = newer;
        }
    }
}

/// Hashes keys, which are hashes already, with a number that nobody outside knows: clients choose the texts behind them.
#[derive(Debug, Clone)]
struct Keys(u64);

impl Default for Keys {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Keys {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0)
    }
}

/// See [`Keys`].
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let mixed = u128::from(self.0 ^ key) * 0x9e37_79b9_7f4a_7c15;
        let bytes = mixed.to_le_bytes();
        let half = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().expect("eight bytes"));
        self.0 = half(0) ^ half(8);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;
