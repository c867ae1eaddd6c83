//! Several routers over one bucket, in virtual time and by a seed: what real processes can't reproduce. The decisions, the
//! fleets and the mirrors are the core's own; around them stand models of the bucket, of workers, and of the way of a
//! request as sections 5 and 6 of the protocol have it, with messages that are late, come in any order, or are lost.
//!
//! A seed that once failed is kept in [`FAILED`].

mod bucket;
mod router;
mod world;

use std::time::Duration;

use self::world::{End, Setup, World};

/// Seeds of runs that have failed once.
const FAILED: [u64; 0] = [];
/// Runs of each kind.
const RUNS: u64 = 60;

const CALM: Setup = Setup { routers: 3, workers: 3, sessions: 8, turns: 60, kills: 0, lost_of_thousand: 0, late: 20 };

fn seeds() -> impl Iterator<Item = u64> {
    FAILED.into_iter().chain(0..RUNS)
}

fn run(setup: Setup, seed: u64) -> World {
    let mut world = World::new(setup, seed);
    world.run();
    // Nothing is left of what has ended, whatever happened: no count, no claim, no waiting request.
    assert_eq!(world.leaked(), Vec::<String>::new(), "seed {seed}");
    assert!(world.ends().iter().all(Option::is_some), "seed {seed}: each request has one end");
    // Every router sees what the bucket has.
    assert_eq!(world.disagreements(), Vec::<String>::new(), "seed {seed}");
    world
}

#[test]
fn routers_agree_on_every_session_whatever_the_delays() {
    for late in [0, 20, 700] {
        for seed in seeds() {
            let world = run(Setup { late, ..CALM }, seed);
            assert!(world.ends().iter().all(|end| *end == Some(End::Served)), "seed {seed}: {:?}", world.ends());
            assert_eq!(world.moves().len(), 0, "seed {seed}: no session is ever on two ranks");
            assert_eq!(world.pins_that_lie(), Vec::<String>::new(), "seed {seed}");
        }
    }
}

#[test]
fn a_killed_worker_moves_its_own_sessions_and_no_others() {
    let mut moved = 0;
    for seed in seeds() {
        let world = run(Setup { kills: 3, ..CALM }, seed);
        for (session, from, to, at) in world.moves() {
            moved += 1;
            assert!(
                world.was_lost(&from, at),
                "seed {seed}: session {session} went from {from} to {to} without a loss"
            );
        }
        assert_eq!(world.pins_that_lie(), Vec::<String>::new(), "seed {seed}");
    }
    assert!(moved > RUNS / 4, "the runs have moves: {moved}");
}

#[test]
fn lost_messages_cost_time_and_never_a_request_its_end() {
    let mut served = 0;
    for seed in seeds() {
        let world = run(Setup { kills: 2, lost_of_thousand: 30, late: 100, ..CALM }, seed);
        for (session, from, to, at) in world.moves() {
            assert!(
                world.was_lost(&from, at),
                "seed {seed}: session {session} went from {from} to {to} without a loss"
            );
        }
        served += world.ends().iter().filter(|end| **end == Some(End::Served)).count();
    }
    let all = usize::try_from(RUNS).expect("few") * CALM.turns;
    assert!(served * 10 > all * 9, "{served} of {all} were served");
}

#[test]
fn a_run_is_the_same_for_the_same_seed() {
    let told = |seed| run(Setup { kills: 3, lost_of_thousand: 30, ..CALM }, seed).told();
    assert_eq!(told(7), told(7));
    assert_ne!(told(7), told(8));
}

/// Time that a message may take is up to this in a calm run.
fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
