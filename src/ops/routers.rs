//! The routers of a namespace, found by the NATS service protocol: nobody has to know their addresses.

use std::time::Duration;

use super::OpsError;
use crate::core::id::Namespace;
use crate::nats::Link;
use crate::nats::ask::AskError;
use crate::wire::Encoding;
use crate::wire::service::{MAX_ANSWER_BYTES, NAME, PREFIX, RouterState, Stats, Verb};

/// What every router of the namespace says of itself, by id. Those that take longer than `wait` are left out; that this user
/// may not ask them is an error.
pub async fn ask(link: &Link, namespace: &Namespace, wait: Duration) -> Result<Vec<RouterState>, OpsError> {
    let subject = format!("{PREFIX}.{}.{NAME}", Verb::Stats.word());
    // What was told of earlier questions is not about this one.
    let _ = link.check_permissions();
    let answers = match link.ask_all(&subject, wait).await {
        Ok(answers) => answers,
        Err(AskError::Connect(error)) => return Err(error.into()),
        Err(AskError::NoResponders | AskError::NoAnswer) => Vec::new(),
    };
    if answers.is_empty() {
        link.check_permissions()?;
    }
    let read = answers.into_iter().filter(|answer| answer.len() <= MAX_ANSWER_BYTES);
    let states =
        read.filter_map(|answer| Encoding::Json.read::<Stats>(&answer)?.endpoints.into_iter().find_map(|e| e.data));
    let mut states: Vec<RouterState> = states.filter(|state| state.namespace == namespace.as_str()).collect();
    states.sort_by(|a, b| a.router.cmp(&b.router));
    Ok(states)
}
