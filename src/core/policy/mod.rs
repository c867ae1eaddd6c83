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

/// One of them by chance, each with a probability in proportion to its weight, of which this is the sum; `None` where
/// there are none.
fn by_weight<'c, 'f: 'c>(
    all: impl Iterator<Item = &'c Candidate<'f>>,
    sum: f64,
    rng: &mut dyn Rng,
) -> Option<&'c Candidate<'f>> {
    let mut left = rng.random::<f64>() * sum;
    let mut last = None;
    for one in all {
        last = Some(one);
        left -= one.weight();
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
    let mut least = (f64::INFINITY, f64::INFINITY);
    let mut tied = Vec::<&Candidate<'_>>::with_capacity(candidates.as_slice().len());
    for candidate in among {
        let load = candidates.relative_load(candidate);
        if load > least.0 {
            continue;
        }
        // Of those that are equally busy now, mostly not at all, the one that was given less lately; then chance.
        let work = candidate.glance().work_per_share;
        if load < least.0 || work < least.1 {
            least = (load, work);
            tied.clear();
        }
        if work <= least.1 {
            tied.push(candidate);
        }
    }
    let sum = tied.iter().map(|candidate| candidate.weight()).sum();
    by_weight(tied.into_iter(), sum, rng)
}

#[cfg(test)]
mod tests;
