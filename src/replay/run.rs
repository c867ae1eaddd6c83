//! One run: the events of a trace, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use hdrhistogram::Histogram;

use super::Setup;
use super::published;
use super::router::{Combination, CoreRouter};
use super::target::{Job, Micros, Target};
use super::trace::{Request, Trace};

/// A target reports at most this often (protocol section 7).
const REPORT_EVERY: Micros = 50_000;

/// Longest time to the first token that is told apart from longer ones: a day.
const MAX_TTFT: Micros = 86_400_000_000;

/// A request, as whoever places it sees it.
pub(super) struct Asked<'r> {
    /// Its place in the trace.
    pub(super) number: usize,
    pub(super) session: u32,
    /// Ids of its prompt's blocks.
    pub(super) ids: &'r [u32],
    pub(super) now: Micros,
}

/// Who places requests.
pub(super) trait Places {
    /// The target of a request.
    fn place(&mut self, asked: &Asked<'_>, targets: &[Target]) -> usize;
    /// A request has ended: blocks of its prompt, and of these those that were cached.
    fn finished(&mut self, _number: usize, _blocks: (usize, usize), _now: Micros) {}
    /// A target reports its load.
    fn reported(&mut self, _target: usize, _targets: &[Target], _now: Micros) {}
}

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Who placed.
    pub name: String,
    /// Blocks found in caches, of all.
    pub hit_share: f64,
    /// Prompt tokens of the target with most of them, over the mean.
    pub imbalance: f64,
    /// Tokens that the target with most of them had to prefill, over the mean.
    pub worst_misses: f64,
    /// Time to the first token in seconds: median and 99th percentile.
    pub ttft: (f64, f64),
    /// How often a request went to another target than the one before it of its session.
    pub moves: u64,
}

/// A run to be made.
#[derive(Debug, Clone)]
pub enum Named {
    /// One cache of all blocks that the fleet has: what no placement can exceed.
    Ideal,
    /// The core, with a policy and an affinity.
    Core(Combination),
    /// A reference rule, by its place in [`Named::references`].
    Reference(usize),
}

impl Named {
    /// All reference rules.
    pub fn references() -> Vec<Self> {
        (0..published::ALL.len()).map(Self::Reference).collect()
    }
}

