//! The router against a real server: each test plays frontends and workers, and speaks nothing but the protocol.

mod accept;
mod aliases;
mod cancel;
mod carriage;
mod chains;
mod claims;
mod decide;
mod derived;
mod errors;
mod failover;
mod hints;
mod hostile;
mod hostile_bodies;
mod kv;
mod leave;
mod levels;
mod lost;
mod outage;
mod overload;
mod partitions;
mod permissions;
mod pins;
mod placement;
mod plain;
mod policies;
mod pooled;
mod queue;
mod soft;
mod sources;
mod subagents;

use xxhash_rust::xxh3::xxh3_64;

/// The rank that a session hashes to on a worker with these ranks (protocol section 5).
pub fn hashed(session: &str, start: u64, size: u64) -> u64 {
    start + xxh3_64(session.as_bytes()) % size
}

/// Sessions that hash to one place in a range of this size.
pub fn sessions_hashing_to(place: u64, size: u64) -> impl Iterator<Item = String> {
    (0..).map(|n| format!("session-{n}")).filter(move |session| hashed(session, 0, size) == place)
}

/// `worker/rank` of a session by the hash.
pub fn hashed_at(worker: &str, session: &str, start: u64, size: u64) -> String {
    format!("{worker}/{}", hashed(session, start, size))
}
