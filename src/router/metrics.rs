//! Counters of a router, in the Prometheus text format. Labels are bounded: never a session, a request or a frontend.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::jobs::JobMetrics;
use super::queue_metrics::QueueMetrics;
use crate::core::ask::Failure;
use crate::core::decide::{Decision, PinStep};
use crate::core::error::RouteError;
use crate::core::id::Model;
use crate::wire::event::{Finished, Outcome};

/// How often one kind of warning is written to the log at most.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Every kind of message that may be unreadable.
const MALFORMED: [&str; 11] = [
    "router_kv",
    "kv",
    "job",
    "job_delivery",
    "load",
    "late_request",
    "inbox",
    "event",
    "pin_key",
    "pin",
    "registration",
];

/// One label: what ended a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    outcome: &'static str,
}

/// Why a request went where it went.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DecisionLabel {
    reason: &'static str,
    cause: &'static str,
}

/// How an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FailureLabel {
    failure: &'static str,
}

/// Which model an alias has led to: both from the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AliasLabel {
    alias: String,
    model: String,
}

/// What was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabel {
    kind: &'static str,
}

/// All counters.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Requests taken in.
    pub admitted: Counter,
    /// Attempts sent to workers.
    pub dispatched: Counter,
    /// Requests dropped because of where they wanted their replies.
    pub dropped_reply: Counter,
    /// Messages that could not be handed to the NATS client.
    pub unsent: Counter,
    /// Races for a pin that another router won.
    pub claims_lost: Counter,
    /// Pins read from the stream's leader.
    pub leader_reads: Counter,
    /// Messages dropped because of a fault in the router itself: always 0, or a bug.
    pub faults: Counter,
    /// NATS clients that were killed by a message and built anew.
    pub rebuilt: Counter,
    /// Of the queue.
    pub queue: QueueMetrics,
    /// Messages of workers about their caches that were taken in.
    pub cache_events: Counter,
    /// Durable jobs.
    pub jobs: JobMetrics,
    /// Gauges, set when they are read.
    pub gauges: Gauges,
    outcomes: Family<OutcomeLabel, Counter>,
    decisions: Family<DecisionLabel, Counter>,
    failures: Family<FailureLabel, Counter>,
    pins_written: Family<KindLabel, Counter>,
    malformed: Family<KindLabel, Counter>,
    aliases: Family<AliasLabel, Counter>,
    derived_unpinned: Counter,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    warned: Mutex<Option<Instant>>,
}

/// Values of the moment.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Requests under way.
    pub live: Gauge,
    /// Of these, not accepted yet.
    pub waiting: Gauge,
    /// Of these, waiting for room at a worker.
    pub queued: Gauge,
    /// Models for which any waits.
    pub models_queued: Gauge,
    /// Workers known.
    pub workers: Gauge,
    /// Pins mirrored.
    pub pins: Gauge,
    /// Derived pins mirrored.
    pub derived_pins: Gauge,
    /// Prefixes that ranks are expected to have cached.
    pub cached_prefixes: Gauge,
    /// Whether the pins bucket is unreachable.
    pub bucket_unreachable: Gauge,
    /// Pins to be written once the bucket is back.
    pub pins_owed: Gauge,
    /// Full subscriptions that the client told of.
    pub slow_consumers: Gauge<i64>,
    /// Reconnects of all connections.
    pub reconnects: Gauge<u64, AtomicU64>,
}

