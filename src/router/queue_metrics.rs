//! Counters of the queue of requests that wait for room.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// How a request left the queue, or did not get into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftQueue {
    /// It got a place, after so long.
    Granted(Duration),
    /// Its timeout passed.
    TimedOut,
    /// It gave way to another.
    Displaced,
    /// As many waited as may.
    Full,
}

/// Bounds of the times that requests waited for room, in seconds.
const WAITED_S: [f64; 10] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HowLabel {
    how: &'static str,
}

/// All of them.
#[derive(Debug)]
pub struct QueueMetrics {
    left: Family<HowLabel, Counter>,
    waited: Histogram,
}

impl QueueMetrics {
    /// All at zero.
    pub fn register(registry: &mut Registry) -> Self {
        let left = Family::<HowLabel, Counter>::default();
        for how in ["granted", "timed_out", "displaced", "full"] {
            drop(left.get_or_create(&HowLabel { how }));
        }
        registry.register("queue_left", "Requests that waited for room, or were to, by how that ended", left.clone());
        let waited = Histogram::new(WAITED_S);
        registry.register("queue_wait_seconds", "How long requests waited that got a place", waited.clone());
        Self { left, waited }
    }

    /// A request waits for room no longer.
    pub fn left(&self, how: LeftQueue) {
        let how = match how {
            LeftQueue::Granted(waited) => {
                self.waited.observe(waited.as_secs_f64());
                "granted"
            }
            LeftQueue::TimedOut => "timed_out",
            LeftQueue::Displaced => "displaced",
            LeftQueue::Full => "full",
        };
        self.left.get_or_create(&HowLabel { how }).inc();
    }
}
