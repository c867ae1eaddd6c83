//! How decisions weigh what is cached against what is busy. `docs/policies.md` has the formulas.

/// The weights of the policy `kv`, and the limit of soft affinity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighing {
    /// Weight of tokens still to be prefilled.
    pub prefill: f64,
    /// Weight of the load of a placement.
    pub load: f64,
    /// How much chance there is in the choice, in prompts; 0: the least cost.
    pub temperature: f64,
    /// How many times the fleet's mean of recent work a placement may have before others are preferred, and soft
    /// affinity moves its sessions; `None` for no limit.
    pub limit: Option<f64>,
}

impl Weighing {
    /// Where nothing is configured.
    pub const DEFAULT: Self = Self { prefill: 1.0, load: 1.0, temperature: 0.0, limit: Some(1.12) };
}

impl Default for Weighing {
    fn default() -> Self {
        Self::DEFAULT
    }
}
