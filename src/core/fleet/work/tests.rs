use std::time::{Duration, Instant};

use super::*;
use crate::core::load::RankLoad;
use crate::core::testing::{fleet, slot, spec, start, worker_id};

const HOUR: Duration = Duration::from_secs(3600);

fn give(fleet: &mut Fleet, worker: &str, rank: Option<u16>, tokens: u32, now: Instant) {
    let at = slot(fleet, worker);
    let prompt = Prompt::new(Vec::new(), tokens);
    fleet.note_dispatch(at, rank.map(DpRank), &prompt, now);
}

/// Tokens that a placement was given lately, as they count now.
fn given(fleet: &Fleet, worker: &str, rank: Option<u16>, now: Instant) -> f64 {
    let (_, worker) = fleet.find(worker).expect("it is there");
    worker.work_at(rank.map(DpRank)).prompt / fleet.unit(now)
}

#[track_caller]
fn near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() <= wanted * 1e-6, "{found}, and not {wanted}");
}

#[test]
fn work_fades_by_its_half_life_however_long_that_goes_on() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 1), spec("b", 0, 2)], now);
    fleet.set_half_life(HOUR);
    give(&mut fleet, "a", None, 1000, now);
    give(&mut fleet, "b", Some(1), 800, now);
    near(given(&fleet, "a", None, now + HOUR), 500.0);
    give(&mut fleet, "a", None, 100, now + 2 * HOUR);
    near(given(&fleet, "a", None, now + 2 * HOUR), 350.0);
    near(given(&fleet, "b", Some(1), now + 2 * HOUR), 200.0);
    near(given(&fleet, "b", None, now + 2 * HOUR), 100.0);
    // Long after the unit has become small again.
    for hour in 3..300 {
        give(&mut fleet, "a", None, 100, now + hour * HOUR);
    }
    near(given(&fleet, "a", None, now + 299 * HOUR), 200.0);
    assert!(given(&fleet, "b", Some(1), now + 299 * HOUR) < 1e-80);
}

#[test]
fn a_worker_that_is_new_begins_with_the_mean_of_its_models_and_its_weight() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 1), spec("b", 0, 3)], now);
    give(&mut fleet, "a", None, 4000, now);
    let heavy = WorkerSpec { weight: 2.0, ..spec("c", 0, 2) };
    fleet.handle_registration(heavy, Duration::ZERO, now);
    near(given(&fleet, "c", Some(0), now), 1000.0);
    near(given(&fleet, "c", None, now), 1000.0);
    let other = WorkerSpec { models: vec![crate::core::testing::model("other")], ..spec("d", 0, 1) };
    fleet.handle_registration(other, Duration::ZERO, now);
    assert_eq!(given(&fleet, "d", None, now), 0.0);
    give(&mut fleet, "c", Some(1), 2000, now);
    near(given(&fleet, "c", Some(1), now), 2000.0);
    near(given(&fleet, "c", Some(0), now), 1000.0);
}

#[test]
fn work_stays_with_its_ranks_and_what_they_hold_only_where_their_caches_stay() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 4)], now);
    let prompt = Prompt::new(vec![Mark { key: 1, upto: 100 }], 100);
    let at = slot(&fleet, "a");
    for rank in [1, 3] {
        fleet.note_dispatch(at, Some(DpRank(rank)), &prompt, now);
    }
    assert_eq!(fleet.index().len(), 2);
    fleet.handle_registration(spec("a", 1, 2), Duration::ZERO, now);
    assert_eq!(fleet.index().len(), 1, "rank 3 is gone");
    near(given(&fleet, "a", Some(1), now), 100.0);
    assert_eq!(given(&fleet, "a", Some(2), now), 0.0);
    let smaller = WorkerSpec { kv_blocks: Some(10), ..spec("a", 1, 2) };
    fleet.handle_registration(smaller, Duration::ZERO, now);
    assert!(fleet.index().is_empty());
    near(given(&fleet, "a", Some(1), now), 100.0);
}

