//! Which pool a new placement is in, where the configuration has pools (protocol section 5.1).

use std::collections::BTreeMap;

use rand::{Rng, RngExt as _};

use super::candidates::{Candidate, Candidates};
use super::hash;
use super::id::{Pool, SessionId};

/// Most pools of one configuration.
pub const MAX_POOLS: usize = 256;

/// How the pool of a new placement is chosen among those with room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PoolPolicy {
    /// By the hash of the session, in proportion to the weights: every router finds the same.
    #[default]
    Affinity,
    /// By chance, in proportion to the weights.
    Weighted,
    /// The first in the order of the configuration.
    Priority,
}

impl PoolPolicy {
    /// Each with its name.
    pub const NAMED: [(&'static str, Self); 3] =
        [("affinity", Self::Affinity), ("weighted", Self::Weighted), ("priority", Self::Priority)];
}

/// What the configuration says of one pool.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolRule {
    /// Its name.
    pub name: Pool,
    /// Its share, above 0.
    pub weight: f64,
    /// From which share of its capacity on, in percent, new sessions go to other pools, while these have room.
    pub spill_over: Option<u32>,
}

/// All pools of the configuration, in its order; without any, pools play no part.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pools {
    /// How one is chosen.
    pub policy: PoolPolicy,
    /// Each of them.
    pub rules: Vec<PoolRule>,
}

/// What a choice of a pool goes by.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The pool in which the session is pinned.
    pub home: Option<&'a Pool>,
    /// The session.
    pub session: Option<&'a SessionId>,
}

/// A pool of candidates.
#[derive(Debug)]
struct Open<'c> {
    name: &'c Pool,
    place: usize,
    weight: f64,
    spilled: bool,
}

impl Pools {
    /// The candidates of the pool that is chosen: the session's own where that may have it, else by the policy among
    /// those that are not yet to spill over, or where all are, among all. `usage` is the share of a pool's capacity in
    /// use, where it is known.
    pub fn narrow<'f>(
        &self,
        candidates: Candidates<'f>,
        asked: Asked<'_>,
        usage: impl Fn(&Pool) -> Option<f64>,
        rng: &mut dyn Rng,
    ) -> Candidates<'f> {
        if self.rules.is_empty() {
            return candidates;
        }
        let names: BTreeMap<&Pool, ()> =
            candidates.as_slice().iter().map(|candidate| (&candidate.worker().spec.pool, ())).collect();
        if names.len() < 2 {
            return candidates;
        }
        let mut open: Vec<_> = names.into_keys().map(|name| self.judge(name, &usage)).collect();
        if open.iter().any(|pool| !pool.spilled) {
            open.retain(|pool| !pool.spilled);
        }
        let home = open.iter().find(|pool| Some(pool.name) == asked.home);
        let chosen = home.or_else(|| self.choose(&open, asked.session, rng)).map(|pool| pool.name.clone());
        let these = |candidate: &&Candidate<'f>| Some(&candidate.worker().spec.pool) == chosen.as_ref();
        let of_pool = candidates.as_slice().iter().filter(these).copied().collect();
        Candidates::new(of_pool).unwrap_or(candidates)
    }

    fn judge<'c>(&self, name: &'c Pool, usage: &impl Fn(&Pool) -> Option<f64>) -> Open<'c> {
        // A pool that the configuration doesn't know comes last.
        let Some(place) = self.rules.iter().position(|rule| rule.name == *name) else {
            return Open { name, place: self.rules.len(), weight: 1.0, spilled: false };
        };
        let rule = &self.rules[place];
        let over = |percent: u32| usage(name).is_some_and(|used| used * 100.0 >= f64::from(percent));
        Open { name, place, weight: rule.weight, spilled: rule.spill_over.is_some_and(over) }
    }

    fn choose<'o, 'c>(
        &self,
        open: &'o [Open<'c>],
        session: Option<&SessionId>,
        rng: &mut dyn Rng,
    ) -> Option<&'o Open<'c>> {
        match (self.policy, session) {
            (PoolPolicy::Priority, _) => open.iter().min_by_key(|pool| pool.place),
            (PoolPolicy::Affinity, Some(session)) => {
                let score = |pool: &Open<'_>| hash::distance(pool.name.as_str(), session) / pool.weight;
                open.iter().min_by(|a, b| score(a).total_cmp(&score(b)))
            }
            (PoolPolicy::Affinity, None) | (PoolPolicy::Weighted, _) => by_chance(open, rng),
        }
    }
}

