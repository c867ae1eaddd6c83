//! What must hold after a round: pure checks of what the frontends saw.

use std::collections::BTreeMap;
use std::time::Instant;

use super::usage::Usage;
use crate::core::hash::hashed_rank;
use crate::core::id::{DpRank, Model, Placement, RankRange, SessionId, WorkerId};

/// What became of one request.
#[derive(Debug, Clone)]
pub struct Played {
    /// The model asked for.
    pub model: Model,
    /// The session named.
    pub session: SessionId,
    /// Who answered, by the reply's own headers.
    pub placement: Option<Placement>,
    /// The rank that served it; an engine that balances itself tells it in its answer.
    pub served_by: Option<DpRank>,
    /// How often a worker was lost after it had accepted the request, so that it was sent again.
    pub lost: u32,
    /// What it cost.
    pub usage: Usage,
    /// How it failed, where it did.
    pub error: Option<String>,
    /// When it was over.
    pub ended: Instant,
}

/// One conversation of a round.
#[derive(Debug, Clone)]
pub struct Track {
    /// The conversation's name.
    pub name: String,
    /// Its requests.
    pub turns: Vec<Played>,
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A request failed that no worker had accepted, or that failed again and again.
    #[error("{name}: turn {turn} failed: {error}")]
    Failed {
        /// The conversation.
        name: String,
        /// Its turn, from 1.
        turn: usize,
        /// How.
        error: String,
    },
    /// An answer does not say which worker gave it.
    #[error("session {session}: an answer names no worker")]
    Unplaced {
        /// The session.
        session: SessionId,
    },
    /// A session left a worker that lives, or changed its rank.
    #[error("session {session} moved from {from} to {to}")]
    Moved {
        /// The session.
        session: SessionId,
        /// Where it was.
        from: Placement,
        /// Where it went.
        to: Placement,
    },
    /// A session is not on the rank that it hashes to.
    #[error("session {session} is on {found}, and hashes to rank {expected}")]
    WrongRank {
        /// The session.
        session: SessionId,
        /// Where it was.
        found: Placement,
        /// Where it belongs.
        expected: DpRank,
    },
}

/// Ranks by worker.
pub type Ranks = [(WorkerId, RankRange)];

/// Requests that failed.
pub fn failures(tracks: &[Track]) -> Vec<Fault> {
    let failed = |track: &Track| {
        let name = track.name.clone();
        let turns = (1..).zip(track.turns.clone());
        turns.filter_map(move |(turn, played)| Some(Fault::Failed { name: name.clone(), turn, error: played.error? }))
    };
    tracks.iter().flat_map(failed).collect()
}

/// Where hard affinity did not hold: every session stays on one worker, on the rank that it hashes to there, except
/// that a worker that is killed loses its sessions, each once and for good.
pub fn broken_affinity(tracks: &[Track], ranks: &Ranks, killed: Option<&WorkerId>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for ((_, session), turns) in by_session(tracks) {
        let mut last: Option<Placement> = None;
        for placement in turns.into_iter().map(|turn| &turn.placement) {
            let Some(now) = placement.clone() else {
                faults.push(Fault::Unplaced { session: session.clone() });
                continue;
            };
            if let Some(fault) = wrong_rank(&session, &now, ranks) {
                faults.push(fault);
            }
            if let Some(before) = last.filter(|before| *before != now) {
                let lost_its_worker = killed == Some(&before.worker) && killed != Some(&now.worker);
                if !lost_its_worker {
                    faults.push(Fault::Moved { session: session.clone(), from: before, to: now.clone() });
                }
            }
            last = Some(now);
        }
    }
    faults
}

/// How many sessions there are, and how many of them were not served by one and the same rank all the time.
pub fn sessions_and_moved(tracks: &[Track]) -> (usize, usize) {
    let sessions = by_session(tracks);
    let served_by = |played: &Played| (played.placement.as_ref().map(|p| p.worker.clone()), played.served_by);
    let moved = sessions.values().filter(|turns| turns.iter().any(|turn| served_by(turn) != served_by(turns[0])));
    (sessions.len(), moved.count())
}

