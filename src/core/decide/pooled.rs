//! Candidates of one pool, where the configuration has pools.

use rand::Rng;

use super::View;
use crate::core::candidates::Candidates;
use crate::core::id::Pool;
use crate::core::pool;

impl<'a> View<'a> {
    /// The pool in which costs are compared, where the configuration has any.
    pub(super) fn pool_for_cost(&self, rng: &mut dyn Rng) -> Option<Pool> {
        if self.fleet.pools().rules.is_empty() {
            return None;
        }
        let candidates = self.with_room(self.open(|worker| self.rank_on(worker))).ok()?;
        let chosen = self.in_one_pool(candidates, rng);
        chosen.as_slice().first().map(|candidate| candidate.worker().spec.pool.clone())
    }

    /// The candidates of the pool that the session is in, or that is chosen for it.
    pub(super) fn in_one_pool(&self, candidates: Candidates<'a>, rng: &mut dyn Rng) -> Candidates<'a> {
        let session = self.ask.session.as_ref().map(|session| &session.id);
        let asked = pool::Asked { home: self.ask.home.as_ref(), session };
        self.fleet.pools().narrow(candidates, asked, |pool| self.usage_of(pool), rng)
    }

    /// The share of a pool's capacity that is in use, where each of its workers has a limit.
    fn usage_of(&self, pool: &Pool) -> Option<f64> {
        let (mut load, mut room) = (0, 0);
        for (_, worker) in self.eligible().filter(|(_, worker)| worker.spec.pool == *pool) {
            room += u64::from(worker.spec.max_inflight?) * u64::from(worker.spec.ranks.size());
            load += worker.load_now(self.now);
        }
        #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^53")]
        let share = load as f64 / room as f64;
        (room > 0).then_some(share)
    }
}
