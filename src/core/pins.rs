//! The mirror of the pins bucket: what every router knows of every session without asking.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use super::hash::PinKey;
use super::id::{Origin, Placement, Pool};

/// Most pins mirrored. Beyond, a session's pin is found by the claim that loses to it: slower, and still right.
pub const MAX_MIRRORED: usize = 8_388_608;

/// A session's pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Where the session is.
    pub placement: Placement,
    /// Where its id comes from.
    pub origin: Origin,
    /// Of a derived session: the session id of its first request.
    pub root: Option<Box<str>>,
    /// Of a derived session: several conversations begin so.
    pub shared: bool,
    /// The pool that the worker is in, where that is known and not the default one.
    pub pool: Option<Pool>,
}

/// What stands under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The revision of the value, for the next compare-and-set.
    pub revision: u64,
    /// The pin; `None` where the value was deleted or can't be read: it is replaced at its revision.
    pub pin: Option<Pin>,
    /// When it was stored, by this router's clock.
    pub stored: Instant,
    /// Whether this router has written this placement, or has put it again (protocol section 5).
    pub ours: bool,
    /// When a use refreshes its age.
    pub refresh_at: Instant,
}

/// The mirror. Keys are hashes already, so a fast hasher that is seeded anew in each process is enough.
#[derive(Debug)]
pub struct Mirror {
    entries: HashMap<PinKey, Entry, RandomState>,
    ages: VecDeque<(Instant, PinKey, u64)>,
    derived: usize,
    /// How many pins point to each placement.
    placed: HashMap<Placement, u64, RandomState>,
    ttl: Duration,
}

fn placement(pin: Option<&Pin>) -> Option<&Placement> {
    pin.map(|pin| &pin.placement)
}

fn is_derived(entry: &Entry) -> bool {
    entry.pin.as_ref().is_some_and(|pin| pin.origin == Origin::Derived)
}

impl Mirror {
    /// An empty mirror of a bucket whose values live for `ttl`.
    pub fn new(ttl: Duration) -> Self {
        Self { entries: HashMap::default(), ages: VecDeque::new(), derived: 0, placed: HashMap::default(), ttl }
    }

