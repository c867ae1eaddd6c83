//! Reference rules: what needs no router, and two rules that cache-aware routers have published. They see the targets
//! themselves, so that nothing is to their disadvantage.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Setup;
use super::run::{Asked, Places};
use super::target::Target;
use super::trace::Trace;

/// Makes a rule.
type New = fn(&Trace, &Setup) -> Box<dyn Places>;

/// All of them, by name.
pub(super) const ALL: [(&str, New); 7] = [
    ("random", |_, setup| Box::new(Random(rng(setup)))),
    ("round robin", |_, _| Box::new(RoundRobin(0))),
    ("sticky by hash", |_, setup| Box::new(StickyByHash(setup.seed))),
    ("sticky, least-loaded start", |trace, setup| Box::new(Sticky::new(trace, setup, f64::INFINITY))),
    ("move to the least loaded above 1.1 x mean", |trace, setup| Box::new(Sticky::new(trace, setup, 1.1))),
    ("longest prefix with a load limit", |_, setup| Box::new(LongestPrefix(rng(setup)))),
    ("bounded-load consistent hashing", |trace, setup| Box::new(BoundedLoad::new(trace, setup))),
];

fn rng(setup: &Setup) -> StdRng {
    StdRng::seed_from_u64(setup.seed)
}

/// The one target there is.
pub(super) struct OneTarget;

impl Places for OneTarget {
    fn place(&mut self, _asked: &Asked<'_>, _targets: &[Target]) -> usize {
        0
    }
}

struct Random(StdRng);

impl Places for Random {
    fn place(&mut self, _asked: &Asked<'_>, targets: &[Target]) -> usize {
        self.0.random_range(0..targets.len())
    }
}

struct RoundRobin(usize);

impl Places for RoundRobin {
    fn place(&mut self, _asked: &Asked<'_>, targets: &[Target]) -> usize {
        self.0 += 1;
        self.0 % targets.len()
    }
}

struct StickyByHash(u64);

impl Places for StickyByHash {
    fn place(&mut self, asked: &Asked<'_>, targets: &[Target]) -> usize {
        let hash = xxh3_64_with_seed(&asked.session.to_le_bytes(), self.0);
        usize::try_from(hash % targets.len() as u64).expect("it is the place of a target")
    }
}

/// Sessions stay where they began, at the target that was given the fewest tokens; with a limit they move there from
/// whoever was given so many times the mean.
struct Sticky {
    at: Vec<Option<usize>>,
    limit: f64,
    rng: StdRng,
}

impl Sticky {
    fn new(trace: &Trace, setup: &Setup, limit: f64) -> Self {
        Self { at: vec![None; trace.sessions], limit, rng: rng(setup) }
    }
}

impl Places for Sticky {
    fn place(&mut self, asked: &Asked<'_>, targets: &[Target]) -> usize {
        let mean = targets.iter().map(|target| target.given).sum::<u64>() as f64 / targets.len() as f64;
        let at = &mut self.at[asked.session as usize];
        let stays = at.filter(|at| targets[*at].given as f64 <= self.limit * mean);
        *at.insert(stays.unwrap_or_else(|| least(targets, |target| target.given, &mut self.rng)))
    }
}

/// The rule of SGLang's router, with its defaults: where the numbers of requests in flight differ by more than 64 and by
/// half, the fewest; else the target that holds the longest prefix, where that is more than 0.3 of the prompt; else
/// the one that holds least.
struct LongestPrefix(StdRng);

impl Places for LongestPrefix {
    fn place(&mut self, asked: &Asked<'_>, targets: &[Target]) -> usize {
        let loads = || targets.iter().map(|target| target.in_flight);
        let (most, fewest) = (loads().max().unwrap_or(0), loads().min().unwrap_or(0));
        if most - fewest > 64 && f64::from(most) > 1.5 * f64::from(fewest) {
            return least(targets, |target| u64::from(target.in_flight), &mut self.0);
        }
        let held: Vec<usize> = targets.iter().map(|target| target.cache.held(asked.ids)).collect();
        let longest = held.iter().copied().max().unwrap_or(0);
        if longest as f64 > 0.3 * asked.ids.len() as f64 {
            let place = held.iter().position(|held| *held == longest);
            return place.expect("it is one of them");
        }
        least(targets, |target| target.cache.len() as u64, &mut self.0)
    }
}

/// The rule of KubeAI's and others' gateways, with their defaults: a ring of 256 points for each target, the beginning of
/// the prompt hashed onto it, and from there the first target that has at most 1.25 times the mean in flight.
struct BoundedLoad {
    ring: BTreeMap<u64, usize>,
    /// Blocks of the beginning.
    beginning: usize,
    seed: u64,
}

impl BoundedLoad {
    /// Tokens of the beginning that is hashed.
    const BEGINNING: u32 = 64;
    const POINTS: u64 = 256;
    const LIMIT: f64 = 1.25;

    fn new(trace: &Trace, setup: &Setup) -> Self {
        let points = (0..setup.targets()).flat_map(|target| (0..Self::POINTS).map(move |point| (target, point)));
        let hash = |(target, point): (usize, u64)| {
            let joined = [(target as u64).to_le_bytes(), point.to_le_bytes()].concat();
            (xxh3_64_with_seed(&joined, setup.seed), target)
        };
        let beginning = (Self::BEGINNING / trace.block_tokens).max(1) as usize;
        Self { ring: points.map(hash).collect(), beginning, seed: setup.seed }
    }
}

impl Places for BoundedLoad {
    fn place(&mut self, asked: &Asked<'_>, targets: &[Target]) -> usize {
        let in_flight: u64 = targets.iter().map(|target| u64::from(target.in_flight)).sum();
        let most = Self::LIMIT * (in_flight + 1) as f64 / targets.len() as f64;
        let block = asked.ids[self.beginning.min(asked.ids.len()) - 1];
        let start = xxh3_64_with_seed(&block.to_le_bytes(), self.seed);
        let around = self.ring.range(start..).chain(self.ring.range(..start)).map(|(_, target)| *target);
        let fits = |target: &usize| f64::from(targets[*target].in_flight + 1) <= most.ceil();
        around.clone().find(fits).or_else(|| around.clone().next()).unwrap_or(0)
    }
}

/// The target with the least of something, ties by chance.
fn least(targets: &[Target], of: impl Fn(&Target) -> u64, rng: &mut StdRng) -> usize {
    let lowest = targets.iter().map(&of).min().unwrap_or(0);
    let tied: Vec<usize> = (0..targets.len()).filter(|place| of(&targets[*place]) == lowest).collect();
    tied[rng.random_range(0..tied.len())]
}
