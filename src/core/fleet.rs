//! The fleet: who is registered, alive, and how loaded.
//!
//! Liveness is by the router's own clock since a worker's last sign of life, never by keys expiring: an election in
//! the NATS cluster must not make the fleet look lost.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use super::hash;
use super::id::{DpRank, InstanceId, Model, WorkerId};
use super::kv::Index;
use super::load::Report;
use super::pool::Pools;
use super::weighing::Weighing;
use super::worker::{WorkerKind, WorkerSpec, WorkerState};

mod drained;
mod full;
mod glance;
mod load;
mod refusals;
#[cfg(test)]
mod tests;
mod totals;
mod work;

use drained::Drained;
pub use work::{CacheEvent, HALF_LIFE, Note, RankWork, Work};
use work::{Fading, Works};

pub use full::{FullAt, FullBy};
use glance::Changing;
pub use glance::{Glance, Listed};
pub use load::REPORT_COUNTS_FOR;
use refusals::Refusals;
pub use totals::Totals;

/// A worker without a sign of life for this long is lost (protocol section 6).
pub const LOST_AFTER: Duration = Duration::from_secs(6);
/// How long a rank without responders counts as not declared (protocol section 6).
pub const RANK_LOST_FOR: Duration = Duration::from_secs(5);
/// How long a model that nobody serves any more is still known (protocol section 6.1).
pub const MODEL_KNOWN_FOR: Duration = Duration::from_secs(600);
/// Refused probes in a row after which a worker is lost (protocol section 6).
pub const PROBES_UNTIL_LOST: u8 = 2;
/// Most workers known at once; registrations beyond are refused with a warning.
pub const MAX_WORKERS: usize = 16_384;
/// Most models remembered; beyond, those that nobody serves are forgotten early.
pub const MAX_KNOWN_MODELS: usize = 65_536;
/// How long a worker that has refused a request with 503 gets no new session where others may have it: its next
/// registration tells more.
pub const LEAVING_FOR: Duration = Duration::from_secs(1);
/// Most ranks of one worker that are marked lost at once; beyond, the oldest mark is dropped.
const MAX_MARKS: usize = 64;
/// Shortest and longest way from one turn of a worker to its next: weights beyond a million to one count as that.
const MIN_STRIDE: f64 = 1e-3;
const MAX_STRIDE: f64 = 1e3;

/// A worker's place in the fleet. A new instance under the same name has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkerSlot {
    index: u32,
    generation: u32,
}

impl WorkerSlot {
    /// As two numbers, to be written into a subject.
    pub fn parts(self) -> (u32, u32) {
        (self.index, self.generation)
    }

    /// From two numbers; a slot that never was names nobody.
    pub fn from_parts(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }
}

/// One worker as the router sees it.
#[derive(Debug)]
pub struct Worker {
    /// What it declares.
    pub spec: WorkerSpec,
    /// A hash of its kind of device.
    device: u64,
    /// When its next turn is.
    turn: f64,
    /// The rank that was last picked on it.
    last_rank: Option<DpRank>,
    source: Source,
    registered: bool,
    last_sign: Instant,
    marks: Vec<Mark>,
    own: Vec<u32>,
    own_unranked: u32,
    /// Sum of both.
    own_total: u32,
    /// What it was given and has told, by rank and without one.
    totals: Vec<Totals>,
    totals_unranked: Totals,
    /// What this router had there, by rank and in all, when the worker last reported.
    own_then: Vec<u32>,
    own_total_then: u32,
    /// Sum over the ranks of the last report.
    reported_total: u64,
    accepted: u32,
    refused_probes: u8,
    last_probe_refused: bool,
    report: Option<(Report, Instant)>,
    /// Ranks that are full by that report, and why.
    over: Vec<(DpRank, FullBy)>,
    /// Ranks that have refused requests a moment ago.
    refusals: Refusals,
    /// Until when it says that it takes nothing new.
    leaving_until: Option<Instant>,
    /// What it was given lately.
    work: Works,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Its own registration.
    Registration,
    /// The configuration: always there.
    Configuration,
}

#[derive(Debug)]
struct Mark {
    rank: Option<DpRank>,
    until: Instant,
}

