//! The decision: one request, the fleet and the session's pin give a placement, or the reason why there is none.
//!
//! The checks stand in the order of protocol section 5: unknown model, no worker, pool, worker, rank, conflict with a
//! pin. Everything after them chooses among placements that are allowed.

use std::time::Instant;

use rand::Rng;

use super::ask::{Ask, Excluded, Failure, RankHint};
use super::candidates::{Candidate, Candidates, RankThere};
use super::error::RouteError;
use super::fleet::{Fleet, Worker, WorkerSlot};
use super::hash;
use super::id::{DpRank, Origin, Placement};
use super::mode::{AffinityMode, PolicyKind, RankChoice};
use super::policy;
use super::session::Session;

mod balance;
mod cost;
pub mod freed;
mod open;
mod pooled;
mod siblings;
pub mod survey;

/// Where a request goes, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Where.
    pub placement: Placement,
    /// The worker's place in the fleet.
    pub slot: WorkerSlot,
    /// Why.
    pub reason: Reason,
    /// What led to it, where that says more.
    pub cause: Option<Cause>,
    /// What becomes of the session's pin.
    pub pin: PinStep,
}

/// Why a request goes where it goes (`Rankpin-Decision`, protocol section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The session is pinned there.
    Pinned,
    /// A new session was placed there.
    Placed,
    /// The session was moved there.
    Repinned,
    /// The frontend asked for it.
    Hinted,
    /// The request has no session.
    Unpinned,
}

/// What led to a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The worker or rank where it was is gone, or did not answer.
    WorkerLost,
    /// The worker where it was is draining, or has drained and left.
    Draining,
    /// The placement where it was, or was tried, has no room.
    Overload,
    /// The pin named a worker only, and now names its rank.
    Completed,
    /// The pins bucket is unreachable.
    BucketUnreachable,
    /// The session is derived from the conversation.
    Derived,
    /// The pool where it was tried has not what it asks for.
    NotThere,
    /// The session names a parent, and was placed where its siblings are.
    Siblings,
    /// The placement where it was has more than its share of the fleet's recent work.
    Balance,
    /// The placement where it was is not expected to have its prompt cached any more.
    Cold,
}

/// What becomes of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinStep {
    /// There is no session, or no pin is kept of it.
    None,
    /// It stays as it is.
    Keep,
    /// It is written by compare-and-set before the dispatch, so that replicas agree.
    Claim,
    /// A pin on the worker gets its rank, by compare-and-set before the dispatch.
    Complete,
    /// It is written after the worker has accepted.
    AfterAccept,
}

/// Why there is no placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPlacement {
    /// There is one, but no room at it now.
    Wait(WaitFor),
    /// Every placement that may be tried has failed this request.
    Exhausted,
    /// The request can't be placed.
    Refused(RouteError),
}

/// What a request without room waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitFor {
    /// Exactly this placement.
    Placement(Placement),
    /// Any placement that serves it.
    Any,
}

/// The session's pin, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin<'p> {
    /// It has none.
    None,
    /// It has this one.
    At(&'p Placement),
    /// Nobody can tell: the bucket is unreachable, and the mirror has none.
    Unreachable,
}

/// The settings of every decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How strictly sessions stay.
    pub mode: AffinityMode,
    /// Who chooses among candidates.
    pub policy: PolicyKind,
    /// How a named session gets its rank.
    pub rank_choice: RankChoice,
}

/// Decides. `rng` breaks ties and serves the random policy; nothing is changed but the fleet's count of picks.
pub fn decide(
    ask: &Ask,
    fleet: &mut Fleet,
    pin: Pin<'_>,
    rules: Rules,
    now: Instant,
    rng: &mut dyn Rng,
) -> Result<Decision, NoPlacement> {
    let view = View::new(ask, fleet, rules, now);
    view.check_hints().map_err(NoPlacement::Refused)?;
    let decision = match pin {
        Pin::At(placement) => view.with_pin(placement, rng),
        Pin::None => view.afresh(false, None, false, rng),
        Pin::Unreachable => view.afresh(false, None, true, rng),
    }?;
    if decision.reason != Reason::Pinned {
        fleet.note_pick(decision.slot, decision.placement.rank);
    }
    Ok(decision)
}

