//! Policies: pure functions that choose among candidates.
//!
//! To add one: a file beside this one, a variant of [`PolicyKind`], a line in [`pick`].

mod random;
mod round_robin;

use rand::Rng;

use super::candidates::{Candidate, Candidates};
use super::mode::PolicyKind;

/// The policy's choice.
pub fn pick<'c>(kind: PolicyKind, candidates: &'c Candidates, rng: &mut dyn Rng) -> &'c Candidate {
    match kind {
        PolicyKind::RoundRobin => round_robin::pick(candidates),
        PolicyKind::Random => random::pick(candidates, rng),
    }
}
