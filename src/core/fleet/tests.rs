//! Liveness, marks, probes and load, by time that the tests step.

use proptest::prelude::*;

use super::*;
use crate::core::id::RankRange;
use crate::core::load::RankLoad;
use crate::core::testing::{fleet, model, slot, spec, start, worker_id};

const SECOND: Duration = Duration::from_secs(1);
/// The shortest time by which something is over.
const MOMENT: Duration = Duration::from_millis(1);

fn of_instance(mut spec: WorkerSpec, instance: &str) -> WorkerSpec {
    spec.instance = InstanceId::new(instance).expect("a valid id");
    spec
}

fn report(worker: &str, instance: &str, seq: u64, inflight: &[(u16, u32)]) -> Report {
    let ranks = inflight.iter().map(|(rank, inflight)| RankLoad {
        rank: DpRank(*rank),
        inflight: *inflight,
        queued: 0,
        kv_used_blocks: 0,
        prefill_tokens: 0,
    });
    Report {
        worker: worker_id(worker),
        instance: InstanceId::new(instance).expect("a valid id"),
        seq,
        ranks: ranks.collect(),
    }
}

fn is_eligible(fleet: &Fleet, id: &str, now: Instant) -> bool {
    fleet.eligible_worker(&worker_id(id), &model("m"), now).is_some()
}

fn ids(lost: Vec<(WorkerSlot, WorkerId)>) -> Vec<String> {
    lost.into_iter().map(|(_, id)| id.to_string()).collect()
}

#[test]
fn silence_for_longer_than_six_seconds_is_loss() {
    let now = start();
    let mut fleet = fleet(["put", "report", "event", "silent"].map(|id| spec(id, 0, 1)), now);
    let later = now + 4 * SECOND;
    assert_eq!(fleet.handle_registration(spec("put", 0, 1), Duration::ZERO, later), Registered::Renewed);
    assert!(fleet.handle_report(report("report", "i", 1, &[]), later));
    fleet.handle_event(slot(&fleet, "event"), later);
    assert!(fleet.expire(now + LOST_AFTER).is_empty());
    assert_eq!(ids(fleet.expire(now + LOST_AFTER + MOMENT)), ["silent"]);
    assert!(fleet.expire(later + LOST_AFTER).is_empty());
    assert_eq!(fleet.expire(later + LOST_AFTER + MOMENT).len(), 3);
    assert_eq!(fleet.iter().count(), 0);
}

#[test]
fn reports_of_another_instance_or_not_newer_are_ignored() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 2)], now);
    assert!(fleet.handle_report(report("a", "i", 5, &[(0, 3)]), now));
    for ignored in [report("a", "other", 6, &[(0, 9)]), report("a", "i", 5, &[(0, 9)]), report("b", "i", 9, &[])] {
        assert!(!fleet.handle_report(ignored, now + SECOND));
    }
    let worker = fleet.find("a").expect("it is there").1;
    assert_eq!(worker.load_of(DpRank(0), now), 3);
    assert_eq!(worker.age(now + SECOND), SECOND, "what is ignored is no sign of life");
}

#[test]
fn after_an_outage_of_the_router_itself_ages_start_anew() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 1)], now);
    let later = now + 60 * SECOND;
    fleet.handle_outage_end(later);
    assert!(fleet.expire(later + LOST_AFTER).is_empty());
    assert_eq!(fleet.expire(later + LOST_AFTER + MOMENT).len(), 1);
}

#[test]
fn a_registration_from_before_the_routers_start_counts_from_when_it_was_stored() {
    let now = start();
    let mut fleet = Fleet::default();
    assert_eq!(fleet.handle_registration(spec("old", 0, 1), LOST_AFTER + MOMENT, now), Registered::Stale);
    assert!(fleet.knows(&model("m"), now), "its model was served a moment ago");
    assert!(!is_eligible(&fleet, "old", now));
    assert_eq!(fleet.handle_registration(spec("a", 0, 1), 4 * SECOND, now), Registered::New);
    assert!(fleet.expire(now + 2 * SECOND).is_empty());
    assert_eq!(ids(fleet.expire(now + 2 * SECOND + MOMENT)), ["a"]);
}