/// How a request gets its rank on a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RankOn {
    /// This one, or none.
    Fixed(Option<DpRank>),
    /// The least loaded one.
    ByLoad,
}

struct View<'a> {
    ask: &'a Ask,
    fleet: &'a Fleet,
    rules: Rules,
    now: Instant,
    /// What the session hashes to, where it has one.
    hash: u64,
    /// Whether it asks for nobody, and nobody has failed it.
    takes_anything: bool,
}

impl<'a> View<'a> {
    fn new(ask: &'a Ask, fleet: &'a Fleet, rules: Rules, now: Instant) -> Self {
        let hash = ask.session.as_ref().map_or(0, |session| hash::session_hash(&session.id));
        let hinted = ask.worker_hint.is_some() || ask.rank_hint.is_some() || ask.pool.is_some();
        Self { ask, fleet, rules, now, hash, takes_anything: !hinted && ask.excluded.is_empty() }
    }

    fn eligible(&self) -> impl Iterator<Item = (WorkerSlot, &'a Worker)> + Clone + use<'a> {
        self.fleet.eligible(&self.ask.model, self.now)
    }

    /// Eligible for a new placement: in the wanted pool, the hinted worker, with the hinted rank.
    fn allowed(&self) -> impl Iterator<Item = (WorkerSlot, &'a Worker)> + Clone + use<'a> {
        let ask = self.ask;
        self.eligible().filter(move |(_, worker)| allows(ask, worker))
    }

    fn check_hints(&self) -> Result<(), RouteError> {
        let ask = self.ask;
        let model = || ask.model.as_str().to_owned();
        if !self.fleet.knows(&ask.model, self.now) {
            return Err(RouteError::UnknownModel(model()));
        }
        if self.eligible().next().is_none() {
            return Err(RouteError::NoWorker(format!("no worker is ready to serve model {:?}", model())));
        }
        if let Some(pool) = ask.pool.as_deref()
            && !self.eligible().any(|(_, worker)| in_pool(ask, worker))
        {
            return Err(RouteError::UnknownPool { pool: pool.to_owned(), model: model() });
        }
        if let Some(hint) = ask.worker_hint.as_deref()
            && !self.eligible().any(|(_, worker)| in_pool(ask, worker) && is_hinted_worker(ask, worker))
        {
            return Err(RouteError::UnknownWorker { worker: hint.to_owned(), model: model() });
        }
        self.check_rank_hint()
    }

    fn check_rank_hint(&self) -> Result<(), RouteError> {
        let rank = match &self.ask.rank_hint {
            None => return Ok(()),
            Some(RankHint::Invalid(text)) => {
                return Err(RouteError::RankOutOfRange(format!(
                    "the rank asked for, {text:?}, is no rank: write 0 to 65535"
                )));
            }
            Some(RankHint::Rank(rank)) => *rank,
        };
        if self.allowed().next().is_none() {
            let whose = match &self.ask.worker_hint {
                Some(worker) => format!("worker {worker:?} does not declare"),
                None => format!("no worker that is ready to serve model {:?} declares", self.ask.model.as_str()),
            };
            return Err(RouteError::RankOutOfRange(format!("{whose} rank {rank}")));
        }
        if !self.allowed().any(|(_, worker)| !worker.is_marked(Some(rank), self.now)) {
            return Err(RouteError::NoWorker(format!("rank {rank} is lost for the moment")));
        }
        Ok(())
    }

    fn with_pin(&self, pin: &Placement, rng: &mut dyn Rng) -> Result<Decision, NoPlacement> {
        let Some((slot, worker)) = self.pinned_worker(pin) else {
            return self.afresh(true, Some(self.why_gone(pin)), false, rng);
        };
        if !self.is_declared(pin, worker) {
            return self.afresh(true, Some(Cause::WorkerLost), false, rng);
        }
        if let Some(against) = self.conflict(pin, worker) {
            return match self.rules.mode {
                AffinityMode::Soft => self.afresh(true, None, false, rng),
                AffinityMode::Hard | AffinityMode::Off => Err(NoPlacement::Refused(RouteError::PinConflict(against))),
            };
        }
        let Some(placement) = self.resolve_pin(pin, worker) else {
            return self.afresh(true, Some(Cause::WorkerLost), false, rng);
        };
        if let Some(excluded) = self.ask.exclusion(&placement.worker, placement.rank) {
            return self.afresh(true, Some(cause_of(excluded)), false, rng);
        }
        if worker.is_full(placement.rank, self.now) {
            if self.rules.mode == AffinityMode::Soft || !self.ask.is_certain() {
                return self.afresh(true, Some(Cause::Overload), false, rng);
            }
            return Err(NoPlacement::Wait(WaitFor::Placement(placement)));
        }
        let moved = self.better_elsewhere(&placement, worker).map(|cause| self.afresh(true, Some(cause), false, rng));
        if let Some(Ok(moved)) = moved
            && self.is_better(&moved.placement, &placement)
        {
            return Ok(moved);
        }
        let completed = placement.rank.is_some() && pin.rank.is_none();
        Ok(Decision {
            placement,
            slot,
            reason: if self.hinted() { Reason::Hinted } else { Reason::Pinned },
            cause: if completed { Some(Cause::Completed) } else { self.derived() },
            pin: match (completed, self.rules.mode) {
                (false, _) => PinStep::Keep,
                (true, AffinityMode::Hard) => PinStep::Complete,
                (true, AffinityMode::Soft | AffinityMode::Off) => PinStep::AfterAccept,
            },
        })
    }

    fn pinned_worker(&self, pin: &Placement) -> Option<(WorkerSlot, &'a Worker)> {
        self.fleet.eligible_worker(&pin.worker, &self.ask.model, self.now)
    }

    fn why_gone(&self, pin: &Placement) -> Cause {
        match self.fleet.find(pin.worker.as_str()) {
            Some((_, worker))
                if worker.is_registered() && worker.spec.state == super::worker::WorkerState::Draining =>
            {
                Cause::Draining
            }
            _ if self.fleet.has_drained(pin.worker.as_str(), self.now) => Cause::Draining,
            _ => Cause::WorkerLost,
        }
    }

    /// Whether the pin's rank is there: one that is not declared, or is lost, is left.
    fn is_declared(&self, pin: &Placement, worker: &Worker) -> bool {
        let Some(rank) = pin.rank else { return true };
        worker.spec.ranks.contains(rank) && !worker.is_marked(Some(rank), self.now)
    }

    /// The pin as a placement on this worker, with a rank where one is wanted and the pin has none; `None` where that
    /// rank is lost.
    fn resolve_pin(&self, pin: &Placement, worker: &Worker) -> Option<Placement> {
        let at = |rank| Some(Placement { worker: worker.spec.id.clone(), rank });
        if worker.spec.ranks.size() == 1 {
            return at(None);
        }
        let wanted = match self.ask.rank_hint {
            Some(RankHint::Rank(rank)) => Some(rank),
            Some(RankHint::Invalid(_)) | None => None,
        };
        let rank = match (pin.rank.or(wanted), &self.ask.session, self.rules.mode) {
            (Some(rank), ..) => rank,
            (None, Some(session), AffinityMode::Hard) => {
                self.resolve(self.rank_of_session(session, worker), worker)??
            }
            (None, None, AffinityMode::Hard) | (None, _, AffinityMode::Soft | AffinityMode::Off) => return at(None),
        };
        if worker.is_marked(Some(rank), self.now) { None } else { at(Some(rank)) }
    }

    /// What of the request speaks against the pin.
    fn conflict(&self, pin: &Placement, worker: &Worker) -> Option<&'static str> {
        let ask = self.ask;
        if !is_hinted_worker(ask, worker) {
            return Some("the worker that this request");
        }
        // A pin without rank speaks against no rank of its worker: it is completed with the one that is asked for.
        let pinned = if worker.spec.ranks.size() == 1 { Some(worker.spec.ranks.start()) } else { pin.rank };
        if let Some(RankHint::Rank(wanted)) = ask.rank_hint
            && (!worker.spec.ranks.contains(wanted) || pinned.is_some_and(|pinned| pinned != wanted))
        {
            return Some("the rank that this request");
        }
        (!in_pool(ask, worker)).then_some("the pool that this request")
    }

    fn hinted(&self) -> bool {
        self.ask.worker_hint.is_some() || self.ask.rank_hint.is_some()
    }

    fn derived(&self) -> Option<Cause> {
        (self.ask.session.is_some() && !self.ask.named()).then_some(Cause::Derived)
    }

    /// A placement by hint or policy. `pinned`: the session has a pin; `moved` says why it leaves it.
    fn afresh(
        &self,
        pinned: bool,
        moved: Option<Cause>,
        unreachable: bool,
        rng: &mut dyn Rng,
    ) -> Result<Decision, NoPlacement> {
        let (reason, cause) = self.explain(moved, unreachable);
        if let Some(decision) = self.beside_siblings(pinned, (reason, cause), unreachable) {
            return Ok(decision);
        }
        if self.rules.policy == PolicyKind::Kv && !unreachable {
            let pool = self.pool_for_cost(rng);
            let (slot, placement) = self.by_cost(pool.as_ref(), rng)?;
            return Ok(Decision { placement, slot, reason, cause, pin: self.pin_step(pinned, unreachable) });
        }
        let mut open = self.open(|worker| self.rank_on(worker));
        if open.is_empty() {
            // The rank that would be this session's is lost everywhere: the least loaded one instead.
            open = self.open(|_| RankOn::ByLoad);
        }
        let candidates = self.in_one_pool(self.with_room(open)?, rng);
        let chosen = if unreachable { self.rendezvous(&candidates) } else { None }
            .unwrap_or_else(|| policy::pick(self.rules.policy, &candidates, rng));
        let worker = chosen.worker();
        let rank = match chosen.rank {
            RankThere::Known(rank) => rank,
            RankThere::Any => self.own_rank(worker).flatten(),
        };
        Ok(Decision {
            placement: Placement { worker: worker.spec.id.clone(), rank },
            slot: chosen.slot(),
            reason,
            cause,
            pin: self.pin_step(pinned, unreachable),
        })
    }

    /// The rank that this request would have on a worker, `Some(None)` for none, `None` where it can't be there.
    fn own_rank(&self, worker: &Worker) -> Option<Option<DpRank>> {
        self.resolve(self.rank_on(worker), worker)
    }

    fn resolve(&self, on: RankOn, worker: &Worker) -> Option<Option<DpRank>> {
        match on {
            RankOn::Fixed(rank) => Some(rank),
            RankOn::ByLoad => self.least_loaded_rank(worker).map(Some),
        }
    }

    fn rank_on(&self, worker: &Worker) -> RankOn {
        if worker.spec.ranks.size() == 1 {
            return RankOn::Fixed(None);
        }
        if let Some(RankHint::Rank(rank)) = self.ask.rank_hint {
            return RankOn::Fixed(Some(rank));
        }
        match &self.ask.session {
            Some(session) if self.gives_ranks() => self.rank_of_session(session, worker),
            Some(_) | None => RankOn::Fixed(None),
        }
    }

    fn rank_of_session(&self, session: &Session, worker: &Worker) -> RankOn {
        match (session.origin, self.rules.rank_choice) {
            (Origin::Named, RankChoice::Hash) => RankOn::Fixed(Some(worker.spec.ranks.at(self.hash))),
            (Origin::Named, RankChoice::LeastLoaded) | (Origin::Derived, _) => RankOn::ByLoad,
        }
    }

    /// Whether a session gets a rank where nothing else says one. Soft affinity leaves that to the engine, unless ranks
    /// are chosen by load.
    fn gives_ranks(&self) -> bool {
        let by_load = self.rules.rank_choice == RankChoice::LeastLoaded;
        let mode = match self.rules.mode {
            AffinityMode::Hard => true,
            AffinityMode::Soft => by_load,
            AffinityMode::Off => false,
        };
        mode && self.ask.session.is_some()
    }

    fn may_choose_rank(&self, worker: &Worker) -> bool {
        self.gives_ranks() && self.ask.rank_hint.is_none() && worker.spec.ranks.size() > 1
    }

    /// The rank of a worker with the least load that is not lost and has not failed; ties in turn.
    fn least_loaded_rank(&self, worker: &Worker) -> Option<DpRank> {
        if !self.may_choose_rank(worker) {
            return None;
        }
        worker
            .spec
            .ranks
            .iter()
            .filter(|&rank| {
                !worker.is_marked(Some(rank), self.now) && self.ask.exclusion(&worker.spec.id, Some(rank)).is_none()
            })
            .min_by_key(|&rank| {
                let full = worker.is_full(Some(rank), self.now);
                (full, worker.load_now_of(rank, self.now), worker.turn_of(rank))
            })
    }

    fn rendezvous<'c>(&self, candidates: &'c Candidates<'a>) -> Option<&'c Candidate<'a>> {
        let session = self.ask.session.as_ref()?;
        candidates.as_slice().iter().max_by_key(|candidate| hash::rendezvous(&candidate.worker().spec.id, &session.id))
    }

