//! Simulated engines on the worker library: one with a real prefix cache per rank, and an echo to measure with.
//!
//! The way of a request: [`prompt`] renders its body to text, a rank's [`cache`] says how much of it is known,
//! [`rank`] lets it wait, prefill and decode, [`answer`] writes what is generated in the shape of the API.

pub mod answer;
mod cache;
mod echo;
mod engine;
mod prompt;
mod rank;
mod script;
mod speech;
mod tree;

pub use echo::Echo;
pub use engine::{RANK_HEADER, SimEngine, SimOptions};
pub use script::Script;

/// A count from a floating-point number: the whole part, within what the type holds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "such a cast saturates, which is meant")]
fn count(number: f64) -> u64 {
    number as u64
}
