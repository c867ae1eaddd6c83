//! Requests that found no room (protocol section 5): a bounded queue for each model, by priority, inside one priority the
//! sessions in turns, inside a session by age.

mod drain;
mod line;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Instant;

use drain::Drain;
pub use drain::MAX_RETRY_AFTER_S;
use line::{Line, Sweep};

use super::hash::PinKey;
use super::id::Model;

/// Most waiting requests that are tried when room appears, so that one release never takes long.
pub const MAX_TRIED: usize = 64;
/// Of these, most of one session: its requests mostly want the same.
pub const MAX_TRIED_OF_FLOW: usize = 8;

/// Whose requests have their turn together: a session, or all requests of a tenant and model that have none.
pub type Flow = PinKey;

/// What goes first where several wait: the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A durable job: below every request that somebody waits for; among jobs, higher first.
    Job(i32),
    /// A request; higher first.
    Request(i32),
}

/// Where a request waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// For which model.
    pub model: Model,
    /// Higher first.
    pub priority: Priority,
    /// With whom it takes turns.
    pub flow: Flow,
}

/// What became of a request that was to wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Pushed<T> {
    /// It waits.
    Waits,
    /// It waits, and this one gave way to it.
    Displaced(T),
    /// Nobody gives way to it.
    Full,
}

/// What a waiting request found when it was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// A place: it leaves the queue.
    Granted {
        /// Whether others may find room as well.
        more_room: bool,
    },
    /// It can't be placed at all any more: it leaves the queue.
    Leaves,
    /// No room.
    NotNow,
}

/// The queues of all models.
#[derive(Debug)]
pub struct Queues<T> {
    models: HashMap<Model, (Line<T>, Drain)>,
    /// Where each waiting request is, by its age.
    places: HashMap<u64, Place>,
    /// The last turn that was given, over all models: whoever shares a worker takes turns on it.
    turn: u64,
    /// Most that wait for one model.
    limit: usize,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self::new(0)
    }
}

impl<T> Queues<T> {
    /// Empty, of at most `limit` requests for each model.
    pub fn new(limit: usize) -> Self {
        Self { models: HashMap::new(), places: HashMap::new(), turn: 0, limit }
    }

    /// Takes a request in. `age` goes up with every request of this router. Where the model's queue is full, one of a
    /// lower priority gives way, or one of the session that has the most of the same priority: a flood of one session
    /// doesn't keep others out.
    pub fn push(&mut self, place: Place, age: u64, request: T, now: Instant) -> Pushed<T> {
        let key = (place.priority, place.flow);
        let (line, drain) = self.models.entry(place.model.clone()).or_default();
        drain.begin(now);
        let mut displaced = None;
        if line.len() >= self.limit {
            match line.displace(place.priority, place.flow) {
                Some((age, request)) => {
                    self.places.remove(&age);
                    displaced = Some(request);
                }
                None => return Pushed::Full,
            }
        }
        self.turn += 1;
        line.push(key, age, request, self.turn);
        self.places.insert(age, place);
        displaced.map_or(Pushed::Waits, Pushed::Displaced)
    }

    /// Takes a request out that waits no longer.
    pub fn remove(&mut self, age: u64, now: Instant) -> Option<T> {
        if self.places.is_empty() {
            return None;
        }
        let place = self.places.remove(&age)?;
        let (line, drain) = self.models.get_mut(&place.model)?;
        let request = line.remove((place.priority, place.flow), age);
        if line.is_empty() {
            drain.pause(now);
        }
        request
    }

    /// Tries requests for the models that are `served`, in their order, until one says that there is no more room.
    /// Those that get a place or can have none leave. At most [`MAX_TRIED`] of those that `could_go` are tried, with
    /// `resume` the next ones each time, so that everybody's turn comes.
    pub fn pump(
        &mut self,
        served: impl Fn(&Model) -> bool,
        resume: bool,
        now: Instant,
        could_go: impl Fn(&T) -> bool,
        mut try_one: impl FnMut(&T) -> Tried,
    ) {
        if self.places.is_empty() {
            return;
        }
        let mut waiting: Vec<_> = self
            .models
            .iter_mut()
            .filter(|(model, _)| served(model))
            .filter_map(|(_, (line, drain))| Some((line.first_turn()?, line, drain)))
            .collect();
        waiting.sort_unstable_by_key(|(turn, ..)| *turn);
        let mut sweep = Sweep { budget: MAX_TRIED, left: Vec::new(), turn: &mut self.turn };
        for (_, line, drain) in waiting {
            let seen = sweep.left.len();
            let more_room = line.sweep(resume, &mut sweep, &could_go, &mut try_one);
            for (age, granted) in &sweep.left[seen..] {
                self.places.remove(age);
                if *granted {
                    drain.depart(now);
                }
            }
            if line.is_empty() {
                drain.pause(now);
            }
            if !more_room || (sweep.budget == 0 && !resume) {
                return;
            }
            // Each model's own look goes on where it was: none is left out for the others.
            if resume {
                sweep.budget = MAX_TRIED;
            }
        }
    }

    /// After how many seconds another try of such a request is worth it: when those ahead of it have left, at the pace
    /// at which the queue drains.
    pub fn retry_after_s(&self, place: &Place, now: Instant) -> u32 {
        let Some((line, drain)) = self.models.get(&place.model) else { return 1 };
        drain.seconds_for(line.ahead(place.priority, place.flow), now)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Models for which any waits, and how many.
    pub fn lengths(&self) -> impl Iterator<Item = (&Model, usize)> {
        self.models.iter().map(|(model, (line, _))| (model, line.len())).filter(|(_, waiting)| *waiting > 0)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// For how many models any waits.
    pub fn models_waiting(&self) -> usize {
        self.models.values().filter(|(line, _)| !line.is_empty()).count()
    }

    /// Forgets models for which nobody waits, and that are not `known` any more.
    pub fn forget(&mut self, known: impl Fn(&Model) -> bool) {
        self.models.retain(|model, (line, _)| !line.is_empty() || known(model));
    }
}
