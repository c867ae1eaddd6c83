//! Work: what each rank was given lately, whether it is done or not. In-flight counts say who is busy now; where most
//! ranks are idle at any moment, only what they were given over hours says who has too many sessions.
//!
//! Sums fade by a half-life. They are kept in a unit that grows with time instead, so that nothing has to be done as
//! time passes: what was added a half-life ago weighs half of what is added now.

use std::time::{Duration, Instant};

use super::{Fleet, Worker, WorkerSlot};
use crate::core::id::{DpRank, InstanceId, WorkerId};
use crate::core::kv::{Expected, Index, Mark, Prompt, RankNumber};
use crate::core::load::Report;
use crate::core::weighing::Weighing;
use crate::core::worker::WorkerSpec;

/// Tokens in a block where a worker declares `kv_blocks` and no `block_size`.
const DEFAULT_BLOCK_SIZE: u32 = 16;
/// Half-lives after which the unit is made small again.
const MAX_EXPONENT: f64 = 64.0;
/// A worker whose prompts had fewer tokens cached than this share of what was expected is taken at its word.
const SHORTFALL: f64 = 0.9;
/// After how long work counts half, where nothing else is configured.
pub const HALF_LIFE: Duration = Duration::from_secs(4 * 60 * 60);

/// What was given lately, fading. In tokens times the unit of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Tokens of prompts.
    pub prompt: f64,
    /// Of these, tokens that were not expected in the cache, or were not in it.
    pub missed: f64,
    /// Prompts.
    pub count: f64,
}

impl Work {
    /// This and that.
    pub fn and(self, other: Self) -> Self {
        Self { prompt: self.prompt + other.prompt, missed: self.missed + other.missed, count: self.count + other.count }
    }

    /// So many times this.
    pub fn times(self, factor: f64) -> Self {
        Self { prompt: self.prompt * factor, missed: self.missed * factor, count: self.count * factor }
    }
}

/// The time by which work fades.
#[derive(Debug)]
pub(super) struct Fading {
    since: Option<Instant>,
    half_life: Duration,
}

impl Default for Fading {
    fn default() -> Self {
        Self { since: None, half_life: HALF_LIFE }
    }
}

/// The work of one worker.
#[derive(Debug, Default)]
pub(super) struct Works {
    /// Of its first ranks; the others have `rest`.
    ranks: Vec<RankWork>,
    rest: RankWork,
    /// Sequence numbers of the last messages about caches, by place.
    heard: Vec<Option<u64>>,
    /// Of requests that its engine gave a rank.
    unranked: Work,
    /// Sum over all.
    total: Work,
}

/// The work of one rank. It is small, since a decision may look at thousands.
#[derive(Debug, Clone, Copy, Default)]
pub struct RankWork {
    /// Tokens of prompts that it was given lately.
    pub prompt: f64,
    /// Of these, tokens that were missed.
    pub missed: f64,
    /// Tokens sent there to be prefilled since its last report.
    pending: f32,
    /// Tokens to be prefilled there, as its last report says.
    reported: f32,
    /// Its place in the index, where anything is known of it.
    pub number: Option<RankNumber>,
}

impl RankWork {
    /// Tokens that it has still to prefill, as far as is known.
    #[inline]
    pub fn to_prefill(&self) -> f64 {
        f64::from(self.pending + self.reported)
    }

    fn give(&mut self, more: Work) {
        self.prompt += more.prompt;
        self.missed += more.missed;
    }
}

/// Figures of this size need not be exact.
fn about(tokens: u64) -> f32 {
    tokens as f32
}

/// What another router tells of one of its dispatches.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// Tokens of the prompt, and how many of them were not expected there.
    pub tokens: u32,
    /// See `tokens`.
    pub missed: u32,
    /// The mark that the rank was known to have.
    pub behind: Option<Mark>,
    /// What follows it.
    pub tail: Vec<Mark>,
}

/// A change of a rank's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheEvent {
    /// It holds blocks more of a session.
    Stored {
        /// The session's hash.
        session: u64,
        /// How many.
        blocks: u32,
    },
    /// It holds blocks less of a session.
    Removed {
        /// The session's hash.
        session: u64,
        /// How many.
        blocks: u32,
    },
    /// It holds nothing any more.
    Cleared,
}

