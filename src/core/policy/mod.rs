//! Policies: pure functions that choose among candidates. `docs/policies.md` says what each is good for.
//!
//! To add one: a file beside this one, a variant of [`PolicyKind`], a line in [`pick`].

mod device;
mod least_loaded;
mod power_of_two;
mod random;
mod round_robin;

use rand::{Rng, RngExt as _};

use super::candidates::{Candidate, Candidates};
use super::mode::PolicyKind;

/// The policy's choice.
pub fn pick<'c, 'f>(kind: PolicyKind, candidates: &'c Candidates<'f>, rng: &mut dyn Rng) -> &'c Candidate<'f> {
    match kind {
        PolicyKind::RoundRobin => round_robin::pick(candidates),
        PolicyKind::Random => random::pick(candidates, rng),
        PolicyKind::PowerOfTwo => power_of_two::pick(candidates, rng),
        PolicyKind::LeastLoaded => least_loaded::pick(candidates, rng),
        PolicyKind::DeviceAwareWeighted => device::pick(candidates, rng),
        // Among workers, as it is asked here: what ranks hold is weighed where the ranks are known (`decide/cost.rs`).
        PolicyKind::Kv => least_loaded::pick(candidates, rng),
    }
}

/// One of them by chance, each with a probability in proportion to its weight; `None` where there are none.
fn by_weight<T: Copy>(all: impl Iterator<Item = T> + Clone, weight: impl Fn(T) -> f64, rng: &mut dyn Rng) -> Option<T> {
    let total: f64 = all.clone().map(&weight).sum();
    let mut left = rng.random::<f64>() * total;
    let mut last = None;
    for one in all {
        last = Some(one);
        left -= weight(one);
        if left < 0.0 {
            break;
        }
    }
    // Rounding may leave a little over: then it is the last one's.
    last
}

/// Of those that are least loaded, relative to what they can take, the one that was given least lately; ties by weight.
fn least_of<'c, 'f>(
    candidates: &Candidates<'f>,
    among: impl Iterator<Item = &'c Candidate<'f>>,
    rng: &mut dyn Rng,
) -> Option<&'c Candidate<'f>>
where
    'f: 'c,
{
    let tied = lowest(among, |candidate| candidates.relative_load(candidate));
    // Of those that are equally busy now, mostly not at all, the one that was given less lately; then chance.
    let tied = lowest(tied.into_iter(), |candidate| candidate.glance().work_per_share());
    by_weight(tied.into_iter(), Candidate::weight_of, rng)
}

/// Those of the lowest measure.
fn lowest<'c, 'f>(
    among: impl Iterator<Item = &'c Candidate<'f>>,
    measure: impl Fn(&Candidate<'f>) -> f64,
) -> Vec<&'c Candidate<'f>> {
    let (mut least, mut tied) = (f64::INFINITY, Vec::new());
    for candidate in among {
        let measured = measure(candidate);
        if measured < least {
            least = measured;
            tied.clear();
        }
        if measured <= least {
            tied.push(candidate);
        }
    }
    tied
}

impl Candidate<'_> {
    fn weight_of(this: &Self) -> f64 {
        this.weight()
    }
}

#[cfg(test)]
mod tests;