fn by_chance<'o, 'c>(open: &'o [Open<'c>], rng: &mut dyn Rng) -> Option<&'o Open<'c>> {
    let mut left = rng.random::<f64>() * open.iter().map(|pool| pool.weight).sum::<f64>();
    let drawn = open.iter().find(|pool| {
        left -= pool.weight;
        left < 0.0
    });
    drawn.or_else(|| open.last())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ask::Ask;
    use crate::core::decide::{Pin, Rules, decide};
    use crate::core::fleet::Fleet;
    use crate::core::mode::{AffinityMode, PolicyKind, RankChoice};
    use crate::core::testing::{ask, at, fleet, named, rng, slot, spec, start};
    use crate::core::worker::WorkerSpec;

    const HARD: Rules =
        Rules { mode: AffinityMode::Hard, policy: PolicyKind::LeastLoaded, rank_choice: RankChoice::Hash };

    fn pool(name: &str) -> Pool {
        Pool::new(name).expect("a valid name")
    }

    fn rule(name: &str, weight: f64, spill_over: Option<u32>) -> PoolRule {
        PoolRule { name: pool(name), weight, spill_over }
    }

    /// Two workers in each pool, each with room for ten.
    fn of_pools(policy: PoolPolicy, rules: Vec<PoolRule>) -> Fleet {
        let worker = |id: &str, name: &str| WorkerSpec { pool: pool(name), max_inflight: Some(10), ..spec(id, 0, 1) };
        let mut fleet =
            fleet([worker("e1", "eu"), worker("e2", "eu"), worker("u1", "us"), worker("u2", "us")], start());
        fleet.set_pools(Pools { policy, rules });
        fleet
    }

    fn placed(fleet: &mut Fleet, ask: &Ask, pin: Pin<'_>) -> String {
        let decision = decide(ask, fleet, pin, HARD, start(), &mut rng()).expect("there is room");
        decision.placement.worker.to_string()
    }

    fn of_session(n: u32) -> Ask {
        Ask { session: Some(named(&format!("s{n}"))), ..ask() }
    }

    #[test]
    fn by_affinity_a_session_is_in_one_pool_whichever_router_asks() {
        let mut in_eu = 0;
        let rules = || vec![rule("eu", 3.0, None), rule("us", 1.0, None)];
        for n in 0..400 {
            let (mut one, mut other) =
                (of_pools(PoolPolicy::Affinity, rules()), of_pools(PoolPolicy::Affinity, rules()));
            let busy = slot(&other, "e1");
            other.begin(busy, None);
            let found = [&mut one, &mut other].map(|fleet| placed(fleet, &of_session(n), Pin::None)[..1].to_owned());
            assert_eq!(found[0], found[1]);
            in_eu += u32::from(found[0] == "e");
        }
        assert!(in_eu.abs_diff(300) < 40, "{in_eu}");
    }

    #[test]
    fn by_weight_pools_are_drawn() {
        let mut fleet = of_pools(PoolPolicy::Weighted, vec![rule("eu", 3.0, None), rule("us", 1.0, None)]);
        let mut rng = rng();
        let mut in_eu = 0_u32;
        for _ in 0..400 {
            let decision = decide(&ask(), &mut fleet, Pin::None, HARD, start(), &mut rng).expect("there is room");
            in_eu += u32::from(decision.placement.worker.as_str().starts_with('e'));
        }
        assert!(in_eu.abs_diff(300) < 40, "{in_eu}");
    }

    #[test]
    fn by_priority_the_first_with_room_gets_it_and_spills_over() {
        let mut fleet = of_pools(PoolPolicy::Priority, vec![rule("us", 1.0, Some(50)), rule("eu", 9.0, Some(90))]);
        let mut order = String::new();
        for n in 0..40 {
            let decision = decide(&of_session(n), &mut fleet, Pin::None, HARD, start(), &mut rng()).expect("room");
            fleet.begin(decision.slot, None);
            order.push_str(&decision.placement.worker.as_str()[..1]);
        }
        // Half of us, most of eu, then what is left of us and of eu.
        let expected = [("u", 10), ("e", 18), ("u", 10), ("e", 2)].map(|(pool, times)| pool.repeat(times)).concat();
        assert_eq!(order, expected);
    }

    #[test]
    fn a_session_whose_worker_is_gone_stays_in_its_pool_while_that_has_room() {
        let mut fleet = of_pools(PoolPolicy::Priority, vec![rule("us", 1.0, None), rule("eu", 1.0, None)]);
        let ask = Ask { home: Some(pool("eu")), ..of_session(1) };
        let gone = at("gone", None);
        assert!(placed(&mut fleet, &ask, Pin::At(&gone)).starts_with('e'));
        for worker in ["e1", "e2"] {
            let slot = slot(&fleet, worker);
            (0..10).for_each(|_| fleet.begin(slot, None));
        }
        assert!(placed(&mut fleet, &ask, Pin::At(&gone)).starts_with('u'));
    }

    #[test]
    fn pools_that_nobody_has_configured_come_last_and_without_any_pools_play_no_part() {
        let mut fleet = of_pools(PoolPolicy::Priority, vec![rule("us", 1.0, None)]);
        assert!(placed(&mut fleet, &ask(), Pin::None).starts_with('u'));
        let mut fleet = of_pools(PoolPolicy::Priority, vec![]);
        let mut met = std::collections::BTreeSet::new();
        for n in 0..4 {
            let decision = decide(&of_session(n), &mut fleet, Pin::None, HARD, start(), &mut rng()).expect("room");
            fleet.begin(decision.slot, None);
            met.insert(decision.placement.worker.to_string());
        }
        assert_eq!(met.len(), 4);
    }
}
