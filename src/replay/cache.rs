//! The prefix cache of a simulated target, exact to the block: a hit is the longest leading run of blocks that it holds,
//! and of what was not used for longest the end is given up first.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::trace::Runs;

/// The blocks of one cache.
#[derive(Debug)]
pub(super) struct Cache {
    capacity: usize,
    /// When each block was last used, in prompts.
    used: HashMap<u32, u32, BuildHasherDefault<BlockHasher>>,
    /// Prompts in the order of their use, each with the blocks at its end that were looked at.
    order: VecDeque<(u32, Arc<Runs>, usize)>,
    now: u32,
}

impl Cache {
    /// Of so many blocks; `None`: without end.
    pub(super) fn new(capacity: Option<u64>) -> Self {
        let capacity = capacity.map_or(usize::MAX, |blocks| usize::try_from(blocks).unwrap_or(usize::MAX));
        Self { capacity, used: HashMap::default(), order: VecDeque::new(), now: 0 }
    }

    /// How many leading blocks it holds. Whoever holds a block holds all before it, so they need not all be looked at.
    pub(super) fn held(&self, blocks: &[u32]) -> usize {
        blocks.partition_point(|block| self.used.contains_key(block))
    }

    /// Blocks held.
    pub(super) fn len(&self) -> usize {
        self.used.len()
    }

    /// Takes a prompt in. Of one larger than the cache the beginning is kept.
    pub(super) fn insert(&mut self, runs: &Arc<Runs>, blocks: &[u32]) {
        self.now += 1;
        let kept = blocks.len().min(self.capacity);
        for block in &blocks[..kept] {
            self.used.insert(*block, self.now);
        }
        if self.capacity == usize::MAX {
            return;
        }
        self.order.push_back((self.now, Arc::clone(runs), blocks.len() - kept));
        while self.used.len() > self.capacity {
            self.give_up();
        }
    }

    /// Gives up what is too much, from the end of the prompt that was not used for longest.
    fn give_up(&mut self) {
        let Some((used, runs, passed)) = self.order.front_mut() else { return };
        for block in runs.backwards(*passed) {
            if self.used.len() <= self.capacity {
                return;
            }
            *passed += 1;
            if self.used.get(&block) == Some(used) {
                self.used.remove(&block);
            }
        }
        self.order.pop_front();
    }
}

/// Block ids are numbers from a file of the user's own.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, block: u32) {
        self.0 = (self.0 ^ u64::from(block)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::replay::Trace;

    /// Prompts of a trace, by their runs.
    fn prompts(runs: &[Vec<(u32, u32)>]) -> Vec<(Arc<Runs>, Vec<u32>)> {
        let mut text = r#"{"trace":"t","block_tokens":1}"#.to_owned();
        for blocks in runs {
            text.push_str(&format!("\n{}", serde_json::json!({"t": 0, "session": "s", "blocks": blocks})));
        }
        let trace = Trace::read(text.as_bytes()).expect("it is valid");
        let with_ids = |request: super::super::trace::Request| {
            let mut ids = Vec::new();
            request.blocks.write(&mut ids);
            (request.blocks, ids)
        };
        trace.requests.into_iter().map(with_ids).collect()
    }

    proptest! {
        /// The same as a list of blocks that is searched from one end to the other.
        #[test]
        fn it_is_what_a_plain_list_would_be(
            choices in proptest::collection::vec((0..4u32, 1..6u32, 0..5u32), 1..60),
            capacity in 1..20usize,
        ) {
            // A common beginning, then one of four ends.
            let runs: Vec<Vec<(u32, u32)>> = choices
                .iter()
                .map(|&(kind, common, own)| {
                    let mut runs = vec![(0, common)];
                    // What follows a shorter common part is another prefix.
                    runs.extend((own > 0).then_some((1000 + kind * 100 + common * 10, own)));
                    runs
                })
                .collect();
            let mut cache = Cache::new(Some(capacity as u64));
            let mut list: Vec<u32> = Vec::new();
            for (runs, ids) in prompts(&runs) {
                let held = ids.iter().take_while(|id| list.contains(id)).count();
                prop_assert_eq!(cache.held(&ids), held);
                cache.insert(&runs, &ids);
                for id in ids[..ids.len().min(capacity)].iter().rev() {
                    list.retain(|other| other != id);
                    list.push(*id);
                }
                let too_many = list.len().saturating_sub(capacity);
                list.drain(..too_many);
                prop_assert_eq!(cache.len(), list.len());
                prop_assert!(list.iter().all(|id| cache.used.contains_key(id)));
            }
        }
    }
}
