//! Cancels that found nothing to cancel: a job that waits in the stream may be meant, and no router has it.

use std::collections::{HashMap, VecDeque};

/// Most that are remembered; beyond, the oldest are forgotten.
const MAX_REMEMBERED: usize = 16_384;

/// Ids with the time at which their cancel was heard, in ms since 1970.
#[derive(Debug, Default)]
pub struct Cancels {
    heard: HashMap<Box<str>, u64>,
    order: VecDeque<Box<str>>,
}

impl Cancels {
    /// Remembers a cancel.
    pub fn note(&mut self, id: &str, now_ms: u64) {
        if self.heard.insert(id.into(), now_ms).is_none() {
            self.order.push_back(id.into());
        }
        if self.order.len() > MAX_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.heard.remove(&oldest);
        }
    }

    /// Whether a job of this id was cancelled after it was stored, by the server's clock: one that is submitted after the
    /// cancel of another of its name is not meant.
    pub fn hit(&self, id: &str, stored_ms: u64) -> bool {
        self.heard.get(id).is_some_and(|heard| *heard >= stored_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_counts_for_jobs_that_were_there_before_it() {
        let mut cancels = Cancels::default();
        cancels.note("j", 1000);
        assert!(cancels.hit("j", 999) && cancels.hit("j", 1000) && cancels.hit("j", 0));
        assert!(!cancels.hit("j", 1001) && !cancels.hit("k", 0));
        cancels.note("j", 2000);
        assert!(cancels.hit("j", 1500));
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut cancels = Cancels::default();
        for n in 0..2 * MAX_REMEMBERED {
            cancels.note(&n.to_string(), 1);
        }
        assert_eq!((cancels.heard.len(), cancels.order.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        assert!(!cancels.hit("0", 0) && cancels.hit(&MAX_REMEMBERED.to_string(), 0));
    }
}