/// What a registration changed.
#[derive(Debug, PartialEq, Eq)]
pub enum Registered {
    /// The worker was not there before.
    New,
    /// It was there, and nothing that matters changed.
    Renewed,
    /// It was there with other declarations.
    Changed,
    /// Another instance had the name: its accepted requests are lost.
    Replaced(WorkerSlot),
    /// It is older than [`LOST_AFTER`]: not taken.
    Stale,
    /// There are [`MAX_WORKERS`] already.
    Full,
    /// The configuration has a worker of this name, which stays.
    Configured,
}

/// All workers.
#[derive(Debug, Default)]
pub struct Fleet {
    slots: Vec<(u32, Option<Worker>)>,
    /// What decisions see of each, by the same index.
    glances: Vec<Glance>,
    free: Vec<u32>,
    by_id: HashMap<WorkerId, u32, RandomState>,
    by_model: HashMap<Model, Vec<u32>, RandomState>,
    /// Pools that serve any model.
    for_any_model: Vec<u32>,
    known_models: HashMap<Model, Instant, RandomState>,
    drained: Drained,
    /// Whose turn it was last, in turns of the whole fleet.
    turn: f64,
    /// What reports count as full.
    full_at: FullAt,
    /// What ranks are expected to have cached.
    index: Index,
    fading: Fading,
    weighing: Weighing,
    /// How pools are chosen.
    pools: Pools,
}

impl Fleet {
    /// Takes a worker from the configuration.
    pub fn configure(&mut self, spec: WorkerSpec, now: Instant) {
        self.insert(spec, Source::Configuration, now);
    }

    /// How pools are chosen from now on.
    pub fn set_pools(&mut self, pools: Pools) {
        self.pools = pools;
    }

    /// How pools are chosen.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// A registration was put, `age` ago.
    pub fn handle_registration(&mut self, spec: WorkerSpec, age: Duration, now: Instant) -> Registered {
        self.remember_models(&spec, now);
        if age > LOST_AFTER {
            return Registered::Stale;
        }
        self.drained.is_back(&spec.id);
        let sign = now.checked_sub(age).unwrap_or(now);
        let Some(&index) = self.by_id.get(&spec.id) else {
            if self.by_id.len() >= MAX_WORKERS {
                return Registered::Full;
            }
            self.insert(spec, Source::Registration, sign);
            return Registered::New;
        };
        let old = self.at(index).expect("the index names workers that are there");
        if old.source == Source::Configuration {
            return Registered::Configured;
        }
        if old.spec.instance != spec.instance {
            let slot = self.slot_at(index);
            self.remove(slot);
            self.insert(spec, Source::Registration, sign);
            return Registered::Replaced(slot);
        }
        self.renew(index, spec, sign)
    }

    fn renew(&mut self, index: u32, spec: WorkerSpec, sign: Instant) -> Registered {
        let mut worker = self.at_mut(index).expect("the index names workers that are there");
        worker.last_sign = worker.last_sign.max(sign);
        if worker.registered && worker.spec == spec {
            return Registered::Renewed;
        }
        drop(worker);
        self.unlist(index);
        let mut worker = self.at_mut(index).expect("the index names workers that are there");
        worker.registered = true;
        if worker.spec.ranks != spec.ranks {
            // Counts stay with their ranks; those of ranks that went go along.
            worker.own = spec.ranks.iter().map(|rank| worker.own_on(rank)).collect();
            worker.own_total = worker.own.iter().sum::<u32>() + worker.own_unranked;
            worker.own_then = worker.own.clone();
            // They begin anew, as with another process.
            worker.totals.clear();
        }
        let gone = worker.handle_other_ranks(&spec);
        worker.device = hash::device(&spec.device);
        worker.spec = spec;
        drop(worker);
        self.list(index);
        self.end_work(&gone);
        Registered::Changed
    }

