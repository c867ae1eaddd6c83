//! A request for an alias: which models it stands for, and which of them this request gets.

use crate::config::RouterConfig;
use crate::core::alias::{self, Target};
use crate::core::id::SessionId;
use crate::wire::identity::Identity;

/// A request under each model that its alias leads to.
#[derive(Debug)]
pub(super) struct Under {
    pub(super) targets: Vec<Target>,
    /// The request as one for each of them.
    pub(super) identities: Vec<Identity>,
    /// What stays the same from turn to turn, by which the hash goes.
    pub(super) by: Option<SessionId>,
    /// Which one the hash of the session gives, where no pin says otherwise; the first one without a session.
    pub(super) expected: usize,
    /// The same in words.
    pub(super) note: String,
}

/// `None` where the model is no alias.
pub(super) fn under(identity: &Identity, config: &RouterConfig) -> Option<Under> {
    let targets = config.aliases.get(&identity.model)?.clone();
    let by = identity.constant();
    let by_hash = by.as_ref().and_then(|session| alias::by_hash(&targets, session));
    let expected = by_hash.unwrap_or(0);
    let total: f64 = targets.iter().map(|target| target.weight).sum();
    let share = |target: &Target| format!("{:?} ({:.1} %)", target.model.as_str(), 100.0 * target.weight / total);
    let all = targets.iter().map(share).collect::<Vec<_>>().join(", ");
    let name = identity.model.as_str();
    let chosen = targets[expected].model.as_str();
    let note = match by_hash {
        Some(_) => format!(
            "{name:?} is an alias of {all}: the session stays on the model under which it is pinned; where it is pinned under \
             none, its hash gives {chosen:?}, of which the keys here are"
        ),
        None => format!("{name:?} is an alias of {all}: without a session, chance decides on each request"),
    };
    let identities = targets.iter().map(|target| identity.under(&target.model)).collect();
    Some(Under { targets, identities, by, expected, note })
}
