//! The pure core: what is placed where, and why.
//!
//! Nothing here knows of NATS, tokio, clocks or logs. Time and randomness come in as arguments, decisions go
//! out as values, so every choice can be replayed from a seed and compared in a test.

pub mod error;
pub mod hash;
pub mod id;
pub mod load;
pub mod mode;
pub mod session;
pub mod worker;
