//! The router of a replay: fleet, mirror and decisions of the core, told what a real router would be told.

use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::Setup;
use super::run::{Asked, Places};
use super::target::{Micros, Target};
use super::trace::Trace;
use crate::core::ask::Ask;
use crate::core::decide::{NoPlacement, Pin, Reason, Rules, decide};
use crate::core::fleet::{Fleet, WorkerSlot};
use crate::core::hash::PinKey;
use crate::core::id::{DpRank, InstanceId, Model, Origin, Placement, Pool, RankRange, SessionId, Tenant, WorkerId};
use crate::core::kv::{Expected, Mark, Prompt};
use crate::core::load::{RankLoad, Report};
use crate::core::mode::{AffinityMode, PolicyKind};
use crate::core::pins::{Mirror, Pin as Stored};
use crate::core::session::Session;
use crate::core::worker::{WorkerKind, WorkerSpec, WorkerState};

/// A router reads texts in chunks of so many tokens, and knows where prompts have ended.
const CHUNK_TOKENS: u32 = 1024;
/// Ages of pins looked at for each request.
const MAX_EXPIRED: usize = 64;

/// A policy with an affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Combination {
    /// How strictly sessions stay.
    pub mode: AffinityMode,
    /// Who chooses.
    pub policy: PolicyKind,
}

