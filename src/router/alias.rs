//! A request for an alias: which model it gets, before anything else is done with it (protocol section 3.3).

use std::time::Instant;

use super::route::Request;
use super::state::{Keys, Router};
use crate::core::alias::Asked;
use crate::core::error::RouteError;
use crate::core::hash::PinKey;
use crate::core::id::{Model, Origin, Tenant};
use crate::core::partition::Partition;
use crate::wire::identity::Identity;

/// The alias that a request has named.
#[derive(Debug)]
pub struct Alias {
    /// Its name.
    pub(super) name: Model,
    /// Whether it was named here, and not to a router at the global level.
    here: bool,
    /// The other models that it might have got, with the keys under which its pin would stand there: asked of the bucket
    /// once, where the mirror has none.
    others: Vec<(Model, PinKey)>,
}

impl Alias {
    /// One that a router at the global level was asked for, and has led to a model.
    pub fn passed_on(name: Model) -> Self {
        Self { name, here: false, others: Vec::new() }
    }
}

/// The request as one for the model that it gets; `worker` is the one that it asks for.
pub fn resolve(
    router: &Router,
    partition: Partition,
    tenant: &Tenant,
    worker: Option<&str>,
    identity: Identity,
) -> Result<(Identity, Option<Alias>), RouteError> {
    let Some(targets) = router.config.aliases.get(&identity.model) else { return Ok((identity, None)) };
    let under: Vec<_> = targets.iter().map(|target| identity.under(&target.model)).collect();
    let keys: Vec<Vec<PinKey>> =
        under.iter().map(|one| one.lookups().map(|id| PinKey::new(tenant, &one.model, &id)).collect()).collect();
    let by = identity.constant();
    let asked = Asked { targets, keys: &keys, by: by.as_ref(), worker };
    let Some(choice) = router.state().choose(partition, asked, Instant::now()) else {
        let models = targets.iter().map(|target| format!("{:?}", target.model.as_str())).collect::<Vec<_>>().join(", ");
        return Err(RouteError::UnknownAlias { alias: identity.model.as_str().to_owned(), models });
    };
    let name = identity.model;
    // What is derived from the text is pinned under many keys; its hash says the same to every router.
    let one_key = identity.prefixes.is_none() && identity.session.is_some() && !choice.pinned;
    let mut others = Vec::new();
    let mut chosen = None;
    for (index, one) in under.into_iter().enumerate() {
        if index == choice.index {
            chosen = Some(one);
        } else if one_key && let Some(key) = keys[index].first() {
            others.push((one.model, *key));
        }
    }
    let identity = chosen.expect("a choice is one of the targets");
    router.metrics.alias_resolved(&name, &identity.model);
    Ok((identity, Some(Alias { name, here: true, others })))
}

impl Request {
    /// The model that this router was asked for: the alias, where that is one of its own.
    pub(super) fn asked_for(&self) -> &Model {
        self.alias.as_ref().filter(|alias| alias.here).map_or(&self.ask.model, |alias| &alias.name)
    }

    /// The mirror may not know yet that the session was given another of the alias's models: its pins are read once,
    /// before anything is done with the request.
    pub(super) async fn recheck_alias(&mut self) {
        let known = self.router.state().look_up(self.partition, &self.keys, Instant::now()).1.is_some();
        if known || self.attempt > 0 || self.claimed.is_some() {
            return;
        }
        let others = self.alias.as_mut().map(|alias| std::mem::take(&mut alias.others)).unwrap_or_default();
        for (model, key) in others {
            if !self.router.read_pin(self.partition, key).await {
                return;
            }
            let keys = match self.ask.session.as_ref().map(|session| session.origin) {
                Some(Origin::Named) => Keys::Named(key),
                Some(Origin::Derived) => Keys::Derived([key].into()),
                None => return,
            };
            let pinned = self.router.state().look_up(self.partition, &keys, Instant::now()).1.is_some();
            if pinned {
                self.ask.model = model;
                self.keys = keys;
                return;
            }
        }
    }
}
