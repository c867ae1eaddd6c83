//! Power of two choices: two different candidates by chance, and of these the less loaded one.
//!
//! Nearly as even as looking at all of them, and without the herd that runs for whoever was least loaded in the last
//! report that everybody has read.

use rand::Rng;

use super::by_weight;
use crate::core::candidates::{Candidate, Candidates};

/// The less loaded of two; the one drawn first where they are equal, so that nobody is favoured by its place.
pub fn pick<'c, 'f>(candidates: &'c Candidates<'f>, rng: &mut dyn Rng) -> &'c Candidate<'f> {
    let all = candidates.as_slice();
    let first = by_weight(all.iter(), candidates.weights(), rng).expect("candidates are never empty");
    let others = all.iter().filter(|other| !std::ptr::eq(*other, first));
    match by_weight(others, candidates.weights() - first.weight(), rng) {
        Some(second) if candidates.relative_load(second) < candidates.relative_load(first) => second,
        Some(_) | None => first,
    }
}
