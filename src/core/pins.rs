//! The mirror of the pins bucket: what every router knows of every session without asking.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use super::hash::PinKey;
use super::id::{Origin, Placement, Pool};

/// Most pins mirrored. Beyond, a session's pin is found by the claim that loses to it: slower, and still right.
pub const MAX_MIRRORED: usize = 8_388_608;

/// Parts that the mirror is divided into. A map that grows moves all that it has, and the router waits meanwhile.
const SHARDS: usize = 64;

/// A session's pin. There are millions of them, so what most don't have is elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Where the session is.
    pub placement: Placement,
    /// Where its id comes from.
    pub origin: Origin,
    /// Of a derived session: several conversations begin so.
    pub shared: bool,
    rare: Option<Box<Rare>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rare {
    root: Option<Box<str>>,
    pool: Option<Pool>,
}

impl Pin {
    /// A pin of one conversation.
    pub fn new(placement: Placement, origin: Origin) -> Self {
        Self { placement, origin, shared: false, rare: None }
    }

    /// The same, of several conversations or of one.
    pub fn shared(self, shared: bool) -> Self {
        Self { shared, ..self }
    }

    /// The same, with the root and the pool that it has.
    pub fn with(self, root: Option<Box<str>>, pool: Option<Pool>) -> Self {
        let rare = (root.is_some() || pool.is_some()).then(|| Box::new(Rare { root, pool }));
        Self { rare, ..self }
    }

    /// Of a derived session: the session id of its first request.
    pub fn root(&self) -> Option<&str> {
        self.rare.as_ref()?.root.as_deref()
    }

    /// The pool that the worker is in, where that is known and not the default one.
    pub fn pool(&self) -> Option<&Pool> {
        self.rare.as_ref()?.pool.as_ref()
    }
}

/// What stands under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The revision of the value, for the next compare-and-set.
    pub revision: u64,
    /// The pin; `None` where the value was deleted or can't be read: it is replaced at its revision.
    pub pin: Option<Pin>,
    /// Whether this router has written this placement, or has put it again (protocol section 5).
    pub ours: bool,
    /// When it was stored, by this router's clock.
    stored: Moment,
    /// When a use refreshes its age.
    refresh_at: Moment,
}

/// Nanoseconds since the mirror was made, or before it: half as long as an [`Instant`].
type Moment = i64;

/// The mirror. Keys are hashes already, so a fast hasher that is seeded anew in each process is enough.
#[derive(Debug)]
pub struct Mirror {
    shards: Vec<HashMap<PinKey, Entry, RandomState>>,
    len: usize,
    ages: VecDeque<(Moment, PinKey)>,
    derived: usize,
    /// How many pins point to each placement.
    placed: HashMap<Placement, u64, RandomState>,
    ttl: Moment,
    made: Instant,
}

fn placement(pin: Option<&Pin>) -> Option<&Placement> {
    pin.map(|pin| &pin.placement)
}

fn is_derived(entry: &Entry) -> bool {
    entry.pin.as_ref().is_some_and(|pin| pin.origin == Origin::Derived)
}

/// How long that is; centuries at most.
fn nanoseconds(time: Duration) -> Moment {
    Moment::try_from(time.as_nanos()).unwrap_or(Moment::MAX)
}

impl Mirror {
    /// An empty mirror of a bucket whose values live for `ttl`.
    pub fn new(ttl: Duration, now: Instant) -> Self {
        Self {
            shards: vec![HashMap::default(); SHARDS],
            len: 0,
            ages: VecDeque::new(),
            derived: 0,
            placed: HashMap::default(),
            ttl: nanoseconds(ttl),
            made: now,
        }
    }

