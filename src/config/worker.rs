//! `[[worker]]` tables: workers that can't register themselves.

use std::collections::BTreeSet;

use super::ConfigError;
use super::file::{Table, WorkerEntry};
use crate::core::id::Namespace;
use crate::core::worker::WorkerSpec;
use crate::wire::registration::Registration;

/// What stands in a subject for the rank.
pub const RANK_PLACEHOLDER: &str = "{rank}";
/// The instance of a worker from the configuration; it has no process that we know of.
const INSTANCE: &str = "configured";
/// Longest subject of a worker, in bytes.
const MAX_SUBJECT_BYTES: usize = 256;

/// All workers of the file, checked by the rules of a registration and those of this file.
pub(super) fn all(tables: &[Table<WorkerEntry>], namespace: &Namespace) -> Result<Vec<WorkerSpec>, ConfigError> {
    let mut ids = BTreeSet::new();
    let mut specs = Vec::with_capacity(tables.len());
    for table in tables {
        let refuse = |problem: String| ConfigError::table(&table.origin, "worker", &table.entry.id, problem);
        let spec = one(&table.entry, namespace).map_err(refuse)?;
        if !ids.insert(spec.id.clone()) {
            return Err(refuse("there is another [[worker]] with this id; every id stands for one worker".into()));
        }
        specs.push(spec);
    }
    Ok(specs)
}

fn one(entry: &WorkerEntry, namespace: &Namespace) -> Result<WorkerSpec, String> {
    let mut registration = Registration::new(&entry.id, INSTANCE, &[], 0, 1);
    registration.models.clone_from(&entry.models);
    registration.dp_start = entry.dp_start.unwrap_or(registration.dp_start);
    registration.dp_size = entry.dp_size.unwrap_or(registration.dp_size);
    registration.weight = entry.weight.unwrap_or(registration.weight);
    registration.max_inflight = entry.max_inflight;
    registration.plain = true;
    if let Some(pool) = &entry.pool {
        registration.pool.clone_from(pool);
    }
    if let Some(device) = &entry.device {
        registration.device.clone_from(device);
    }
    let mut spec = registration.check().map_err(|problem| match problem.strip_prefix("field worker: ") {
        Some(rest) => format!("field id: {rest}"),
        None => problem,
    })?;
    if spec.models.len() != entry.models.len() {
        return Err("field models: names a model twice".into());
    }
    check_subject(&entry.subject, registration.dp_size, namespace)
        .map_err(|problem| format!("field subject: {problem}"))?;
    spec.subject = Some(entry.subject.as_str().into());
    Ok(spec)
}

fn check_subject(subject: &str, dp_size: u32, namespace: &Namespace) -> Result<(), String> {
    if subject.len() > MAX_SUBJECT_BYTES {
        return Err(format!("is {} bytes long, the limit is {MAX_SUBJECT_BYTES}", subject.len()));
    }
    let plain = subject.replace(RANK_PLACEHOLDER, "0");
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>' | '{' | '}');
    if plain.contains(bad) || plain.split('.').any(str::is_empty) {
        return Err(format!(
            "is {subject:?}; allowed are tokens with dots between, without spaces and wildcards, \
             and {RANK_PLACEHOLDER} where the rank's number belongs"
        ));
    }
    if plain.starts_with('$') {
        return Err(format!("is {subject:?}; subjects that begin with $ are the server's own"));
    }
    let is_intake = ["request", "trusted"].iter().any(|kind| {
        let intake = format!("{namespace}.{kind}");
        plain.strip_prefix(&intake).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    if is_intake {
        return Err(format!("is {subject:?}; there routers take requests, and would send them to themselves"));
    }
    match (dp_size, subject.contains(RANK_PLACEHOLDER)) {
        (2.., false) => Err(format!(
            "holds no {RANK_PLACEHOLDER}, so the {dp_size} ranks could have no effect; add it, or leave dp_size out"
        )),
        (..=1, true) => Err(format!(
            "holds {RANK_PLACEHOLDER}, which can have no effect: a worker with one rank is never sent a rank"
        )),
        (2.., true) | (..=1, false) => Ok(()),
    }
}
