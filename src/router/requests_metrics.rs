//! Counters of requests by model and outcome. Models are named by whoever registers or asks, so that their number has a
//! bound of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use foldhash::fast::RandomState;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::series::{Cells, family};
use crate::core::error::RouteError;
use crate::core::id::Model;
use crate::wire::event::{Finished, Outcome};

/// Most models that have a label of their own; all others share `other`.
pub const MAX_MODELS: usize = 256;
/// The label of those.
const OTHER: &str = "other";

/// How requests end: as workers say, or with an error of the router (protocol section 6.1).
const OUTCOMES: [&str; 21] = [
    "ok",
    "error",
    "cancelled",
    "invalid_request",
    "invalid_session_id",
    "rank_out_of_range",
    "unknown_model",
    "unknown_worker",
    "unknown_pool",
    "pin_conflict",
    "payload_too_large",
    "overloaded",
    "no_worker",
    "worker_lost",
    "shutting_down",
    "accept_timeout",
    "deadline",
    "undecided",
    "permit_expired",
    "refused_by_worker",
    "unknown",
];

/// Model and outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabel {
    model: String,
    outcome: &'static str,
}

type OfModel = Cells<RequestLabel, { OUTCOMES.len() }>;

/// All of them.
#[derive(Debug)]
pub struct RequestMetrics {
    family: Family<RequestLabel, Counter>,
    models: RwLock<HashMap<Model, Arc<OfModel>, RandomState>>,
    other: OfModel,
    /// Requests that ended before it was known for which model they are.
    unknown: OfModel,
}

impl RequestMetrics {
    /// All at zero.
    pub fn register(registry: &mut Registry) -> Self {
        let help = "Requests ended, by model and outcome: ok, error or cancelled as the worker says, or the error code";
        let family = family(registry, "requests", help);
        let cells = || Cells::new(family.clone());
        Self { other: cells(), unknown: cells(), models: RwLock::default(), family }
    }

    /// A request has ended at its worker.
    pub fn finished(&self, model: &Model, finished: &Finished) {
        let number = match finished.outcome {
            Outcome::Ok => 0,
            Outcome::Error => 1,
            Outcome::Cancelled => 2,
        };
        self.count(model, number, true);
    }

    /// A request has ended in an error of the router. `served`: whether anybody serves the model, asked only of one that
    /// has no label yet.
    pub fn failed(&self, model: Option<&Model>, error: &RouteError, served: impl FnOnce(&Model) -> bool) {
        // A worker's own code words are not bounded.
        let outcome = error.own_code().unwrap_or("refused_by_worker");
        let number = OUTCOMES.iter().position(|known| *known == outcome).unwrap_or(OUTCOMES.len() - 1);
        let Some(model) = model else {
            let label = || RequestLabel { model: String::new(), outcome: OUTCOMES[number] };
            return self.unknown.inc(number, label);
        };
        let known = self.read(model).is_some();
        self.count(model, number, known || served(model));
    }

    fn count(&self, model: &Model, number: usize, labelled: bool) {
        let label = |model: &str| RequestLabel { model: model.to_owned(), outcome: OUTCOMES[number] };
        match self.read(model).or_else(|| if labelled { self.add(model) } else { None }) {
            Some(cells) => cells.inc(number, || label(model.as_str())),
            None => self.other.inc(number, || label(OTHER)),
        }
    }

    fn read(&self, model: &Model) -> Option<Arc<OfModel>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).get(model).cloned()
    }

    fn add(&self, model: &Model) -> Option<Arc<OfModel>> {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        if models.len() >= MAX_MODELS {
            return None;
        }
        let cells = models.entry(model.clone()).or_insert_with(|| Arc::new(Cells::new(self.family.clone())));
        Some(Arc::clone(cells))
    }

    /// What was counted, by outcome.
    pub fn by_outcome(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        for cells in models.values().map(Arc::as_ref).chain([&self.other, &self.unknown]) {
            for (label, count) in cells.counts() {
                *counts.entry(label.outcome.to_owned()).or_default() += count;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_an_outcome_and_models_a_bound() {
        let metrics = RequestMetrics::register(&mut Registry::default());
        let model = |n: usize| Model::new(&format!("m{n}")).expect("valid");
        let error = RouteError::UnknownModel("x".into());
        metrics.failed(Some(&model(0)), &error, |_| false);
        metrics.failed(None, &error, |_| panic!("there is none to ask for"));
        assert_eq!(metrics.by_outcome()["unknown_model"], 2);
        assert!(metrics.models.read().expect("whole").is_empty(), "a model that nobody serves gets no label");
        for n in 0..2 * MAX_MODELS {
            metrics.finished(&model(n), &Finished::outcome(Outcome::Ok));
        }
        assert_eq!(metrics.models.read().expect("whole").len(), MAX_MODELS);
        assert_eq!(metrics.by_outcome()["ok"], 2 * MAX_MODELS as u64);
    }
}