/// Each session's answered requests, in the order of their ends.
fn by_session(tracks: &[Track]) -> BTreeMap<(Model, SessionId), Vec<&Played>> {
    // Two conversations may share a session, so it is not enough to look at each track.
    let mut turns: Vec<&Played> = tracks.iter().flat_map(|track| &track.turns).collect();
    turns.sort_by_key(|played| played.ended);
    let mut sessions: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for played in turns.into_iter().filter(|played| played.error.is_none()) {
        let key = (played.model.clone(), played.session.clone());
        sessions.entry(key).or_default().push(played);
    }
    sessions
}

fn wrong_rank(session: &SessionId, found: &Placement, ranks: &Ranks) -> Option<Fault> {
    let (_, range) = ranks.iter().find(|(worker, _)| *worker == found.worker)?;
    let expected = hashed_rank(session, *range);
    (found.rank != Some(expected)).then(|| Fault::WrongRank {
        session: session.clone(),
        found: found.clone(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(id: &str) -> WorkerId {
        WorkerId::new(id).expect("valid")
    }

    fn ranks() -> Vec<(WorkerId, RankRange)> {
        vec![(worker("w1"), RankRange::new(0, 4).expect("valid")), (worker("w2"), RankRange::new(4, 4).expect("valid"))]
    }

    /// Where a session belongs on a worker.
    fn at(id: &str) -> Placement {
        let session = SessionId::named("s").expect("valid");
        let range = ranks().into_iter().find(|(worker, _)| worker.as_str() == id).expect("declared").1;
        Placement { worker: worker(id), rank: Some(hashed_rank(&session, range)) }
    }

    fn track(placements: &[Placement]) -> Vec<Track> {
        let turn = |placement: &Placement| Played {
            model: Model::new("m").expect("valid"),
            session: SessionId::named("s").expect("valid"),
            placement: Some(placement.clone()),
            served_by: placement.rank,
            lost: 0,
            usage: Usage::default(),
            error: None,
            ended: Instant::now(),
        };
        vec![Track { name: "t".into(), turns: placements.iter().map(turn).collect() }]
    }

    #[test]
    fn a_session_that_stays_is_fine() {
        let tracks = track(&[at("w1"), at("w1"), at("w1")]);
        assert_eq!(broken_affinity(&tracks, &ranks(), None), []);
        assert_eq!(sessions_and_moved(&tracks), (1, 0));
    }

    #[test]
    fn a_session_moves_once_and_only_off_the_killed_worker() {
        let (w1, w2) = (worker("w1"), worker("w2"));
        let tracks = track(&[at("w1"), at("w2"), at("w2")]);
        assert_eq!(broken_affinity(&tracks, &ranks(), Some(&w1)), []);
        assert_eq!(sessions_and_moved(&tracks), (1, 1));
        assert_eq!(broken_affinity(&tracks, &ranks(), Some(&w2)).len(), 1);
        assert_eq!(broken_affinity(&tracks, &ranks(), None).len(), 1);
        assert_eq!(broken_affinity(&track(&[at("w1"), at("w2"), at("w1")]), &ranks(), Some(&w1)).len(), 1);
    }

    #[test]
    fn a_rank_that_is_not_the_hashed_one_is_told() {
        let mut wrong = at("w2");
        wrong.rank = wrong.rank.map(|rank| DpRank(4 + (rank.0 - 4 + 1) % 4));
        let faults = broken_affinity(&track(&[wrong.clone(), wrong]), &ranks(), None);
        assert!(matches!(faults[..], [Fault::WrongRank { .. }, Fault::WrongRank { .. }]), "{faults:?}");
    }

    #[test]
    fn failures_are_told_and_count_as_no_placement() {
        let mut tracks = track(&[at("w1"), at("w2")]);
        tracks[0].turns[1].error = Some("503 no_worker".into());
        assert_eq!(failures(&tracks).len(), 1);
        assert_eq!(broken_affinity(&tracks, &ranks(), None), []);
    }
}
