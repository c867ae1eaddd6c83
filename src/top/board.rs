//! What several routers say, put together: counts become rates, what each has in flight adds up.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::wire::service::{Happening, RankState, RouterState, WorkerState};

/// Rates that are kept, for the small charts.
const MAX_HISTORY: usize = 120;

/// What is shown.
#[derive(Debug, Default)]
pub struct Board {
    routers: Vec<RouterState>,
    history: VecDeque<Rates>,
}

/// What happened between two looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rates {
    /// Requests taken in a second.
    pub requests: f64,
    /// Decisions a second, by reason.
    pub decisions: BTreeMap<String, f64>,
    /// Requests that ended in an error, a second.
    pub errors: f64,
    /// Share of decisions that went to the session's pin.
    pub hit: Option<f64>,
    /// Share of prompt tokens that were cached.
    pub cached: Option<f64>,
    /// Milliseconds from dispatch to acceptance.
    pub accept_ms: Option<f64>,
}

impl Board {
    /// Takes what the routers say now.
    pub fn take(&mut self, routers: Vec<RouterState>) {
        if let Some(rates) = rates(&self.routers, &routers) {
            if self.history.len() >= MAX_HISTORY {
                self.history.pop_front();
            }
            self.history.push_back(rates);
        }
        self.routers = routers;
    }

    /// The routers.
    pub fn routers(&self) -> &[RouterState] {
        &self.routers
    }

    /// What happened since the last look but one.
    pub fn rates(&self) -> Option<&Rates> {
        self.history.back()
    }

    /// The same at all looks, the newest last.
    pub fn history(&self) -> impl Iterator<Item = &Rates> {
        self.history.iter()
    }

    /// Pins that routers mirror.
    pub fn pins(&self) -> u64 {
        self.mirrors().map(|router| router.pins.mirrored).sum()
    }

    /// Of each group of routers that mirror the same partitions the one that has most of their pins: the groups add up.
    fn mirrors(&self) -> impl Iterator<Item = &RouterState> {
        let mut groups: BTreeMap<&str, &RouterState> = BTreeMap::new();
        for router in &self.routers {
            let served = router.pins.partitions.as_ref().map_or("", |partitions| partitions.served.as_str());
            let most = groups.entry(served).or_insert(router);
            if router.pins.mirrored > most.pins.mirrored {
                *most = router;
            }
        }
        groups.into_values()
    }

    /// The workers as the router sees them that sees most, with all routers' requests and tokens, and all partitions' pins,
    /// added up.
    pub fn fleet(&self) -> Vec<WorkerState> {
        let Some(best) = self.routers.iter().max_by_key(|router| router.workers.len()) else { return Vec::new() };
        let mut sums: HashMap<(&str, Option<u16>), RankState> = HashMap::new();
        for worker in self.routers.iter().flat_map(|router| &router.workers) {
            for rank in &worker.ranks {
                let sum = sums.entry((&worker.worker, rank.rank)).or_default();
                sum.own += rank.own;
                sum.dispatched += rank.dispatched;
                sum.prompt_tokens += rank.prompt_tokens;
                sum.cached_tokens += rank.cached_tokens;
            }
        }
        let mut pins: HashMap<(&str, Option<u16>), u64> = HashMap::new();
        for worker in self.mirrors().flat_map(|router| &router.workers) {
            for rank in &worker.ranks {
                *pins.entry((&worker.worker, rank.rank)).or_default() += rank.pins;
            }
        }
        let mut workers = best.workers.clone();
        for worker in &mut workers {
            for rank in &mut worker.ranks {
                if let Some(sum) = sums.get(&(worker.worker.as_str(), rank.rank)) {
                    rank.own = sum.own;
                    rank.dispatched = sum.dispatched;
                    rank.prompt_tokens = sum.prompt_tokens;
                    rank.cached_tokens = sum.cached_tokens;
                }
                rank.pins = pins.get(&(worker.worker.as_str(), rank.rank)).copied().unwrap_or(0);
            }
        }
        workers
    }