    /// A registration was deleted: eligibility ends at once, accepted requests run on.
    pub fn handle_deregistration(&mut self, id: &WorkerId) -> bool {
        let Some(&index) = self.by_id.get(id) else { return false };
        let slot = self.slot_at(index);
        let mut worker = self.at_mut(index).expect("the index names workers that are there");
        if worker.source == Source::Configuration || !worker.registered {
            return false;
        }
        worker.registered = false;
        let (idle, draining) = (worker.in_flight() == 0, worker.spec.state == WorkerState::Draining);
        let heard = worker.last_sign;
        drop(worker);
        if draining {
            self.drained.note(id, heard);
        }
        if idle {
            self.remove(slot);
        } else {
            self.unlist(index);
        }
        true
    }

    /// An event of this worker came in: a sign of life.
    pub fn handle_event(&mut self, slot: WorkerSlot, now: Instant) {
        if let Some(mut worker) = self.get_mut(slot) {
            worker.last_sign = now;
        }
    }

    /// The router itself was away: ages start anew.
    pub fn handle_outage_end(&mut self, now: Instant) {
        for (_, worker) in &mut self.slots {
            if let Some(worker) = worker {
                worker.last_sign = worker.last_sign.max(now);
                worker.refused_probes = 0;
            }
        }
    }

    /// Nobody listened where this was sent: the rank, or without a rank the whole worker, counts as gone for
    /// [`RANK_LOST_FOR`].
    pub fn mark_lost(&mut self, slot: WorkerSlot, rank: Option<DpRank>, now: Instant) {
        let Some(mut worker) = self.get_mut(slot) else { return };
        worker.marks.retain(|mark| mark.until > now && mark.rank != rank);
        if worker.marks.len() >= MAX_MARKS {
            worker.marks.remove(0);
        }
        worker.marks.push(Mark { rank, until: now + RANK_LOST_FOR });
    }

    /// It has refused a request with 503: it takes nothing new, for [`LEAVING_FOR`] as far as is known.
    pub fn note_leaving(&mut self, slot: WorkerSlot, now: Instant) {
        if let Some(mut worker) = self.get_mut(slot) {
            worker.leaving_until = Some(now + LEAVING_FOR);
        }
    }

    /// Removes workers that gave no sign of life in time; their accepted requests are lost.
    pub fn expire(&mut self, now: Instant) -> Vec<(WorkerSlot, WorkerId)> {
        let lost: Vec<_> = self
            .iter()
            .filter(|(_, worker)| {
                worker.source == Source::Registration && now.saturating_duration_since(worker.last_sign) > LOST_AFTER
            })
            .map(|(slot, worker)| (slot, worker.spec.id.clone()))
            .collect();
        for (slot, _) in &lost {
            self.remove(*slot);
        }
        self.forgive(now);
        self.drained.forget(now);
        self.known_models.retain(|_, seen| now.saturating_duration_since(*seen) <= MODEL_KNOWN_FOR);
        lost
    }

    /// Drops what has passed of workers that had failed, so that a glance is enough again.
    fn forgive(&mut self, now: Instant) {
        for index in 0..self.slots.len() {
            let past = |worker: &&Worker| {
                worker.marks.iter().any(|mark| mark.until <= now)
                    || worker.leaving_until.is_some_and(|until| until <= now)
            };
            let slot =
                self.slot_at(u32::try_from(index).expect("there are at most MAX_WORKERS slots, and configured ones"));
            if self.slots[index].1.as_ref().filter(past).is_some()
                && let Some(mut worker) = self.get_mut(slot)
            {
                worker.marks.retain(|mark| mark.until > now);
                worker.leaving_until = worker.leaving_until.filter(|until| *until > now);
            }
        }
    }

    /// Workers to probe: those that hold accepted requests, except plain ones, which need not listen for cancels.
    pub fn to_probe(&self) -> Vec<(WorkerSlot, WorkerId)> {
        self.iter()
            .filter(|(_, worker)| worker.accepted > 0 && worker.spec.kind == WorkerKind::Native)
            .map(|(slot, worker)| (slot, worker.spec.id.clone()))
            .collect()
    }

    /// A probe is sent: the one before it, unless it was refused, has reached somebody.
    pub fn begin_probe(&mut self, slot: WorkerSlot) {
        if let Some(mut worker) = self.get_mut(slot)
            && !std::mem::take(&mut worker.last_probe_refused)
        {
            worker.refused_probes = 0;
        }
    }

