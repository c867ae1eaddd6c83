//! Round robin: the candidate whose turn it is, ties by worker id; a worker of weight 3 has three turns where one of
//! weight 1 has one.
//!
//! A counter modulo the number of candidates favours some of them whenever one comes or goes. Each worker has a turn of
//! its own instead, that moves on by 1 / weight with each pick (stride scheduling), and that never lies behind the turn
//! of the last pick: who was away for a while, or is new, has nothing to catch up.

use crate::core::candidates::{Candidate, Candidates};

/// The one whose turn it is.
pub fn pick<'c, 'f>(candidates: &'c Candidates<'f>) -> &'c Candidate<'f> {
    // The first of those that are equal, which stand in the order of their ids.
    let all = candidates.as_slice().iter();
    all.min_by(|a, b| a.turn().total_cmp(&b.turn())).expect("candidates are never empty")
}
