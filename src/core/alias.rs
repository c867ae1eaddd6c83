//! Names that stand for several models: which of them a request gets. A session stays on the model that it was given,
//! whichever router asks.

use std::collections::BTreeMap;
use std::time::Instant;

use rand::{Rng, RngExt as _};

use super::fleet::Fleet;
use super::hash::{self, PinKey};
use super::id::{Model, SessionId};
use super::pins::Mirror;

/// Most aliases.
pub const MAX_ALIASES: usize = 1_024;
/// Most models that one alias leads to.
pub const MAX_TARGETS: usize = 64;

/// A model that an alias leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// The model.
    pub model: Model,
    /// Its share among the alias's targets; above 0.
    pub weight: f64,
}

/// All aliases, by name; no target is an alias itself.
pub type Aliases = BTreeMap<Model, Vec<Target>>;

/// What an alias leads a request to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Place of the target among the alias's.
    pub index: usize,
    /// Whether the request continues a pin there.
    pub pinned: bool,
}

/// What a choice goes by.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The alias's targets.
    pub targets: &'a [Target],
    /// For each target the keys under which the request's pin may stand, the one that counts most first.
    pub keys: &'a [Vec<PinKey>],
    /// What stays the same from turn to turn; `None` without a session.
    pub by: Option<&'a SessionId>,
    /// The worker that the request asks for.
    pub worker: Option<&'a str>,
}

/// The target of a request: where it continues a pin, that one, the deepest first; else the hash of its session says, or
/// chance where it has none. Models that nobody serves are chosen only by a pin, or where no other is known; models that the
/// wanted worker does not serve only by a pin, or where it serves none of them. `None` where none of them is known.
pub fn choose(asked: Asked<'_>, fleet: &Fleet, mirror: &Mirror, now: Instant, rng: &mut dyn Rng) -> Option<Choice> {
    let known = |target: &&(usize, &Target)| fleet.knows(&target.1.model, now);
    let targets: Vec<_> = asked.targets.iter().enumerate().collect();
    let known: Vec<_> = targets.iter().filter(known).copied().collect();
    let depth = |&(index, _): &(usize, &Target)| {
        let keys = asked.keys.get(index)?;
        let (key, _) = mirror.continued(keys, now)?;
        keys.iter().position(|other| *other == key)
    };
    let pinned = known.iter().filter_map(|target| Some((depth(target)?, *target)));
    let deepest = pinned.clone().map(|(depth, _)| depth).min();
    let pinned: Vec<_> = pinned.filter(|(depth, _)| Some(*depth) == deepest).map(|(_, target)| target).collect();
    if !pinned.is_empty() {
        return pick(&pinned, asked.by, rng).map(|index| Choice { index, pinned: true });
    }
    let served: Vec<_> = known.iter().filter(|(_, target)| fleet.serves(&target.model)).copied().collect();
    let wanted = asked.worker.and_then(|id| fleet.find(id));
    let there: Vec<_> = wanted.map_or_else(Vec::new, |(_, worker)| {
        known.iter().filter(|(_, target)| worker.spec.serves(&target.model)).copied().collect()
    });
    let open = [there, served, known].into_iter().find(|some| !some.is_empty()).unwrap_or_default();
    pick(&open, asked.by, rng).map(|index| Choice { index, pinned: false })
}

/// Where the hash alone leads a session, whoever serves what.
pub fn by_hash(targets: &[Target], session: &SessionId) -> Option<usize> {
    let all: Vec<_> = targets.iter().enumerate().collect();
    nearest(&all, session)
}

/// One of these targets, by the hash of a session or by chance, each in proportion to its weight.
fn pick(targets: &[(usize, &Target)], by: Option<&SessionId>, rng: &mut dyn Rng) -> Option<usize> {
    match by {
        Some(session) => nearest(targets, session),
        None => by_chance(targets, rng),
    }
}

fn nearest(targets: &[(usize, &Target)], session: &SessionId) -> Option<usize> {
    let score = |target: &Target| hash::distance(target.model.as_str(), session) / target.weight;
    let nearest = targets.iter().min_by(|(_, a), (_, b)| score(a).total_cmp(&score(b)));
    nearest.map(|(index, _)| *index)
}