    /// A probe was refused: nobody listens. True where the worker is lost by it, and removed.
    pub fn handle_refused_probe(&mut self, slot: WorkerSlot) -> bool {
        let Some(mut worker) = self.get_mut(slot) else { return false };
        worker.last_probe_refused = true;
        worker.refused_probes += 1;
        let lost = worker.refused_probes >= PROBES_UNTIL_LOST;
        drop(worker);
        if lost {
            self.remove(slot);
        }
        lost
    }

    /// The worker at a slot, unless it is gone.
    pub fn get(&self, slot: WorkerSlot) -> Option<&Worker> {
        let (generation, worker) = self.slots.get(slot.index as usize)?;
        if *generation == slot.generation { worker.as_ref() } else { None }
    }

    fn get_mut(&mut self, slot: WorkerSlot) -> Option<Changing<'_>> {
        let (generation, _) = self.slots.get(slot.index as usize)?;
        if *generation == slot.generation { self.at_mut(slot.index) } else { None }
    }

    /// The worker of a name.
    pub fn find(&self, id: &str) -> Option<(WorkerSlot, &Worker)> {
        let index = *self.by_id.get(id)?;
        Some((self.slot_at(index), self.at(index)?))
    }

    /// All workers.
    pub fn iter(&self) -> impl Iterator<Item = (WorkerSlot, &Worker)> {
        self.slots.iter().enumerate().filter_map(|(index, (generation, worker))| {
            let index = u32::try_from(index).expect("there are at most MAX_WORKERS slots, and configured ones");
            Some((WorkerSlot { index, generation: *generation }, worker.as_ref()?))
        })
    }

    /// Workers that may take requests for a model: registered, alive, ready, not marked lost.
    pub fn eligible<'f>(
        &'f self,
        model: &Model,
        now: Instant,
    ) -> impl Iterator<Item = (WorkerSlot, &'f Worker)> + Clone {
        let listed = self.by_model.get(model).map_or(&[][..], Vec::as_slice);
        listed
            .iter()
            .chain(&self.for_any_model)
            .map(|&index| (self.slot_at(index), self.at(index).expect("models list workers that are there")))
            .filter(move |(_, worker)| worker.is_ready(now))
    }

    /// The worker of a name, where it may take requests for a model.
    pub fn eligible_worker(&self, id: &WorkerId, model: &Model, now: Instant) -> Option<(WorkerSlot, &Worker)> {
        let (slot, worker) = self.find(id.as_str())?;
        (worker.is_ready(now) && worker.spec.serves(model)).then_some((slot, worker))
    }

    /// Whether anybody serves the model now, ready or not.
    pub fn serves(&self, model: &Model) -> bool {
        self.by_model.contains_key(model) || !self.for_any_model.is_empty()
    }

    /// Whether a registration served the model within [`MODEL_KNOWN_FOR`].
    pub fn knows(&self, model: &Model, now: Instant) -> bool {
        self.serves(model)
            || self.known_models.get(model).is_some_and(|seen| now.saturating_duration_since(*seen) <= MODEL_KNOWN_FOR)
    }

    /// Counts a pick, for policies that take turns, and for ranks that do.
    pub fn note_pick(&mut self, slot: WorkerSlot, rank: Option<DpRank>) {
        let now = self.turn;
        let Some(mut worker) = self.get_mut(slot) else { return };
        let turn = worker.turn.max(now);
        worker.turn = turn + (1.0 / worker.spec.weight).clamp(MIN_STRIDE, MAX_STRIDE);
        worker.last_rank = rank.or(worker.last_rank);
        drop(worker);
        self.turn = turn;
    }

    fn remember_models(&mut self, spec: &WorkerSpec, now: Instant) {
        for model in &spec.models {
            if let Some(seen) = self.known_models.get_mut(model) {
                *seen = now;
            } else if self.known_models.len() < MAX_KNOWN_MODELS {
                self.known_models.insert(model.clone(), now);
            }
        }
    }

    fn insert(&mut self, spec: WorkerSpec, source: Source, last_sign: Instant) {
        let id = spec.id.clone();
        let work = self.begin_work(&spec);
        let worker = Worker {
            device: hash::device(&spec.device),
            spec,
            turn: 0.0,
            last_rank: None,
            source,
            registered: true,
            last_sign,
            marks: Vec::new(),
            own: Vec::new(),
            own_unranked: 0,
            own_total: 0,
            totals: Vec::new(),
            totals_unranked: Totals::default(),
            own_then: Vec::new(),
            own_total_then: 0,
            reported_total: 0,
            accepted: 0,
            refused_probes: 0,
            last_probe_refused: false,
            report: None,
            over: Vec::new(),
            refusals: Refusals::default(),
            leaving_until: None,
            work,
        };
        let index = if let Some(index) = self.free.pop() {
            self.slots[index as usize].1 = Some(worker);
            index
        } else {
            self.slots.push((0, Some(worker)));
            u32::try_from(self.slots.len() - 1).expect("there are at most MAX_WORKERS slots, and configured ones")
        };
        self.by_id.insert(id, index);
        self.glance_again(index);
        self.list(index);
    }

    fn remove(&mut self, slot: WorkerSlot) {
        self.unlist(slot.index);
        let (generation, worker) = &mut self.slots[slot.index as usize];
        if let Some(worker) = worker.take() {
            *generation = generation.wrapping_add(1);
            self.free.push(slot.index);
            self.by_id.remove(&worker.spec.id);
            self.end_work(&worker.work);
        }
    }

    fn list(&mut self, index: u32) {
        let models = self.at(index).map(|worker| worker.spec.models.clone()).unwrap_or_default();
        if models.is_empty() && !self.for_any_model.contains(&index) {
            self.for_any_model.push(index);
        }
        for model in models {
            let listed = self.by_model.entry(model).or_default();
            let id_of = |index: u32| self.slots[index as usize].1.as_ref().map(|worker| &worker.spec.id);
            if let Err(at) = listed.binary_search_by_key(&id_of(index), |other| id_of(*other)) {
                listed.insert(at, index);
            }
        }
    }

    fn unlist(&mut self, index: u32) {
        let models = self.at(index).map(|worker| worker.spec.models.clone()).unwrap_or_default();
        self.for_any_model.retain(|other| *other != index);
        for model in models {
            if let Some(listed) = self.by_model.get_mut(&model) {
                listed.retain(|other| *other != index);
                if listed.is_empty() {
                    self.by_model.remove(&model);
                }
            }
        }
    }

    fn at(&self, index: u32) -> Option<&Worker> {
        self.slots[index as usize].1.as_ref()
    }

    fn at_mut(&mut self, index: u32) -> Option<Changing<'_>> {
        let (worker, glance) = (self.slots[index as usize].1.as_mut()?, &mut self.glances[index as usize]);
        Some(Changing::new(worker, glance))
    }

    fn slot_at(&self, index: u32) -> WorkerSlot {
        WorkerSlot { index, generation: self.slots[index as usize].0 }
    }
}

