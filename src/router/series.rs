//! Counters and histograms whose series are found once: on the hot path nothing is hashed, allocated or locked.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// A counter for each of `N` sets of labels, which its user numbers. A series is there from its first count on.
#[derive(Debug)]
pub struct Cells<L, const N: usize> {
    family: Family<L, Counter>,
    cells: [OnceLock<(L, Counter)>; N],
}

impl<L, const N: usize> Cells<L, N>
where
    L: Clone + std::hash::Hash + Eq,
{
    /// Over a family that is registered.
    pub fn new(family: Family<L, Counter>) -> Self {
        Self { family, cells: [const { OnceLock::new() }; N] }
    }

    /// Counts one; `label` says what the number stands for, and is asked once.
    pub fn inc(&self, number: usize, label: impl FnOnce() -> L) {
        let (_, counter) = self.cells[number].get_or_init(|| {
            let label = label();
            let counter = self.family.get_or_create(&label).clone();
            (label, counter)
        });
        counter.inc();
    }

    /// What was counted so far.
    pub fn counts(&self) -> impl Iterator<Item = (&L, u64)> {
        self.cells.iter().filter_map(OnceLock::get).map(|(label, counter)| (label, counter.get()))
    }
}

/// Bounds of times, in seconds, and how many fell below each: two additions a time.
#[derive(Debug, Clone)]
pub struct Times(Arc<Buckets>);

#[derive(Debug)]
struct Buckets {
    bounds_s: &'static [f64],
    bounds_ns: Vec<u64>,
    counts: Vec<AtomicU64>,
    sum_ns: AtomicU64,
}

impl Times {
    /// None so far.
    pub fn new(bounds_s: &'static [f64]) -> Self {
        let bounds_ns = bounds_s.iter().map(|bound| nanos(Duration::from_secs_f64(*bound))).collect();
        let counts = (0..=bounds_s.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Buckets { bounds_s, bounds_ns, counts, sum_ns: AtomicU64::new(0) }))
    }

    /// Counts one.
    pub fn observe(&self, time: Duration) {
        let (buckets, ns) = (&*self.0, nanos(time));
        let bucket = buckets.bounds_ns.iter().position(|bound| ns <= *bound).unwrap_or(buckets.bounds_ns.len());
        buckets.counts[bucket].fetch_add(1, Ordering::Relaxed);
        buckets.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.0.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.0.sum_ns.load(Ordering::Relaxed))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl EncodeMetric for Times {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let bounds = self.0.bounds_s.iter().copied().chain([f64::INFINITY]);
        let counts = self.0.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum().as_secs_f64(), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Registers a counter for each set of labels.
pub fn family<L>(registry: &mut prometheus_client::registry::Registry, name: &str, help: &str) -> Family<L, Counter>
where
    L: Clone + std::hash::Hash + Eq + EncodeLabelSet + fmt::Debug + Send + Sync + 'static,
{
    let family = Family::default();
    registry.register(name, help, family.clone());
    family
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    #[test]
    fn times_fall_into_buckets() {
        let times = Times::new(&[0.001, 1.0]);
        for ms in [0, 1, 2, 5000] {
            times.observe(Duration::from_millis(ms));
        }
        let mut registry = Registry::default();
        registry.register("t", "T", times.clone());
        let mut page = String::new();
        text::encode(&mut page, &registry).expect("writing to a string cannot fail");
        for line in [
            "t_sum 5.003",
            "t_count 4",
            "t_bucket{le=\"0.001\"} 2",
            "t_bucket{le=\"1.0\"} 3",
            "t_bucket{le=\"+Inf\"} 4",
        ] {
            assert!(page.lines().any(|one| one == line), "{line}\n{page}");
        }
        assert_eq!((times.count(), times.sum()), (4, Duration::from_millis(5003)));
    }
}
