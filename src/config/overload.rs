//! What counts as overloaded.

use super::setting::{self, Given, Sources};
use super::{ConfigError, count};
use crate::core::fleet::FullAt;

/// Most requests of one model that may be let wait: as many as a router can have under way at all.
pub const MAX_WAITING: usize = 65_536;
/// Most requests queued in an engine that may be configured as its limit.
const MAX_FULL_AT_QUEUED: usize = 1_000_000;

/// How many requests of one model wait.
pub(super) fn max_waiting(sources: &Sources<'_>) -> Result<usize, ConfigError> {
    count(&sources.get(&setting::MAX_WAITING), MAX_WAITING)
}

/// What reports count as full.
pub(super) fn full_at(sources: &Sources<'_>) -> Result<FullAt, ConfigError> {
    Ok(FullAt {
        kv_percent: unless_off(&sources.get(&setting::FULL_AT_KV_USE), percent)?,
        queued: unless_off(&sources.get(&setting::FULL_AT_QUEUED), queued)?,
    })
}

fn unless_off<T>(given: &Given, parse: impl Fn(&Given) -> Result<T, ConfigError>) -> Result<Option<T>, ConfigError> {
    if given.text == "off" { Ok(None) } else { parse(given).map(Some) }
}

fn percent(given: &Given) -> Result<u32, ConfigError> {
    parse_percent(&given.text).ok_or_else(|| given.refuse("allowed are 1% to 100%, and off".into()))
}

/// A share, from `1%` to `100%`.
pub(super) fn parse_percent(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    digits?.parse().ok().filter(|percent| (1..=100).contains(percent))
}

fn queued(given: &Given) -> Result<u32, ConfigError> {
    let digits = given.text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = given.text.parse::<usize>().ok().filter(|queued| digits && (1..=MAX_FULL_AT_QUEUED).contains(queued));
    let queued = parsed.and_then(|queued| u32::try_from(queued).ok());
    queued.ok_or_else(|| given.refuse(format!("allowed is a whole number from 1 to {MAX_FULL_AT_QUEUED}, and off")))
}