/// Makes a run.
pub fn replay(trace: &Trace, setup: &Setup, named: &Named) -> Measured {
    match named {
        Named::Ideal => {
            let pooled = Setup {
                workers: 1,
                ranks: 1,
                blocks: setup.blocks.map(|blocks| blocks * setup.targets() as u64),
                // As fast as the whole fleet.
                prefill_rate: setup.prefill_rate * setup.targets() as f64,
                ..setup.clone()
            };
            run(trace, &pooled, &mut published::OneTarget, "ideal (one pooled cache)")
        }
        Named::Core(combination) => {
            let mut router = CoreRouter::new(trace, setup, *combination);
            run(trace, setup, &mut router, &combination.name())
        }
        Named::Reference(index) => {
            let (name, new) = published::ALL[*index];
            run(trace, setup, &mut *new(trace, setup), name)
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A target has prefilled.
    Prefilled(usize),
    /// An answer is complete: request, blocks, hit.
    Ended(usize, usize, (usize, usize)),
    /// A target reports.
    Report(usize),
}

struct Run<'r> {
    trace: &'r Trace,
    setup: &'r Setup,
    targets: Vec<Target>,
    events: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    sequence: u64,
    ttft: Histogram<u64>,
    hits: u64,
    moves: u64,
    last: Vec<usize>,
}

fn run(trace: &Trace, setup: &Setup, places: &mut dyn Places, name: &str) -> Measured {
    let mut run = Run {
        trace,
        setup,
        targets: (0..setup.targets()).map(|_| Target::new(setup)).collect(),
        events: BinaryHeap::new(),
        sequence: 0,
        ttft: Histogram::new_with_bounds(1, MAX_TTFT, 3).expect("the bounds are allowed"),
        hits: 0,
        moves: 0,
        last: vec![usize::MAX; trace.sessions],
    };
    for (number, request) in trace.requests.iter().enumerate() {
        let now = micros(request.at / setup.speed);
        run.pass_until(now, places);
        run.arrive(number, request, now, places);
    }
    run.pass_until(Micros::MAX, places);
    run.measured(name)
}

impl Run<'_> {
    fn at(&mut self, when: Micros, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((when, self.sequence, event)));
    }

    fn pass_until(&mut self, now: Micros, places: &mut dyn Places) {
        while self.events.peek().is_some_and(|Reverse((when, ..))| *when <= now) {
            let Some(Reverse((when, _, event))) = self.events.pop() else { return };
            match event {
                Event::Prefilled(target) => self.prefilled(target, when),
                Event::Ended(number, target, blocks) => {
                    self.targets[target].in_flight -= 1;
                    places.finished(number, blocks, when);
                    self.report_soon(target, when);
                }
                Event::Report(target) => {
                    self.targets[target].report_due = false;
                    places.reported(target, &self.targets, when);
                }
            }
        }
    }

    fn arrive(&mut self, number: usize, request: &Request, now: Micros, places: &mut dyn Places) {
        let mut ids = Vec::with_capacity(request.blocks.len());
        request.blocks.write(&mut ids);
        let asked = Asked { number, session: request.session, ids: &ids, now };
        let target = places.place(&asked, &self.targets);
        let last = std::mem::replace(&mut self.last[request.session as usize], target);
        self.moves += u64::from(last != usize::MAX && last != target);
        self.targets[target].take(Job { number, came: now, blocks: Arc::clone(&request.blocks), ids });
        self.begin(target, now);
        self.report_soon(target, now);
    }

    fn begin(&mut self, target: usize, now: Micros) {
        if let Some(blocks) = self.targets[target].begin() {
            let tokens = blocks as f64 * f64::from(self.trace.block_tokens);
            self.at(now + micros(tokens / self.setup.prefill_rate), Event::Prefilled(target));
        }
    }

    fn prefilled(&mut self, target: usize, now: Micros) {
        let Some(done) = self.targets[target].end_prefill() else { return };
        self.hits += done.hit as u64;
        self.ttft.saturating_record(now - done.job.came);
        let out = f64::from(self.trace.requests[done.job.number].out);
        let ended = Event::Ended(done.job.number, target, (done.job.ids.len(), done.hit));
        self.at(now + micros(out / self.setup.decode_rate), ended);
        self.begin(target, now);
        self.report_soon(target, now);
    }

    fn report_soon(&mut self, target: usize, now: Micros) {
        if !std::mem::replace(&mut self.targets[target].report_due, true) {
            self.at(now + REPORT_EVERY, Event::Report(target));
        }
    }

    fn measured(self, name: &str) -> Measured {
        let given: Vec<u64> = self.targets.iter().map(|target| target.given).collect();
        let missed: Vec<u64> = self.targets.iter().map(|target| target.missed).collect();
        let seconds = |quantile| self.ttft.value_at_quantile(quantile) as f64 / 1e6;
        Measured {
            name: name.to_owned(),
            hit_share: self.hits as f64 / given.iter().sum::<u64>().max(1) as f64,
            imbalance: most_over_mean(&given),
            worst_misses: most_over_mean(&missed),
            ttft: (seconds(0.5), seconds(0.99)),
            moves: self.moves,
        }
    }
}

fn most_over_mean(all: &[u64]) -> f64 {
    let sum = all.iter().sum::<u64>();
    let most = all.iter().max().copied().unwrap_or(0);
    if sum == 0 { 1.0 } else { most as f64 * all.len() as f64 / sum as f64 }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of a trace are no longer than years"
)]
fn micros(seconds: f64) -> Micros {
    (seconds.max(0.0) * 1e6).round() as Micros
}
