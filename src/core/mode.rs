//! The settings that shape every decision, each with the names that a person writes.

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
    /// The one whose turn it is.
    RoundRobin,
    /// Any, by its weight.
    Random,
    /// The less loaded of two by chance.
    PowerOfTwo,
    /// The least loaded of all.
    LeastLoaded,
    /// A group of devices by its weight, and in it the least loaded.
    DeviceAwareWeighted,
    /// The rank where prefill and load cost least, by what it is expected to have cached.
    Kv,
}

/// How a named session gets its rank on the worker that was chosen for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankChoice {
    /// By the hash of the session: every router computes the same.
    Hash,
    /// The least loaded one; the pin makes the routers agree.
    LeastLoaded,
}

/// Whether a router makes buckets and streams that are missing (protocol section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provision {
    /// Makes what is missing, and never changes what is there.
    Auto,
    /// Makes nothing: an operator has made them, and the router may lack the permission.
    Never,
}

/// Where the streams of durable jobs are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamStorage {
    /// On disk: jobs survive the server.
    File,
    /// In memory.
    Memory,
}

/// Whether what frontends say of themselves is believed (the headers marked * in protocol section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontendTrust {
    /// On every request.
    Everywhere,
    /// Only on requests that come on `{ns}.trusted.{model}`.
    TrustedSubjectOnly,
}

impl AffinityMode {
    /// Each mode with its name.
    pub const NAMED: [(&'static str, Self); 3] = [("hard", Self::Hard), ("soft", Self::Soft), ("off", Self::Off)];
}

impl PolicyKind {
    /// Each policy with its name.
    pub const NAMED: [(&'static str, Self); 6] = [
        ("round-robin", Self::RoundRobin),
        ("random", Self::Random),
        ("power-of-two", Self::PowerOfTwo),
        ("least-loaded", Self::LeastLoaded),
        ("device-aware-weighted", Self::DeviceAwareWeighted),
        ("kv", Self::Kv),
    ];
}

impl RankChoice {
    /// Each choice with its name.
    pub const NAMED: [(&'static str, Self); 2] = [("hash", Self::Hash), ("least-loaded", Self::LeastLoaded)];
}

impl Provision {
    /// Each choice with its name.
    pub const NAMED: [(&'static str, Self); 2] = [("auto", Self::Auto), ("never", Self::Never)];
}

impl StreamStorage {
    /// Each choice with its name.
    pub const NAMED: [(&'static str, Self); 2] = [("file", Self::File), ("memory", Self::Memory)];
}
