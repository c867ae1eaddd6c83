//! What workers that know their caches say of them by session (`{ns}.kv.{worker}.{r}`, protocol section 7).

use std::collections::HashMap;

use super::index::{Index, RankNumber};

/// Most sessions of which events are remembered; those of further ones are passed over.
pub const MAX_SESSIONS: usize = 262_144;

/// Sessions, by the hash of their id.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    of: HashMap<u64, Vec<(u32, u32)>>,
    /// The last mark of each session's last prompt at a rank, and tokens that are gone of the part before it.
    last: HashMap<(u64, u32), (u64, u32)>,
}

impl Sessions {
    /// Which ranks hold how many tokens of a session, as their events say.
    pub(super) fn of(&self, session: u64) -> &[(u32, u32)] {
        self.of.get(&session).map_or(&[], Vec::as_slice)
    }

    pub(super) fn clear(&mut self, rank: u32) {
        if self.of.is_empty() {
            return;
        }
        self.of.retain(|_, ranks| {
            ranks.retain(|(other, _)| *other != rank);
            !ranks.is_empty()
        });
        self.last.retain(|(_, other), _| *other != rank);
    }

    fn change(&mut self, session: u64, rank: u32, change: impl FnOnce(u32) -> u32) {
        if self.of.len() >= MAX_SESSIONS && !self.of.contains_key(&session) {
            return;
        }
        let ranks = self.of.entry(session).or_default();
        let at = ranks.iter().position(|(other, _)| *other == rank);
        let now = change(at.map_or(0, |at| ranks[at].1));
        match at {
            Some(at) if now == 0 => {
                ranks.swap_remove(at);
                self.last.remove(&(session, rank));
            }
            Some(at) => ranks[at].1 = now,
            None if now > 0 => ranks.push((rank, now)),
            None => {}
        }
        if ranks.is_empty() {
            self.of.remove(&session);
        }
    }
}

impl Index {
    /// A prompt of a session that goes to a rank ends with this mark.
    pub fn note_session(&mut self, rank: RankNumber, session: u64, last: u64) {
        let key = (session, rank.number());
        // Only sessions that the rank itself has named are of use.
        if self.sessions.of(session).iter().any(|(other, _)| *other == key.1) {
            self.sessions.last.insert(key, (last, 0));
        }
    }

    /// The rank holds so many tokens more of a session.
    pub fn stored(&mut self, rank: RankNumber, session: u64, tokens: u32) {
        self.sessions.change(session, rank.number(), |held| held.saturating_add(tokens));
    }

    /// The rank holds so many tokens less of a session: its last prompt there is given up from its end.
    pub fn removed(&mut self, rank: RankNumber, session: u64, tokens: u32) {
        let key = (session, rank.number());
        // What it has not told to be stored for this session is another's too.
        let told = self.sessions.of(session).iter().find(|(other, _)| *other == key.1).map_or(0, |(_, held)| *held);
        let tokens = tokens.min(told);
        if let Some(&(last, owed)) = self.sessions.last.get(&key) {
            let left = self.trim(rank.number(), last, tokens.saturating_add(owed));
            self.sessions.last.insert(key, left);
        }
        self.sessions.change(session, rank.number(), |held| held.saturating_sub(tokens));
    }
}
