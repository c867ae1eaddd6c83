//! Subagents beside their siblings: where a session that names a parent is placed anew, it goes where the parent's id
//! hashes to among the workers that may serve it, whichever router asks and whatever its policy (protocol section 5).
//! The parent's own pin is neither read nor written.

use super::{Cause, Decision, Reason, View};
use crate::core::hash;
use crate::core::id::{DpRank, Placement, SessionId};
use crate::core::mode::AffinityMode;

impl View<'_> {
    /// The placement of the group, where the request belongs to one and there is room; a hint counts more.
    pub(super) fn beside_siblings(
        &self,
        pinned: bool,
        explained: (Reason, Option<Cause>),
        unreachable: bool,
    ) -> Option<Decision> {
        let group = self.ask.group.as_ref().filter(|_| self.ask.session.is_some() && !self.hinted())?;
        // Who is full now doesn't count here: siblings that come later would choose somebody else.
        let (slot, worker) = self.allowed().max_by_key(|(_, worker)| hash::rendezvous(&worker.spec.id, group))?;
        let placement = Placement { worker: worker.spec.id.clone(), rank: self.rank_of_group(group, worker) };
        let lost = placement.rank.is_some_and(|rank| worker.is_marked(Some(rank), self.now));
        if lost
            || self.ask.exclusion(&placement.worker, placement.rank).is_some()
            || worker.is_leaving(self.now)
            || worker.is_full(placement.rank, self.now)
        {
            return None;
        }
        let (reason, cause) = explained;
        let cause = if matches!(cause, None | Some(Cause::Derived)) { Some(Cause::Siblings) } else { cause };
        Some(Decision { placement, slot, reason, cause, pin: self.pin_step(pinned, unreachable) })
    }

    fn rank_of_group(&self, group: &SessionId, worker: &super::Worker) -> Option<DpRank> {
        match self.rules.mode {
            AffinityMode::Hard if worker.spec.ranks.size() > 1 => Some(hash::hashed_rank(group, worker.spec.ranks)),
            AffinityMode::Hard | AffinityMode::Soft | AffinityMode::Off => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::core::ask::{Ask, Excluded, Failure};
    use crate::core::decide::{NoPlacement, Pin, PinStep, Rules, decide};
    use crate::core::fleet::Fleet;
    use crate::core::mode::{PolicyKind, RankChoice};
    use crate::core::session::Session;
    use crate::core::testing::{ask, at, derived, fleet, named, rng, slot, spec, start};
    use crate::core::worker::WorkerSpec;

    const HARD: Rules =
        Rules { mode: AffinityMode::Hard, policy: PolicyKind::RoundRobin, rank_choice: RankChoice::Hash };

    fn child(session: Session, parent: &str) -> Ask {
        Ask { session: Some(session), group: Some(named(parent).id), ..ask() }
    }

    fn specs() -> Vec<WorkerSpec> {
        (0..5).map(|n| spec(&format!("w{n}"), n * 8, 8)).collect()
    }

    fn placed(ask: &Ask, fleet: &mut Fleet, rules: Rules, now: Instant) -> Decision {
        decide(ask, fleet, Pin::None, rules, now, &mut rng()).expect("there is room")
    }

    #[test]
    fn siblings_meet_whichever_router_places_them_and_by_whatever_policy() {
        let now = start();
        for parent in 0..20 {
            let parent = format!("parent-{parent}");
            let mut met = Vec::new();
            for (n, policy) in [PolicyKind::RoundRobin, PolicyKind::Random].into_iter().enumerate() {
                // Another router heard of the workers in another order, and has placed others before.
                let mut specs = specs();
                specs.rotate_left(2 * n);
                let mut fleet = fleet(specs, now);
                let rules = Rules { policy, ..HARD };
                for other in 0..=n {
                    placed(&Ask { session: Some(named(&format!("other-{other}"))), ..ask() }, &mut fleet, rules, now);
                }
                for session in [named("a"), named("b"), derived(7)] {
                    let decision = placed(&child(session, &parent), &mut fleet, rules, now);
                    assert_eq!(decision.header(), "placed,siblings");
                    met.push(decision.placement);
                }
            }
            assert!(met[0].rank.is_some() && met.iter().all(|other| *other == met[0]), "{parent}: {met:?}");
        }
    }

    #[test]
    fn groups_are_spread() {
        let (now, specs) = (start(), specs());
        let mut fleet = fleet(specs, now);
        let places: std::collections::BTreeSet<_> = (0..200)
            .map(|n| placed(&child(named("s"), &format!("parent-{n}")), &mut fleet, HARD, now).placement.to_string())
            .collect();
        assert!(places.len() > 36, "of 40 ranks {} are used", places.len());
    }

    #[test]
    fn without_room_or_without_the_rank_a_sibling_is_placed_afresh() {
        let now = start();
        let with_limit = || specs().into_iter().map(|spec| WorkerSpec { max_inflight: Some(1), ..spec });
        let mut fleet = fleet(with_limit(), now);
        let ask = child(named("s"), "parent");
        let group = placed(&ask, &mut fleet, HARD, now);
        let own = |fleet: &mut Fleet, ask: &Ask| placed(ask, fleet, HARD, now);
        fleet.begin(group.slot, group.placement.rank);
        let full = own(&mut fleet, &ask);
        assert_ne!(full.placement, group.placement);
        assert_eq!((full.header().as_str(), full.pin), ("placed", PinStep::Claim));
        fleet.end(group.slot, group.placement.rank, false);
        assert_eq!(own(&mut fleet, &ask).placement, group.placement, "there is room again");
        let failed = Excluded { placement: group.placement.clone(), whole_worker: true, failure: Failure::Draining };
        let tried = own(&mut fleet, &Ask { excluded: vec![failed], ..ask.clone() });
        assert_ne!(tried.placement.worker, group.placement.worker);
        fleet.mark_lost(group.slot, group.placement.rank, now);
        assert_ne!(own(&mut fleet, &ask).placement, group.placement);
    }

    #[test]
    fn a_lost_worker_takes_its_group_along_to_one_other() {
        let now = start();
        let mut fleet = fleet(specs(), now);
        let first = placed(&child(named("s"), "parent"), &mut fleet, HARD, now);
        fleet.handle_deregistration(&first.placement.worker);
        let moved: Vec<_> = ["a", "b", "c"]
            .map(|session| {
                let ask = child(named(session), "parent");
                decide(&ask, &mut fleet, Pin::At(&first.placement), HARD, now, &mut rng()).expect("placed")
            })
            .into();
        assert!(moved.iter().all(|other| other.placement == moved[0].placement));
        assert_eq!(moved[0].header(), "repinned,worker-lost");
    }

    #[test]
    fn pins_and_hints_count_more_than_a_group() {
        let now = start();
        let mut fleet = fleet([spec("a", 0, 1), spec("b", 1, 1)], now);
        for worker in ["a", "b"] {
            let pinned = at(worker, None);
            let ask = child(named("s"), "parent");
            let decision = decide(&ask, &mut fleet, Pin::At(&pinned), HARD, now, &mut rng()).expect("pinned");
            assert_eq!((decision.placement, decision.reason), (pinned.clone(), Reason::Pinned));
            let ask = Ask { worker_hint: Some(worker.into()), ..ask };
            assert_eq!(placed(&ask, &mut fleet, HARD, now).placement, pinned);
        }
        let none = Ask { session: None, ..child(named("s"), "parent") };
        assert_eq!(placed(&none, &mut fleet, HARD, now).header(), "unpinned");
    }

    #[test]
    fn soft_affinity_groups_on_a_worker_and_a_bucket_out_of_reach_changes_nothing() {
        let now = start();
        let mut fleet = fleet(specs(), now);
        let ask = child(named("s"), "parent");
        let hard = placed(&ask, &mut fleet, HARD, now);
        let soft = placed(&ask, &mut fleet, Rules { mode: AffinityMode::Soft, ..HARD }, now);
        assert_eq!(soft.placement, Placement { rank: None, ..hard.placement.clone() });
        let apart = decide(&ask, &mut fleet, Pin::Unreachable, HARD, now, &mut rng()).expect("placed");
        assert_eq!((apart.placement, apart.pin), (hard.placement, PinStep::None));
    }

    #[test]
    fn a_group_whose_pool_is_elsewhere_meets_there() {
        let now = start();
        let pooled = |id: &str, first| WorkerSpec {
            pool: crate::core::id::Pool::new("eu").expect("valid"),
            ..spec(id, first, 2)
        };
        let mut fleet = fleet([spec("a", 0, 2), pooled("b", 2), pooled("c", 4)], now);
        for parent in 0..20 {
            let ask = Ask { pool: Some("eu".into()), ..child(named("s"), &format!("parent-{parent}")) };
            assert_ne!(placed(&ask, &mut fleet, HARD, now).placement.worker.as_str(), "a");
        }
        let nobody = Ask { pool: Some("us".into()), ..child(named("s"), "parent") };
        let refused = decide(&nobody, &mut fleet, Pin::None, HARD, now, &mut rng());
        assert!(matches!(refused, Err(NoPlacement::Refused(_))));
        assert!(slot(&fleet, "a") != slot(&fleet, "b"));
    }
}
