//! The mirrors of a router: one for the bucket of each partition. Those of partitions that it serves are kept by watches. The
//! others hold what was read of them for jobs and aliases, are never taken for fresh, and stay small.

use std::time::{Duration, Instant};

use crate::core::id::Placement;
use crate::core::mode::AffinityMode;
use crate::core::partition::{Partition, Partitions};
use crate::core::pins::Mirror;

/// Most pins that are kept of a partition that is not served; beyond, they are forgotten, and read again.
const MAX_FOREIGN: usize = 16_384;

/// All of them, by partition.
#[derive(Debug)]
pub struct Mirrors {
    all: Box<[One]>,
    /// Where the next look at ages begins: one look is bounded, and each partition gets its turn.
    next: usize,
}

#[derive(Debug)]
struct One {
    mirror: Mirror,
    served: bool,
    fresh: bool,
    known: bool,
}

impl Mirrors {
    /// Empty ones of these partitions. With affinity off there is nothing to know.
    pub fn new(partitions: &Partitions, affinity: AffinityMode, ttl: Duration, now: Instant) -> Self {
        let off = affinity == AffinityMode::Off;
        let one = |partition| One {
            mirror: Mirror::new(ttl, now),
            served: partitions.serves(partition),
            fresh: off,
            known: off,
        };
        Self { all: partitions.every().map(one).collect(), next: 0 }
    }

    /// That of a partition.
    pub fn of(&self, partition: Partition) -> &Mirror {
        &self.all[partition.index()].mirror
    }

    /// The same, to be changed.
    pub fn of_mut(&mut self, partition: Partition) -> &mut Mirror {
        let one = &mut self.all[partition.index()];
        if !one.served && one.mirror.len() >= MAX_FOREIGN {
            one.mirror.clear();
        }
        &mut one.mirror
    }

    /// Whether it has everything that its bucket has.
    pub fn is_fresh(&self, partition: Partition) -> bool {
        self.all[partition.index()].fresh
    }

    /// It has everything from now on, or no longer.
    pub fn set_fresh(&mut self, partition: Partition, fresh: bool) {
        let one = &mut self.all[partition.index()];
        one.fresh = fresh;
        one.known |= fresh;
    }

    /// Whether all that are served have everything.
    pub fn all_fresh(&self) -> bool {
        self.served().all(|one| one.fresh)
    }

    /// Whether all that are served had everything once.
    pub fn all_known(&self) -> bool {
        self.served().all(|one| one.known)
    }

    /// Pins known of partitions that are served.
    pub fn pins(&self) -> u64 {
        self.served().map(|one| one.mirror.pins()).sum()
    }

    /// Keys known of these, deleted ones included.
    pub fn keys(&self) -> usize {
        self.served().map(|one| one.mirror.len()).sum()
    }

    /// Derived pins known of these.
    pub fn derived(&self) -> usize {
        self.served().map(|one| one.mirror.derived()).sum()
    }

    /// Placements to which any pin of these points, and how many do; one may come several times.
    pub fn placed(&self) -> impl Iterator<Item = (&Placement, u64)> {
        self.served().flat_map(|one| one.mirror.placed())
    }

    /// Drops what is too old, at most `most` ages in one call, and says whether there may be more.
    pub fn expire(&mut self, now: Instant, most: usize) -> bool {
        let count = self.all.len();
        let mut left = most;
        for _ in 0..count {
            left -= self.all[self.next].mirror.expire(now, left);
            if left == 0 {
                return true;
            }
            self.next = (self.next + 1) % count;
        }
        false
    }

    fn served(&self) -> impl Iterator<Item = &One> {
        self.all.iter().filter(|one| one.served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::hash::PinKey;
    use crate::core::id::{Origin, WorkerId};
    use crate::core::pins::Pin;

    const TTL: Duration = Duration::from_secs(400);

    fn pin() -> Option<Pin> {
        let worker = WorkerId::new("w").expect("valid");
        Some(Pin::new(Placement { worker, rank: None }, Origin::Named))
    }

    fn key(n: usize) -> PinKey {
        PinKey::of("", "m", &n.to_string())
    }

    #[test]
    fn only_what_is_served_counts_and_what_is_not_stays_small() {
        let now = Instant::now();
        let partitions = Partitions::parse("1-2", 4).expect("valid");
        let mut mirrors = Mirrors::new(&partitions, AffinityMode::Hard, TTL, now);
        for (n, partition) in partitions.every().enumerate() {
            mirrors.of_mut(partition).handle_value(key(n), 1, pin(), now);
        }
        assert_eq!(mirrors.pins(), 2);
        assert!(!mirrors.all_known());
        for partition in partitions.served() {
            mirrors.set_fresh(partition, true);
        }
        assert!(mirrors.all_known() && mirrors.all_fresh() && !mirrors.is_fresh(Partition::FIRST));
        mirrors.set_fresh(Partition::parse("2", 4).expect("valid"), false);
        assert!(mirrors.all_known() && !mirrors.all_fresh());
        for n in 0..2 * MAX_FOREIGN {
            mirrors.of_mut(Partition::FIRST).handle_value(key(n), 1, pin(), now);
            assert!(mirrors.of(Partition::FIRST).len() <= MAX_FOREIGN);
        }
    }

    #[test]
    fn one_look_at_ages_is_bounded_over_all_and_everybody_has_a_turn() {
        let now = Instant::now();
        let mut mirrors = Mirrors::new(&Partitions::all(3), AffinityMode::Hard, TTL, now);
        for partition in Partitions::all(3).every() {
            for n in 0..10 {
                mirrors.of_mut(partition).handle_value(key(n), 1, pin(), now);
            }
        }
        for left in [26, 22, 18, 14, 10, 6, 2, 0, 0] {
            mirrors.expire(now + TTL, 4);
            assert_eq!(mirrors.pins(), left);
        }
    }
}
