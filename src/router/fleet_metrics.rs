//! What a scrape reads off the fleet and the connections: nothing is counted for it on the hot path.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::wire::service::{RankState, WorkerState};

/// Most ranks that have series of their own, and workers likewise; the rest is counted as left out.
pub const MAX_RANKS: usize = 4096;

/// A connection to NATS.
#[derive(Debug, Clone)]
pub struct Connection {
    /// What it is for.
    pub name: &'static str,
    /// Whether it stands.
    pub connected: bool,
    /// How often it came to stand.
    pub connects: u64,
    /// Times that it did not read fast enough.
    pub slow: u64,
}

/// What was read last.
#[derive(Debug, Default)]
pub struct Sample {
    /// Connections.
    pub connections: Vec<Connection>,
    /// Workers.
    pub workers: Vec<WorkerState>,
    /// Ranks without series.
    pub left_out: u64,
    /// Seconds since 1970 of the router's start.
    pub started_s: u64,
}

/// Tells it.
#[derive(Debug, Default)]
pub struct FleetCollector(Mutex<Sample>);

impl FleetCollector {
    /// Takes what was read.
    pub fn set(&self, sample: Sample) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sample;
    }
}

type Told = Result<(), fmt::Error>;

/// One count of a connection or rank.
type Count<T> = (&'static str, &'static str, fn(&T) -> u64);

/// One value of a worker or rank.
type Of<'s, T> = (&'static str, &'static str, &'s dyn Fn(&T) -> Option<f64>);

impl Collector for FleetCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Told {
        let sample = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let encoder = &mut encoder;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let mut build = encoder.encode_descriptor("build", "Version of this router", None, MetricType::Info)?;
        build.encode_info(&version)?;
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are far below 2^53")]
        let started = ConstGauge::new(sample.started_s as f64);
        let help = "Seconds since 1970 at which this router started";
        started.encode(encoder.encode_descriptor("start_time_seconds", help, None, MetricType::Gauge)?)?;
        connections(encoder, &sample.connections)?;
        workers(encoder, &sample.workers)?;
        ranks(encoder, &sample.workers)?;
        #[expect(clippy::cast_precision_loss, reason = "ranks are far below 2^53")]
        let left_out = ConstGauge::new(sample.left_out as f64);
        let help = "Ranks that have no series of their own, because there are more than 4096";
        left_out.encode(encoder.encode_descriptor("ranks_left_out", help, None, MetricType::Gauge)?)
    }
}

fn connections(encoder: &mut DescriptorEncoder<'_>, all: &[Connection]) -> Told {
    let help = "1 while the connection to NATS stands, by what it is for";
    let mut family = encoder.encode_descriptor("nats_connected", help, None, MetricType::Gauge)?;
    for one in all {
        let labels = [("connection", one.name)];
        ConstGauge::new(i64::from(one.connected)).encode(family.encode_family(&labels)?)?;
    }
    let counters: [Count<Connection>; 2] = [
        ("nats_connects", "Times that a connection came to stand; beyond the first, reconnects", |one| one.connects),
        ("nats_slow_consumer_events", "Times that a connection was not read fast enough", |one| one.slow),
    ];
    for (name, help, value) in counters {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for one in all {
            let labels = [("connection", one.name)];
            ConstCounter::new(value(one)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn workers(encoder: &mut DescriptorEncoder<'_>, all: &[WorkerState]) -> Told {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of silence are far below 2^53")]
    let gauges: [Of<'_, WorkerState>; 2] = [
        ("worker_ready", "1 while the worker takes requests", &|one| Some(f64::from(u8::from(one.state == "ready")))),
        ("worker_silence_seconds", "Time since the worker was last heard of; lost at 6 s", &|one| {
            Some(one.silent_ms as f64 / 1e3)
        }),
    ];
    for (name, help, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for one in all {
            let labels = [("worker", one.worker.as_str()), ("pool", one.pool.as_str())];
            if let Some(value) = value(one) {
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests and blocks are far below 2^53")]
fn ranks(encoder: &mut DescriptorEncoder<'_>, all: &[WorkerState]) -> Told {
    let gauges: [Of<'_, RankState>; 5] = [
        ("rank_requests_in_flight", "This router's requests at the rank; any is without a rank", &|one| {
            Some(one.own as f64)
        }),
        ("rank_reported_in_flight", "Everybody's requests at the rank, as its worker reports", &|one| {
            one.inflight.map(|count| count as f64)
        }),
        ("rank_reported_queued", "Requests that the rank has accepted and not begun, as its worker reports", &|one| {
            one.queued.map(|count| count as f64)
        }),
        ("rank_kv_used_ratio", "Share of the rank's cache in use, where its worker says how large it is", &|one| {
            one.kv_used_permille.map(|permille| permille as f64 / 1e3)
        }),
        ("rank_pins", "Pins that point to the rank", &|one| Some(one.pins as f64)),
    ];
    for (name, help, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (worker, rank) in all.iter().flat_map(|worker| worker.ranks.iter().map(move |rank| (worker, rank))) {
            if let Some(value) = value(rank) {
                let dp_rank = rank.rank.map_or_else(|| "any".to_owned(), |rank| rank.to_string());
                let labels =
                    [("worker", worker.worker.as_str()), ("pool", worker.pool.as_str()), ("dp_rank", dp_rank.as_str())];
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    let counters: [Count<RankState>; 3] = [
        ("rank_dispatches", "Attempts that this router has sent to the rank", |one| one.dispatched),
        ("rank_prompt_tokens", "Prompt tokens of this router's requests at the rank, as its worker reports", |one| {
            one.prompt_tokens
        }),
        ("rank_cached_prompt_tokens", "Of these, tokens found in the rank's prefix cache", |one| one.cached_tokens),
    ];
    for (name, help, value) in counters {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (worker, rank) in all.iter().flat_map(|worker| worker.ranks.iter().map(move |rank| (worker, rank))) {
            let dp_rank = rank.rank.map_or_else(|| "any".to_owned(), |rank| rank.to_string());
            let labels =
                [("worker", worker.worker.as_str()), ("pool", worker.pool.as_str()), ("dp_rank", dp_rank.as_str())];
            ConstCounter::new(value(rank)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
