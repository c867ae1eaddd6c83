//! A hundred million sessions in partitions (`docs/scale.md`): how evenly they fall, what the mirror of one partition
//! takes, how long filling it, looking up in it and expiring all of it at once take. Real keys, and the router's own mirror.
//!
//! `cargo bench --bench scale -- SESSIONS PARTITIONS`, by default 100,000,000 and 64.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rankpin::core::hash::PinKey;
use rankpin::core::id::{DpRank, Origin, Placement, WorkerId};
use rankpin::core::partition::Partition;
use rankpin::core::pins::{Mirror, Pin};

const WORKERS: u64 = 1000;
const RANKS: u64 = 8;
const TTL: Duration = Duration::from_secs(3600);
/// Groups of routers among which partitions are dealt, before and after one more is added.
const GROUPS: (u64, u64) = (8, 9);
/// Look-ups that are timed.
const LOOK_UPS: u64 = 1_000_000;
/// Pins that one step of expiry looks at, as a router's tick does.
const EXPIRE_AT_ONCE: usize = 1_000;

fn key(session: u64) -> PinKey {
    PinKey::of("", "m", &format!("session-{session}"))
}

/// The partition of a session by its pin's key, as routers reckon it.
fn partition(key: PinKey, partitions: u64) -> u64 {
    Partition::of(key, u16::try_from(partitions).expect("few")).index() as u64
}

/// Memory of this process in bytes, where the system tells it.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    statm.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

fn main() {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<u64>().ok());
    let (sessions, partitions) = (numbers.next().unwrap_or(100_000_000), numbers.next().unwrap_or(64));
    let (counts, own) = deal(sessions, partitions);
    hand_over(&counts);
    mirror(&own);
}

/// Deals all sessions to their partitions. How many each has, and the keys of the first one's.
fn deal(sessions: u64, partitions: u64) -> (Vec<u64>, Vec<PinKey>) {
    let mut counts = vec![0_u64; usize::try_from(partitions).expect("few")];
    let mut own = Vec::new();
    for session in 0..sessions {
        let key = key(session);
        let place = partition(key, partitions);
        counts[usize::try_from(place).expect("few")] += 1;
        if place == 0 {
            own.push(key);
        }
    }
    let (least, most) = (counts.iter().min().expect("one"), counts.iter().max().expect("one"));
    let mean = sessions as f64 / partitions as f64;
    println!("{sessions} sessions in {partitions} partitions: {mean:.0} each, least {least}, most {most}");
    println!("  the fullest has {:.4} of the mean", *most as f64 / mean);
    (counts, own)
}

/// One group of routers more: how many sessions get other routers. No pin is moved for it.
fn hand_over(counts: &[u64]) {
    let (partitions, sessions) = (counts.len() as u64, counts.iter().sum::<u64>());
    let ranges = |of: u64| (0..partitions).map(move |partition| partition * of / partitions);
    let moved = ranges(GROUPS.0).zip(ranges(GROUPS.1)).zip(counts).filter(|((before, after), _)| before != after);
    let by_ranges: u64 = moved.map(|(_, count)| count).sum();
    // The least that can be done: the new group takes its share from each of the others.
    let share = partitions / GROUPS.1;
    let least: u64 = counts.iter().take(usize::try_from(share).expect("few")).sum();
    let percent = |moved: u64| 100.0 * moved as f64 / sessions as f64;
    println!("{} groups of routers become {}:", GROUPS.0, GROUPS.1);
    println!("  dealt anew in ranges {:.1} % of the sessions change their routers", percent(by_ranges));
    println!("  with {share} partitions handed to the new group {:.1} % do", percent(least));
}

/// Fills the mirror of one partition, looks up in it, and lets all of it expire.
fn mirror(keys: &[PinKey]) {
    let begun = Instant::now();
    let before = resident();
    let workers: Vec<WorkerId> =
        (0..WORKERS).map(|n| WorkerId::new(&format!("worker-{n}")).expect("a valid id")).collect();
    let mut mirror = Mirror::new(TTL, begun);
    let mut longest = Duration::ZERO;
    for (revision, key) in (1_u64..).zip(keys) {
        let worker = workers[usize::try_from(revision % WORKERS).expect("few")].clone();
        let rank = DpRank(u16::try_from(revision % RANKS).expect("few"));
        let placement = Placement { worker, rank: Some(rank) };
        let pin = Pin::new(placement, Origin::Named);
        let put = Instant::now();
        mirror.handle_value(*key, revision, Some(pin), begun);
        longest = longest.max(put.elapsed());
    }
    let pins = keys.len() as u64;
    println!("mirror of one partition: {pins} pins, filled in {:.2} s", begun.elapsed().as_secs_f64());
    println!("  the longest put takes {} µs", longest.as_micros());
    if let (Some(before), Some(after)) = (before, resident()) {
        let bytes = after.saturating_sub(before);
        println!("  {} MiB, {:.0} bytes a pin", bytes >> 20, bytes as f64 / pins as f64);
    }
    let looked = Instant::now();
    for n in 0..LOOK_UPS {
        // Far apart, so that the processor's caches don't help.
        let place = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % pins;
        black_box(mirror.get(keys[usize::try_from(place).expect("in range")], begun));
    }
    println!("  a look-up takes {:.0} ns", looked.elapsed().as_nanos() as f64 / LOOK_UPS as f64);
    let (over, mut longest, whole) = (begun + TTL, Duration::ZERO, Instant::now());
    while !mirror.is_empty() {
        let step = Instant::now();
        mirror.expire(over, EXPIRE_AT_ONCE);
        longest = longest.max(step.elapsed());
    }
    let (whole, longest) = (whole.elapsed(), longest.as_micros());
    println!(
        "  all expire in {:.2} s, {EXPIRE_AT_ONCE} at a time; the longest step takes {longest} µs",
        whole.as_secs_f64()
    );
}
