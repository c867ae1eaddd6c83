//! Candidates of one pool, where the configuration has pools.

use rand::Rng;

use super::View;
use crate::core::candidates::Candidates;
use crate::core::id::Pool;
use crate::core::pool;

/// Whether a candidate may have the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// There is room.
    Free,
    /// There is room, but it has just said that it takes nothing new: only where nobody else has.
    Leaving,
    /// There is no room.
    Full,
}

impl<'a> View<'a> {
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
