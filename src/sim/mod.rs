//! Simulated engines.