#[test]
fn another_instance_replaces_the_first_and_has_another_slot() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 2)], now);
    let old = slot(&fleet, "a");
    fleet.begin(old, Some(DpRank(0)));
    fleet.mark_lost(old, Some(DpRank(1)), now);
    let replaced = fleet.handle_registration(of_instance(spec("a", 0, 2), "j"), Duration::ZERO, now);
    assert_eq!(replaced, Registered::Replaced(old));
    assert!(fleet.get(old).is_none());
    let (new, worker) = fleet.find("a").expect("it is there");
    assert_ne!(new, old);
    assert_eq!(worker.in_flight(), 0);
    assert!(!worker.is_marked(Some(DpRank(1)), now));
    // What the old one's requests still do concerns nobody.
    fleet.note_accepted(old, None);
    fleet.end(old, Some(DpRank(0)), true);
    assert_eq!(fleet.find("a").expect("it is there").1.in_flight(), 0);
}

#[test]
fn a_deleted_registration_ends_eligibility_and_the_worker_stays_while_it_works() {
    let now = start();
    let mut fleet = fleet([spec("idle", 0, 1), spec("busy", 0, 1)], now);
    let busy = slot(&fleet, "busy");
    fleet.begin(busy, None);
    fleet.note_accepted(busy, None);
    assert!(fleet.handle_deregistration(&worker_id("idle")) && fleet.handle_deregistration(&worker_id("busy")));
    assert!(!fleet.handle_deregistration(&worker_id("busy")), "it was already");
    assert!(fleet.find("idle").is_none() && !is_eligible(&fleet, "busy", now));
    assert_eq!(fleet.to_probe().len(), 1);
    fleet.end(busy, None, true);
    assert!(fleet.find("busy").is_none());
    assert!(fleet.knows(&model("m"), now));
}

#[test]
fn a_worker_that_registers_again_goes_on() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 2)], now);
    let a = slot(&fleet, "a");
    fleet.begin(a, Some(DpRank(1)));
    fleet.handle_deregistration(&worker_id("a"));
    assert_eq!(fleet.handle_registration(spec("a", 0, 2), Duration::ZERO, now), Registered::Changed);
    assert!(is_eligible(&fleet, "a", now));
    assert_eq!((slot(&fleet, "a"), fleet.get(a).expect("it stays").in_flight()), (a, 1));
}

#[test]
fn marks_last_five_seconds() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 4)], now);
    let a = slot(&fleet, "a");
    fleet.mark_lost(a, Some(DpRank(2)), now);
    let marked = |fleet: &Fleet, rank, now| fleet.get(a).expect("it is there").is_marked(rank, now);
    assert!(marked(&fleet, Some(DpRank(2)), now) && !marked(&fleet, Some(DpRank(1)), now));
    assert!(is_eligible(&fleet, "a", now));
    assert!(!marked(&fleet, Some(DpRank(2)), now + RANK_LOST_FOR));
    fleet.mark_lost(a, None, now);
    assert!(!is_eligible(&fleet, "a", now) && is_eligible(&fleet, "a", now + RANK_LOST_FOR));
    // A registration of the same instance is no proof that the rank is back.
    fleet.handle_registration(spec("a", 0, 4), Duration::ZERO, now);
    assert!(marked(&fleet, Some(DpRank(2)), now));
}

#[test]
fn marks_of_one_worker_are_bounded() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 1000)], now);
    let a = slot(&fleet, "a");
    (0..1000).for_each(|rank| fleet.mark_lost(a, Some(DpRank(rank)), now));
    let worker = fleet.get(a).expect("it is there");
    assert_eq!(worker.spec.ranks.iter().filter(|rank| worker.is_marked(Some(*rank), now)).count(), MAX_MARKS);
    assert!(worker.is_marked(Some(DpRank(999)), now));
}

#[test]
fn two_refused_probes_in_a_row_are_loss() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 1)], now);
    let a = slot(&fleet, "a");
    assert!(fleet.to_probe().is_empty(), "nobody is probed without accepted requests");
    fleet.begin(a, None);
    fleet.note_accepted(a, None);
    assert_eq!(fleet.to_probe().len(), 1);
    // One that is heard in between begins the row anew.
    fleet.begin_probe(a);
    assert!(!fleet.handle_refused_probe(a));
    fleet.begin_probe(a);
    fleet.begin_probe(a);
    assert!(!fleet.handle_refused_probe(a));
    fleet.begin_probe(a);
    assert!(fleet.handle_refused_probe(a));
    assert!(fleet.find("a").is_none());
    assert!(!fleet.handle_refused_probe(a), "it is gone");
}

