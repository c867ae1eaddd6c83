//! Everything at once: streams and durable jobs, while workers, routers and the servers of a cluster are killed, frozen, cut
//! off and slowed, by a seed. Whatever happens is written down, and the whole of it is checked at the end.
//!
//! `RANKPIN_CHAOS="SECONDS SEED"` makes it longer, or another one:
//! `RANKPIN_CHAOS="1800 3" cargo test --test it -- chaos::run --nocapture`.

mod check;
mod faults;
mod load;
mod system;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use self::faults::Fault;
use self::load::{History, Load};
use self::system::System;

/// Pauses between two faults.
const PAUSE_MS: std::ops::Range<u64> = 500..3000;

/// SECONDS, SEED.
fn wanted() -> (Duration, u64) {
    let Ok(text) = std::env::var("RANKPIN_CHAOS") else { return (Duration::from_secs(20), 1) };
    let words: Vec<&str> = text.split_whitespace().collect();
    let [seconds, seed] = words[..] else { panic!("RANKPIN_CHAOS=\"SECONDS SEED\"") };
    (Duration::from_secs(seconds.parse().expect("a number")), seed.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run() {
    let (duration, seed) = wanted();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut system = System::start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let history = Arc::new(History::default());
    let load = Load::start(&system, &history, &stop, seed).await;
    let began = Instant::now();
    let resident = system.resident();
    while began.elapsed() < duration {
        tokio::time::sleep(Duration::from_millis(rng.random_range(PAUSE_MS))).await;
        let fault = Fault::draw(&mut rng);
        let from = Instant::now();
        system.suffer(fault).await;
        history.lost(fault, from, Instant::now());
    }
    let now = system.resident();
    system.heal().await;
    stop.store(true, Ordering::Relaxed);
    let jobs = load.end().await;
    println!("seed {seed}, {:.0?}: {}", began.elapsed(), history.told());
    println!(
        "resident memory of the routers in KiB, and the ages of these processes: {resident:?} at first, {now:?} at the end"
    );
    check::streams(&history);
    check::sessions(&history);
    check::jobs(&system, &jobs).await;
    check::pins(&system, &history).await;
    check::gauges(&system).await;
}
