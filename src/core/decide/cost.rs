//! The policy `kv`: of all ranks of all workers the one where the request costs least. What it costs is the prefill that
//! is still to be done there, and the load there, both in tokens.

use rand::{Rng, RngExt as _};

use super::balance::Means;
use super::open::Look;
use super::{NoPlacement, RankHint, View, WaitFor};
use crate::core::fleet::{RankWork, Worker, WorkerSlot};
use crate::core::id::{DpRank, Origin, Placement, Pool};
use crate::core::kv::Held;
use crate::core::weighing::Weighing;

/// Prompts of mean size that a rank's load counts where its recent work is twice the mean.
const BALANCE_PROMPTS: f64 = 4.0;

/// What a token counts that is to be prefilled before the request: it costs time, as one of its own does, but no work,
/// and whoever avoids a short wait for a prompt that is cached elsewhere makes others wait for longer.
const WAITING: f64 = 0.25;

/// The best so far.
struct Best<'a> {
    cost: f64,
    /// Its lot among those of exactly this cost: the lowest wins.
    lot: u64,
    at: Option<(WorkerSlot, &'a Worker, usize)>,
}

impl<'a> Best<'a> {
    fn new() -> Self {
        Self { cost: f64::INFINITY, lot: u64::MAX, at: None }
    }

