//! Recent work against the fleet's mean: who has more than their share, and which sessions soft affinity moves for it.

use super::open::Look;
use super::{Cause, View};
use crate::core::candidates::Candidate;
use crate::core::fleet::{Work, Worker};
use crate::core::id::Placement;
use crate::core::mode::{AffinityMode, PolicyKind};

/// Prompts of mean size that count in the mean besides what was given: where little was given, differences say nothing.
pub(super) const SLACK_PROMPTS: f64 = 128.0;
/// A soft session moves for free where its rank is expected to hold less than this share of its prompt.
const COLD: f64 = 0.5;

/// The mean of recent work over all placements that a request may have, in the fleet's unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Means {
    /// A prompt of mean size, in tokens.
    pub(super) prompt: f64,
    work: f64,
    missed: f64,
    slack: f64,
    most: f64,
}

impl Means {
    /// How far recent work lies above the mean, in means, is a sum: so much for each prompt token, so much for each token
    /// of it that was missed, which are compared like the prompts that they are part of, less so much.
    pub(super) fn excess(self) -> (f64, f64, f64) {
        let whole = self.work + self.slack;
        if self.missed > 0.0 {
            (1.0 / whole, self.work / self.missed / whole, 2.0 * self.work / whole)
        } else {
            (1.0 / whole, 0.0, self.work / whole)
        }
    }

    /// The most work that lies within the limit.
    pub(super) fn most(self) -> f64 {
        self.most
    }

    /// Whether it lies above the limit.
    pub(super) fn is_over(self, prompts: f64) -> bool {
        prompts > self.most
    }
}

impl View<'_> {
    /// The means over the placements that are allowed; `None` where nothing was given lately.
    pub(super) fn means(&self) -> Option<Means> {
        let (mut sum, mut shares) = (Work::default(), 0.0);
        for listed in self.fleet.listed(&self.ask.model) {
            match self.look(listed) {
                Look::Easy | Look::Closer => {}
                Look::No => continue,
            }
            sum = sum.and(listed.glance().work);
            shares += listed.glance().shares;
        }
        if sum.count <= 0.0 || sum.prompt <= 0.0 {
            return None;
        }
        let prompt = sum.prompt / sum.count;
        let (work, missed) = (sum.prompt / shares, sum.missed / shares);
        let slack = SLACK_PROMPTS * prompt * self.fleet.unit(self.now);
        let most = self.fleet.weighing().limit.map_or(f64::INFINITY, |limit| work + (limit - 1.0) * (work + slack));
        Some(Means { prompt, work, missed, slack, most })
    }

    /// Soft affinity places sessions where there is less than the limit, as long as there is such a placement.
    pub(super) fn with_less_work<'f>(&self, mut candidates: Vec<Candidate<'f>>) -> Vec<Candidate<'f>> {
        if self.rules.mode != AffinityMode::Soft {
            return candidates;
        }
        let Some(means) = self.means() else { return candidates };
        let is_over = |one: &Candidate<'_>| means.is_over(one.work());
        if candidates.iter().any(|one| !is_over(one)) {
            candidates.retain(|one| !is_over(one));
        }
        candidates
    }

    /// Whether a session that would rather leave has somewhere to go: elsewhere, and where the limit is not passed too.
    pub(super) fn is_better(&self, to: &Placement, from: &Placement) -> bool {
        let over = || {
            let worker = self.fleet.find(to.worker.as_str()).map(|(_, worker)| worker);
            let means = self.means();
            means.zip(worker).is_some_and(|(means, worker)| means.is_over(worker.work_at(to.rank).prompt))
        };
        to != from && !over()
    }

    /// Why a soft session leaves a placement that it could stay at, where it should. A request that says where it wants
    /// to be stays.
    pub(super) fn better_elsewhere(&self, at: &Placement, worker: &Worker) -> Option<Cause> {
        if self.rules.mode != AffinityMode::Soft || self.hinted() {
            return None;
        }
        let means = self.means()?;
        if means.is_over(worker.work_at(at.rank).prompt) {
            return Some(Cause::Balance);
        }
        if self.rules.policy != PolicyKind::Kv || self.ask.prompt.marks.is_empty() {
            return None;
        }
        let held = self.held_at(at, worker);
        (held < COLD * f64::from(self.ask.prompt.tokens)).then_some(Cause::Cold)
    }
}
