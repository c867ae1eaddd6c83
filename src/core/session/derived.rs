//! Sessions derived from the conversation's own text (protocol section 4): one key per input prefix, so that a turn
//! finds the session of the turn that it continues, whatever its client calls itself.

use xxhash_rust::xxh3::xxh3_64;

use crate::core::id::{Model, SessionId};

/// Tag at the start of every chain; a change to the rules of section 4 changes it.
const TAG: &[u8] = b"rankpin/px/1";
/// What a text starts with that changes with every request of Claude Code, and so doesn't count.
const BILLING_HEADER: &[u8] = b"x-anthropic-billing-header:";

/// Which place in the conversation an element has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The Anthropic `system`: part of the chain, without a key of its own.
    System,
    /// An item of `messages` or `input`.
    Item,
    /// An item that the model wrote: its role is `assistant`, or it has none and is a call.
    AssistantItem,
}

/// One counted element of a request: what enters the chain of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    /// Its place.
    pub part: Part,
    /// Wrapping sum of [`text_hash`] over its counted texts.
    pub hash: u64,
}

/// Hash of one counted text, or `None` for a text that never counts (the billing header).
pub fn text_hash(text: &[u8]) -> Option<u64> {
    if text.starts_with(BILLING_HEADER) { None } else { Some(xxh3_64(text)) }
}

/// The keys of a request's input prefixes, in order, the last being its full input. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefixes {
    keys: Vec<u64>,
    /// Indices of the keys that end with an assistant item, in order.
    assistants: Vec<usize>,
}

impl Prefixes {
    /// Folds the elements into keys: `k0 = xxh3_64(tag 0x00 model)`, `k_i = xxh3_64(le64(k_{i-1}) le64(hash))`.
    /// `None` where no item counts.
    pub fn of(model: &Model, elements: &[Element]) -> Option<Self> {
        let mut key = start(model);
        let mut keys = Vec::with_capacity(elements.len());
        let mut assistants = Vec::new();
        for element in elements {
            key = link(key, element.hash);
            match element.part {
                Part::System => continue,
                Part::Item => {}
                Part::AssistantItem => assistants.push(keys.len()),
            }
            keys.push(key);
        }
        Self::from_parts(keys, assistants)
    }

    /// Takes keys that somebody else computed (`Rankpin-Prefix-Keys`, protocol section 3). `None` where there is no
    /// key, or where the assistant items' indices don't ascend or name no key.
    pub fn from_parts(keys: Vec<u64>, assistants: Vec<usize>) -> Option<Self> {
        let ascending = assistants.windows(2).all(|pair| pair[0] < pair[1]);
        let within = assistants.last().is_none_or(|last| *last < keys.len());
        (!keys.is_empty() && ascending && within).then_some(Self { keys, assistants })
    }

    /// All keys, shortest prefix first.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Indices of the keys that end with an assistant item, in order.
    pub fn assistants(&self) -> &[usize] {
        &self.assistants
    }

    /// The key of the full input.
    pub fn full(&self) -> u64 {
        *self.keys.last().expect("prefixes are never empty")
    }

    /// The keys of the strict prefixes, shortest first: all that a request looks up, deepest first.
    pub fn strict(&self) -> &[u64] {
        &self.keys[..self.keys.len() - 1]
    }

    /// Whether the input holds an assistant item that counts.
    pub fn has_assistant(&self) -> bool {
        !self.assistants.is_empty()
    }

    /// Whether the prefix of the key at `index` holds an assistant item.
    pub fn covers_assistant(&self, index: usize) -> bool {
        self.assistants.first().is_some_and(|first| *first <= index)
    }

    /// The strict prefix that ends with the last assistant item, if any: what a request with an assistant item pins.
    pub fn last_assistant(&self) -> Option<u64> {
        let last = self.keys.len() - 1;
        self.assistants.iter().rev().find(|index| **index < last).map(|index| self.keys[*index])
    }

