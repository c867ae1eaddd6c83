//! Random: any candidate, with chances in proportion to the weights.

use rand::Rng;

use super::by_weight;
use crate::core::candidates::{Candidate, Candidates};

/// One of them.
pub fn pick<'c, 'f>(candidates: &'c Candidates<'f>, rng: &mut dyn Rng) -> &'c Candidate<'f> {
    by_weight(candidates.as_slice().iter(), candidates.weights(), rng).expect("candidates are never empty")
}
