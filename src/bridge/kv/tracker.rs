//! Whose blocks a rank's cache holds.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::super::carry;
use crate::wire::kv::{KvEvent, SessionBlocks};

/// Blocks that are kept in mind for one rank; beyond, all is forgotten and learnt anew.
const MAX_BLOCKS: usize = 1 << 20;
/// Sessions that are kept in mind for one block: those that share more than their opening are few.
const MAX_SHARERS: usize = 16;
/// Longest session label that is read, in bytes: a session's id with each byte encoded.
const MAX_LABEL_BYTES: usize = 3 * crate::core::id::MAX_SESSION_BYTES;

/// Blocks of one rank, with the sessions that have used them.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    blocks: HashMap<u64, Vec<Arc<str>>>,
    /// Each session once, with the blocks that it has.
    sessions: HashMap<Arc<str>, u32>,
}

/// One message: `[time, [event, …], rank]`.
#[derive(Debug)]
pub(super) struct Batch(Vec<Event>);

#[derive(Debug, Default, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    block_hashes: Vec<BlockHash>,
    #[serde(default)]
    medium: Option<String>,
    #[serde(default)]
    group_idx: Option<u32>,
    #[serde(default)]
    session_id: Option<String>,
}

/// A block's hash, of whatever length the engine makes it.
#[derive(Debug, Clone, Copy)]
struct BlockHash(u64);

impl Tracker {
    /// Takes the events of a message in, and adds what routers are to hear of them.
    pub(super) fn take(&mut self, batch: Batch, told: &mut Vec<KvEvent>) {
        for event in batch.0.into_iter().filter(Event::counts) {
            match (event.kind.as_str(), event.session_id) {
                ("BlockStored", Some(label)) if label.len() <= MAX_LABEL_BYTES => {
                    self.store(&carry::session_of(&label), &event.block_hashes, told);
                }
                ("BlockRemoved", _) => self.remove(&event.block_hashes, told),
                ("AllBlocksCleared", _) => self.clear(told),
                _ => (),
            }
        }
    }

    fn store(&mut self, session: &str, hashes: &[BlockHash], told: &mut Vec<KvEvent>) {
        if self.blocks.len() + hashes.len() > MAX_BLOCKS {
            self.clear(told);
        }
        let session: Arc<str> =
            self.sessions.get_key_value(session).map_or_else(|| session.into(), |(id, _)| Arc::clone(id));
        let mut blocks = 0;
        for BlockHash(hash) in hashes.iter().take(MAX_BLOCKS) {
            let sharers = self.blocks.entry(*hash).or_default();
            // A rank reports blocks again that a request has found in its cache.
            if sharers.len() < MAX_SHARERS && !sharers.contains(&session) {
                sharers.push(Arc::clone(&session));
                blocks += 1;
            }
        }
        if blocks > 0 {
            *self.sessions.entry(Arc::clone(&session)).or_default() += blocks;
            told.push(KvEvent::Stored(SessionBlocks { session: session.as_ref().to_owned(), blocks }));
        }
    }

    fn remove(&mut self, hashes: &[BlockHash], told: &mut Vec<KvEvent>) {
        let mut lost: BTreeMap<Arc<str>, u32> = BTreeMap::new();
        for BlockHash(hash) in hashes {
            for session in self.blocks.remove(hash).into_iter().flatten() {
                *lost.entry(session).or_default() += 1;
            }
        }
        for (session, blocks) in lost {
            if let Some(has) = self.sessions.get_mut(&session) {
                *has = has.saturating_sub(blocks);
                if *has == 0 {
                    self.sessions.remove(&session);
                }
            }
            told.push(KvEvent::Removed(SessionBlocks { session: session.as_ref().to_owned(), blocks }));
        }
    }

    fn clear(&mut self, told: &mut Vec<KvEvent>) {
        *self = Self::default();
        told.push(KvEvent::Cleared(true));
    }
}

impl Event {
    /// Only what is in the rank's own memory counts, and of a model with several kinds of cache the first: the others'
    /// blocks are the same text once more.
    fn counts(&self) -> bool {
        self.medium.as_deref().is_none_or(|medium| medium.eq_ignore_ascii_case("gpu"))
            && self.group_idx.unwrap_or(0) == 0
    }
}

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Batch;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time and a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Batch, A::Error> {
                seq.next_element::<IgnoredAny>()?;
                let events = seq.next_element()?.unwrap_or_default();
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Batch(events))
            }
        }
        deserializer.deserialize_seq(Reading)
    }
}