    /// The prefix that a conversation's every turn begins with: what stands before the first thing that the model said,
    /// or all of a first turn.
    pub fn opening(&self) -> u64 {
        if !self.has_assistant() {
            return self.full();
        }
        self.keys[self.before_first_assistant().unwrap_or(0)]
    }

    /// Index of the prefix before the first assistant item, if any: what is asked of the bucket where the mirror knows
    /// nothing.
    pub fn before_first_assistant(&self) -> Option<usize> {
        self.assistants.first()?.checked_sub(1)
    }
}

/// The beginning of every chain of a model.
pub(in crate::core) fn start(model: &Model) -> u64 {
    xxh3_64(&[TAG, &[0], model.as_str().as_bytes()].concat())
}

/// The next key of a chain.
pub(in crate::core) fn link(previous: u64, element: u64) -> u64 {
    let mut joined = [0; 16];
    joined[..8].copy_from_slice(&previous.to_le_bytes());
    joined[8..].copy_from_slice(&element.to_le_bytes());
    xxh3_64(&joined)
}

impl SessionId {
    /// The id of the session of a prefix key: U+0001 `px:` and 16 lower-case hex digits. No client can name it,
    /// since named ids hold no control characters.
    pub fn derived(key: u64) -> Self {
        Self::unchecked(&format!("\u{1}px:{key:016x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(parts: &[Part]) -> Vec<Element> {
        parts.iter().map(|part| Element { part: *part, hash: 7 }).collect()
    }

    fn prefixes(parts: &[Part]) -> Prefixes {
        Prefixes::of(&Model::new("m").expect("valid"), &elements(parts)).expect("an item counts")
    }

    #[test]
    fn a_system_alone_gives_no_session() {
        let model = Model::new("m").expect("valid");
        assert_eq!(Prefixes::of(&model, &elements(&[Part::System])), None);
        assert_eq!(Prefixes::of(&model, &[]), None);
    }

    #[test]
    fn the_assistant_prefix_is_always_strict() {
        use Part::{AssistantItem as A, Item as I, System as S};
        let keys = |parts: &[Part]| prefixes(parts).keys().to_vec();
        assert_eq!(prefixes(&[I, A]).last_assistant(), None);
        assert_eq!(prefixes(&[A, A]).last_assistant(), Some(keys(&[A, A])[0]));
        assert_eq!(prefixes(&[S, I, A, I, I]).last_assistant(), Some(keys(&[S, I, A, I, I])[1]));
        assert_eq!(prefixes(&[I, A, I, A]).last_assistant(), Some(keys(&[I, A, I, A])[1]));
        assert_eq!(prefixes(&[I, A, I]).before_first_assistant(), Some(0));
        assert_eq!(prefixes(&[S, A, I]).before_first_assistant(), None);
        let (first, later) = (prefixes(&[S, I, I]), prefixes(&[S, I, I, A, I, A]));
        assert_eq!([first.opening(), later.opening()], [first.full(); 2], "every turn of a conversation has the same");
        assert_eq!([prefixes(&[A]).opening(), prefixes(&[A, I, A]).opening()], [keys(&[A])[0]; 2]);
        let mixed = prefixes(&[I, A, I]);
        assert_eq!([0, 1, 2].map(|i| mixed.covers_assistant(i)), [false, true, true]);
        assert_eq!(mixed.strict(), &mixed.keys()[..2]);
    }

    #[test]
    fn foreign_parts_are_checked() {
        assert!(Prefixes::from_parts(vec![], vec![]).is_none());
        assert!(Prefixes::from_parts(vec![1, 2], vec![2]).is_none());
        assert!(Prefixes::from_parts(vec![1, 2], vec![1, 0]).is_none());
        assert!(Prefixes::from_parts(vec![1, 2], vec![0, 0]).is_none());
        assert!(Prefixes::from_parts(vec![1, 2], vec![0, 1]).is_some());
    }

    #[test]
    fn derived_ids_are_ids_that_no_client_can_name() {
        let id = SessionId::derived(0xc33c);
        assert_eq!(id.as_str(), "\u{1}px:000000000000c33c");
        assert!(SessionId::named(id.as_str()).is_err());
    }
}
