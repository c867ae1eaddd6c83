//! The router at a moment, as its page, its metrics and the NATS service protocol tell it.

use std::collections::HashMap;
use std::time::Instant;

use super::fleet_metrics::{Connection, MAX_RANKS, Sample};
use super::state::{Router, State, unix_ms};
use crate::config::Level;
use crate::core::fleet::{Totals, Worker};
use crate::core::id::{DpRank, Placement};
use crate::core::mode::{AffinityMode, PolicyKind};
use crate::core::worker::WorkerState as Declared;
use crate::wire::service::{
    PartitionsState, PinCounts, QueueState, RankState, RequestCounts, RouterState, WorkerState,
};

/// Most models whose queue is told, the longest first.
const MAX_QUEUES: usize = 64;

impl Router {
    /// Everything that is told of it.
    pub fn view(&self, ready: bool) -> RouterState {
        let now = Instant::now();
        let (metrics, config) = (&self.metrics, &self.config);
        let name = |named: &[(&'static str, PolicyKind)]| {
            named.iter().find(|(_, kind)| *kind == config.policy).map_or("", |(name, _)| *name).to_owned()
        };
        let affinity =
            AffinityMode::NAMED.iter().find(|(_, mode)| *mode == config.affinity).map_or("", |(name, _)| name);
        let accept = metrics.accept.sum();
        let mut requests = RequestCounts {
            admitted: metrics.admitted.get(),
            dispatched: metrics.dispatched.get(),
            ended: metrics.requests.by_outcome(),
            accepted: metrics.accept.count(),
            accept_s: accept.as_secs(),
            accept_ns: accept.subsec_nanos().into(),
            ..RequestCounts::default()
        };
        let state = self.state();
        requests.in_flight = state.live.len() as u64;
        requests.waiting = state.live.waiting() as u64;
        requests.queued = state.queued() as u64;
        let pins = PinCounts {
            mirrored: state.mirrors.pins(),
            derived: state.mirrors.derived() as u64,
            races_lost: metrics.claims_lost.get(),
            fresh: state.mirrors.all_fresh(),
            unreachable: self.pins.is_any_unreachable(),
            partitions: config
                .partitions
                .is_divided()
                .then(|| PartitionsState { count: config.partitions.count(), served: config.partitions.to_string() }),
        };
        let queue = queues(&state);
        let (workers, ranks_left_out) = fleet(&state, now);
        drop(state);
        RouterState {
            v: 1,
            router: self.id.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            namespace: config.namespace.to_string(),
            level: if config.pools.level == Level::Global { "global" } else { "worker" }.into(),
            affinity: affinity.to_owned(),
            policy: name(&PolicyKind::NAMED),
            ready,
            now_ms: unix_ms(),
            uptime_s: self.started.elapsed().as_secs(),
            requests,
            decisions: metrics.decisions(),
            sessions: metrics.sessions(),
            prompt_tokens: metrics.prompt_tokens(),
            cached_tokens: metrics.cached_tokens(),
            pins,
            queue,
            workers,
            ranks_left_out,
            events: self.happenings.all(),
        }
    }

    /// What a scrape reads.
    pub(super) fn sample(&self) -> Sample {
        let now = Instant::now();
        let (workers, left_out) = fleet(&self.state(), now);
        let lane = |name, lane: &crate::nats::Lane| Connection {
            name,
            connected: lane.is_connected(),
            connects: lane.connects(),
            slow: lane.slow_consumer_events(),
        };
        let store = self.pins.link();
        let mut connections = vec![
            lane("intake", &self.intake),
            lane("dispatch", &self.dispatch),
            Connection {
                name: "store",
                connected: store.is_connected(),
                connects: store.state().borrow().connects,
                slow: store.slow_consumer_events(),
            },
        ];
        connections.extend(self.jobs.as_ref().map(|jobs| lane("jobs", jobs.lane())));
        let started_s = (unix_ms() / 1000).saturating_sub(self.started.elapsed().as_secs());
        Sample { connections, workers, left_out, started_s }
    }
}

fn queues(state: &State) -> Vec<QueueState> {
    let mut queue: Vec<QueueState> = state
        .queues()
        .map(|(model, waiting)| QueueState { model: model.as_str().to_owned(), waiting: waiting as u64 })
        .collect();
    queue.sort_by(|a, b| (b.waiting, &a.model).cmp(&(a.waiting, &b.model)));
    queue.truncate(MAX_QUEUES);
    queue
}

/// The workers by name, with as many ranks as are told, and how many are left out.
fn fleet(state: &State, now: Instant) -> (Vec<WorkerState>, u64) {
    let mut workers: Vec<&Worker> = state.fleet.iter().map(|(_, worker)| worker).collect();
    workers.sort_by(|a, b| a.spec.id.cmp(&b.spec.id));
    let mut pins: HashMap<&str, HashMap<Option<DpRank>, u64>> = HashMap::new();
    for (Placement { worker, rank }, count) in state.mirrors.placed() {
        *pins.entry(worker.as_str()).or_default().entry(*rank).or_default() += count;
    }
    let none = HashMap::new();
    let (mut told, mut left_out, mut room) = (Vec::new(), 0, MAX_RANKS);
    for worker in workers {
        let size = worker.spec.ranks.size() as usize;
        if size > room || told.len() >= MAX_RANKS {
            left_out += size as u64;
            continue;
        }
        room -= size;
        told.push(one(worker, pins.get(worker.spec.id.as_str()).unwrap_or(&none), now));
    }
    (told, left_out)
}

fn one(worker: &Worker, pins: &HashMap<Option<DpRank>, u64>, now: Instant) -> WorkerState {
    let spec = &worker.spec;
    let report = worker.fresh_report(now);
    let pinned = |rank: Option<DpRank>| pins.get(&rank).copied().unwrap_or(0);
    let ranks = spec.ranks.iter().map(|rank| {
        // Reports are sorted by rank.
        let load = report.and_then(|report| {
            report.ranks.binary_search_by_key(&rank, |load| load.rank).ok().map(|index| &report.ranks[index])
        });
        let blocks = spec.kv_blocks.filter(|blocks| *blocks > 0);
        let Totals { dispatched, prompt_tokens, cached_tokens } = worker.totals(Some(rank));
        RankState {
            rank: Some(rank.0),
            own: worker.own_on(rank).into(),
            inflight: load.map(|load| load.inflight.into()),
            queued: load.map(|load| load.queued.into()),
            kv_used_permille: load.zip(blocks).map(|(load, blocks)| load.kv_used_blocks.saturating_mul(1000) / blocks),
            pins: pinned(Some(rank)),
            dispatched,
            prompt_tokens,
            cached_tokens,
        }
    });
    let Totals { dispatched, prompt_tokens, cached_tokens } = worker.totals(None);
    let (own, pins) = (worker.own_without_rank().into(), pinned(None));
    let without = (dispatched > 0 || own > 0 || pins > 0).then_some(RankState {
        own,
        pins,
        dispatched,
        prompt_tokens,
        cached_tokens,
        ..RankState::default()
    });
    let state = match spec.state {
        _ if !worker.is_registered() => "leaving",
        _ if worker.is_marked(None, now) => "lost",
        Declared::Ready => "ready",
        Declared::Draining => "draining",
    };
    WorkerState {
        worker: spec.id.as_str().into(),
        pool: spec.pool.as_str().into(),
        models: spec.models.iter().map(|model| model.as_str().to_owned()).collect(),
        state: state.into(),
        silent_ms: u64::try_from(worker.age(now).as_millis()).unwrap_or(u64::MAX),
        max_inflight: spec.max_inflight,
        ranks: ranks.chain(without).collect(),
    }
}