#[test]
fn what_is_still_to_be_prefilled_is_sent_since_the_last_report_and_what_that_says() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 2)], now);
    let at = slot(&fleet, "a");
    let waiting = |fleet: &Fleet| [0, 1].map(|place| fleet.find("a").expect("there").1.rank_work(place).to_prefill());
    fleet.begin(at, Some(DpRank(0)));
    give(&mut fleet, "a", Some(0), 500, now);
    assert_eq!(waiting(&fleet), [500.0, 0.0]);
    let load = |rank, prefill_tokens| RankLoad {
        rank: DpRank(rank),
        inflight: 1,
        queued: 0,
        kv_used_blocks: 0,
        prefill_tokens,
    };
    let instance = InstanceId::new("i").expect("valid");
    let ranks = vec![load(0, 0), load(1, 70)];
    fleet.handle_report(Report { worker: worker_id("a"), instance, seq: 1, ranks }, now);
    assert_eq!(waiting(&fleet), [0.0, 70.0]);
    give(&mut fleet, "a", Some(0), 300, now);
    assert_eq!(waiting(&fleet), [300.0, 70.0]);
    fleet.end(at, Some(DpRank(0)), false);
    assert_eq!(waiting(&fleet), [0.0, 70.0], "the last of this router's requests has left");
}

#[test]
fn a_worker_is_believed_about_what_was_cached() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 1)], now);
    let at = slot(&fleet, "a");
    let missed = |fleet: &Fleet| fleet.find("a").expect("there").1.work_at(None).missed;
    let prompt = |keys: &[u64]| {
        let mark =
            |(place, key): (usize, &u64)| Mark { key: *key, upto: 100 * (u32::try_from(place).expect("few") + 1) };
        Prompt::new(keys.iter().enumerate().map(mark).collect(), 0)
    };
    fleet.note_dispatch(at, None, &prompt(&[9]), now);
    let (first, _) = fleet.note_dispatch(at, None, &prompt(&[1, 2]), now);
    fleet.note_finished(at, None, first, (55, 0), now);
    assert_eq!(missed(&fleet), 300.0);
    // Its tokens are others than ours: half of them is half of them.
    let (second, _) = fleet.note_dispatch(at, None, &prompt(&[1, 2, 3, 4]), now);
    assert_eq!((second.held, missed(&fleet)), (200, 500.0));
    fleet.note_finished(at, None, second, (10, 5), now);
    assert_eq!((missed(&fleet), fleet.index().len()), (500.0, 5));
    let (third, _) = fleet.note_dispatch(at, None, &prompt(&[1, 2, 3, 4, 5]), now);
    fleet.note_finished(at, None, third, (10, 4), now);
    assert_eq!(missed(&fleet), 800.0, "300 of 500 tokens");
    assert_eq!(fleet.index().len(), 5, "what was last used before is gone, the prompt was just prefilled");
    fleet.note_finished(at, None, third, (0, 0), now);
    assert_eq!(missed(&fleet), 800.0, "no tokens, no word");
}

#[test]
fn messages_about_a_cache_count_in_order_and_of_the_same_process() {
    let now = start();
    let mut fleet = fleet([spec("a", 4, 2)], now);
    let instance = |id: &str| InstanceId::new(id).expect("valid");
    let stored = [CacheEvent::Stored { session: 7, blocks: 2 }];
    let tell = |fleet: &mut Fleet, worker: &str, rank, id: &str, seq| {
        fleet.handle_cache_events(&worker_id(worker), DpRank(rank), &instance(id), seq, &stored, now)
    };
    assert!(tell(&mut fleet, "a", 4, "i", 3));
    assert!(tell(&mut fleet, "a", 5, "i", 1), "each rank counts for itself");
    assert!(!tell(&mut fleet, "a", 4, "i", 3) && !tell(&mut fleet, "a", 4, "i", 2), "not newer");
    assert!(
        !tell(&mut fleet, "a", 4, "other", 4) && !tell(&mut fleet, "b", 4, "i", 4) && !tell(&mut fleet, "a", 6, "i", 4)
    );
    let held = |fleet: &Fleet| {
        let worker = fleet.find("a").expect("there").1;
        let held = fleet.index().expected(&Prompt::new(Vec::new(), 1000), Some(7));
        [0, 1].map(|place| worker.number(place).map_or(0, |number| held.at(number)))
    };
    // 16 tokens a block.
    assert_eq!(held(&fleet), [32, 32]);
    assert!(tell(&mut fleet, "a", 4, "i", 4));
    assert_eq!(held(&fleet), [64, 32]);
    assert!(tell(&mut fleet, "a", 4, "i", 6), "after a gap it is learned anew");
    assert_eq!(held(&fleet), [32, 32]);
}
