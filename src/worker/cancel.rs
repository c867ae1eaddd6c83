//! Which requests are to be given up: tokens for those that run, and a bounded memory of cancels that found nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::core::id::RequestId;

/// Cancels remembered that found no request.
const MAX_RECENT: usize = 4096;
/// How long they count. A cancel comes within milliseconds of its dispatch, on another subscription.
const RECENT_FOR: Duration = Duration::from_secs(5);

/// One attempt of one request.
pub(super) type AttemptKey = (RequestId, u32);

/// Tells an engine that its request is to be given up. Clones tell the same.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<TokenState>);

#[derive(Debug, Default)]
struct TokenState {
    reason: AtomicU8,
    changed: Notify,
}

/// Why a request is to be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// The frontend does not want it any more.
    Asked,
    /// The router gave the attempt up, and says how the request goes on.
    GivenUp,
    /// The worker stops and the request did not end in time.
    Stopping,
    /// Nobody listens to its replies any more.
    Abandoned,
    /// The engine has begun its answer and then said nothing for too long.
    Idle,
}

const ASKED: u8 = 1;
const STOPPING: u8 = 2;
const ABANDONED: u8 = 3;
const IDLE: u8 = 4;
const GIVEN_UP: u8 = 5;

impl CancelToken {
    /// Why the request is to be given up; `None` while it is not.
    pub fn reason(&self) -> Option<CancelReason> {
        match self.0.reason.load(Ordering::Acquire) {
            ASKED => Some(CancelReason::Asked),
            STOPPING => Some(CancelReason::Stopping),
            ABANDONED => Some(CancelReason::Abandoned),
            IDLE => Some(CancelReason::Idle),
            GIVEN_UP => Some(CancelReason::GivenUp),
            _ => None,
        }
    }

    /// Returns once the request is to be given up. Dropping the future loses nothing.
    pub async fn cancelled(&self) -> CancelReason {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            // Enabled before the look, so that a cancel between look and wait wakes.
            changed.as_mut().enable();
            if let Some(reason) = self.reason() {
                return reason;
            }
            changed.await;
        }
    }

    pub(super) fn cancel(&self, reason: CancelReason) {
        let reason = match reason {
            CancelReason::Asked => ASKED,
            CancelReason::Stopping => STOPPING,
            CancelReason::Abandoned => ABANDONED,
            CancelReason::Idle => IDLE,
            CancelReason::GivenUp => GIVEN_UP,
        };
        // The first reason stands.
        let _ = self.0.reason.compare_exchange(0, reason, Ordering::AcqRel, Ordering::Acquire);
        self.0.changed.notify_waiters();
    }
}

/// All attempts that this worker holds.
#[derive(Debug, Default)]
pub(super) struct Cancels {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    // Two frontends may choose the same request id, so one key may stand for several requests; a cancel is for all.
    held: HashMap<AttemptKey, Vec<CancelToken>, foldhash::fast::RandomState>,
    recent: HashMap<AttemptKey, Instant>,
    by_age: VecDeque<(AttemptKey, Instant)>,
}

/// An attempt that is held; dropped when it ends.
#[derive(Debug)]
pub(super) struct Held {
    cancels: Arc<Cancels>,
    key: AttemptKey,
    token: CancelToken,
}

impl Held {
    /// The token that tells of its cancel.
    pub(super) fn token(&self) -> &CancelToken {
        &self.token
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut inner = self.cancels.lock();
        if let Some(tokens) = inner.held.get_mut(&self.key) {
            tokens.retain(|token| !Arc::ptr_eq(&token.0, &self.token.0));
            if tokens.is_empty() {
                inner.held.remove(&self.key);
            }
        }
    }
}

impl Cancels {
    /// Takes an attempt in. `None`: its cancel was here before it. A cancel is used up by the attempt that it meets.
    pub(super) fn enter(self: &Arc<Self>, key: AttemptKey, now: Instant) -> Option<Held> {
        let mut inner = self.lock();
        if !inner.recent.is_empty()
            && let Some(at) = inner.recent.remove(&key)
            && now.saturating_duration_since(at) < RECENT_FOR
        {
            return None;
        }
        let token = CancelToken::default();
        inner.held.entry(key.clone()).or_default().push(token.clone());
        Some(Held { cancels: Arc::clone(self), key, token })
    }