impl Fleet {
    /// After how long work counts half.
    pub fn set_half_life(&mut self, half_life: Duration) {
        self.fading.half_life = half_life;
    }

    /// What decisions weigh.
    pub fn set_weighing(&mut self, weighing: Weighing) {
        self.weighing = weighing;
    }

    /// See [`Fleet::set_weighing`].
    pub fn weighing(&self) -> &Weighing {
        &self.weighing
    }

    /// The unit of work at a time.
    pub fn unit(&self, now: Instant) -> f64 {
        let Some(since) = self.fading.since else { return 1.0 };
        let half_lives = now.saturating_duration_since(since).as_secs_f64() / self.fading.half_life.as_secs_f64();
        half_lives.exp2()
    }

    /// The same, for adding: it is made small again where it has grown large.
    fn unit_to_add(&mut self, now: Instant) -> f64 {
        let unit = self.unit(now);
        if self.fading.since.is_some() && unit < MAX_EXPONENT.exp2() {
            return unit;
        }
        self.fading.since = Some(now);
        for (_, worker) in &mut self.slots {
            let Some(worker) = worker else { continue };
            worker.work.total = worker.work.total.times(1.0 / unit);
            worker.work.unranked = worker.work.unranked.times(1.0 / unit);
            for rank in worker.work.ranks.iter_mut().chain([&mut worker.work.rest]) {
                (rank.prompt, rank.missed) = (rank.prompt / unit, rank.missed / unit);
            }
        }
        self.glance_at_all();
        1.0
    }

    /// A prompt goes to a placement. What was expected of it there, to be compared with what its worker will say; and
    /// what other routers should know of it.
    pub fn note_dispatch(
        &mut self,
        slot: WorkerSlot,
        rank: Option<DpRank>,
        prompt: &Prompt,
        now: Instant,
    ) -> (Expected, usize) {
        let place = self.get(slot).and_then(|worker| worker.place(rank));
        let (expected, known) = match place {
            Some(place) if !prompt.marks.is_empty() => {
                let number = self.number(slot, place);
                number.map_or((Expected::default(), 0), |number| self.index.learn(number, prompt))
            }
            Some(_) | None => (Expected { tokens: prompt.tokens, ..Expected::default() }, 0),
        };
        let missed = prompt.tokens.saturating_sub(expected.held);
        self.add_work(slot, place, (prompt.tokens, missed), missed, now);
        (expected, known)
    }

    /// The worker says how many of its tokens a prompt had, and how many of them were cached.
    pub fn note_finished(
        &mut self,
        slot: WorkerSlot,
        rank: Option<DpRank>,
        expected: Expected,
        (prompt_tokens, cached_tokens): (u64, u64),
        now: Instant,
    ) {
        self.count_tokens(slot, rank, (prompt_tokens, cached_tokens));
        if prompt_tokens == 0 {
            return;
        }
        let unit = self.unit(now);
        let Some(mut worker) = self.get_mut(slot) else { return };
        let place = worker.place(rank);
        // Its tokens are the engine's, ours are guessed from bytes: only shares can be compared.
        #[expect(clippy::cast_precision_loss, reason = "tokens of a prompt are far below 2^53")]
        let share = (cached_tokens.min(prompt_tokens)) as f64 / prompt_tokens as f64;
        let (held, tokens) = (f64::from(expected.held), f64::from(expected.tokens));
        let more = Work { missed: (held - share * tokens) * unit, ..Work::default() };
        worker.work.add(place, more, 0);
        let number = place.and_then(|place| worker.work.ranks.get(place)?.number);
        drop(worker);
        if let Some(number) = number
            && share * tokens < SHORTFALL * held
        {
            self.index.correct(number, expected.used_at);
        }
    }

    /// Another router has dispatched a prompt there.
    pub fn note_foreign(&mut self, slot: WorkerSlot, rank: Option<DpRank>, note: &Note, now: Instant) {
        let Some(worker) = self.get(slot) else { return };
        let place = worker.place(rank);
        // When another router's prefill is done only reports can say.
        let pending = if worker.fresh_report(now).is_some() { note.missed } else { 0 };
        self.add_work(slot, place, (note.tokens, note.missed), pending, now);
        if let Some(place) = place
            && let Some(number) = self.number(slot, place)
        {
            self.index.learn_tail(number, note.behind, &note.tail);
        }
    }