/// A counter for each set of labels.
fn family<L>(registry: &mut Registry, name: &str, help: &str) -> Family<L, Counter>
where
    L: Clone + std::hash::Hash + Eq + EncodeLabelSet + std::fmt::Debug + Send + Sync + 'static,
{
    let family = Family::default();
    registry.register(name, help, family.clone());
    family
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("rankpin_router");
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let admitted = counter("requests_admitted", "Requests taken in");
        let dispatched = counter("dispatches", "Attempts sent to workers");
        let dropped_reply = counter("requests_dropped_reply_subject", "Requests dropped for their reply subject");
        let unsent = counter("messages_unsent", "Messages that could not be handed to the NATS client");
        let claims_lost = counter("pin_races_lost", "Compare-and-sets of a pin that another router won");
        let leader_reads = counter("pin_leader_reads", "Pins read from the stream leader");
        let faults = counter("faults", "Messages dropped because of a fault in the router itself");
        let rebuilt = counter("nats_clients_rebuilt", "NATS clients killed by a message and built anew");
        let cache_events = counter("cache_events", "Messages of workers about their prefix caches that were taken in");
        let derived_unpinned = counter("derived_sessions_unpinned", "Derived sessions not pinned because of the cap");
        let prompt_tokens = counter("prompt_tokens", "Prompt tokens that workers reported");
        let cached_tokens = counter("cached_prompt_tokens", "Of these, tokens found in a prefix cache");
        let outcomes =
            family(&mut registry, "requests", "Requests ended, by outcome: ok, error, cancelled, or the error code");
        let decisions = family(&mut registry, "decisions", "Decisions, by reason and cause");
        let failures = family(&mut registry, "attempts_failed", "Attempts that no worker accepted");
        let pins_written = family(&mut registry, "pins_written", "Pins written before a dispatch, by kind");
        let malformed = family(&mut registry, "malformed", "Messages that could not be read, by kind");
        let aliases = family(&mut registry, "aliases_resolved", "Requests for an alias, by the model that they got");
        let queue = QueueMetrics::register(&mut registry);
        let gauges = Gauges::register(&mut registry);
        let jobs = JobMetrics::register(&mut registry);
        let metrics = Self {
            registry,
            admitted,
            dispatched,
            dropped_reply,
            unsent,
            claims_lost,
            leader_reads,
            faults,
            rebuilt,
            cache_events,
            jobs,
            gauges,
            outcomes,
            decisions,
            failures,
            pins_written,
            malformed,
            aliases,
            queue,
            derived_unpinned,
            prompt_tokens,
            cached_tokens,
            warned: Mutex::new(None),
        };
        metrics.begin_at_zero();
        metrics
    }

    /// What goes wrong is counted from the start: a counter that first shows itself at 1 has not grown, to whoever watches
    /// it, and the first fault would wake nobody.
    fn begin_at_zero(&self) {
        use Failure::{AcceptTimeout, Draining, NoResponders, NotThere, Overloaded};
        for failure in [NoResponders, AcceptTimeout, Overloaded, Draining, NotThere].map(failure_word) {
            drop(self.failures.get_or_create(&FailureLabel { failure }));
        }
        for kind in ["claimed", "completed", "confirmed"] {
            drop(self.pins_written.get_or_create(&KindLabel { kind }));
        }
        for kind in MALFORMED {
            drop(self.malformed.get_or_create(&KindLabel { kind }));
        }
    }

    /// A request has ended at its worker.
    pub fn finished(&self, finished: &Finished) {
        let outcome = match finished.outcome {
            Outcome::Ok => "ok",
            Outcome::Error => "error",
            Outcome::Cancelled => "cancelled",
        };
        self.outcomes.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// What the worker says of its cache.
    pub fn finished_tokens(&self, finished: &Finished) {
        self.prompt_tokens.inc_by(finished.prompt_tokens.unwrap_or(0));
        self.cached_tokens.inc_by(finished.cached_tokens.unwrap_or(0));
    }

    /// A request has ended in an error of the router.
    pub fn failed(&self, error: &RouteError) {
        // A worker's own code words are not bounded.
        let outcome = error.own_code().unwrap_or("refused_by_worker");
        self.outcomes.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// A request was placed.
    pub fn decided(&self, decision: &Decision) {
        let cause = decision.cause.map_or("", |cause| cause.word());
        self.decisions.get_or_create(&DecisionLabel { reason: decision.reason.word(), cause }).inc();
    }

    /// An attempt was not accepted.
    pub fn attempt_failed(&self, failure: Failure) {
        self.failures.get_or_create(&FailureLabel { failure: failure_word(failure) }).inc();
    }

    /// A request for an alias got a model.
    pub fn alias_resolved(&self, alias: &Model, model: &Model) {
        let label = AliasLabel { alias: alias.as_str().to_owned(), model: model.as_str().to_owned() };
        self.aliases.get_or_create(&label).inc();
    }

    /// A pin was written before a dispatch.
    pub fn pin_written(&self, step: PinStep) {
        let kind = match step {
            PinStep::Claim => "claimed",
            PinStep::Complete => "completed",
            PinStep::Keep => "confirmed",
            PinStep::None | PinStep::AfterAccept => return,
        };
        self.pins_written.get_or_create(&KindLabel { kind }).inc();
    }

    /// Something could not be read.
    pub fn malformed(&self, kind: &'static str) {
        debug_assert!(MALFORMED.contains(&kind), "{kind} is none of the kinds that are counted from the start");
        self.malformed.get_or_create(&KindLabel { kind }).inc();
    }

    /// A derived session was not pinned, because there are too many.
    pub fn derived_cap_reached(&self, count: usize, cap: usize) {
        self.derived_unpinned.inc();
        let mut warned = self.warned.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            *warned = Some(Instant::now());
            tracing::warn!(
                count,
                cap,
                "as many derived sessions are pinned as are allowed; further ones are routed and not pinned"
            );
        }
    }

    /// The text that Prometheus scrapes.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }
}

fn failure_word(failure: Failure) -> &'static str {
    match failure {
        Failure::NoResponders => "no_responders",
        Failure::AcceptTimeout => "accept_timeout",
        Failure::Overloaded => "overloaded",
        Failure::Draining => "draining",
        Failure::NotThere => "not_there",
    }
}

impl Gauges {
    fn register(registry: &mut Registry) -> Self {
        let gauges = Self::default();
        registry.register("requests_in_flight", "Requests under way", gauges.live.clone());
        registry.register("requests_waiting", "Requests under way and not accepted yet", gauges.waiting.clone());
        registry.register("requests_queued", "Requests waiting for room at a worker", gauges.queued.clone());
        registry.register("models_queued", "Models for which requests wait for room", gauges.models_queued.clone());
        registry.register("workers", "Workers known", gauges.workers.clone());
        registry.register("pins_mirrored", "Pins mirrored", gauges.pins.clone());
        registry.register("derived_pins_mirrored", "Derived pins mirrored", gauges.derived_pins.clone());
        registry.register(
            "cached_prefixes",
            "Prefixes that ranks are expected to have cached, once for each rank (policy kv)",
            gauges.cached_prefixes.clone(),
        );
        registry.register(
            "bucket_unreachable",
            "1 while the pins bucket is unreachable",
            gauges.bucket_unreachable.clone(),
        );
        registry.register("pins_owed", "Pins to be written once the bucket is back", gauges.pins_owed.clone());
        registry.register("slow_consumer_events", "Full subscriptions", gauges.slow_consumers.clone());
        registry.register("nats_connects", "Times that a connection came to stand", gauges.reconnects.clone());
        gauges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_wrong_is_counted_from_the_start() {
        let text = Metrics::new().encode();
        for series in [
            "attempts_failed_total{failure=\"no_responders\"}",
            "pins_written_total{kind=\"claimed\"}",
            "malformed_total{kind=\"registration\"}",
            "queue_left_total{how=\"full\"}",
            "job_deliveries_total{end=\"dead\"}",
        ] {
            assert!(text.contains(&format!("rankpin_router_{series} 0\n")), "{series} is missing:\n{text}");
        }
    }
}
