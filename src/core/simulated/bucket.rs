//! A bucket as NATS has it: one sequence over all keys, compare-and-set by it, and watches that get everything in order.

use std::collections::HashMap;

use crate::core::hash::PinKey;
use crate::core::pins::Pin;

#[derive(Debug, Default)]
pub struct Bucket {
    log: Vec<(PinKey, Option<Pin>)>,
    last: HashMap<PinKey, u64>,
}

impl Bucket {
    /// Stores a value, or with `None` the end of one, where the key is at revision `expected`; 0: it has none.
    pub fn put_at(&mut self, key: PinKey, pin: Option<Pin>, expected: u64) -> Option<u64> {
        if self.last.get(&key).copied().unwrap_or(0) != expected {
            return None;
        }
        self.log.push((key, pin));
        let revision = self.log.len() as u64;
        self.last.insert(key, revision);
        Some(revision)
    }

    /// What stands under a key, with its revision.
    pub fn get(&self, key: PinKey) -> Option<(u64, Option<Pin>)> {
        let revision = *self.last.get(&key)?;
        Some((revision, self.entry(revision)?.1.clone()))
    }

    /// What was stored under a revision.
    pub fn entry(&self, revision: u64) -> Option<&(PinKey, Option<Pin>)> {
        self.log.get(usize::try_from(revision).ok()?.checked_sub(1)?)
    }
}
