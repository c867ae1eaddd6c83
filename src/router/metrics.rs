//! Counters of a router, in the Prometheus text format. Labels are bounded: never a session, a request or a frontend.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::fleet_metrics::FleetCollector;
use super::jobs::JobMetrics;
use super::partitions::PartitionMetrics;
use super::permits::PermitMetrics;
use super::queue_metrics::QueueMetrics;
use super::rarely::Rarely;
use super::requests_metrics::RequestMetrics;
use super::series::{Cells, Times, family};
use crate::core::ask::Failure;
use crate::core::decide::{Cause, Decision, PinStep, Reason};
use crate::core::id::Model;
use crate::wire::event::Finished;
use crate::wire::identity::Source;

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

/// What named a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: &'static str,
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BucketLabel {
    bucket: String,
}

/// Reasons of decisions, and what may have led to one, nothing included.
const REASONS: usize = Reason::Unpinned as usize + 1;
const CAUSES: usize = Cause::Cold as usize + 2;
/// Kinds of what names a session.
const SOURCES: usize = 6;
/// Bounds of the times from dispatch to acceptance, in seconds.
const ACCEPTED_S: [f64; 13] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// What was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabel {
    kind: &'static str,
}

/// All counters.
#[derive(Debug)]
pub struct Metrics {
    /// All of them.
    pub registry: Registry,
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
    /// Of requests that go from router to router.
    pub partitions: PartitionMetrics,
    /// Of requests whose frontend sends the body.
    pub permits: PermitMetrics,
    /// Messages of workers about their caches that were taken in.
    pub cache_events: Counter,
    /// Durable jobs.
    pub jobs: JobMetrics,
    /// Gauges, set when they are read.
    pub gauges: Gauges,
    /// Requests by model and outcome.
    pub requests: RequestMetrics,
    /// Time from dispatch to acceptance.
    pub accept: Times,
    /// What is read off the fleet at a scrape.
    pub fleet: Arc<FleetCollector>,
    decisions: Cells<DecisionLabel, { REASONS * CAUSES }>,
    sessions: Cells<SourceLabel, SOURCES>,
    failures: Family<FailureLabel, Counter>,
    pins_written: Family<KindLabel, Counter>,
    malformed: Family<KindLabel, Counter>,
    aliases: Family<AliasLabel, Counter>,
    derived_unpinned: Counter,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    capped: Rarely,
    /// Sessions with a hard pin that left it because its worker was silent.
    pub left_silent: Rarely,
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
    /// Keys of pins mirrored, those too under which no pin stands.
    pub pin_keys: Gauge,
    /// Derived pins mirrored.
    pub derived_pins: Gauge,
    /// Prefixes that ranks are expected to have cached.
    pub cached_prefixes: Gauge,
    /// Whether the pins bucket is unreachable.
    pub bucket_unreachable: Gauge,
    /// Pins to be written once the bucket is back.
    pub pins_owed: Gauge,
    /// Messages of a bucket that should be mirrored and are not.
    pub mirror_lag: Family<BucketLabel, Gauge>,
    /// Whether the mirror of a bucket is known to have everything.
    pub mirror_complete: Family<BucketLabel, Gauge>,
}

