//! Counters of durable jobs.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Every end of a delivery. Each is counted from the start: a counter that first shows itself at 1 has not grown, to
/// whoever watches it.
const ENDS: [&str; 8] = ["finished", "error", "failed", "dead", "delayed", "handed_over", "already_done", "unreadable"];

/// How a delivery ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndLabel {
    end: &'static str,
}

/// Counters and values of the moment.
#[derive(Debug, Default)]
pub struct JobMetrics {
    deliveries: Family<EndLabel, Counter>,
    /// 1 while jobs are taken.
    pub enabled: Gauge,
    /// Jobs held.
    pub held: Gauge,
}

impl JobMetrics {
    /// All at zero.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for end in ENDS {
            drop(metrics.deliveries.get_or_create(&EndLabel { end }));
        }
        registry.register(
            "job_deliveries",
            "Deliveries of jobs, by their end: finished, error (its result is one), failed (published again), dead, \
             delayed, handed_over, already_done, unreadable",
            metrics.deliveries.clone(),
        );
        registry.register("jobs_enabled", "1 while durable jobs are taken", metrics.enabled.clone());
        registry.register("jobs_held", "Durable jobs held, running or waiting", metrics.held.clone());
        metrics
    }

    /// A delivery has ended.
    pub fn ended(&self, end: &'static str) {
        debug_assert!(ENDS.contains(&end), "{end} is none of the ends that are counted from the start");
        self.deliveries.get_or_create(&EndLabel { end }).inc();
    }
}
