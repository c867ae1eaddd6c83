//! One simulated rank: a prefix cache, prefills one after the other, any number of answers at once.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Setup;
use super::cache::Cache;
use super::trace::Runs;

/// Microseconds since the start of the trace.
pub(super) type Micros = u64;

/// A rank.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) cache: Cache,
    queue: VecDeque<Job>,
    /// What is being prefilled, with the blocks that it found in the cache.
    busy: Option<(Job, usize)>,
    /// Requests that it has, and those of them whose prefill has not begun are in the queue.
    pub(super) in_flight: u32,
    /// Blocks of the prompts that it was given, and of these those that it had to prefill.
    pub(super) given: u64,
    /// See `given`.
    pub(super) missed: u64,
    /// Whether a report of it is on its way.
    pub(super) report_due: bool,
    waiting: u64,
}

/// A request at a target.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) number: usize,
    pub(super) came: Micros,
    pub(super) blocks: Arc<Runs>,
    pub(super) ids: Vec<u32>,
}

/// A prefill that has ended.
#[derive(Debug)]
pub(super) struct Prefilled {
    pub(super) job: Job,
    pub(super) hit: usize,
}

impl Target {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            cache: Cache::new(setup.blocks),
            queue: VecDeque::new(),
            busy: None,
            in_flight: 0,
            given: 0,
            missed: 0,
            report_due: false,
            waiting: 0,
        }
    }

    /// Takes a request.
    pub(super) fn take(&mut self, job: Job) {
        self.in_flight += 1;
        self.given += job.ids.len() as u64;
        self.waiting += job.ids.len() as u64;
        self.queue.push_back(job);
    }

    /// Begins the next prefill where it can: how many blocks that is.
    pub(super) fn begin(&mut self) -> Option<u64> {
        if self.busy.is_some() {
            return None;
        }
        let job = self.queue.pop_front()?;
        let hit = self.cache.held(&job.ids);
        let rest = (job.ids.len() - hit) as u64;
        self.waiting -= job.ids.len() as u64;
        self.missed += rest;
        self.busy = Some((job, hit));
        Some(rest)
    }

    /// The prefill is done.
    pub(super) fn end_prefill(&mut self) -> Option<Prefilled> {
        let (job, hit) = self.busy.take()?;
        self.cache.insert(&job.blocks, &job.ids);
        Some(Prefilled { job, hit })
    }

    /// Blocks that are still to be prefilled, as far as it knows itself: what waits was not looked up yet.
    pub(super) fn to_prefill(&self) -> u64 {
        self.waiting + self.busy.as_ref().map_or(0, |(job, hit)| (job.ids.len() - hit) as u64)
    }

    /// Requests whose prefill has not begun.
    pub(super) fn queued(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }
}