impl Combination {
    /// Its name.
    pub fn name(self) -> String {
        fn of<T: PartialEq>(named: &[(&'static str, T)], value: T) -> &'static str {
            named.iter().find(|(_, other)| *other == value).map_or("", |(name, _)| *name)
        }
        format!("{} + {}", of(&AffinityMode::NAMED, self.mode), of(&PolicyKind::NAMED, self.policy))
    }
}

/// See the module.
pub(super) struct CoreRouter {
    fleet: Fleet,
    mirror: Mirror,
    rules: Rules,
    rng: StdRng,
    start: Instant,
    block_tokens: u32,
    model: Model,
    ranks: u32,
    slots: Vec<WorkerSlot>,
    /// Of each request under way: where it is, and what was expected of it.
    under_way: Vec<Option<(WorkerSlot, Option<DpRank>, Expected)>>,
    revision: u64,
    reports: u64,
    /// Ranks that the engines chose for requests without one, in turn.
    turn: u64,
}

impl CoreRouter {
    pub(super) fn new(trace: &Trace, setup: &Setup, combination: Combination) -> Self {
        let start = Instant::now();
        let model = Model::new("m").expect("a valid name");
        let mut fleet = Fleet::default();
        fleet.set_weighing(setup.weighing);
        fleet.set_half_life(setup.half_life);
        for worker in 0..setup.workers {
            fleet.handle_registration(spec(worker, setup, trace.block_tokens, &model), Duration::ZERO, start);
        }
        let slot = |worker| fleet.find(&name(worker)).expect("it was just registered").0;
        let slots = (0..setup.workers).map(slot).collect();
        Self {
            fleet,
            mirror: Mirror::new(setup.pin_ttl, start),
            rules: Rules { mode: combination.mode, policy: combination.policy, rank_choice: setup.rank_choice },
            rng: StdRng::seed_from_u64(setup.seed),
            start,
            block_tokens: trace.block_tokens,
            model,
            ranks: setup.ranks,
            slots,
            under_way: std::iter::repeat_with(|| None).take(trace.requests.len()).collect(),
            revision: 0,
            reports: 0,
            turn: 0,
        }
    }

    fn time(&self, now: Micros) -> Instant {
        self.start + Duration::from_micros(now)
    }

    fn ask(&self, asked: &Asked<'_>) -> Ask {
        let session = SessionId::named(&format!("s{}", asked.session)).expect("a valid id");
        let read = self.rules.policy == PolicyKind::Kv;
        let tokens = tokens(asked.ids.len(), self.block_tokens);
        Ask {
            model: self.model.clone(),
            tenant: Tenant::none(),
            session: (self.rules.mode != AffinityMode::Off).then_some(Session { id: session, origin: Origin::Named }),
            group: None,
            worker_hint: None,
            rank_hint: None,
            pool: None,
            home: None,
            excluded: Vec::new(),
            prompt: Prompt::new(if read { marks(asked.ids, self.block_tokens) } else { Vec::new() }, tokens),
        }
    }

    fn remember(&mut self, key: PinKey, placement: &Placement, now: Instant) {
        self.revision += 1;
        let pin = Stored::new(placement.clone(), Origin::Named);
        self.mirror.handle_own(key, self.revision, Some(pin), now);
    }

    fn target(&mut self, slot: WorkerSlot, rank: Option<DpRank>) -> usize {
        let worker = self.slots.iter().position(|other| *other == slot).expect("workers stay");
        let declared = self.fleet.get(slot).expect("workers stay").spec.ranks;
        let place = rank.and_then(|rank| declared.index_of(rank)).unwrap_or_else(|| {
            self.turn += 1;
            usize::try_from(self.turn % u64::from(self.ranks)).expect("a number of ranks")
        });
        worker * self.ranks as usize + place
    }
}

impl Places for CoreRouter {
    fn place(&mut self, asked: &Asked<'_>, _targets: &[Target]) -> usize {
        let now = self.time(asked.now);
        let ask = self.ask(asked);
        self.mirror.expire(now, MAX_EXPIRED);
        let key = ask.session.as_ref().map(|session| PinKey::new(&ask.tenant, &ask.model, &session.id));
        let entry = key.and_then(|key| self.mirror.get(key, now));
        let pinned = entry.and_then(|entry| entry.pin.as_ref()).map(|pin| pin.placement.clone());
        let pin = pinned.as_ref().map_or(Pin::None, Pin::At);
        let decision = match decide(&ask, &mut self.fleet, pin, self.rules, now, &mut self.rng) {
            Ok(decision) => decision,
            // Workers of a replay declare no limit, and never go.
            Err(NoPlacement::Wait(_) | NoPlacement::Exhausted | NoPlacement::Refused(_)) => {
                unreachable!("every worker may have every request")
            }
        };
        match (key, decision.reason) {
            (Some(key), Reason::Placed | Reason::Repinned) => self.remember(key, &decision.placement, now),
            (Some(key), Reason::Pinned | Reason::Hinted) => {
                if self.mirror.take_refresh(key, now) {
                    self.remember(key, &decision.placement, now);
                }
            }
            (Some(_), Reason::Unpinned) | (None, _) => {}
        }
        let (slot, rank) = (decision.slot, decision.placement.rank);
        self.fleet.begin(slot, rank);
        let (expected, _) = self.fleet.note_dispatch(slot, rank, &ask.prompt, now);
        self.under_way[asked.number] = Some((slot, rank, expected));
        self.target(slot, rank)
    }

    fn finished(&mut self, number: usize, (blocks, hit): (usize, usize), now: Micros) {
        let now = self.time(now);
        let Some((slot, rank, expected)) = self.under_way[number].take() else { return };
        self.fleet.end(slot, rank, false);
        self.fleet.note_finished(slot, rank, expected, (blocks as u64, hit as u64), now);
    }

    fn reported(&mut self, target: usize, targets: &[Target], now: Micros) {
        let now = self.time(now);
        self.reports += 1;
        let worker = target / self.ranks as usize;
        let Some(known) = self.fleet.get(self.slots[worker]) else { return };
        let of = targets[worker * self.ranks as usize..].iter();
        let ranks = known.spec.ranks.iter().zip(of).map(|(rank, target)| RankLoad {
            rank,
            inflight: target.in_flight,
            queued: target.queued(),
            kv_used_blocks: target.cache.len() as u64,
            prefill_tokens: target.to_prefill() * u64::from(self.block_tokens),
        });
        let (worker, instance) = (known.spec.id.clone(), known.spec.instance.clone());
        let report = Report { worker, instance, seq: self.reports, ranks: ranks.collect() };
        self.fleet.handle_report(report, now);
    }
}

fn name(worker: u32) -> String {
    format!("worker-{worker}")
}

fn spec(worker: u32, setup: &Setup, block_tokens: u32, model: &Model) -> WorkerSpec {
    WorkerSpec {
        id: WorkerId::new(&name(worker)).expect("a valid id"),
        instance: InstanceId::new("replay").expect("a valid id"),
        models: vec![model.clone()],
        pool: Pool::new("default").expect("a valid name"),
        ranks: RankRange::new(0, setup.ranks).expect("the command line allows no other"),
        device: "simulated".into(),
        weight: 1.0,
        max_inflight: None,
        kv_blocks: setup.blocks,
        block_size: Some(block_tokens),
        state: WorkerState::Ready,
        kind: WorkerKind::Native,
        subject: None,
    }
}

fn tokens(blocks: usize, block_tokens: u32) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX).saturating_mul(block_tokens)
}

/// What a router knows of a prompt: its prefixes at every so many tokens, and where it ends.
fn marks(ids: &[u32], block_tokens: u32) -> Vec<Mark> {
    let step = (CHUNK_TOKENS / block_tokens).max(1) as usize;
    let ends = (step..ids.len()).step_by(step).chain(std::iter::once(ids.len()));
    let mark = |end: usize| Mark { key: u64::from(ids[end - 1]) + 1, upto: tokens(end, block_tokens) };
    ends.map(mark).collect()
}
