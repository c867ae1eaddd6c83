//! Round robin: the candidate whose worker was chosen longest ago, ties by worker id.
//!
//! A counter modulo the number of candidates favours some of them whenever one comes or goes; turns counted by the
//! worker's last pick stay even through churn.

use crate::core::candidates::{Candidate, Candidates};

/// The one whose turn it is.
pub fn pick(candidates: &Candidates) -> &Candidate {
    candidates
        .as_slice()
        .iter()
        .min_by(|a, b| a.last_pick.cmp(&b.last_pick).then_with(|| a.placement.worker.cmp(&b.placement.worker)))
        .expect("candidates are never empty")
}
