//! What has happened lately, for the page and for `rankpin top`: what the log says of the cluster's state, in short.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::state::unix_ms;
use crate::wire::service::Happening;

/// How many are kept.
const MAX_HAPPENINGS: usize = 100;
/// Longest text of one, in characters.
const MAX_CHARS: usize = 200;

/// The last ones.
#[derive(Debug, Default)]
pub struct Happenings(Mutex<VecDeque<Happening>>);

impl Happenings {
    /// Something is as it should be again, or was asked for.
    pub fn note(&self, text: impl AsRef<str>) {
        self.push(false, text.as_ref());
    }

    /// Somebody should look.
    pub fn warn(&self, text: impl AsRef<str>) {
        self.push(true, text.as_ref());
    }

    fn push(&self, warn: bool, text: &str) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_HAPPENINGS {
            kept.pop_front();
        }
        kept.push_back(Happening { at_ms: unix_ms(), warn, text: text.chars().take(MAX_CHARS).collect() });
    }

    /// All that are kept, the newest last.
    pub fn all(&self) -> Vec<Happening> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
