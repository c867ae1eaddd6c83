//! The pure core: what is placed where, and why.
//!
//! Nothing here knows of NATS, tokio, clocks or logs. Time and randomness come in as arguments, decisions go
//! out as values, so every choice can be replayed from a seed and compared in a test.

pub mod alias;
pub mod ask;
pub mod candidates;
pub mod decide;
pub mod error;
pub mod fleet;
pub mod hash;
pub mod id;
pub mod job;
pub mod kv;
pub mod load;
pub mod mode;
pub mod partition;
pub mod pins;
pub mod policy;
pub mod pool;
pub mod queue;
pub mod session;
#[cfg(test)]
mod simulated;
pub mod weighing;
pub mod worker;

#[cfg(test)]
mod testing;
