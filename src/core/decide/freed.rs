//! Which waiting requests may have a use for room that has appeared: a quick look, so that not everybody is tried.

use super::{Rules, WaitFor};
use crate::core::ask::{Ask, RankHint};
use crate::core::fleet::Worker;
use crate::core::hash::hashed_rank;
use crate::core::id::{DpRank, Model, Pool, RankRange, WorkerId};
use crate::core::mode::{AffinityMode, RankChoice};

/// Where there is more room than before.
#[derive(Debug, Clone)]
pub struct Freed {
    worker: WorkerId,
    models: Vec<Model>,
    pool: Pool,
    ranks: RankRange,
    /// The placement; `None` where any on the worker may have room.
    rank: Option<Option<DpRank>>,
}

impl Freed {
    /// At one placement of a worker, or with `rank` `None` anywhere on it.
    pub fn on(worker: &Worker, rank: Option<Option<DpRank>>) -> Self {
        let spec = &worker.spec;
        let (models, pool) = (spec.models.clone(), spec.pool.clone());
        Self { worker: spec.id.clone(), models, pool, ranks: spec.ranks, rank }
    }

    /// Whether the worker serves a model.
    pub fn serves(&self, model: &Model) -> bool {
        self.models.is_empty() || self.models.binary_search(model).is_ok()
    }

    /// Whether a request that waits for this may go there. False only where it surely can't; what this look doesn't
    /// know is found out by trying everybody now and then.
    pub fn may_suit(&self, ask: &Ask, wants: &WaitFor, rules: Rules) -> bool {
        match wants {
            WaitFor::Placement(at) => at.worker == self.worker && self.meets(at.rank),
            WaitFor::Any => self.is_allowed(ask) && self.meets(self.rank_of(ask, rules)),
        }
    }

    /// Whether room where it appeared is room on a rank. Requests without a rank share what all ranks have.
    fn meets(&self, wanted: Option<DpRank>) -> bool {
        match (self.rank.flatten(), wanted) {
            (Some(freed), Some(wanted)) => freed == wanted,
            (None, _) | (_, None) => true,
        }
    }

    fn is_allowed(&self, ask: &Ask) -> bool {
        ask.pool.as_deref().is_none_or(|pool| pool == self.pool.as_str())
            && ask.worker_hint.as_deref().is_none_or(|id| id == self.worker.as_str())
            && match ask.rank_hint {
                Some(RankHint::Rank(rank)) => self.ranks.contains(rank),
                Some(RankHint::Invalid(_)) | None => true,
            }
    }

    /// The one rank that the request would have, where that is known at once.
    fn rank_of(&self, ask: &Ask, rules: Rules) -> Option<DpRank> {
        if let Some(RankHint::Rank(rank)) = ask.rank_hint {
            return Some(rank).filter(|_| self.ranks.size() > 1);
        }
        let hashes = ask.named() && ask.group.is_none() && ask.excluded.is_empty() && self.ranks.size() > 1;
        match (&ask.session, rules.mode, rules.rank_choice) {
            (Some(session), AffinityMode::Hard, RankChoice::Hash) if hashes => {
                Some(hashed_rank(&session.id, self.ranks))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::mode::PolicyKind;
    use crate::core::testing::{ask, at, fleet, named, spec, start};

    const HARD: Rules =
        Rules { mode: AffinityMode::Hard, policy: PolicyKind::RoundRobin, rank_choice: RankChoice::Hash };

    #[test]
    fn only_who_surely_cannot_go_is_passed_over() {
        let fleet = fleet([spec("a", 0, 4)], start());
        let worker = fleet.find("a").expect("it is there").1;
        let freed = |rank: Option<Option<u16>>| Freed::on(worker, rank.map(|rank| rank.map(DpRank)));
        let (anywhere, rank_1, rankless) = (freed(None), freed(Some(Some(1))), freed(Some(None)));
        let suits = |freed: &Freed, ask: &Ask, wants: &WaitFor| freed.may_suit(ask, wants, HARD);

        let pinned = |worker: &str, rank| WaitFor::Placement(at(worker, rank));
        for (wants, expected) in [
            (pinned("b", Some(1)), [false; 3]),
            (pinned("a", Some(1)), [true; 3]),
            (pinned("a", Some(2)), [true, false, true]),
            (pinned("a", None), [true; 3]),
        ] {
            let told = [&anywhere, &rank_1, &rankless].map(|freed| suits(freed, &ask(), &wants));
            assert_eq!(told, expected, "{wants:?}");
        }
        let hinted = |rank| Ask { rank_hint: Some(RankHint::Rank(DpRank(rank))), ..ask() };
        let of = |ask: &Ask| [&anywhere, &rank_1, &rankless].map(|freed| suits(freed, ask, &WaitFor::Any));
        assert_eq!(of(&hinted(1)), [true; 3]);
        assert_eq!(of(&hinted(2)), [true, false, true]);
        assert_eq!(of(&hinted(9)), [false; 3]);
        assert_eq!(of(&Ask { pool: Some("eu".into()), ..ask() }), [false; 3]);
        assert_eq!(of(&Ask { worker_hint: Some("b".into()), ..ask() }), [false; 3]);
        assert_eq!(of(&ask()), [true; 3]);
        for n in 0..20 {
            let session = named(&format!("s{n}"));
            let on_1 = hashed_rank(&session.id, worker.spec.ranks) == DpRank(1);
            let ask = Ask { session: Some(session), ..ask() };
            assert_eq!(of(&ask), [true, on_1, true]);
            let by_load = Rules { rank_choice: RankChoice::LeastLoaded, ..HARD };
            assert!(rank_1.may_suit(&ask, &WaitFor::Any, by_load));
        }
    }
}