fn register_accept_and_fleet(registry: &mut Registry) -> (Times, Arc<FleetCollector>) {
    let accept = Times::new(&ACCEPTED_S);
    registry.register("accept_seconds", "Time from the dispatch of an attempt to its acceptance", accept.clone());
    let fleet = Arc::new(FleetCollector::default());
    registry.register_collector(Box::new(Arc::clone(&fleet)));
    (accept, fleet)
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
        let requests = RequestMetrics::register(&mut registry);
        let (accept, fleet) = register_accept_and_fleet(&mut registry);
        let decisions = Cells::new(family(&mut registry, "decisions", "Decisions, by reason and cause"));
        let sessions = Cells::new(family(&mut registry, "sessions", "Requests taken in, by what named their session"));
        let failures = family(&mut registry, "attempts_failed", "Attempts that no worker accepted");
        let pins_written = family(&mut registry, "pins_written", "Pins written before a dispatch, by kind");
        let malformed = family(&mut registry, "malformed", "Messages that could not be read, by kind");
        let aliases = family(&mut registry, "aliases_resolved", "Requests for an alias, by the model that they got");
        let gauges = Gauges::register(&mut registry);
        let metrics = Self {
            jobs: JobMetrics::register(&mut registry),
            permits: PermitMetrics::register(&mut registry),
            partitions: PartitionMetrics::register(&mut registry),
            queue: QueueMetrics::register(&mut registry),
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
            gauges,
            requests,
            accept,
            fleet,
            decisions,
            sessions,
            failures,
            pins_written,
            malformed,
            aliases,
            derived_unpinned,
            prompt_tokens,
            cached_tokens,
            capped: Rarely::default(),
            left_silent: Rarely::default(),
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

    /// What the worker says of its cache.
    pub fn finished_tokens(&self, finished: &Finished) {
        let prompt = finished.prompt_tokens.unwrap_or(0);
        self.prompt_tokens.inc_by(prompt);
        // No more of a prompt can be cached than there is of it.
        self.cached_tokens.inc_by(finished.cached_tokens.unwrap_or(0).min(prompt));
    }

    /// A request was placed.
    pub fn decided(&self, decision: &Decision) {
        let causes = decision.cause.map_or(0, |cause| 1 + cause as usize);
        self.decisions.inc(decision.reason as usize * CAUSES + causes, || DecisionLabel {
            reason: decision.reason.word(),
            cause: decision.cause.map_or("", Cause::word),
        });
    }

    /// What was decided so far, as in `Rankpin-Decision`.
    pub fn decisions(&self) -> BTreeMap<String, u64> {
        let word = |label: &DecisionLabel| match label.cause {
            "" => label.reason.to_owned(),
            cause => format!("{},{cause}", label.reason),
        };
        self.decisions.counts().map(|(label, count)| (word(label), count)).collect()
    }

    /// A request was taken in whose session comes from there.
    pub fn session_from(&self, source: &Source) -> &'static str {
        let (number, source) = match source {
            Source::Header => (0, "header"),
            Source::FurtherHeader(_) => (1, "configured_header"),
            Source::Field(_) => (2, "body_field"),
            Source::Response => (3, "response"),
            Source::Text => (4, "text"),
            Source::Nowhere => (5, "none"),
        };
        self.sessions.inc(number, || SourceLabel { source });
        source
    }

    /// Where sessions came from so far.
    pub fn sessions(&self) -> BTreeMap<String, u64> {
        self.sessions.counts().map(|(label, count)| (label.source.to_owned(), count)).collect()
    }

    /// Prompt tokens that workers reported.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens.get()
    }

    /// Of these, tokens that were cached.
    pub fn cached_tokens(&self) -> u64 {
        self.cached_tokens.get()
    }

    /// How far the mirror of a bucket is behind.
    pub fn mirror_lag(&self, bucket: &str, messages: u64) {
        let label = BucketLabel { bucket: bucket.to_owned() };
        self.gauges.mirror_lag.get_or_create(&label).set(i64::try_from(messages).unwrap_or(i64::MAX));
    }

    /// The mirror of a bucket is known to have everything, or no longer.
    pub fn mirror_complete(&self, bucket: &str, complete: bool) {
        let label = BucketLabel { bucket: bucket.to_owned() };
        self.gauges.mirror_complete.get_or_create(&label).set(i64::from(complete));
    }

    /// An attempt was not accepted.
    pub fn attempt_failed(&self, failure: Failure) -> &'static str {
        let failure = failure_word(failure);
        self.failures.get_or_create(&FailureLabel { failure }).inc();
        failure
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
        if let Some(not_told) = self.capped.happened(Instant::now()) {
            tracing::warn!(
                count,
                cap,
                not_told,
                "as many derived sessions are pinned as are allowed; further ones are routed and not pinned"
            );
        }
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
        registry.register(
            "pin_keys_mirrored",
            "Keys of pins mirrored, deleted and unreadable ones too",
            gauges.pin_keys.clone(),
        );
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
        registry.register(
            "mirror_lag_messages",
            "Messages of a bucket that are not mirrored though they were there two seconds ago",
            gauges.mirror_lag.clone(),
        );
        registry.register(
            "mirror_complete",
            "1 while the mirror of a bucket is known to have everything; while it is 0 pins are read from the stream's leader",
            gauges.mirror_complete.clone(),
        );
        gauges
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use axum::http::HeaderMap;

    use super::super::fleet_metrics::{Connection, Sample};
    use super::super::queue_metrics::LeftQueue;
    use super::*;
    use crate::core::fleet::WorkerSlot;
    use crate::core::id::{DpRank, Placement, WorkerId};
    use crate::telemetry::exposition;
    use crate::wire::event::Outcome;
    use crate::wire::service::{RankState, WorkerState};

    /// Metrics of which every series has a value.
    fn all() -> Metrics {
        let metrics = Metrics::new();
        let (model, error) = (Model::new("m").expect("valid"), crate::core::error::RouteError::Cancelled);
        metrics.requests.finished(&model, &Finished::outcome(Outcome::Ok));
        metrics.requests.failed(None, &error, |_| true);
        metrics.session_from(&Source::Header);
        metrics.alias_resolved(&model, &model);
        metrics.attempt_failed(Failure::Draining);
        metrics.pin_written(PinStep::Claim);
        metrics.malformed("load");
        metrics.queue.left(LeftQueue::Full);
        metrics.jobs.ended("finished");
        metrics.mirror_lag("rankpin_pins", 0);
        metrics.mirror_complete("rankpin_pins", true);
        let placement = Placement { worker: WorkerId::new("w").expect("valid"), rank: Some(DpRank(4)) };
        for (reason, cause) in [(Reason::Unpinned, Some(Cause::Cold)), (Reason::Pinned, None)] {
            let (slot, placement) = (WorkerSlot::from_parts(0, 0), placement.clone());
            metrics.decided(&Decision { placement, slot, reason, cause, pin: PinStep::None });
        }
        let rank = RankState { inflight: Some(1), queued: Some(1), kv_used_permille: Some(1), ..RankState::default() };
        let worker = WorkerState { ranks: vec![rank], ..WorkerState::default() };
        let connection = Connection { name: "intake", connected: true, connects: 1, slow: 0 };
        metrics.fleet.set(Sample { connections: vec![connection], workers: vec![worker], ..Sample::default() });
        metrics
    }

    fn page(metrics: &Metrics) -> String {
        exposition::page(&metrics.registry, &HeaderMap::new()).1
    }

    #[test]
    fn the_docs_name_every_metric_with_its_type_and_nothing_else() {
        let page = page(&all());
        let typed = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let served: BTreeMap<&str, &str> = typed.collect();
        let docs =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).expect("it is there");
        let rows = docs.lines().filter_map(|line| line.strip_prefix("| `rankpin_router_"));
        let documented: BTreeMap<String, &str> = rows
            .map(|row| {
                let mut cells = row.split('|').map(str::trim);
                let name = cells.next().unwrap_or_default().trim_end_matches('`');
                // The text format of old has no type for facts.
                let kind = match cells.next().unwrap_or_default() {
                    "info" => "gauge",
                    other => other,
                };
                (format!("rankpin_router_{name}"), kind)
            })
            .collect();
        let documented: BTreeMap<&str, &str> = documented.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
        assert_eq!(served, documented);
    }

    #[test]
    fn decisions_are_counted_by_their_words() {
        let counts = all().decisions();
        assert_eq!(counts, BTreeMap::from([("pinned".to_owned(), 1), ("unpinned,cold".to_owned(), 1)]));
    }

    #[test]
    fn what_goes_wrong_is_counted_from_the_start() {
        let text = page(&Metrics::new());
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
