//! Warnings of what may happen with every request: one now and then, with how many were kept back.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often the same is warned of.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// One thing that is warned of.
#[derive(Debug, Default)]
pub struct Rarely(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    kept_back: u64,
}

impl Rarely {
    /// It has happened: `Some` where it is to be told, with how often it has happened untold since the last time.
    pub fn happened(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < WARN_EVERY) {
            state.kept_back += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_then_how_many_were_not() {
        let (rarely, start) = (Rarely::default(), Instant::now());
        assert_eq!(rarely.happened(start), Some(0));
        assert_eq!(rarely.happened(start + WARN_EVERY / 2), None);
        assert_eq!(rarely.happened(start + WARN_EVERY / 2), None);
        assert_eq!(rarely.happened(start + WARN_EVERY), Some(2));
        assert_eq!(rarely.happened(start + WARN_EVERY * 3), Some(0));
    }
}
