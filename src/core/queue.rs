//! Requests that found no room, by priority, then age (protocol section 5).

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Most requests that wait at once; one more is answered `overloaded`.
pub const MAX_QUEUED: usize = 4_096;
/// Most waiting requests that are tried when room appears, so that one release never takes long.
pub const MAX_TRIED: usize = 64;

/// Place in the queue: lower is earlier.
pub type Place = (Reverse<i32>, u64);

/// Waiting requests in their order.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: BTreeMap<Place, T>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new() }
    }
}

impl<T> Queue<T> {
    /// Takes a request in. `age` goes up with every request of this router. `false` where the queue is full.
    pub fn push(&mut self, priority: i32, age: u64, request: T) -> bool {
        if self.waiting.len() >= MAX_QUEUED {
            return false;
        }
        self.waiting.insert((Reverse(priority), age), request);
        true
    }

    /// Takes a request out that waits no longer.
    pub fn remove(&mut self, priority: i32, age: u64) -> Option<T> {
        self.waiting.remove(&(Reverse(priority), age))
    }

    /// Tries requests in their order; those for which `try_one` says true leave the queue. At most [`MAX_TRIED`] of
    /// those that `could_go` are tried.
    pub fn pump(&mut self, could_go: impl Fn(&T) -> bool, mut try_one: impl FnMut(&T) -> bool) {
        let mut tried = 0;
        self.waiting.retain(|_, request| {
            if tried >= MAX_TRIED || !could_go(request) {
                return true;
            }
            tried += 1;
            !try_one(request)
        });
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