    /// The bucket's values live for another time than was configured.
    pub fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = nanoseconds(ttl);
    }

    fn moment(&self, at: Instant) -> Moment {
        match at.checked_duration_since(self.made) {
            Some(since) => nanoseconds(since),
            None => -nanoseconds(self.made.duration_since(at)),
        }
    }

    fn instant(&self, moment: Moment) -> Instant {
        let away = Duration::from_nanos(moment.unsigned_abs());
        let at = if moment < 0 { self.made.checked_sub(away) } else { self.made.checked_add(away) };
        at.unwrap_or(self.made)
    }

    /// When it was stored, by this router's clock.
    pub fn stored_at(&self, entry: &Entry) -> Instant {
        self.instant(entry.stored)
    }

    /// When a use refreshes its age.
    pub fn refresh_at(&self, entry: &Entry) -> Instant {
        self.instant(entry.refresh_at)
    }

    fn is_over(&self, stored: Moment, now: Moment) -> bool {
        now.saturating_sub(stored) >= self.ttl
    }

    fn shard(&self, key: PinKey) -> &HashMap<PinKey, Entry, RandomState> {
        &self.shards[key.shard(SHARDS)]
    }

    fn shard_mut(&mut self, key: PinKey) -> &mut HashMap<PinKey, Entry, RandomState> {
        &mut self.shards[key.shard(SHARDS)]
    }

    /// Forgets everything: the bucket was made anew.
    pub fn clear(&mut self) {
        self.shards.iter_mut().for_each(HashMap::clear);
        self.len = 0;
        self.ages.clear();
        self.derived = 0;
        self.placed.clear();
    }

    /// The bucket has nothing left of what came before a sequence.
    pub fn drop_before(&mut self, sequence: u64) {
        let mut gone = Vec::new();
        for shard in &self.shards {
            gone.extend(shard.iter().filter(|(_, entry)| entry.revision < sequence).map(|(key, _)| *key));
        }
        gone.into_iter().for_each(|key| self.forget(key));
    }

    /// A value (or with `pin` `None`, its end) was stored under a key at `stored`. Older news than what is known is
    /// ignored.
    pub fn handle_value(&mut self, key: PinKey, revision: u64, pin: Option<Pin>, stored: Instant) {
        self.put(key, revision, pin, stored, false);
    }

    /// The stream's leader says what stands under a key, asked when `known` was the revision here. Where nothing has come since,
    /// its word counts whatever its revision: a stream that has lost its end, as a restored one has, begins again below.
    pub fn handle_leaders_word(
        &mut self,
        key: PinKey,
        known: u64,
        (revision, pin): (u64, Option<Pin>),
        stored: Instant,
    ) {
        let differs = |entry: &Entry| {
            entry.revision == known
                && (known > revision || (known == revision && placement(entry.pin.as_ref()) != placement(pin.as_ref())))
        };
        if self.shard(key).get(&key).is_some_and(differs) {
            self.forget(key);
        }
        self.handle_value(key, revision, pin, stored);
    }

    /// The revision known of a key, however old; 0 where none is.
    pub fn known(&self, key: PinKey) -> u64 {
        self.shard(key).get(&key).map_or(0, |entry| entry.revision)
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

    fn put(&mut self, key: PinKey, revision: u64, mut pin: Option<Pin>, stored: Instant, own: bool) {
        let old = self.shard(key).get(&key);
        if old.is_some_and(|old| old.revision > revision || (old.revision == revision && !own)) {
            return;
        }
        if old.is_none() && self.len >= MAX_MIRRORED {
            return;
        }
        // Once this router has confirmed a placement it need not again, whoever refreshes the pin's age.
        let stays = old.is_some_and(|old| placement(old.pin.as_ref()) == placement(pin.as_ref()));
        let ours = own || (stays && old.is_some_and(|old| old.ours));
        if let Some(pin) = &mut pin {
            self.arrive(pin, stays);
        }
        let stored = self.moment(stored);
        let entry = Entry { revision, pin, ours, stored, refresh_at: stored.saturating_add(self.ttl / 4) };
        self.derived += usize::from(is_derived(&entry));
        match self.shard_mut(key).insert(key, entry) {
            Some(old) => {
                self.derived -= usize::from(is_derived(&old));
                if !stays {
                    self.leave(&old);
                }
            }
            None => self.len += 1,
        }
        self.ages.push_back((stored, key));
    }

    /// A pin points to its placement: from now on, or as its predecessor did. The worker's name is kept once for all.
    fn arrive(&mut self, pin: &mut Pin, stays: bool) {
        if let Some((known, _)) = self.placed.get_key_value(&pin.placement) {
            pin.placement = known.clone();
        }
        if !stays {
            match self.placed.get_mut(&pin.placement) {
                Some(count) => *count += 1,
                None => drop(self.placed.insert(pin.placement.clone(), 1)),
            }
        }
    }

    /// What stands under a key; nothing where its age is over.
    pub fn get(&self, key: PinKey, now: Instant) -> Option<&Entry> {
        let now = self.moment(now);
        self.shard(key).get(&key).filter(|entry| !self.is_over(entry.stored, now))
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

    /// Whether a value of this revision is news: it is not where this router has written it itself.
    pub fn is_news(&self, key: PinKey, revision: u64) -> bool {
        self.shard(key).get(&key).is_none_or(|entry| entry.revision < revision)
    }

    /// Nothing stands under the key, as its leader says.
    pub fn forget(&mut self, key: PinKey) {
        if let Some(entry) = self.shard_mut(key).remove(&key) {
            self.len -= 1;
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
        let (now, quarter) = (self.moment(now), self.ttl / 4);
        match self.shard_mut(key).get_mut(&key) {
            Some(entry) if entry.pin.is_some() && entry.refresh_at <= now => {
                entry.refresh_at = now.saturating_add(quarter);
                true
            }
            _ => false,
        }
    }

    /// Drops what is too old, at most `most` ages in one call. Returns how many ages were looked at. Buckets that only
    /// have a max age expire silently, so the mirror goes by its own clock.
    pub fn expire(&mut self, now: Instant, most: usize) -> usize {
        let now = self.moment(now);
        for looked in 0..most {
            let Some(&(stored, key)) = self.ages.front() else { return looked };
            if !self.is_over(stored, now) {
                return looked;
            }
            self.ages.pop_front();
            if self.shard(key).get(&key).is_some_and(|entry| entry.stored == stored) {
                self.forget(key);
            }
        }
        most
    }

    /// Pins known.
    pub fn pins(&self) -> u64 {
        self.placed.values().sum()
    }

    /// Keys known, deleted ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.len == 0
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
        Some(Pin::new(at(worker, Some(1)), Origin::Named))
    }

    fn derived(shared: bool) -> Option<Pin> {
        Some(Pin::new(at("a", Some(1)), Origin::Derived).shared(shared))
    }

    fn worker(mirror: &Mirror, session: &str, now: Instant) -> Option<String> {
        Some(mirror.get(key(session), now)?.pin.as_ref()?.placement.worker.to_string())
    }

    #[test]
    fn the_leaders_word_counts_unless_something_has_come_since() {
        let now = start();
        let mut mirror = Mirror::new(TTL, now);
        mirror.handle_own(key("s"), 9, pin("a"), now);
        mirror.handle_leaders_word(key("s"), 9, (5, pin("b")), now);
        assert_eq!(
            (worker(&mirror, "s", now).as_deref(), mirror.known(key("s"))),
            (Some("b"), 5),
            "the stream lost its end"
        );
        mirror.handle_value(key("s"), 6, pin("c"), now);
        mirror.handle_leaders_word(key("s"), 5, (5, pin("b")), now);
        assert_eq!((worker(&mirror, "s", now).as_deref(), mirror.known(key("s"))), (Some("c"), 6), "asked before");
        mirror.foresee(key("s"), pin("d").expect("a pin"), now);
        mirror.handle_leaders_word(key("s"), 6, (6, pin("c")), now);
        assert_eq!(worker(&mirror, "s", now).as_deref(), Some("c"), "what was foreseen has not come");
        mirror.handle_own(key("s"), 7, pin("c"), now);
        mirror.handle_leaders_word(key("s"), 7, (7, pin("c")), now);
        assert!(mirror.get(key("s"), now).expect("it is there").ours, "nothing has changed");
        mirror.handle_leaders_word(key("s"), 7, (3, None), now);
        assert_eq!((worker(&mirror, "s", now), mirror.known(key("s")), mirror.pins()), (None, 3, 0));
        mirror.handle_leaders_word(key("t"), 0, (4, pin("a")), now);
        assert_eq!((worker(&mirror, "t", now).as_deref(), mirror.pins()), (Some("a"), 1));
    }

    #[test]
    fn a_pin_ends_by_the_mirrors_own_clock() {
        let now = start();
        let mut mirror = Mirror::new(TTL, now);
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
    fn ages_count_from_before_the_mirror_was_made() {
        let made = start() + TTL;
        let (mut mirror, before) = (Mirror::new(TTL, made), made.checked_sub(QUARTER).expect("it is after the start"));
        mirror.handle_value(key("s"), 1, pin("a"), before);
        let entry = mirror.get(key("s"), made).expect("it is there");
        assert_eq!((mirror.stored_at(entry), mirror.refresh_at(entry)), (before, made));
        assert!(mirror.get(key("s"), before + TTL - MOMENT).is_some());
        assert_eq!(mirror.get(key("s"), before + TTL), None);
        mirror.set_ttl(Duration::MAX);
        assert!(mirror.get(key("s"), before + 1000 * TTL).is_some(), "in a bucket without an age nothing ends");
    }

    #[test]
    fn a_workers_name_is_kept_once() {
        let (mut mirror, now) = (Mirror::new(TTL, start()), start());
        for n in 0..3 {
            mirror.handle_value(key(&n.to_string()), n + 1, pin("a"), now);
        }
        let name = |n: u64| {
            let entry = mirror.get(key(&n.to_string()), now).expect("it is there");
            entry.pin.as_ref().expect("a pin").placement.worker.as_str().as_ptr()
        };
        assert!(name(0) == name(1) && name(1) == name(2));
    }

    #[test]
    fn one_look_at_ages_is_bounded() {
        let now = start();
        let mut mirror = Mirror::new(TTL, now);
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
        let mut mirror = Mirror::new(TTL, now);
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
        let mut mirror = Mirror::new(TTL, now);
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
        let mut mirror = Mirror::new(TTL, now);
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
        let mut mirror = Mirror::new(TTL, now);
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
        let (mut mirror, now) = (Mirror::new(TTL, start()), start());
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
        assert_eq!((mirror.pins(), mirror.len()), (2, 3), "what is deleted is no pin");
        mirror.handle_value(key("s"), 6, None, now);
        mirror.expire(now + TTL, 100);
        assert_eq!(counts(&mirror), []);
        mirror.handle_value(key("v"), 7, pin("a"), now + TTL);
        mirror.clear();
        assert_eq!(counts(&mirror), []);
    }
}