    /// What has happened lately at any router, the newest first; what several saw stands once.
    pub fn happenings(&self) -> Vec<Happening> {
        let mut all: Vec<Happening> = self.routers.iter().flat_map(|router| router.events.clone()).collect();
        all.sort_by(|a, b| b.at_ms.cmp(&a.at_ms).then_with(|| a.text.cmp(&b.text)));
        all.dedup_by(|a, b| a.text == b.text && a.at_ms.abs_diff(b.at_ms) < 1000);
        all
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts within a second are far below 2^53")]
fn rates(before: &[RouterState], now: &[RouterState]) -> Option<Rates> {
    // A router that came or was started anew in between says nothing yet.
    let pairs: Vec<(&RouterState, &RouterState)> = now
        .iter()
        .filter_map(|now| Some((before.iter().find(|before| before.router == now.router)?, now)))
        .filter(|(before, now)| now.now_ms > before.now_ms)
        .collect();
    let (first, last) = pairs.first()?;
    let seconds = (last.now_ms - first.now_ms) as f64 / 1e3;
    let sum = |of: &dyn Fn(&RouterState) -> u64| -> u64 {
        pairs.iter().map(|(before, now)| of(now).saturating_sub(of(before))).sum()
    };
    let mut decisions: BTreeMap<String, f64> = BTreeMap::new();
    for (before, now) in &pairs {
        for (word, count) in &now.decisions {
            let reason = word.split(',').next().unwrap_or(word);
            let more = count.saturating_sub(before.decisions.get(word).copied().unwrap_or(0));
            *decisions.entry(reason.to_owned()).or_default() += more as f64 / seconds;
        }
    }
    let share = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
    let errors = |state: &RouterState| {
        let ended = state.requests.ended.iter().filter(|(outcome, _)| !["ok", "cancelled"].contains(&outcome.as_str()));
        ended.map(|(_, count)| count).sum()
    };
    let accept_ns = |state: &RouterState| state.requests.accept_s * 1_000_000_000 + state.requests.accept_ns;
    Some(Rates {
        requests: sum(&|state| state.requests.admitted) as f64 / seconds,
        errors: sum(&errors) as f64 / seconds,
        hit: share(decisions.get("pinned").copied().unwrap_or(0.0), decisions.values().sum()),
        cached: share(sum(&|state| state.cached_tokens) as f64, sum(&|state| state.prompt_tokens) as f64),
        accept_ms: share(sum(&accept_ns) as f64 / 1e6, sum(&|state| state.requests.accepted) as f64),
        decisions,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::wire::service::{PartitionsState, PinCounts, RequestCounts};

    /// A router after so many requests, at this second.
    pub fn router(id: &str, second: u64, requests: u64) -> RouterState {
        let rank = |rank: u16, own: u64| RankState {
            rank: Some(rank),
            own,
            inflight: Some(own + 1),
            pins: 7,
            dispatched: requests,
            prompt_tokens: 100 * requests,
            cached_tokens: 75 * requests,
            kv_used_permille: Some(420),
            ..RankState::default()
        };
        let worker = |name: &str, state: &str, ranks: Vec<RankState>| WorkerState {
            worker: name.into(),
            pool: "default".into(),
            models: vec!["my-model".into()],
            state: state.into(),
            max_inflight: Some(8),
            ranks,
            ..WorkerState::default()
        };
        RouterState {
            router: id.into(),
            namespace: "rankpin".into(),
            affinity: "hard".into(),
            policy: "round-robin".into(),
            ready: true,
            now_ms: 1000 * second,
            requests: RequestCounts {
                admitted: requests,
                in_flight: 3,
                queued: 1,
                accepted: requests,
                accept_ns: 2_000_000 * requests,
                ended: BTreeMap::from([("ok".into(), requests - requests / 10), ("overloaded".into(), requests / 10)]),
                ..RequestCounts::default()
            },
            decisions: BTreeMap::from([("pinned".into(), requests / 2), ("placed".into(), requests - requests / 2)]),
            prompt_tokens: 100 * requests,
            cached_tokens: 75 * requests,
            workers: vec![
                worker("gpu-0", "ready", vec![rank(0, 1), rank(1, 7)]),
                worker("gpu-1", "draining", vec![rank(4, 0)]),
            ],
            events: vec![Happening { at_ms: 500, warn: true, text: "worker gpu-2 lost: silent for 6 s".into() }],
            ..RouterState::default()
        }
    }

    #[test]
    fn rates_are_those_of_all_routers_that_were_there_before() {
        let mut board = Board::default();
        board.take(vec![router("a", 1, 100), router("b", 1, 100)]);
        assert_eq!(board.rates(), None);
        board.take(vec![router("a", 2, 110), router("b", 2, 120), router("c", 2, 1000)]);
        let rates = board.rates().expect("two looks");
        assert_eq!((rates.requests, rates.errors), (30.0, 3.0));
        assert_eq!(rates.decisions["pinned"], 15.0);
        assert_eq!((rates.hit, rates.cached, rates.accept_ms), (Some(0.5), Some(0.75), Some(2.0)));
        let mirrors = |id: &str, served: &str, mirrored| {
            let partitions = Some(PartitionsState { count: 4, served: served.into() });
            let pins = PinCounts { mirrored, partitions, ..PinCounts::default() };
            RouterState { pins, ..router(id, 2, 110) }
        };
        let mut divided = Board::default();
        divided.take(vec![mirrors("a", "0-1", 10), mirrors("b", "0-1", 9), mirrors("c", "2-3", 5)]);
        assert_eq!((divided.pins(), divided.fleet()[0].ranks[0].pins), (15, 14), "of two alike, one counts");
        let fleet = board.fleet();
        assert_eq!(fleet[0].ranks[0].pins, 7, "all mirror the same");
        assert_eq!((fleet[0].ranks[1].own, fleet[0].ranks[1].inflight), (21, Some(8)), "own adds up, reports don't");
        assert_eq!(board.happenings().len(), 1, "three routers saw the same");
        board.take(vec![router("d", 3, 10)]);
        assert_eq!(board.history().count(), 1, "one that is new says nothing yet");
    }
}
