//! Requests that found no room, by priority, then age (protocol section 5).

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Most requests that wait at once; one more is answered `overloaded`.
pub const MAX_QUEUED: usize = 4_096;
/// Most waiting requests that are tried when room appears, so that one release never takes long.
pub const MAX_TRIED: usize = 64;

/// What goes first where several wait: the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// A durable job: below every request that somebody waits for; among jobs, higher first.
    Job(i32),
    /// A request; higher first.
    Request(i32),
}

/// Place in the queue: lower is earlier.
pub type Place = (Reverse<Priority>, u64);

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
    pub fn push(&mut self, priority: Priority, age: u64, request: T) -> bool {
        if self.waiting.len() >= MAX_QUEUED {
            return false;
        }
        self.waiting.insert((Reverse(priority), age), request);
        true
    }

    /// Takes a request out that waits no longer.
    pub fn remove(&mut self, priority: Priority, age: u64) -> Option<T> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut Queue<&'static str>) -> Vec<&'static str> {
        let mut order = Vec::new();
        queue.pump(
            |_| true,
            |request| {
                order.push(*request);
                true
            },
        );
        order
    }

    #[test]
    fn by_priority_then_age() {
        let mut queue = Queue::default();
        for (priority, age, request) in [
            (0, 1, "old"),
            (5, 2, "high"),
            (0, 3, "young"),
            (-1, 4, "low"),
            (5, 5, "high, young"),
            (i32::MAX, 6, "top"),
        ] {
            assert!(queue.push(Priority::Request(priority), age, request));
        }
        assert_eq!(queue.remove(Priority::Request(0), 9), None);
        assert_eq!(queue.remove(Priority::Request(5), 2), Some("high"));
        assert_eq!(drain(&mut queue), ["top", "high, young", "old", "young", "low"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn jobs_wait_behind_every_request() {
        let mut queue = Queue::default();
        for (priority, age, request) in [
            (Priority::Job(i32::MAX), 1, "urgent job"),
            (Priority::Job(0), 2, "job"),
            (Priority::Request(i32::MIN), 3, "patient request"),
            (Priority::Request(0), 4, "request"),
        ] {
            assert!(queue.push(priority, age, request));
        }
        assert_eq!(drain(&mut queue), ["request", "patient request", "urgent job", "job"]);
    }

    #[test]
    fn who_finds_no_room_stays_and_others_pass_by() {
        let mut queue = Queue::default();
        for (age, request) in [(1, "a"), (2, "b"), (3, "a"), (4, "b")] {
            queue.push(Priority::Request(0), age, request);
        }
        let mut room = 1;
        queue.pump(
            |_| true,
            |request| {
                let fits = *request == "b" && room > 0;
                room -= usize::from(fits);
                fits
            },
        );
        assert_eq!(drain(&mut queue), ["a", "a", "b"]);
    }

    #[test]
    fn one_release_tries_a_bounded_number_and_passes_over_those_that_cannot_go() {
        let mut queue = Queue::default();
        let count = u64::try_from(MAX_TRIED).expect("small") * 2;
        for age in 0..count {
            queue.push(Priority::Request(0), age, if age < count / 2 { "elsewhere" } else { "here" });
        }
        let mut tried = 0;
        queue.pump(
            |request| *request == "here",
            |_| {
                tried += 1;
                false
            },
        );
        assert_eq!((tried, queue.len()), (MAX_TRIED, 2 * MAX_TRIED));
        let mut tried = 0;
        queue.pump(
            |_| true,
            |_| {
                tried += 1;
                true
            },
        );
        assert_eq!((tried, queue.len()), (MAX_TRIED, MAX_TRIED));
    }

    #[test]
    fn it_is_bounded() {
        let mut queue = Queue::default();
        for age in 0..MAX_QUEUED as u64 {
            assert!(queue.push(Priority::Job(0), age, ()));
        }
        assert!(!queue.push(Priority::Request(9), u64::MAX, ()), "whatever its priority");
        queue.remove(Priority::Job(0), 0);
        assert!(queue.push(Priority::Request(9), u64::MAX, ()));
    }
}