    /// A cancel came in.
    pub(super) fn cancel(&self, key: AttemptKey, reason: CancelReason, now: Instant) {
        let mut inner = self.lock();
        if let Some(tokens) = inner.held.get(&key) {
            tokens.iter().for_each(|token| token.cancel(reason));
            return;
        }
        inner.remember(key, now);
    }

    /// Gives up everything that is held. Returns how much that was.
    pub(super) fn stop_all(&self) -> usize {
        let inner = self.lock();
        let tokens = inner.held.values().flatten();
        tokens.clone().for_each(|token| token.cancel(CancelReason::Stopping));
        tokens.count()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no code panics while it holds this lock")
    }
}

impl Inner {
    fn remember(&mut self, key: AttemptKey, now: Instant) {
        while let Some((oldest, at)) = self.by_age.front() {
            let old = now.saturating_duration_since(*at) >= RECENT_FOR;
            if !old && self.by_age.len() < MAX_RECENT {
                break;
            }
            // An entry that was used up and came anew has a later line of its own.
            if self.recent.get(oldest) == Some(at) {
                self.recent.remove(oldest);
            }
            self.by_age.pop_front();
        }
        self.recent.insert(key.clone(), now);
        self.by_age.push_back((key, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str, attempt: u32) -> AttemptKey {
        (RequestId::new(id).expect("valid"), attempt)
    }

    #[test]
    fn a_cancel_meets_its_attempt_alone() {
        let (cancels, now) = (Arc::new(Cancels::default()), Instant::now());
        let first = cancels.enter(key("r", 1), now).expect("not cancelled");
        let second = cancels.enter(key("r", 2), now).expect("not cancelled");
        cancels.cancel(key("r", 1), CancelReason::Asked, now);
        assert_eq!(first.token().reason(), Some(CancelReason::Asked));
        assert_eq!(second.token().reason(), None);
        assert_eq!(cancels.stop_all(), 2);
        assert_eq!(first.token().reason(), Some(CancelReason::Asked), "the first reason stands");
        assert_eq!(second.token().reason(), Some(CancelReason::Stopping));
        drop(first);
        drop(second);
        assert!(cancels.lock().held.is_empty());
    }

    #[test]
    fn a_cancel_meets_all_of_one_id_and_what_happens_to_one_of_them_no_other() {
        let (cancels, now) = (Arc::new(Cancels::default()), Instant::now());
        let held = || cancels.enter(key("r", 1), now).expect("not cancelled");
        let (first, second) = (held(), held());
        first.token().cancel(CancelReason::Abandoned);
        assert_eq!(second.token().reason(), None);
        drop(first);
        cancels.cancel(key("r", 1), CancelReason::Asked, now);
        assert_eq!(second.token().reason(), Some(CancelReason::Asked));
        drop(second);
        assert!(cancels.lock().held.is_empty());
    }

    #[test]
    fn a_cancel_before_its_dispatch_counts_once_and_for_a_while() {
        let (cancels, now) = (Arc::new(Cancels::default()), Instant::now());
        cancels.cancel(key("r", 1), CancelReason::Asked, now);
        assert!(cancels.enter(key("r", 1), now).is_none());
        assert!(cancels.enter(key("r", 1), now).is_some(), "it is used up");
        cancels.cancel(key("s", 1), CancelReason::Asked, now);
        assert!(cancels.enter(key("s", 1), now + RECENT_FOR).is_some(), "it is too old");
    }

    #[test]
    fn the_memory_is_bounded() {
        let (cancels, now) = (Arc::new(Cancels::default()), Instant::now());
        for i in 0..3 * MAX_RECENT {
            cancels.cancel(key(&format!("r{i}"), 1), CancelReason::Asked, now);
        }
        let inner = cancels.lock();
        assert_eq!((inner.recent.len(), inner.by_age.len()), (MAX_RECENT, MAX_RECENT));
    }

    #[tokio::test]
    async fn waiting_for_a_cancel() {
        let token = CancelToken::default();
        let waiting = tokio::spawn({
            let token = token.clone();
            async move { token.cancelled().await }
        });
        tokio::task::yield_now().await;
        token.cancel(CancelReason::Asked);
        assert_eq!(waiting.await.expect("it ends"), CancelReason::Asked);
    }
}