    /// One that costs no more.
    fn offer(&mut self, cost: f64, at: (WorkerSlot, &'a Worker, usize), seed: u64) {
        let lot = lot(at.0, at.2, seed);
        if cost < self.cost || lot <= self.lot {
            *self = Self { cost, lot, at: Some(at) };
        }
    }
}

/// The lot of a placement in the decision of this seed. In an idle fleet all cost the same, and a draw for each would take
/// longer than everything else.
fn lot(slot: WorkerSlot, place: usize, seed: u64) -> u64 {
    let own = u64::from(slot.parts().0) << 16 ^ place as u64;
    // Any two numbers that differ by less than 2^48 get lots that look unrelated (Fibonacci hashing, twice).
    let mixed = (seed ^ own).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What a placement costs, as a sum over what is known of it: there may be thousands, so that all that is the same for
/// each is worked out before.
pub(super) struct Costs {
    held: Held,
    /// What a request without anything cached costs where nothing was given lately.
    base: f64,
    /// What a held token saves.
    prefill: f64,
    /// What a token costs that is to be prefilled there for others.
    load: f64,
    /// What recent work costs: for each token of prompts, and for each that was missed.
    given: f64,
    missed: f64,
    /// The most recent work that lies within the limit.
    most: f64,
}

impl Costs {
    fn new(held: Held, means: Option<Means>, weighing: &Weighing, tokens: f64) -> Self {
        let (given, missed, less) = means.map_or((0.0, 0.0, 0.0), Means::excess);
        let balance = weighing.load * BALANCE_PROMPTS * means.map_or(0.0, |means| means.prompt);
        Self {
            held,
            base: weighing.prefill * tokens - balance * less,
            prefill: weighing.prefill,
            load: weighing.load * WAITING,
            given: balance * given,
            missed: balance * missed,
            most: means.map_or(f64::INFINITY, Means::most),
        }
    }

    /// Of a rank, in tokens; and whether its recent work passes the limit. `share`: one over its worker's weight.
    #[inline]
    pub(super) fn of(&self, rank: &RankWork, share: f64) -> (f64, bool) {
        let held = rank.number.map_or(0, |number| self.held.at(number));
        let work = self.given * rank.prompt + self.missed * rank.missed;
        let cost = self.base - self.prefill * f64::from(held) + self.load * rank.to_prefill() + share * work;
        (cost, share * rank.prompt > self.most)
    }

    /// Offers each rank of a worker that takes anything. Thousands are looked at, so this loop has nothing else in it.
    #[inline(never)]
    fn offer_all<'a>(
        &self,
        (slot, worker): (WorkerSlot, &'a Worker),
        share: f64,
        (best, over): (&mut Best<'a>, &mut Best<'a>),
        seed: u64,
    ) {
        for place in 0..worker.spec.ranks.size() as usize {
            let (cost, is_over) = self.of(worker.rank_work(place), share);
            let list = if is_over { &mut *over } else { &mut *best };
            if cost <= list.cost {
                list.offer(cost, (slot, worker, place), seed);
            }
        }
    }
}

impl<'a> View<'a> {
    pub(super) fn costs(&self) -> Costs {
        let held = self.fleet.index().expected(&self.ask.prompt, self.session_hash());
        Costs::new(held, self.means(), self.fleet.weighing(), f64::from(self.ask.prompt.tokens))
    }

    /// A placement by cost.
    pub(super) fn by_cost(
        &self,
        pool: Option<&Pool>,
        rng: &mut dyn Rng,
    ) -> Result<(WorkerSlot, Placement), NoPlacement> {
        let costs = self.costs();
        let heat = self.fleet.weighing().temperature * f64::from(self.ask.prompt.tokens.max(1));
        // Whoever has more than their share, and whoever says that it takes nothing new, is only taken where nobody else may
        // have the request.
        let (mut best, mut over, mut leaving) = (Best::new(), Best::new(), Best::new());
        let (mut full, seed) = (false, rng.random());
        let within = |worker: &Worker| pool.is_none_or(|pool| *pool == worker.spec.pool);
        for listed in self.fleet.listed(&self.ask.model) {
            let easy = match self.look(listed) {
                Look::Easy => true,
                Look::Closer => false,
                Look::No => continue,
            };
            let (slot, worker) = (listed.glance().slot(), listed.worker());
            if !within(worker) {
                continue;
            }
            let share = 1.0 / listed.glance().weight;
            let leaves = !easy && worker.is_leaving(self.now);
            if easy && heat == 0.0 && self.ask.rank_hint.is_none() {
                costs.offer_all((slot, worker), share, (&mut best, &mut over), seed);
                continue;
            }
            for place in self.places(worker) {
                if !easy {
                    let rank = on_wire(worker, place);
                    if !self.is_open(worker, rank) {
                        continue;
                    }
                    if worker.is_full(rank, self.now) {
                        full = true;
                        continue;
                    }
                }
                let (mut cost, is_over) = costs.of(worker.rank_work(place), share);
                if heat > 0.0 {
                    // The least of costs with Gumbel noise is a draw with the chances exp(-cost / heat).
                    let u: f64 = rng.random::<f64>().max(f64::MIN_POSITIVE);
                    cost += heat * (-u.ln()).ln();
                }
                let list = match (leaves, is_over) {
                    (true, _) => &mut leaving,
                    (false, true) => &mut over,
                    (false, false) => &mut best,
                };
                if cost <= list.cost {
                    list.offer(cost, (slot, worker, place), seed);
                }
            }
        }
        match best.at.or(over.at).or(leaving.at) {
            Some((slot, worker, place)) => {
                Ok((slot, Placement { worker: worker.spec.id.clone(), rank: on_wire(worker, place) }))
            }
            None if full => Err(NoPlacement::Wait(WaitFor::Any)),
            None => Err(NoPlacement::Exhausted),
        }
    }

    /// The places on a worker that the request may have: the rank that it asks for, or all.
    pub(super) fn places(&self, worker: &Worker) -> std::ops::Range<usize> {
        match self.ask.rank_hint {
            Some(RankHint::Rank(rank)) => worker.spec.ranks.index_of(rank).map_or(0..0, |place| place..place + 1),
            Some(RankHint::Invalid(_)) => 0..0,
            None => 0..worker.spec.ranks.size() as usize,
        }
    }

    fn is_open(&self, worker: &Worker, rank: Option<DpRank>) -> bool {
        let lost = rank.is_some_and(|rank| worker.is_marked(Some(rank), self.now));
        !lost && self.ask.exclusion(&worker.spec.id, rank).is_none()
    }

    /// What a placement is expected to hold of the prompt, in tokens.
    pub(super) fn held_at(&self, at: &Placement, worker: &Worker) -> f64 {
        let place = at.rank.map_or(Some(0), |rank| worker.spec.ranks.index_of(rank));
        let number = place.and_then(|place| worker.number(place));
        let held = self.fleet.index().expected(&self.ask.prompt, self.session_hash());
        number.map_or(0.0, |number| f64::from(held.at(number)))
    }

    /// The session as workers know it, where that is certain before the request is placed.
    fn session_hash(&self) -> Option<u64> {
        let session = self.ask.session.as_ref().filter(|session| session.origin == Origin::Named)?;
        Some(crate::core::hash::session(session.id.as_str()))
    }
}

/// The rank that goes onto the wire: none where a worker has only one.
pub(super) fn on_wire(worker: &Worker, place: usize) -> Option<DpRank> {
    if worker.spec.ranks.size() == 1 { None } else { Some(worker.spec.ranks.at(place as u64)) }
}