#[test]
fn plain_workers_are_not_probed_and_configured_ones_are_never_lost() {
    let now = start();
    let mut plain = spec("a", 0, 1);
    plain.kind = WorkerKind::Plain;
    let mut fleet = fleet([plain.clone()], now);
    let a = slot(&fleet, "a");
    fleet.note_accepted(a, None);
    assert!(fleet.to_probe().is_empty());
    plain.id = worker_id("configured");
    fleet.configure(plain, now);
    assert_eq!(ids(fleet.expire(now + 3600 * SECOND)), ["a"]);
    let forged = of_instance(spec("configured", 0, 1), "j");
    assert_eq!(fleet.handle_registration(forged, Duration::ZERO, now), Registered::Configured);
    assert!(!fleet.handle_deregistration(&worker_id("configured")));
}

#[test]
fn a_model_is_known_for_ten_minutes_after_its_last_worker() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 1)], now);
    fleet.expire(now + LOST_AFTER + MOMENT);
    assert!(fleet.knows(&model("m"), now + MODEL_KNOWN_FOR));
    assert!(!fleet.knows(&model("m"), now + MODEL_KNOWN_FOR + MOMENT));
    assert!(!fleet.knows(&model("n"), now));
}

#[test]
fn load_is_the_larger_of_own_and_reported() {
    let now = start();
    let mut limited = spec("a", 4, 2);
    limited.max_inflight = Some(3);
    let mut fleet = fleet([limited], now);
    let a = slot(&fleet, "a");
    let full =
        |fleet: &Fleet, rank: Option<u16>, now| fleet.get(a).expect("it is there").is_full(rank.map(DpRank), now);
    (0..2).for_each(|_| fleet.begin(a, Some(DpRank(4))));
    // A rank that it does not declare is nobody's.
    fleet.handle_report(report("a", "i", 1, &[(4, 1), (5, 3), (9, 70)]), now);
    assert_eq!([4, 5].map(|rank| full(&fleet, Some(rank), now)), [false, true]);
    assert!(!full(&fleet, None, now), "4 of 6");
    (0..4).for_each(|_| fleet.begin(a, None));
    assert!(full(&fleet, None, now), "2 on a rank and 4 without one");
    assert!(!full(&fleet, Some(4), now), "a rank's own count has none without a rank");
    let later = now + REPORT_COUNTS_FOR;
    assert!(full(&fleet, Some(5), later));
    assert!(!full(&fleet, Some(5), later + MOMENT), "the report no longer counts");
    assert!(full(&fleet, None, later + MOMENT), "the own count does");
}

#[test]
fn counts_stay_with_their_ranks_where_a_worker_changes_its_range() {
    let now = start();
    let mut fleet = fleet([spec("a", 4, 4)], now);
    let a = slot(&fleet, "a");
    for rank in [5, 6, 7] {
        fleet.begin(a, Some(DpRank(rank)));
    }
    fleet.begin(a, None);
    assert_eq!(fleet.handle_registration(spec("a", 5, 2), Duration::ZERO, now), Registered::Changed);
    let own = |fleet: &Fleet, rank| fleet.get(a).expect("it is there").own_on(DpRank(rank));
    assert_eq!([4, 5, 6, 7].map(|rank| own(&fleet, rank)), [0, 1, 1, 0]);
    fleet.end(a, Some(DpRank(7)), false);
    assert_eq!(fleet.get(a).expect("it is there").in_flight(), 3, "what went along is not taken from others");
    for rank in [Some(5), Some(6), None] {
        fleet.end(a, rank.map(DpRank), false);
    }
    assert_eq!(fleet.get(a).expect("it is there").in_flight(), 0);
}