fn by_chance(targets: &[(usize, &Target)], rng: &mut dyn Rng) -> Option<usize> {
    let total: f64 = targets.iter().map(|(_, target)| target.weight).sum();
    let mut left = rng.random::<f64>() * total;
    for (index, target) in targets {
        left -= target.weight;
        if left < 0.0 {
            return Some(*index);
        }
    }
    targets.last().map(|(index, _)| *index)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::id::Origin;
    use crate::core::pins::Pin;
    use crate::core::testing::{at, fleet, model, named, rng, spec, start};
    use crate::core::worker::WorkerSpec;

    fn targets(weights: &[(&str, f64)]) -> Vec<Target> {
        weights.iter().map(|(name, weight)| Target { model: model(name), weight: *weight }).collect()
    }

    fn serving(models: &[&str], now: Instant) -> Fleet {
        fleet(models.iter().map(|name| WorkerSpec { models: vec![model(name)], ..spec(name, 0, 1) }), now)
    }

    fn empty() -> Mirror {
        Mirror::new(Duration::from_secs(3600), start())
    }

    fn chosen(targets: &[Target], session: &str, fleet: &Fleet, now: Instant) -> Option<usize> {
        let session = named(session).id;
        let asked = Asked { targets, keys: &[], by: Some(&session), worker: None };
        choose(asked, fleet, &empty(), now, &mut rng()).map(|choice| choice.index)
    }

    #[test]
    fn sessions_are_shared_out_by_weight_and_a_changed_weight_moves_few() {
        let now = start();
        let fleet = serving(&["a", "b", "c"], now);
        let (before, after) =
            (targets(&[("a", 6.0), ("b", 3.0), ("c", 1.0)]), targets(&[("c", 3.0), ("a", 6.0), ("b", 3.0)]));
        let mut counts = [0_u32; 3];
        let mut moved = [0_u32; 2];
        for n in 0..10_000 {
            let session = format!("session-{n}");
            let first = chosen(&before, &session, &fleet, now).expect("all are served");
            let second = chosen(&after, &session, &fleet, now).expect("all are served");
            counts[first] += 1;
            let (from, to) = (&before[first].model, &after[second].model);
            if from != to {
                moved[usize::from(to.as_str() != "c")] += 1;
            }
        }
        for (count, share) in counts.iter().zip([6000, 3000, 1000]) {
            assert!(count.abs_diff(share) < 200, "{counts:?}");
        }
        // The share of c goes from a tenth to a quarter.
        assert!(moved[0].abs_diff(1500) < 200, "{moved:?}");
        assert_eq!(moved[1], 0, "nobody moves between the others");
    }

    /// Every implementation has to find the same.
    #[test]
    fn values_that_routers_agree_on() {
        let now = start();
        let fleet = serving(&["a", "b"], now);
        let targets = targets(&[("a", 9.0), ("b", 1.0)]);
        let told: String = (0..32)
            .map(|n| chosen(&targets, &format!("s{n}"), &fleet, now).expect("both are served").to_string())
            .collect();
        assert_eq!(told, "00000000010000010000000000000010");
        assert!((hash::distance("a", &named("s0").id) - 0.633_545_294_317_109_6).abs() < 1e-12);
    }

    #[test]
    fn without_a_session_chance_decides() {
        let now = start();
        let fleet = serving(&["a", "b"], now);
        let targets = targets(&[("a", 3.0), ("b", 1.0)]);
        let mut rng = rng();
        let asked = Asked { targets: &targets, keys: &[], by: None, worker: None };
        let mut of_b = 0_u32;
        for _ in 0..4000 {
            let choice = choose(asked, &fleet, &empty(), now, &mut rng).expect("both are served");
            of_b += u32::from(choice.index == 1);
        }
        assert!(of_b.abs_diff(1000) < 120, "{of_b}");
    }

    #[test]
    fn a_session_stays_where_it_is_pinned_the_deepest_first() {
        let now = start();
        let fleet = serving(&["a", "b"], now);
        let key = |model: &str, session: &str| PinKey::of("", model, session);
        let keys = [vec![key("a", "2"), key("a", "1")], vec![key("b", "2"), key("b", "1")]];
        let targets = targets(&[("a", 1e-9), ("b", 1.0)]);
        let session = named("s").id;
        let asked = Asked { targets: &targets, keys: &keys, by: Some(&session), worker: None };
        let mut mirror = empty();
        let pin = |shared| Pin::new(at("w", None), Origin::Derived).shared(shared);
        let chosen = |mirror: &Mirror| choose(asked, &fleet, mirror, now, &mut rng()).expect("both are served");
        assert_eq!(chosen(&mirror), Choice { index: 1, pinned: false });
        mirror.handle_value(key("a", "1"), 1, Some(pin(false)), now);
        assert_eq!(chosen(&mirror), Choice { index: 0, pinned: true });
        mirror.handle_value(key("b", "1"), 2, Some(pin(false)), now);
        assert_eq!(chosen(&mirror), Choice { index: 1, pinned: true }, "of equals the hash decides");
        mirror.handle_value(key("a", "2"), 3, Some(pin(true)), now);
        assert_eq!(chosen(&mirror).index, 1, "a common opening says nothing");
        mirror.handle_value(key("a", "2"), 4, Some(pin(false)), now);
        assert_eq!(chosen(&mirror).index, 0);
    }

    #[test]
    fn a_wanted_worker_gets_a_model_that_it_has_unless_a_pin_says_otherwise() {
        let now = start();
        let fleet = serving(&["a", "b", "c"], now);
        let targets = targets(&[("a", 1.0), ("b", 1e-9)]);
        let session = named("s").id;
        let keys = [vec![PinKey::of("", "a", "s")], vec![PinKey::of("", "b", "s")]];
        let chosen = |worker: &str, mirror: &Mirror| {
            let asked = Asked { targets: &targets, keys: &keys, by: Some(&session), worker: Some(worker) };
            choose(asked, &fleet, mirror, now, &mut rng()).map(|choice| choice.index)
        };
        // Workers are called as the one model that they have.
        assert_eq!(chosen("a", &empty()), Some(0));
        assert_eq!(chosen("b", &empty()), Some(1));
        for nothing in ["c", "nobody"] {
            assert_eq!(chosen(nothing, &empty()), Some(0), "the request is refused for its worker, not for its model");
        }
        let mut mirror = empty();
        let pin = Pin::new(at("a", None), Origin::Named);
        mirror.handle_value(keys[0][0], 1, Some(pin), now);
        assert_eq!(chosen("b", &mirror), Some(0), "the session stays on its model");
    }

    #[test]
    fn models_that_nobody_serves_get_no_new_session() {
        let now = start();
        let targets = targets(&[("a", 1.0), ("b", 1e-9)]);
        assert_eq!(chosen(&targets, "s", &serving(&["x"], now), now), None);
        assert_eq!(chosen(&targets, "s", &serving(&["b"], now), now), Some(1), "a is unknown");
        let mut fleet = serving(&["a", "b"], now);
        assert_eq!(chosen(&targets, "s", &fleet, now), Some(0));
        fleet.handle_deregistration(&crate::core::testing::worker_id("a"));
        assert_eq!(chosen(&targets, "s", &fleet, now), Some(1));
        let session = named("s").id;
        let keys = [vec![PinKey::of("", "a", "s")], vec![PinKey::of("", "b", "s")]];
        let mut mirror = empty();
        let pin = Pin::new(at("a", None), Origin::Named);
        mirror.handle_value(keys[0][0], 1, Some(pin), now);
        let asked = Asked { targets: &targets, keys: &keys, by: Some(&session), worker: None };
        let choice = choose(asked, &fleet, &mirror, now, &mut rng());
        assert_eq!(choice, Some(Choice { index: 0, pinned: true }), "it waits for its model to come back");
        fleet.handle_deregistration(&crate::core::testing::worker_id("b"));
        assert_eq!(chosen(&targets, "s", &fleet, now), Some(0), "both are known");
    }
}