    /// A prompt of a session that goes to a placement ends with this mark.
    pub fn note_session(&mut self, slot: WorkerSlot, rank: Option<DpRank>, session: u64, last: u64) {
        let worker = self.get(slot);
        let number = worker.and_then(|worker| worker.number(worker.place(rank)?));
        if let Some(number) = number {
            self.index.note_session(number, session, last);
        }
    }

    /// A rank tells what its cache holds more or less. False where that is ignored: another instance's, or not newer than
    /// the last one. After a gap all that was known of the rank is forgotten.
    pub fn handle_cache_events(
        &mut self,
        worker: &WorkerId,
        rank: DpRank,
        instance: &InstanceId,
        seq: u64,
        events: &[CacheEvent],
        now: Instant,
    ) -> bool {
        let Some((slot, known)) = self.find(worker.as_str()) else { return false };
        let Some(place) = known.spec.ranks.index_of(rank).filter(|_| known.spec.instance == *instance) else {
            return false;
        };
        let block = known.spec.block_size.unwrap_or(DEFAULT_BLOCK_SIZE);
        self.handle_event(slot, now);
        let Some(number) = self.number(slot, place) else { return false };
        let Some(mut worker) = self.get_mut(slot) else { return false };
        let heard = worker.work.heard_mut(place);
        if heard.is_some_and(|last| seq <= last) {
            return false;
        }
        let gap = heard.replace(seq).is_some_and(|last| seq - last > 1);
        drop(worker);
        if gap {
            self.index.clear(number);
        }
        for event in events {
            match *event {
                CacheEvent::Stored { session, blocks } => {
                    self.index.stored(number, session, blocks.saturating_mul(block));
                }
                CacheEvent::Removed { session, blocks } => {
                    self.index.removed(number, session, blocks.saturating_mul(block));
                }
                CacheEvent::Cleared => self.index.clear(number),
            }
        }
        true
    }

    fn add_work(
        &mut self,
        slot: WorkerSlot,
        place: Option<usize>,
        (tokens, missed): (u32, u32),
        pending: u32,
        now: Instant,
    ) {
        let unit = self.unit_to_add(now);
        let Some(mut worker) = self.get_mut(slot) else { return };
        let more = Work { prompt: f64::from(tokens), missed: f64::from(missed), count: 1.0 };
        worker.work.add(place, more.times(unit), pending);
    }

    /// The rank's place in the index, made where it has none yet.
    pub(super) fn number(&mut self, slot: WorkerSlot, place: usize) -> Option<RankNumber> {
        let mut worker = self.get_mut(slot)?;
        let at = worker.work.rank_mut(place);
        if let Some(number) = at.number {
            return Some(number);
        }
        let capacity = worker.spec.kv_blocks.map(|blocks| {
            let size = worker.spec.block_size.unwrap_or(DEFAULT_BLOCK_SIZE);
            blocks.saturating_mul(size.into())
        });
        drop(worker);
        let number = self.index.add(capacity);
        self.get_mut(slot)?.work.rank_mut(place).number = Some(number);
        Some(number)
    }

    /// A worker is new: it begins with as much work as others of its models have, or it would get every session until
    /// it has caught up.
    pub(super) fn begin_work(&self, spec: &WorkerSpec) -> Works {
        let others = spec.models.iter().filter_map(|model| self.by_model.get(model)).flatten();
        let (mut sum, mut shares) = (Work::default(), 0.0);
        for worker in others.filter_map(|&index| self.at(index)) {
            sum = sum.and(worker.work.total);
            shares += worker.shares();
        }
        if shares <= 0.0 {
            return Works::default();
        }
        let one = sum.times(spec.weight / shares);
        let rest = RankWork { prompt: one.prompt, missed: one.missed, ..RankWork::default() };
        Works { rest, total: one.times(f64::from(spec.ranks.size())), ..Works::default() }
    }

    /// A worker is gone, or its ranks are others: nothing is known of what they hold.
    pub(super) fn end_work(&mut self, work: &Works) {
        for number in work.ranks.iter().filter_map(|rank| rank.number) {
            self.index.remove(number);
        }
    }

    /// What ranks are expected to hold.
    pub fn index(&self) -> &Index {
        &self.index
    }
}

impl Works {
    fn rank_mut(&mut self, place: usize) -> &mut RankWork {
        if self.ranks.len() <= place {
            self.ranks.resize(place + 1, self.rest);
        }
        &mut self.ranks[place]
    }

