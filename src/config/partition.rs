//! Partitions: into how many the sessions of a namespace are divided, and which of them a router serves.

use super::setting::{Given, Setting, Sources};
use super::{ConfigError, RouterConfig};
use crate::core::mode::AffinityMode;
use crate::core::partition::{MAX_PARTITIONS, Partitions};

pub(super) static PARTITIONS: Setting = Setting::new(
    "partitions",
    "COUNT",
    "1",
    "Into how many partitions the sessions of the namespace are divided, each with a bucket of pins of its own; chosen when \
     the namespace is made, the same in every router (docs/scale.md)",
);
pub(super) static PARTITION: Setting = Setting::optional(
    "partition",
    "LIST",
    "Which of them this router serves and mirrors, from 0, such as 0-15 or 0,3,7-9; without it, all",
);

/// How many partitions a setting says.
pub(super) fn count(given: &Given) -> Result<u16, ConfigError> {
    let count = super::count(given, MAX_PARTITIONS.into()).ok().and_then(|count| u16::try_from(count).ok());
    count
        .filter(|count| *count > 0)
        .ok_or_else(|| given.refuse(format!("allowed is a whole number from 1 to {MAX_PARTITIONS}")))
}

/// All of them, and those that are to be served.
pub(super) fn read(sources: &Sources<'_>) -> Result<Partitions, ConfigError> {
    let count = count(&sources.get(&PARTITIONS))?;
    match sources.find(&PARTITION) {
        Some(list) => Partitions::parse(&list.text, count).map_err(|problem| list.refuse(problem)),
        None => Ok(Partitions::all(count)),
    }
}

/// Refuses what can have no effect beside the rest of the configuration.
pub(super) fn refuse_what_has_no_effect(sources: &Sources<'_>, config: &RouterConfig) -> Result<(), ConfigError> {
    let divided = config.partitions.is_divided();
    if let (false, Some(given)) = (divided, sources.find(&PARTITION)) {
        return Err(given.no_effect("there is one partition; say with partitions how many there are, or leave it out"));
    }
    if let (AffinityMode::Off, true, Some(given)) = (config.affinity, divided, sources.find(&PARTITIONS)) {
        return Err(given.no_effect("with affinity off nothing is pinned; leave one of the two out"));
    }
    Ok(())
}
