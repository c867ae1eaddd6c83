//! What decisions weigh: the weights of the policy `kv`, and the limit of recent work.

use std::time::Duration;

use super::setting::{self, Sources};
use super::{ConfigError, DAY, Given, RouterConfig};
use crate::core::mode::{AffinityMode, PolicyKind};
use crate::core::weighing::Weighing;

/// Smallest and largest weight.
pub const WEIGHT: (f64, f64) = (0.0, 1000.0);
/// Lowest and highest temperature; at 100 prompts costs no longer matter.
pub const TEMPERATURE: (f64, f64) = (0.0, 100.0);
/// Lowest and highest limit of recent work, in means.
pub const LIMIT: (f64, f64) = (1.01, 100.0);
/// Shortest and longest half-life of work.
pub const HALF_LIFE: (Duration, Duration) = (Duration::from_secs(1), DAY.saturating_mul(7));

/// What is configured.
pub(super) fn weighing(sources: &Sources<'_>) -> Result<Weighing, ConfigError> {
    let limit = sources.get(&setting::BALANCE_LIMIT);
    Ok(Weighing {
        prefill: number(&sources.get(&setting::KV_PREFILL_WEIGHT), WEIGHT)?,
        load: number(&sources.get(&setting::KV_LOAD_WEIGHT), WEIGHT)?,
        temperature: number(&sources.get(&setting::KV_TEMPERATURE), TEMPERATURE)?,
        limit: if limit.text == "off" { None } else { Some(number(&limit, LIMIT)?) },
    })
}

fn number(given: &Given, (least, most): (f64, f64)) -> Result<f64, ConfigError> {
    let parsed = given.text.parse().ok().filter(|number: &f64| (least..=most).contains(number));
    parsed.ok_or_else(|| given.refuse(format!("allowed is a number from {least} to {most}")))
}

/// Weights that nothing weighs by.
pub(super) fn refuse_what_has_no_effect(sources: &Sources<'_>, config: &RouterConfig) -> Result<(), ConfigError> {
    let kv = config.policy == PolicyKind::Kv;
    if !kv {
        for setting in [&setting::KV_PREFILL_WEIGHT, &setting::KV_LOAD_WEIGHT, &setting::KV_TEMPERATURE] {
            if let Some(given) = sources.find(setting) {
                return Err(given.no_effect("only the policy kv weighs; choose it, or leave this out"));
            }
        }
    }
    let soft = config.affinity == AffinityMode::Soft;
    if let (false, Some(given)) = (soft || kv, sources.find(&setting::BALANCE_LIMIT)) {
        return Err(given.no_effect("only soft affinity and the policy kv have a limit of recent work; leave this out"));
    }
    let by_work = match config.policy {
        PolicyKind::RoundRobin | PolicyKind::Random | PolicyKind::PowerOfTwo => soft,
        PolicyKind::LeastLoaded | PolicyKind::DeviceAwareWeighted | PolicyKind::Kv => true,
    };
    if let (false, Some(given)) = (by_work, sources.find(&setting::BALANCE_HALF_LIFE)) {
        return Err(given.no_effect("nothing goes by recent work here; leave this out"));
    }
    Ok(())
}
