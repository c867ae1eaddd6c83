//! Counters of a gateway, in the Prometheus text format. Labels are bounded: the API and how a request ended.

use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::api::Api;
use crate::telemetry::trace::{Kind, Span};

/// Upper bounds of the latencies that are told apart, in seconds.
const SECONDS: [f64; 17] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// With its whole answer.
    Ok,
    /// With a status below 500: the request was wrong, or there was no room.
    Refused,
    /// With a status from 500 on, or a stream that ended in an error.
    Failed,
    /// The client went away first.
    Disconnected,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Ok, Self::Refused, Self::Failed, Self::Disconnected];

    /// That of an answer with this status.
    pub fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            500.. => Self::Failed,
            400.. => Self::Refused,
            _ => Self::Ok,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Disconnected => "disconnected",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequest {
    api: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfApi {
    api: &'static str,
}

/// All of them.
#[derive(Debug)]
pub struct Metrics {
    /// All of them.
    pub registry: Registry,
    /// By API and outcome, in the order of their lists, so that counting is no look-up.
    requests: Vec<Counter>,
    first: Vec<Histogram>,
    total: Vec<Histogram>,
    in_flight: Gauge,
    /// Bodies that went through the object store.
    pub large_bodies: Counter,
    /// Connections that are open.
    pub connections: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram = || Histogram::new(SECONDS);
        let requests = Family::<OfRequest, Counter>::default();
        let (first, total) = (
            Family::<OfApi, Histogram>::new_with_constructor(histogram as fn() -> Histogram),
            Family::<OfApi, Histogram>::new_with_constructor(histogram as fn() -> Histogram),
        );
        let mut registry = Registry::with_prefix("rankpin_gateway");
        registry.register("requests", "Requests that have ended, by API and outcome", requests.clone());
        registry.register(
            "first_reply_seconds",
            "Time to the first token, or to an answer in one piece",
            first.clone(),
        );
        registry.register("request_seconds", "Time to the end of the answer", total.clone());
        let mut metrics = Self {
            requests: Vec::new(),
            first: Api::ALL.iter().map(|api| first.get_or_create_owned(&OfApi { api: api.name() })).collect(),
            total: Api::ALL.iter().map(|api| total.get_or_create_owned(&OfApi { api: api.name() })).collect(),
            in_flight: Gauge::default(),
            large_bodies: Counter::default(),
            connections: Gauge::default(),
            registry,
        };
        for api in Api::ALL {
            for outcome in Outcome::ALL {
                let label = OfRequest { api: api.name(), outcome: outcome.name() };
                metrics.requests.push(requests.get_or_create_owned(&label));
            }
        }
        let registry = &mut metrics.registry;
        registry.register("in_flight", "Requests under way", metrics.in_flight.clone());
        registry.register("large_bodies", "Bodies sent through the object store", metrics.large_bodies.clone());
        registry.register("connections", "Open HTTP connections", metrics.connections.clone());
        metrics
    }
}

/// One request, counted when it ends: by its drop, where nothing else has ended it.
#[derive(Debug)]
pub struct Measured {
    metrics: Arc<Metrics>,
    api: Api,
    start: Instant,
    replied: bool,
    outcome: Outcome,
    /// Its span, which ends with it.
    pub span: Span,
}

impl Measured {
    /// A request that begins now; its headers may name the span that it comes from.
    pub fn begin(metrics: &Arc<Metrics>, api: Api, headers: &HeaderMap) -> Self {
        metrics.in_flight.inc();
        Self {
            metrics: Arc::clone(metrics),
            api,
            start: Instant::now(),
            replied: false,
            outcome: Outcome::Disconnected,
            span: Span::begin(Kind::Request(api.path()), |name| headers.get(name)?.to_str().ok()),
        }
    }

    /// Its first reply is there.
    pub fn replied(&mut self) {
        if !std::mem::replace(&mut self.replied, true) {
            self.metrics.first[self.api as usize].observe(self.start.elapsed().as_secs_f64());
        }
    }

    /// It ends so, unless it has ended otherwise.
    pub fn ends(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let (api, metrics) = (self.api as usize, &self.metrics);
        metrics.in_flight.dec();
        self.span.note("rankpin.outcome", self.outcome.name());
        match self.outcome {
            // Of the others, whoever knows the reason has said it.
            Outcome::Ok | Outcome::Refused | Outcome::Failed => {}
            Outcome::Disconnected => self.span.fail(self.outcome.name()),
        }
        metrics.requests[api * Outcome::ALL.len() + self.outcome as usize].inc();
        metrics.total[api].observe(self.start.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::exposition;

    #[test]
    fn places_of_the_lists_are_those_of_the_variants() {
        assert!(Api::ALL.iter().enumerate().all(|(at, api)| *api as usize == at));
        assert!(Outcome::ALL.iter().enumerate().all(|(at, outcome)| *outcome as usize == at));
    }

    #[test]
    fn a_request_is_counted_once_as_it_ended() {
        let metrics = Arc::new(Metrics::default());
        let mut whole = Measured::begin(&metrics, Api::Responses, &HeaderMap::new());
        whole.replied();
        whole.replied();
        whole.ends(Outcome::Ok);
        drop(whole);
        drop(Measured::begin(&metrics, Api::Messages, &HeaderMap::new()));
        let (_, page) = exposition::page(&metrics.registry, &HeaderMap::new());
        for line in [
            "rankpin_gateway_requests_total{api=\"responses\",outcome=\"ok\"} 1",
            "rankpin_gateway_requests_total{api=\"messages\",outcome=\"disconnected\"} 1",
            "rankpin_gateway_first_reply_seconds_count{api=\"responses\"} 1",
            "rankpin_gateway_request_seconds_count{api=\"messages\"} 1",
            "rankpin_gateway_in_flight 0",
        ] {
            assert!(page.contains(line), "{line} is missing in\n{page}");
        }
    }
}
