//! Random: any candidate, with equal chances.

use rand::{Rng, RngExt as _};

use crate::core::candidates::{Candidate, Candidates};

/// One of them.
pub fn pick<'c>(candidates: &'c Candidates, rng: &mut dyn Rng) -> &'c Candidate {
    let all = candidates.as_slice();
    &all[rng.random_range(0..all.len())]
}