impl<'de> Deserialize<'de> for BlockHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl Visitor<'_> for Reading {
            type Value = BlockHash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes or an integer")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<BlockHash, E> {
                Ok(BlockHash(xxhash_rust::xxh3::xxh3_64(bytes)))
            }

            fn visit_u64<E>(self, number: u64) -> Result<BlockHash, E> {
                Ok(BlockHash(number))
            }

            fn visit_i64<E>(self, number: i64) -> Result<BlockHash, E> {
                Ok(BlockHash(number.cast_unsigned()))
            }
        }
        deserializer.deserialize_any(Reading)
    }
}

#[cfg(test)]
mod tests {
    use rmpv::Value;

    use super::*;

    fn event(kind: &str, hashes: &[Value], session: Option<&str>, more: &[(&str, Value)]) -> Value {
        let mut fields = vec![("type", Value::from(kind)), ("block_hashes", Value::Array(hashes.to_vec()))];
        fields.push(("session_id", session.map_or(Value::Nil, Value::from)));
        fields.push(("token_ids", Value::Array(vec![1.into(), 2.into()])));
        fields.extend(more.iter().cloned());
        Value::Map(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    fn take(tracker: &mut Tracker, events: Vec<Value>) -> Vec<KvEvent> {
        let batch = Value::Array(vec![1.5.into(), Value::Array(events), 1.into()]);
        let mut packed = Vec::new();
        rmpv::encode::write_value(&mut packed, &batch).expect("a vector takes bytes");
        let mut told = Vec::new();
        tracker.take(rmp_serde::from_slice(&packed).expect("a batch"), &mut told);
        told
    }

    fn blocks(session: &str, blocks: u32) -> SessionBlocks {
        SessionBlocks { session: session.into(), blocks }
    }

    #[test]
    fn what_is_removed_is_known_by_its_blocks() {
        let mut tracker = Tracker::default();
        let hash = |text: &str| Value::Binary(text.into());
        let stored = take(
            &mut tracker,
            vec![
                event("BlockStored", &[hash("a"), hash("b")], Some("%01px:1"), &[]),
                event("BlockStored", &[hash("a"), hash("c"), 7.into()], Some("s"), &[("medium", "GPU".into())]),
                event("BlockStored", &[hash("a")], Some("s"), &[]),
                event("BlockStored", &[hash("d")], None, &[]),
                event("BlockStored", &[hash("e")], Some("s"), &[("medium", "CPU".into())]),
                event("BlockStored", &[hash("f")], Some("s"), &[("group_idx", 1.into())]),
                event("SomethingNew", &[hash("g")], Some("s"), &[]),
            ],
        );
        assert_eq!(stored, [KvEvent::Stored(blocks("\u{1}px:1", 2)), KvEvent::Stored(blocks("s", 3))]);
        let removed = take(&mut tracker, vec![event("BlockRemoved", &[hash("a"), hash("d"), 7.into()], None, &[])]);
        assert_eq!(removed, [KvEvent::Removed(blocks("\u{1}px:1", 1)), KvEvent::Removed(blocks("s", 2))]);
        take(&mut tracker, vec![event("BlockRemoved", &[hash("b"), hash("c")], None, &[])]);
        assert!(tracker.blocks.is_empty() && tracker.sessions.is_empty());
        let cleared = take(&mut tracker, vec![event("AllBlocksCleared", &[], None, &[])]);
        assert_eq!(cleared, [KvEvent::Cleared(true)]);
    }

    #[test]
    fn what_is_kept_in_mind_has_limits() {
        let mut tracker = Tracker::default();
        for i in 0..=MAX_SHARERS {
            take(&mut tracker, vec![event("BlockStored", &[1.into()], Some(&format!("s{i}")), &[])]);
        }
        assert_eq!(tracker.blocks[&1].len(), MAX_SHARERS);
        tracker.blocks.extend((2..=MAX_BLOCKS as u64).map(|hash| (hash, Vec::new())));
        let told = take(&mut tracker, vec![event("BlockStored", &[Value::from(0)], Some("s"), &[])]);
        assert_eq!(told, [KvEvent::Cleared(true), KvEvent::Stored(blocks("s", 1))]);
        let long = "x".repeat(MAX_LABEL_BYTES + 1);
        assert!(take(&mut tracker, vec![event("BlockStored", &[9.into()], Some(&long), &[])]).is_empty());
    }
}
