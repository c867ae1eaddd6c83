//! How every worker stands to a request, and why those that can't have it can't: what [`super::decide`] chooses from,
//! for whoever wants to understand a choice.

use std::time::Instant;

use super::cost::{Costs, on_wire};
use super::{Rules, View, declares_hint, in_pool, is_hinted_worker};
use crate::core::ask::Ask;
use crate::core::candidates::Candidates;
use crate::core::fleet::{Fleet, FullBy, Worker};
use crate::core::id::Placement;
use crate::core::mode::PolicyKind;
use crate::core::worker::WorkerState;

/// A worker, as a request sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Surveyed {
    /// Where the request would be on it; without a rank where it has none there, or can't be there.
    pub placement: Placement,
    /// How it stands to the request.
    pub standing: Standing,
    /// What the policy compares, where it may have the request and the policy compares anything.
    pub score: Option<Score>,
}

/// What a policy compares; the lowest has the request, or is the likeliest to have it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Score {
    /// Requests in flight for each that the worker should have, by its weight, ranks and `max_inflight`
    /// ([`Candidates::relative_load`]).
    Load(f64),
    /// Tokens of prefill that are still to be done and of load that is there, by the policy `kv`.
    Cost(f64),
}

/// How a worker stands to a request. The first that is true counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It doesn't serve the model.
    OtherModel,
    /// It takes no new sessions.
    Draining,
    /// It is not registered any more, or nobody listened there a moment ago.
    NotReady,
    /// It is in another pool than the wanted one.
    OutsidePool,
    /// Another worker is wanted.
    NotHinted,
    /// It doesn't declare the wanted rank.
    RankNotDeclared,
    /// The rank is lost for the moment.
    RankLost,
    /// It has failed this request already.
    Failed,
    /// There is no room.
    Full(FullBy),
    /// It may have the request.
    Open,
}

/// Every worker of the fleet as a new placement of this request, by name; with policy `kv` every rank of it.
pub fn survey(ask: &Ask, fleet: &Fleet, rules: Rules, now: Instant) -> Vec<Surveyed> {
    let view = View::new(ask, fleet, rules, now);
    // Where the rank that would be the session's is lost everywhere, the least loaded one is taken instead.
    let open = view.open(|worker| view.rank_on(worker));
    let elsewhere = open.is_empty();
    let mut all: Vec<_> = match rules.policy {
        PolicyKind::Kv => {
            let costs = view.costs();
            fleet.iter().flat_map(|(_, worker)| view.stand_by_rank(worker, &costs)).collect()
        }
        PolicyKind::RoundRobin
        | PolicyKind::Random
        | PolicyKind::PowerOfTwo
        | PolicyKind::LeastLoaded
        | PolicyKind::DeviceAwareWeighted => fleet.iter().map(|(_, worker)| view.stand(worker, elsewhere)).collect(),
    };
    all.sort_by(|a, b| a.placement.worker.cmp(&b.placement.worker));
    if let Ok(candidates) = view.with_room(open) {
        score_by_load(&mut all, &candidates, rules.policy);
    }
    all
}

fn score_by_load(all: &mut [Surveyed], candidates: &Candidates<'_>, policy: PolicyKind) {
    match policy {
        PolicyKind::PowerOfTwo | PolicyKind::LeastLoaded | PolicyKind::DeviceAwareWeighted => {}
        PolicyKind::RoundRobin | PolicyKind::Random | PolicyKind::Kv => return,
    }
    for candidate in candidates.as_slice() {
        // They are in the order of the workers' ids.
        let id = &candidate.worker().spec.id;
        if let Ok(at) = all.binary_search_by(|one| one.placement.worker.cmp(id)) {
            all[at].score = Some(Score::Load(candidates.relative_load(candidate)));
        }
    }
}

impl View<'_> {
    fn stand(&self, worker: &Worker, elsewhere: bool) -> Surveyed {
        let least_loaded = || self.least_loaded_rank(worker).map(Some);
        let rank = if elsewhere { least_loaded().or_else(|| self.own_rank(worker)) } else { self.own_rank(worker) };
        let placement = Placement { worker: worker.spec.id.clone(), rank: rank.flatten() };
        let standing = self.standing(worker, &placement);
        Surveyed { placement, standing, score: None }
    }

    fn stand_by_rank(&self, worker: &Worker, costs: &Costs) -> Vec<Surveyed> {
        let all = self.places(worker).map(|place| {
            let placement = Placement { worker: worker.spec.id.clone(), rank: on_wire(worker, place) };
            let standing = self.standing(worker, &placement);
            let cost = || Score::Cost(costs.of(worker.rank_work(place), 1.0 / worker.spec.weight).0);
            Surveyed { placement, standing, score: (standing == Standing::Open).then(cost) }
        });
        let all: Vec<_> = all.collect();
        // One that doesn't declare the rank asked for stands there once.
        if all.is_empty() { vec![self.stand(worker, false)] } else { all }
    }

    fn standing(&self, worker: &Worker, at: &Placement) -> Standing {
        let ask = self.ask;
        if !worker.spec.serves(&ask.model) {
            return Standing::OtherModel;
        }
        if worker.spec.state == WorkerState::Draining {
            return Standing::Draining;
        }
        if self.fleet.eligible_worker(&at.worker, &ask.model, self.now).is_none() {
            return Standing::NotReady;
        }
        if !in_pool(ask, worker) {
            return Standing::OutsidePool;
        }
        if !is_hinted_worker(ask, worker) {
            return Standing::NotHinted;
        }
        if !declares_hint(ask, worker) {
            return Standing::RankNotDeclared;
        }
        // A hint for a rank that is lost wherever it may be is refused, also where no rank goes onto the wire.
        let lost = at.rank.is_some_and(|rank| worker.is_marked(Some(rank), self.now));
        if lost || self.check_rank_hint().is_err() {
            return Standing::RankLost;
        }
        if ask.exclusion(&at.worker, at.rank).is_some() {
            return Standing::Failed;
        }
        worker.why_full(at.rank, self.now).map_or(Standing::Open, Standing::Full)
    }
}

impl Standing {
    /// In words, after "it …".
    pub fn words(self) -> &'static str {
        match self {
            Self::OtherModel => "does not serve the model",
            Self::Draining => "is draining: it takes no new sessions, and those pinned to it move",
            Self::NotReady => "is not registered any more, or nobody listened there a moment ago",
            Self::OutsidePool => "is outside the pool asked for",
            Self::NotHinted => "is not the worker asked for",
            Self::RankNotDeclared => "does not declare the rank asked for",
            Self::RankLost => "has lost this rank for the moment",
            Self::Failed => "has failed this request already",
            Self::Full(FullBy::Inflight) => "has no room (max_inflight)",
            Self::Full(FullBy::KvUse) => "has no room (it reports as many blocks in use as full_at_kv_use says)",
            Self::Full(FullBy::Queued) => "has no room (it reports as many requests queued as full_at_queued says)",
            Self::Full(FullBy::Refused) => "has no room (it has refused a request a moment ago)",
            Self::Open => "may have it",
        }
    }
}
