//! The two settings that shape every decision.

/// How strictly a session stays where it is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffinityMode {
    /// A session never leaves its placement while that is eligible.
    Hard,
    /// A session prefers its placement, and moves when that is overloaded.
    Soft,
    /// No session is read.
    Off,
}

/// Which policy chooses among candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    /// The one that was chosen longest ago.
    RoundRobin,
    /// Any, with equal chances.
    Random,
}