impl Worker {
    /// Whether it takes requests: registered, ready, and not marked lost.
    pub fn is_ready(&self, now: Instant) -> bool {
        self.registered && self.spec.state == WorkerState::Ready && !self.is_marked(None, now)
    }

    /// Whether the rank (or without one, the whole worker) is marked lost.
    pub fn is_marked(&self, rank: Option<DpRank>, now: Instant) -> bool {
        self.marks.iter().any(|mark| mark.rank == rank && mark.until > now)
    }

    /// Whether it has just said that it takes nothing new.
    pub fn is_leaving(&self, now: Instant) -> bool {
        self.leaving_until.is_some_and(|until| now < until)
    }

    /// How many ranks come before this one, in turns that begin after the rank that was last picked.
    pub fn turn_of(&self, rank: DpRank) -> usize {
        let ranks = self.spec.ranks;
        let place = |rank| ranks.index_of(rank);
        let first = self.last_rank.and_then(place).map_or(0, |last| last + 1);
        let size = ranks.size() as usize;
        (place(rank).unwrap_or(0) + size - first % size) % size
    }

    /// The process behind it.
    pub fn instance(&self) -> &InstanceId {
        &self.spec.instance
    }

    /// Time since its last sign of life.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_sign)
    }

    /// Whether it is registered; a worker whose registration was deleted stays until its requests have ended.
    pub fn is_registered(&self) -> bool {
        self.registered
    }
}