    fn heard_mut(&mut self, place: usize) -> &mut Option<u64> {
        if self.heard.len() <= place {
            self.heard.resize(place + 1, None);
        }
        &mut self.heard[place]
    }

    fn add(&mut self, place: Option<usize>, more: Work, pending: u32) {
        self.total = self.total.and(more);
        match place {
            Some(place) => {
                let rank = self.rank_mut(place);
                rank.give(more);
                rank.pending += about(pending.into());
            }
            None => self.unranked = self.unranked.and(more),
        }
    }
}

impl Worker {
    /// It declares other ranks, or other caches: work stays with its ranks, what is known of others' caches is given back
    /// to be forgotten.
    pub(super) fn handle_other_ranks(&mut self, spec: &WorkerSpec) -> Works {
        let old = &self.spec;
        let same_caches = (old.kv_blocks, old.block_size) == (spec.kv_blocks, spec.block_size);
        if same_caches && old.ranks == spec.ranks {
            return Works::default();
        }
        let (from, total) = (self.spec.shares(), self.work.total);
        let mut ranks = Vec::new();
        for rank in spec.ranks.iter() {
            let at = old.ranks.index_of(rank).and_then(|place| self.work.ranks.get_mut(place));
            let Some(at) = at else { continue };
            let number = if same_caches { at.number.take() } else { None };
            let place = spec.ranks.index_of(rank).expect("it is one of them");
            ranks.resize(place, self.work.rest);
            ranks.push(RankWork { number, ..*at });
        }
        // New ranks are guessed to have as much as the others: none gets every session for being new.
        let total = total.times(spec.shares() / from);
        let works = Works { ranks, rest: self.work.rest, unranked: self.work.unranked, total, heard: Vec::new() };
        std::mem::replace(&mut self.work, works)
    }

    /// A report says what is still to be prefilled at each of its ranks.
    pub(super) fn report_work(&mut self, report: &Report) {
        for rank in &mut self.work.ranks {
            (rank.pending, rank.reported) = (0.0, 0.0);
        }
        for load in report.ranks.iter().filter(|load| load.prefill_tokens > 0) {
            if let Some(place) = self.spec.ranks.index_of(load.rank) {
                self.work.rank_mut(place).reported = about(load.prefill_tokens);
            }
        }
    }

    /// The last of this router's requests leaves a placement: nothing of it is still to be prefilled there.
    pub(super) fn settle_work(&mut self, rank: Option<DpRank>) {
        if let Some(rank) = self.place(rank).and_then(|place| self.work.ranks.get_mut(place)) {
            rank.pending = 0.0;
        }
    }

    /// This router's own requests at a placement.
    pub(super) fn own_at(&self, rank: Option<DpRank>) -> u32 {
        rank.map_or(self.own_unranked, |rank| self.own_on(rank))
    }

    /// Where a placement on it stands among its ranks; a worker of one rank is never sent one.
    fn place(&self, rank: Option<DpRank>) -> Option<usize> {
        match rank {
            Some(rank) => self.spec.ranks.index_of(rank),
            None if self.spec.ranks.size() == 1 => Some(0),
            None => None,
        }
    }

    /// How much of the fleet's work it should have.
    pub fn shares(&self) -> f64 {
        self.spec.shares()
    }

    /// What all of it was given.
    pub fn work(&self) -> Work {
        self.work.total
    }

    /// What a placement was given, for each share of the fleet's work it should have. Without a rank, the mean of all.
    pub fn work_at(&self, rank: Option<DpRank>) -> Work {
        match self.place(rank) {
            Some(place) => {
                let RankWork { prompt, missed, .. } = *self.rank_work(place);
                Work { prompt, missed, count: 0.0 }.times(1.0 / self.spec.weight)
            }
            None => self.work.total.times(1.0 / self.shares()),
        }
    }

    /// The work of the rank at a place.
    #[inline]
    pub fn rank_work(&self, place: usize) -> &RankWork {
        self.work.ranks.get(place).unwrap_or(&self.work.rest)
    }

    /// The place in the index of the rank at a place, where anything is known of it.
    pub fn number(&self, place: usize) -> Option<RankNumber> {
        self.rank_work(place).number
    }
}

#[cfg(test)]
mod tests;
