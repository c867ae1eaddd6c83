//! Device-aware weighted: workers are grouped by their kind of device. A group is drawn with a probability in
//! proportion to the sum of its workers' weights, `P(group) = Σ weight in it / Σ weight of all`; inside it the least
//! loaded worker gets the request.
//!
//! So a fleet of mixed devices shares the traffic as its operator has weighed them, however fast each device's load
//! goes up and down, and no worker of a group is busier than the others.

use rand::Rng;

use super::{by_weight, least_of};
use crate::core::candidates::{Candidate, Candidates};

/// The least loaded one of the group that was drawn.
pub fn pick<'c, 'f>(candidates: &'c Candidates<'f>, rng: &mut dyn Rng) -> &'c Candidate<'f> {
    let all = candidates.as_slice();
    // A candidate drawn by its weight draws its group by the sum of its weights.
    let drawn = by_weight(all.iter(), candidates.weights(), rng).expect("candidates are never empty");
    let group = all.iter().filter(|candidate| candidate.glance().device == drawn.glance().device);
    least_of(candidates, group, rng).unwrap_or(drawn)
}