    fn explain(&self, moved: Option<Cause>, unreachable: bool) -> (Reason, Option<Cause>) {
        let retried = self.ask.excluded.last().map(cause_of);
        let reason = match (&self.ask.session, moved) {
            _ if self.hinted() => Reason::Hinted,
            (None, _) => Reason::Unpinned,
            (Some(_), Some(_)) => Reason::Repinned,
            (Some(_), None) => Reason::Placed,
        };
        let bucket = unreachable.then_some(Cause::BucketUnreachable);
        (reason, moved.or(retried).or(bucket).or_else(|| self.derived()))
    }

    fn pin_step(&self, pinned: bool, unreachable: bool) -> PinStep {
        match (&self.ask.session, self.rules.mode) {
            (None, _) | (_, AffinityMode::Off) => PinStep::None,
            (Some(_), _) if unreachable => PinStep::None,
            (Some(session), AffinityMode::Hard) if session.origin == Origin::Named => PinStep::Claim,
            // Soft affinity moves a pin only after the new worker has accepted; the first pin is claimed like any.
            (Some(session), AffinityMode::Soft) if session.origin == Origin::Named && !pinned => PinStep::Claim,
            (Some(_), AffinityMode::Hard | AffinityMode::Soft) => PinStep::AfterAccept,
        }
    }
}

fn cause_of(excluded: &Excluded) -> Cause {
    match excluded.failure {
        Failure::NoResponders | Failure::AcceptTimeout => Cause::WorkerLost,
        Failure::Overloaded => Cause::Overload,
        Failure::Draining => Cause::Draining,
        Failure::NotThere => Cause::NotThere,
    }
}

fn allows(ask: &Ask, worker: &Worker) -> bool {
    in_pool(ask, worker) && is_hinted_worker(ask, worker) && declares_hint(ask, worker)
}

fn in_pool(ask: &Ask, worker: &Worker) -> bool {
    ask.pool.as_deref().is_none_or(|pool| pool == worker.spec.pool.as_str())
}

fn is_hinted_worker(ask: &Ask, worker: &Worker) -> bool {
    ask.worker_hint.as_deref().is_none_or(|id| id == worker.spec.id.as_str())
}

fn declares_hint(ask: &Ask, worker: &Worker) -> bool {
    match &ask.rank_hint {
        Some(RankHint::Rank(rank)) => worker.spec.ranks.contains(*rank),
        Some(RankHint::Invalid(_)) => false,
        None => true,
    }
}

#[cfg(test)]
mod tests;
mod words;