    /// The bucket's values live for another time than was configured.
    pub fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    /// Forgets everything: the bucket was made anew.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.ages.clear();
        self.derived = 0;
        self.placed.clear();
    }

    /// A value (or with `pin` `None`, its end) was stored under a key at `stored`. Older news than what is known is
    /// ignored.
    pub fn handle_value(&mut self, key: PinKey, revision: u64, pin: Option<Pin>, stored: Instant) {
        self.put(key, revision, pin, stored, false);
    }

    /// This router stored a value, or put it again.
    pub fn handle_own(&mut self, key: PinKey, revision: u64, pin: Option<Pin>, now: Instant) {
        self.put(key, revision, pin, now, true);
    }

    /// This router is about to store a pin: until it has, its own next requests find it here.
    pub fn foresee(&mut self, key: PinKey, pin: Pin, now: Instant) {
        let revision = self.revision(key, now);
        self.put(key, revision, Some(pin), now, true);
    }

    fn put(&mut self, key: PinKey, revision: u64, pin: Option<Pin>, stored: Instant, own: bool) {
        let old = self.entries.get(&key);
        if old.is_some_and(|old| old.revision > revision || (old.revision == revision && !own)) {
            return;
        }
        if old.is_none() && self.entries.len() >= MAX_MIRRORED {
            return;
        }
        // Once this router has confirmed a placement it need not again, whoever refreshes the pin's age.
        let stays = old.is_some_and(|old| placement(old.pin.as_ref()) == placement(pin.as_ref()));
        let confirmed = stays && old.is_some_and(|old| old.ours);
        let refresh_at = stored + self.ttl / 4;
        let entry = Entry { revision, pin, stored, ours: own || confirmed, refresh_at };
        self.derived += usize::from(is_derived(&entry));
        if !stays && let Some(at) = placement(entry.pin.as_ref()) {
            match self.placed.get_mut(at) {
                Some(count) => *count += 1,
                None => drop(self.placed.insert(at.clone(), 1)),
            }
        }
        if let Some(old) = self.entries.insert(key, entry) {
            self.derived -= usize::from(is_derived(&old));
            if !stays {
                self.leave(&old);
            }
        }
        self.ages.push_back((stored, key, revision));
    }

    /// What stands under a key; nothing where its age is over.
    pub fn get(&self, key: PinKey, now: Instant) -> Option<&Entry> {
        self.entries.get(&key).filter(|entry| now.saturating_duration_since(entry.stored) < self.ttl)
    }

    /// Where the pin stands that a request continues: the first of these keys, deepest first, that is pinned and not
    /// shared by several conversations (protocol section 4).
    pub fn continued(&self, keys: &[PinKey], now: Instant) -> Option<(PinKey, &Entry)> {
        let continues = |entry: &&Entry| entry.pin.as_ref().is_some_and(|pin| !pin.shared);
        keys.iter().find_map(|&key| Some((key, self.get(key, now).filter(continues)?)))
    }

    /// The revision that a compare-and-set of this key has to expect; 0 where nothing stands there.
    pub fn revision(&self, key: PinKey, now: Instant) -> u64 {
        self.get(key, now).map_or(0, |entry| entry.revision)
    }

    /// Nothing stands under the key, as its leader says.
    pub fn forget(&mut self, key: PinKey) {
        if let Some(entry) = self.entries.remove(&key) {
            self.derived -= usize::from(is_derived(&entry));
            self.leave(&entry);
        }
    }

    fn leave(&mut self, entry: &Entry) {
        let Some(at) = placement(entry.pin.as_ref()) else { return };
        if let Some(count) = self.placed.get_mut(at) {
            *count -= 1;
            if *count == 0 {
                self.placed.remove(at);
            }
        }
    }

    /// Placements to which any pin points, and how many do.
    pub fn placed(&self) -> impl Iterator<Item = (&Placement, u64)> {
        self.placed.iter().map(|(at, count)| (at, *count))
    }

    /// Derived pins known.
    pub fn derived(&self) -> usize {
        self.derived
    }

    /// Whether a use now is to refresh the pin's age: at most once per quarter of the time to live. Asking counts as
    /// doing it.
    pub fn take_refresh(&mut self, key: PinKey, now: Instant) -> bool {
        let quarter = self.ttl / 4;
        match self.entries.get_mut(&key) {
            Some(entry) if entry.pin.is_some() && entry.refresh_at <= now => {
                entry.refresh_at = now + quarter;
                true
            }
            _ => false,
        }
    }

    /// Drops what is too old, at most `most` ages in one call. Returns how many ages were looked at. Buckets that only
    /// have a max age expire silently, so the mirror goes by its own clock.
    pub fn expire(&mut self, now: Instant, most: usize) -> usize {
        for looked in 0..most {
            let Some(&(stored, key, revision)) = self.ages.front() else { return looked };
            if now.saturating_duration_since(stored) < self.ttl {
                return looked;
            }
            self.ages.pop_front();
            if self.entries.get(&key).is_some_and(|entry| entry.revision == revision) {
                self.forget(key);
            }
        }
        most
    }

    /// Keys known, deleted ones included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::{at, start};

    const TTL: Duration = Duration::from_secs(400);
    const QUARTER: Duration = Duration::from_secs(100);
    const MOMENT: Duration = Duration::from_millis(1);

    fn key(session: &str) -> PinKey {
        PinKey::of("", "m", session)
    }

    fn pin(worker: &str) -> Option<Pin> {
        Some(Pin { placement: at(worker, Some(1)), origin: Origin::Named, root: None, shared: false, pool: None })
    }

    fn derived(shared: bool) -> Option<Pin> {
        pin("a").map(|pin| Pin { origin: Origin::Derived, shared, ..pin })
    }

    fn worker(mirror: &Mirror, session: &str, now: Instant) -> Option<String> {
        Some(mirror.get(key(session), now)?.pin.as_ref()?.placement.worker.to_string())
    }

    #[test]
    fn a_pin_ends_by_the_mirrors_own_clock() {
        let now = start();
        let mut mirror = Mirror::new(TTL);
        mirror.handle_value(key("s"), 7, pin("a"), now);
        assert_eq!(worker(&mirror, "s", now + TTL - MOMENT).as_deref(), Some("a"));
        assert_eq!(mirror.get(key("s"), now + TTL), None);
        assert_eq!((mirror.revision(key("s"), now), mirror.revision(key("s"), now + TTL)), (7, 0));
        // Put again in between, only its last age counts.
        mirror.handle_value(key("s"), 8, pin("a"), now + QUARTER);
        mirror.expire(now + TTL, 100);
        assert_eq!(mirror.len(), 1);
        mirror.expire(now + QUARTER + TTL, 100);
        assert!(mirror.is_empty());
    }

    #[test]
    fn one_look_at_ages_is_bounded() {
        let now = start();
        let mut mirror = Mirror::new(TTL);
        for n in 0..10 {
            mirror.handle_value(key(&n.to_string()), n + 1, pin("a"), now);
        }
        mirror.expire(now + TTL, 4);
        assert_eq!(mirror.len(), 6);
        mirror.expire(now + TTL, 100);
        assert!(mirror.is_empty());
    }

    #[test]
    fn older_news_is_ignored() {
        let now = start();
        let mut mirror = Mirror::new(TTL);
        mirror.handle_value(key("s"), 7, pin("b"), now);
        mirror.handle_value(key("s"), 6, pin("a"), now + MOMENT);
        mirror.handle_own(key("s"), 5, pin("a"), now + MOMENT);
        assert_eq!(worker(&mirror, "s", now).as_deref(), Some("b"));
        mirror.handle_value(key("s"), 8, None, now);
        assert_eq!((worker(&mirror, "s", now), mirror.revision(key("s"), now)), (None, 8), "replaced at its revision");
        mirror.forget(key("s"));
        assert_eq!(mirror.revision(key("s"), now), 0);
    }

    #[test]
    fn a_placement_is_confirmed_once_whoever_refreshes_it() {
        let now = start();
        let ours = |mirror: &Mirror| mirror.get(key("s"), now).expect("it is there").ours;
        let mut mirror = Mirror::new(TTL);
        mirror.handle_value(key("s"), 1, pin("a"), now);
        assert!(!ours(&mirror), "another router's claim");
        mirror.handle_own(key("s"), 2, pin("a"), now);
        assert!(ours(&mirror));
        mirror.handle_value(key("s"), 2, pin("a"), now);
        mirror.handle_value(key("s"), 3, pin("a"), now);
        assert!(ours(&mirror), "the same placement");
        mirror.handle_value(key("s"), 4, pin("b"), now);
        assert!(!ours(&mirror), "another placement");
        // What the watch brings first is taken over by the own write's answer.
        mirror.handle_own(key("s"), 4, pin("b"), now);
        assert!(ours(&mirror));
    }

    #[test]
    fn a_use_refreshes_once_per_quarter() {
        let now = start();
        let mut mirror = Mirror::new(TTL);
        assert!(!mirror.take_refresh(key("s"), now), "there is none");
        mirror.handle_value(key("s"), 1, pin("a"), now);
        assert!(!mirror.take_refresh(key("s"), now + QUARTER - MOMENT));
        assert!(mirror.take_refresh(key("s"), now + QUARTER));
        assert!(!mirror.take_refresh(key("s"), now + 2 * QUARTER - MOMENT), "whatever became of the write");
        assert!(mirror.take_refresh(key("s"), now + 2 * QUARTER));
        mirror.handle_own(key("s"), 2, pin("a"), now + 2 * QUARTER);
        assert!(!mirror.take_refresh(key("s"), now + 3 * QUARTER - MOMENT));
        mirror.handle_value(key("s"), 3, None, now);
        assert!(!mirror.take_refresh(key("s"), now + TTL), "a deleted one has no age to refresh");
    }

    #[test]
    fn derived_pins_are_counted() {
        let now = start();
        let mut mirror = Mirror::new(TTL);
        mirror.handle_value(key("named"), 1, pin("a"), now);
        for (revision, session) in [(2, "s"), (3, "t"), (4, "u")] {
            mirror.handle_value(key(session), revision, derived(false), now);
        }
        mirror.handle_value(key("s"), 5, derived(true), now);
        assert_eq!(mirror.derived(), 3);
        mirror.handle_value(key("s"), 6, None, now);
        mirror.handle_value(key("t"), 7, pin("a"), now);
        assert_eq!(mirror.derived(), 1);
        mirror.expire(now + TTL, 100);
        assert_eq!((mirror.derived(), mirror.len()), (0, 0));
        mirror.handle_value(key("s"), 8, derived(false), now + TTL);
        mirror.clear();
        assert_eq!((mirror.derived(), mirror.len()), (0, 0));
    }

    #[test]
    fn pins_are_counted_where_they_point() {
        let (mut mirror, now) = (Mirror::new(TTL), start());
        let counts = |mirror: &Mirror| {
            let mut counts: Vec<_> = mirror.placed().map(|(at, count)| (at.to_string(), count)).collect();
            counts.sort();
            counts
        };
        mirror.handle_value(key("s"), 1, pin("a"), now);
        mirror.handle_value(key("t"), 2, pin("a"), now);
        mirror.handle_value(key("s"), 3, pin("a"), now + MOMENT);
        assert_eq!(counts(&mirror), [("a/1".to_owned(), 2)]);
        mirror.handle_value(key("s"), 4, pin("b"), now);
        mirror.handle_value(key("u"), 5, None, now);
        assert_eq!(counts(&mirror), [("a/1".to_owned(), 1), ("b/1".to_owned(), 1)]);
        mirror.handle_value(key("s"), 6, None, now);
        mirror.expire(now + TTL, 100);
        assert_eq!(counts(&mirror), []);
        mirror.handle_value(key("v"), 7, pin("a"), now + TTL);
        mirror.clear();
        assert_eq!(counts(&mirror), []);
    }
}
