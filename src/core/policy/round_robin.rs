//! Round robin: the candidate whose turn it is, ties by worker id; a worker of weight 3 has three turns where one of
//! weight 1 has one.
//!
//! A counter modulo the number of candidates favours some of them whenever one comes or goes. Each worker has a turn of
//! its own instead, that moves on by 1 / weight with each pick (stride scheduling), and that never lies behind the turn
//! of the last pick: who was away for a while, or is new, has nothing to catch up.

use crate::core::candidates::{Candidate, Candidates};

/// The one whose turn it is.
pub fn pick<'c, 'f>(candidates: &'c Candidates<'f>) -> &'c Candidate<'f> {
    let (first, others) = candidates.as_slice().split_first().expect("candidates are never empty");
    let mut next = (first.turn(), first);
    for candidate in others {
        let turn = candidate.turn();
        // The first of those that are equal, which stand in the order of their ids.
        if turn < next.0 {
            next = (turn, candidate);
        }
    }
    next.1
}
