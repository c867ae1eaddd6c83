//! The requests of one model that wait: by priority, and inside one priority the sessions in turns, so that a session
//! with many requests doesn't keep the others waiting.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use super::{Flow, MAX_TRIED_OF_FLOW, Priority, Tried};

/// Whose turn it is: lower is earlier.
pub(super) type Turn = (Reverse<Priority>, u64);

/// Requests of one session in one priority, by age.
#[derive(Debug)]
struct Waiting<T> {
    turn: u64,
    requests: BTreeMap<u64, T>,
}

/// One model's queue.
#[derive(Debug)]
pub(super) struct Line<T> {
    flows: HashMap<(Priority, Flow), Waiting<T>>,
    turns: BTreeMap<Turn, Flow>,
    /// Who has how many: the last one is who gives way to others, of the lowest priority the one with the most.
    lengths: BTreeMap<(Reverse<Priority>, usize, u64), Flow>,
    len: usize,
    /// Where the last look at everybody has stopped.
    resume: Option<Turn>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { flows: HashMap::new(), turns: BTreeMap::new(), lengths: BTreeMap::new(), len: 0, resume: None }
    }
}

impl<T> Line<T> {
    /// Takes a request in. A session that is new here has its turn after all others.
    pub(super) fn push(&mut self, (priority, flow): (Priority, Flow), age: u64, request: T, new_turn: u64) {
        let key = (priority, flow);
        if self.flows.contains_key(&key) {
            self.unlist(key);
        }
        let waiting = self.flows.entry(key).or_insert_with(|| Waiting { turn: new_turn, requests: BTreeMap::new() });
        waiting.requests.insert(age, request);
        self.len += 1;
        self.list(key);
    }

    /// Takes a request out.
    pub(super) fn remove(&mut self, key: (Priority, Flow), age: u64) -> Option<T> {
        let request = self.flows.get_mut(&key)?.requests.remove(&age)?;
        // The lists hold the old length; what is left is listed anew.
        self.unlist_as(key, 1);
        self.len -= 1;
        self.list(key);
        Some(request)
    }

    /// Who gives way to a request of this priority and session where there is no more room: the youngest request of
    /// whoever has the most in the lowest priority, unless the newcomer's own session would then have as many.
    pub(super) fn displace(&mut self, priority: Priority, flow: Flow) -> Option<(u64, T)> {
        let (&(Reverse(lowest), most, _), &victim) = self.lengths.last_key_value()?;
        let own = self.flows.get(&(priority, flow)).map_or(0, |waiting| waiting.requests.len());
        if lowest > priority || (lowest == priority && most <= own + 1) {
            return None;
        }
        let age = *self.flows.get(&(lowest, victim))?.requests.last_key_value()?.0;
        Some((age, self.remove((lowest, victim), age)?))
    }

    /// How many of this priority or a higher one leave before a request of this session does.
    pub(super) fn ahead(&self, priority: Priority, flow: Flow) -> usize {
        let counts = |wanted: fn(&Priority, &Priority) -> bool| {
            let flows = self.flows.iter().filter(move |((other, _), _)| wanted(other, &priority));
            flows.map(|(_, waiting)| waiting.requests.len())
        };
        let higher: usize = counts(|other, own| other > own).sum();
        let own = self.flows.get(&(priority, flow)).map_or(0, |waiting| waiting.requests.len());
        // In each round, everybody who still has one gets one.
        let same: usize = counts(|other, own| other == own).map(|count| count.min(own + 1)).sum();
        higher + same
    }

    /// Whose turn is next.
    pub(super) fn first_turn(&self) -> Option<Turn> {
        self.turns.first_key_value().map(|(turn, _)| *turn)
    }

    /// Tries requests in their order, as [`super::Queues::pump`] says. `resume`: goes on where the last such look has
    /// stopped. Who has left is added to `left`; whether there may be more room.
    pub(super) fn sweep(
        &mut self,
        resume: bool,
        sweep: &mut Sweep<'_>,
        could_go: &impl Fn(&T) -> bool,
        try_one: &mut impl FnMut(&T) -> Tried,
    ) -> bool {
        let mut from = if resume { self.resume.take() } else { None };
        loop {
            let range = (from.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
            let Some((&turn, &flow)) = self.turns.range(range).next() else { return true };
            if sweep.budget == 0 {
                if resume {
                    self.resume = from;
                }
                return true;
            }
            from = Some(turn);
            if !self.try_flow((turn.0.0, flow), sweep, could_go, try_one) {
                return false;
            }
        }
    }

    /// Tries the requests of one session until one gets a place: then the others have their turn.
    fn try_flow(
        &mut self,
        key: (Priority, Flow),
        sweep: &mut Sweep<'_>,
        could_go: &impl Fn(&T) -> bool,
        try_one: &mut impl FnMut(&T) -> Tried,
    ) -> bool {
        let mut tried = 0;
        let mut after = Bound::Unbounded;
        while sweep.budget > 0 && tried < MAX_TRIED_OF_FLOW {
            let Some(waiting) = self.flows.get(&key) else { return true };
            let mut rest = waiting.requests.range((after, Bound::Unbounded));
            let Some((&age, request)) = rest.find(|(_, request)| could_go(request)) else { return true };
            tried += 1;
            sweep.budget -= 1;
            after = Bound::Excluded(age);
            match try_one(request) {
                Tried::NotNow => {}
                Tried::Leaves => {
                    self.remove(key, age);
                    sweep.left.push((age, false));
                }
                Tried::Granted { more_room } => {
                    self.remove(key, age);
                    sweep.left.push((age, true));
                    self.take_last_turn(key, sweep.turn);
                    return more_room;
                }
            }
        }
        true
    }

    fn take_last_turn(&mut self, key: (Priority, Flow), turn: &mut u64) {
        if self.flows.contains_key(&key) {
            self.unlist(key);
            *turn += 1;
            if let Some(waiting) = self.flows.get_mut(&key) {
                waiting.turn = *turn;
            }
            self.list(key);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn unlist(&mut self, key: (Priority, Flow)) {
        self.unlist_as(key, 0);
    }

    /// Takes a session off the lists, in which it stands with as many requests more than it has.
    fn unlist_as(&mut self, key: (Priority, Flow), more: usize) {
        if let Some(waiting) = self.flows.get(&key) {
            self.turns.remove(&(Reverse(key.0), waiting.turn));
            self.lengths.remove(&(Reverse(key.0), waiting.requests.len() + more, waiting.turn));
        }
    }

    /// Puts a session on the lists, or forgets one that has nothing left.
    fn list(&mut self, key: (Priority, Flow)) {
        let Some(waiting) = self.flows.get(&key) else { return };
        if waiting.requests.is_empty() {
            self.flows.remove(&key);
            return;
        }
        self.turns.insert((Reverse(key.0), waiting.turn), key.1);
        self.lengths.insert((Reverse(key.0), waiting.requests.len(), waiting.turn), key.1);
    }
}

/// What one look at queues may still do, and what it has done.
pub(super) struct Sweep<'s> {
    /// Requests that may still be tried.
    pub(super) budget: usize,
    /// Ages of those that have left, and whether they got a place.
    pub(super) left: Vec<(u64, bool)>,
    /// The last turn that was given.
    pub(super) turn: &'s mut u64,
}
