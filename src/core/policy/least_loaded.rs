//! Least loaded: the candidate with the fewest requests in flight, relative to its weight and to what it can hold; ties
//! by chance, in proportion to the weights.

use rand::Rng;

use super::least_of;
use crate::core::candidates::{Candidate, Candidates};

/// The least loaded one.
pub fn pick<'c, 'f>(candidates: &'c Candidates<'f>, rng: &mut dyn Rng) -> &'c Candidate<'f> {
    least_of(candidates, candidates.as_slice().iter(), rng).expect("candidates are never empty")
}