proptest! {
    #[test]
    fn no_load_is_left_behind(steps in proptest::collection::vec((0u8..4, 0u16..12, 0u32..6, 1u32..6), 1..80)) {
        let now = start();
        let mut fleet = fleet([spec("a", 0, 4)], now);
        let a = slot(&fleet, "a");
        let mut running: Vec<(Option<DpRank>, bool)> = Vec::new();
        for (step, n, first, size) in steps {
            let ranks: RankRange = fleet.get(a).expect("one instance keeps its slot").spec.ranks;
            match step {
                0 => {
                    let rank = (n % 3 > 0).then(|| ranks.at(n.into()));
                    fleet.begin(a, rank);
                    running.push((rank, false));
                }
                1 if !running.is_empty() => {
                    let place = usize::from(n) % running.len();
                    if !std::mem::replace(&mut running[place].1, true) {
                        fleet.note_accepted(a, None);
                    }
                }
                2 if !running.is_empty() => {
                    let (rank, accepted) = running.swap_remove(usize::from(n) % running.len());
                    fleet.end(a, rank, accepted);
                }
                _ => {
                    fleet.handle_registration(spec("a", first, size), Duration::ZERO, now);
                }
            }
        }
        for (rank, accepted) in running {
            fleet.end(a, rank, accepted);
        }
        let worker = fleet.get(a).expect("it is still registered");
        prop_assert_eq!(worker.in_flight(), 0);
        prop_assert_eq!(worker.load(now), 0);
        prop_assert!(fleet.to_probe().is_empty());
    }

    #[test]
    fn a_glance_says_what_a_closer_look_says(steps in proptest::collection::vec((0u8..11, 0u16..5, 0u64..4000), 1..60)) {
        let mut now = start();
        let limited = WorkerSpec { max_inflight: Some(4), ..spec("b", 2, 2) };
        let mut fleet = fleet([spec("a", 0, 4), limited.clone()], now);
        fleet.set_full_at(FullAt { kv_percent: None, queued: Some(3) });
        for (seq, (step, n, ms)) in steps.into_iter().enumerate() {
            let id = if n % 2 == 0 { "a" } else { "b" };
            let Some((slot, _)) = fleet.find(id) else { continue };
            let rank = (n > 0).then_some(DpRank(n));
            match step {
                0 | 1 => fleet.begin(slot, rank),
                2 => fleet.end(slot, rank, ms % 2 == 0),
                3 => fleet.note_refused(slot, rank, now),
                4 => fleet.mark_lost(slot, rank, now),
                5 => fleet.note_leaving(slot, now),
                6 => {
                    let mut report = report(id, "i", seq as u64 + 1, &[(n, u32::from(n))]);
                    report.ranks[0].queued = u32::from(n);
                    fleet.handle_report(report, now);
                }
                7 => fleet.note_pick(slot, rank),
                8 => {
                    fleet.handle_deregistration(&worker_id(id));
                }
                9 => {
                    let spec = if id == "a" { spec("a", u32::from(n), 3) } else { limited.clone() };
                    fleet.handle_registration(spec, Duration::ZERO, now);
                }
                _ => {
                    now += Duration::from_millis(ms);
                    fleet.expire(now);
                }
            }
            let model = model("m");
            for listed in fleet.listed(&model) {
                let (glance, worker) = (listed.glance(), listed.worker());
                prop_assert_eq!(*glance, Glance::of(worker, glance.slot()));
                prop_assert_eq!(glance.seen(now).load, worker.load_now(now));
                if glance.seen(now).open {
                    let closer = |rank| !worker.is_marked(rank, now) && !worker.is_full(rank, now);
                    prop_assert!(worker.is_ready(now) && !worker.is_leaving(now) && closer(None));
                    prop_assert!(worker.spec.ranks.iter().all(|rank| closer(Some(rank))));
                }
            }
        }
    }
}

#[test]
fn what_others_had_when_a_worker_reported_counts_beside_what_is_ours_now() {
    let now = start();
    let mut fleet = fleet([spec("a", 0, 2)], now);
    let a = slot(&fleet, "a");
    let loads = |fleet: &Fleet, now| {
        let worker = fleet.get(a).expect("it is there");
        (worker.load_now_of(DpRank(0), now), worker.load_now_of(DpRank(1), now), worker.load_now(now))
    };
    fleet.begin(a, Some(DpRank(0)));
    fleet.handle_report(report("a", "i", 1, &[(0, 3), (1, 2)]), now);
    assert_eq!(loads(&fleet, now), (3, 2, 5), "one of the three is ours");
    (0..4).for_each(|_| fleet.begin(a, Some(DpRank(1))));
    assert_eq!(loads(&fleet, now), (3, 6, 9), "a burst counts before it was reported");
    fleet.end(a, Some(DpRank(0)), false);
    assert_eq!(loads(&fleet, now), (2, 6, 8));
    fleet.handle_report(report("a", "i", 2, &[(0, 2), (1, 4)]), now);
    assert_eq!(loads(&fleet, now), (2, 4, 6), "what was reported as ours is not counted twice");
    assert_eq!(loads(&fleet, now + REPORT_COUNTS_FOR + MOMENT), (0, 4, 4), "an old report says nothing");
}
