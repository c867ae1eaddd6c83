//! One simulated rank: a prefix cache, one prefill at a time, any number of answers being decoded.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::cache::{BlockId, PrefixCache};
use crate::wire::load::RankReport;

/// One rank.
#[derive(Debug)]
pub(super) struct Rank {
    cache: Mutex<PrefixCache>,
    prefill: Semaphore,
    queued: AtomicU64,
    working: AtomicU64,
    prefill_tokens: AtomicU64,
}

/// How fast a rank is, in tokens a second, all told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    pub prefill: f64,
    pub decode: f64,
}

impl Rank {
    pub(super) fn new(kv_blocks: usize) -> Self {
        Self {
            cache: Mutex::new(PrefixCache::new(kv_blocks)),
            prefill: Semaphore::new(1),
            queued: AtomicU64::new(0),
            working: AtomicU64::new(0),
            prefill_tokens: AtomicU64::new(0),
        }
    }

    /// Counts a request as worked on, until the guard is dropped.
    pub(super) fn work(&self) -> impl Drop + Send {
        Counted::new(&self.working, 1)
    }

    /// Waits for its turn and prefills what is not cached. Returns how many of the prompt's blocks were, at most
    /// `most`. Where the future is dropped, nothing is left behind.
    pub(super) async fn prefill(&self, prompt: &Prefill<'_>, rates: Rates) -> usize {
        let queued = Counted::new(&self.queued, 1);
        let to_do = Counted::new(&self.prefill_tokens, prompt.tokens);
        let turn = self.prefill.acquire().await.expect("it is never closed");
        drop(queued);
        let hit = self.cache().hit(prompt.blocks).min(prompt.most);
        let rest = prompt.tokens - hit as u64 * u64::from(prompt.block_tokens);
        let to_do = to_do.lower_to(rest);
        tokio::time::sleep(Duration::from_secs_f64(rest as f64 / rates.prefill)).await;
        self.cache().insert(prompt.blocks);
        drop((to_do, turn));
        hit
    }

    /// Takes in what was generated.
    pub(super) fn keep(&self, blocks: &[BlockId]) {
        self.cache().insert(blocks);
    }

    /// Fills in a load report.
    pub(super) fn report(&self, report: &mut RankReport) {
        let count = |counter: &AtomicU64| u32::try_from(counter.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        report.queued = count(&self.queued);
        // Those that wait are worked on too, as far as their guard knows.
        report.inflight = count(&self.working).saturating_sub(report.queued);
        report.kv_used_blocks = self.cache().used() as u64;
        report.prefill_tokens = self.prefill_tokens.load(Ordering::Relaxed);
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, PrefixCache> {
        self.cache.lock().expect("no code panics while it holds this lock")
    }
}

/// A prompt to be prefilled.
#[derive(Debug)]
pub(super) struct Prefill<'p> {
    pub blocks: &'p [BlockId],
    pub block_tokens: u32,
    /// Tokens of the prompt.
    pub tokens: u64,
    /// Blocks that may come from the cache.
    pub most: usize,
}

/// When the tokens of an answer are there.
#[derive(Debug)]
pub(super) struct Decode {
    since: Instant,
    rate: f64,
    total: u64,
    done: u64,
}

impl Decode {
    pub(super) fn new(total: u64, rates: Rates) -> Self {
        Self { since: Instant::now(), rate: rates.decode, total, done: 0 }
    }

    /// Waits for the next token. Returns how many are there by then, which is more than one where the timer is
    /// coarser than the rate; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<std::ops::Range<u64>> {
        if self.done == self.total {
            return None;
        }
        let due = Duration::from_secs_f64((self.done + 1) as f64 / self.rate);
        tokio::time::sleep_until(self.since + due).await;
        let there = super::count(self.since.elapsed().as_secs_f64() * self.rate);
        let before = self.done;
        self.done = there.clamp(before + 1, self.total);
        Some(before..self.done)
    }
}

/// Adds to a counter while it lives.
struct Counted<'c> {
    counter: &'c AtomicU64,
    by: u64,
}

impl<'c> Counted<'c> {
    fn new(counter: &'c AtomicU64, by: u64) -> Self {
        counter.fetch_add(by, Ordering::Relaxed);
        Self { counter, by }
    }

    fn lower_to(mut self, by: u64) -> Self {
        self.counter.fetch_sub(self.by - by, Ordering::Relaxed);
        self.by = by;
        self
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.by, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: Rates = Rates { prefill: 1000.0, decode: 10.0 };

    #[tokio::test(start_paused = true)]
    async fn what_is_cached_costs_nothing_and_prefills_take_turns() {
        let rank = Rank::new(64);
        let blocks = [1, 2, 3, 4];
        let prompt = Prefill { blocks: &blocks, block_tokens: 100, tokens: 450, most: 4 };
        let began = Instant::now();
        let (first, second) = tokio::join!(rank.prefill(&prompt, RATES), rank.prefill(&prompt, RATES));
        assert_eq!((first, second), (0, 4));
        assert_eq!(began.elapsed().as_millis(), 500, "450 ms for the first, 50 ms for the second's rest");
        let mut report = RankReport::default();
        rank.report(&mut report);
        assert_eq!(report, RankReport { kv_used_blocks: 4, ..RankReport::default() });
    }

    #[tokio::test(start_paused = true)]
    async fn a_prefill_that_is_given_up_leaves_nothing_behind() {
        let rank = Rank::new(64);
        let prompt = Prefill { blocks: &[1], block_tokens: 100, tokens: 100, most: 1 };
        let given_up = tokio::time::timeout(Duration::from_millis(50), rank.prefill(&prompt, RATES)).await;
        assert!(given_up.is_err());
        let mut report = RankReport::default();
        rank.report(&mut report);
        assert_eq!(report, RankReport::default());
        assert_eq!(rank.prefill(&prompt, RATES).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_come_at_their_rate() {
        let mut decode = Decode::new(3, RATES);
        let began = Instant::now();
        let mut ranges = Vec::new();
        while let Some(range) = decode.next().await {
            ranges.push((range, began.elapsed().as_millis()));
        }
        assert_eq!(ranges.len(), 3);
        assert_eq!(ranges[2].0, 2..3);
        assert!((300..=303).contains(&ranges[2].1), "{ranges:?}");
    }
}
