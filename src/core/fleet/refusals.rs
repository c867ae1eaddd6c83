//! Ranks that have refused a request for overload (429): for a moment nobody else is sent there, and then one request
//! tries whether there is room again (protocol section 5).

use std::time::{Duration, Instant};

use crate::core::id::DpRank;

/// How long a rank counts as full after its first refusal, and at most after as many as it likes: twice as long each
/// time, until it accepts a request.
pub const REFUSED_FOR: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// A refusal this long after the last one is a first one, also of a worker that never says `accepted`.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(5);
/// Most ranks of one worker that are remembered; beyond, the oldest is forgotten.
const MAX_REFUSALS: usize = 64;

/// The ranks of one worker that have refused.
#[derive(Debug, Default)]
pub struct Refusals {
    all: Vec<Refusal>,
}

#[derive(Debug)]
struct Refusal {
    rank: Option<DpRank>,
    until: Instant,
    pause: Duration,
    /// Whether a request is on its way there, to see whether there is room again.
    trying: bool,
}

impl Refusals {
    /// Whether requests for the rank (or those without one) have to wait.
    pub fn hold(&self, rank: Option<DpRank>, now: Instant) -> bool {
        self.find(rank).is_some_and(|refusal| refusal.trying || now < refusal.until)
    }

    /// It has refused a request. What was sent there before it is held says nothing new.
    pub fn refused(&mut self, rank: Option<DpRank>, now: Instant) {
        if self.find(rank).is_none() {
            if self.all.len() >= MAX_REFUSALS {
                self.all.remove(0);
            }
            self.all.push(Refusal { rank, until: now, pause: Duration::ZERO, trying: false });
        }
        let Some(refusal) = self.all.iter_mut().find(|refusal| refusal.rank == rank) else { return };
        if now >= refusal.until {
            if now.duration_since(refusal.until) > FORGOTTEN_AFTER {
                refusal.pause = Duration::ZERO;
            }
            refusal.pause = (refusal.pause * 2).clamp(REFUSED_FOR.0, REFUSED_FOR.1);
            refusal.until = now + refusal.pause;
        }
        refusal.trying = false;
    }

    /// A request goes there.
    pub fn begin(&mut self, rank: Option<DpRank>) {
        if let Some(refusal) = self.all.iter_mut().find(|refusal| refusal.rank == rank) {
            refusal.trying = true;
        }
    }

    /// It has accepted a request: there is room again.
    pub fn accepted(&mut self, rank: Option<DpRank>) {
        self.all.retain(|refusal| refusal.rank != rank);
    }

    /// A request has left there unaccepted.
    pub fn end(&mut self, rank: Option<DpRank>) {
        if let Some(refusal) = self.all.iter_mut().find(|refusal| refusal.rank == rank) {
            refusal.trying = false;
        }
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn find(&self, rank: Option<DpRank>) -> Option<&Refusal> {
        self.all.iter().find(|refusal| refusal.rank == rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::start;

    const RANK: Option<DpRank> = Some(DpRank(3));

    #[test]
    fn it_is_held_twice_as_long_each_time_until_it_accepts() {
        let mut now = start();
        let mut refusals = Refusals::default();
        assert!(!refusals.hold(RANK, now));
        for ms in [50, 100, 200, 400, 800, 1000, 1000] {
            refusals.refused(RANK, now);
            refusals.refused(RANK, now);
            let end = now + Duration::from_millis(ms);
            assert!(refusals.hold(RANK, end - Duration::from_millis(1)), "{ms}");
            assert!(!refusals.hold(RANK, end) && !refusals.hold(None, now), "{ms}");
            now = end;
        }
        refusals.accepted(RANK);
        refusals.refused(RANK, now);
        assert!(!refusals.hold(RANK, now + REFUSED_FOR.0));
    }

    #[test]
    fn one_request_tries_whether_there_is_room_again() {
        let now = start();
        let mut refusals = Refusals::default();
        refusals.begin(RANK);
        assert!(!refusals.hold(RANK, now), "nothing has been refused");
        refusals.refused(RANK, now);
        let later = now + REFUSED_FOR.0;
        refusals.begin(RANK);
        assert!(refusals.hold(RANK, later), "one is on its way");
        refusals.end(RANK);
        assert!(!refusals.hold(RANK, later), "it was lost, and told nothing");
        refusals.begin(RANK);
        refusals.accepted(RANK);
        assert!(!refusals.hold(RANK, later) && refusals.is_empty());
    }

    #[test]
    fn they_are_bounded() {
        let mut refusals = Refusals::default();
        for rank in 0..200 {
            refusals.refused(Some(DpRank(rank)), start());
        }
        assert_eq!(refusals.all.len(), MAX_REFUSALS);
        assert!(refusals.hold(Some(DpRank(199)), start()) && !refusals.hold(Some(DpRank(0)), start()));
    }
}
