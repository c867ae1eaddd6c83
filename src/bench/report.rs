//! The result: medians over the rounds, as a table or as JSON.

use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};

use super::load::Sample;
use super::{Accepts, Options, SessionsFrom, Way};

/// Processes in the order of the table's columns; forwarder and router share one.
const CPU_COLUMNS: [&[&str]; 4] = [&["server"], &["worker"], &["forwarder", "router"], &["generator"]];

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// What was measured.
    pub options: Options,
    /// One per number of requests in flight.
    pub levels: Vec<Level>,
    /// Messages that the server takes in per pinned request through the router.
    pub messages_per_request: Option<f64>,
}

/// The result for one number of requests in flight.
#[derive(Debug, Clone)]
pub struct Level {
    /// Requests in flight.
    pub in_flight: usize,
    /// One per way, in their order.
    pub figures: Vec<Figures>,
    /// Throughput through the router, as a share of the null forwarder's.
    pub router_of_forwarder: f64,
    /// Throughput through the router, as a share of the direct one.
    pub router_of_direct: f64,
    /// Throughput through the null forwarder, as a share of the direct one.
    pub forwarder_of_direct: f64,
    /// Throughput with sessions from the text, as a share of that with named ones, where both were measured.
    pub text_of_named: Option<f64>,
    /// Throughput where the router only decides, as a share of that through the router, where it was measured.
    pub decided_of_routed: Option<f64>,
    /// The same as a share of the direct one.
    pub decided_of_direct: Option<f64>,
    /// Throughput of first turns, as a share of that of a forwarder that stores a value for each, where it was measured.
    pub first_of_stored: Option<f64>,
    /// Throughput of durable jobs, as a share of that of requests through the router, where it was measured.
    pub jobs_of_routed: Option<f64>,
}

/// Medians of one way.
#[derive(Debug, Clone)]
pub struct Figures {
    /// The way.
    pub way: Way,
    /// Requests answered per second.
    pub per_second: f64,
    /// Median latency, in µs.
    pub p50_us: f64,
    /// 99 of 100 requests took at most this, in µs.
    pub p99_us: f64,
    /// 999 of 1000 requests took at most this, in µs.
    pub p999_us: f64,
    /// CPU time per request and process, in µs; only processes of which the system tells it.
    pub cpu_us: Vec<(&'static str, f64)>,
    /// Share of the answers whose session the router found pinned; only of requests that a router took.
    pub pinned: Option<f64>,
    /// Requests that ended in an error, in all rounds.
    pub failed: u64,
    /// Requests that were not answered, in all rounds.
    pub lost: u64,
    /// The first error.
    pub problem: Option<String>,
}

impl Level {
    /// From the samples of all rounds, each of these ways as often as the others.
    pub(super) fn of(in_flight: usize, ways: &[Way], samples: &[(Way, Sample)]) -> Self {
        let of = |way| samples.iter().filter(move |sample| sample.0 == way).map(|sample| &sample.1);
        // Ways are compared within a round, which a noisy moment hits alike, and not across.
        let ratio = |upper, lower| median(of(upper).zip(of(lower)).map(|(u, l)| per_second(u) / per_second(l)));
        Self {
            in_flight,
            figures: ways.iter().map(|&way| Figures::of(way, &of(way).collect::<Vec<_>>())).collect(),
            router_of_forwarder: ratio(Way::Routed, Way::Forwarded),
            router_of_direct: ratio(Way::Routed, Way::Direct),
            forwarder_of_direct: ratio(Way::Forwarded, Way::Direct),
            decided_of_routed: ways.contains(&Way::Decided).then(|| ratio(Way::Decided, Way::Routed)),
            decided_of_direct: ways.contains(&Way::Decided).then(|| ratio(Way::Decided, Way::Direct)),
            first_of_stored: ways.contains(&Way::First).then(|| ratio(Way::First, Way::Stored)),
            jobs_of_routed: ways.contains(&Way::Job).then(|| ratio(Way::Job, Way::Routed)),
            text_of_named: ways.contains(&Way::Derived).then(|| ratio(Way::Derived, Way::Routed)),
        }
    }
}

impl Figures {
    fn of(way: Way, samples: &[&Sample]) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "latencies are below a minute of µs")]
        let quantile = |q| median(samples.iter().map(|s| s.latencies.value_at_quantile(q) as f64));
        let mut names = samples.first().map(|s| s.cpu.iter().map(|cpu| cpu.0).collect::<Vec<_>>()).unwrap_or_default();
        // Of several routers all count as one.
        names.dedup();
        let cpu_us = names.into_iter().map(|name| {
            let of_process = samples.iter().filter_map(|s| {
                let mut used = s.cpu.iter().filter(|cpu| cpu.0 == name).map(|cpu| cpu.1).peekable();
                used.peek()?;
                Some(used.sum::<Duration>().as_secs_f64() * 1e6 / count(s.answered))
            });
            (name, median(of_process))
        });
        let answered: u64 = samples.iter().map(|s| s.answered).sum();
        let pinned = || count(samples.iter().map(|s| s.pinned).sum()) / count(answered);
        Self {
            way,
            per_second: median(samples.iter().map(|s| per_second(s))),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            cpu_us: cpu_us.collect(),
            pinned: match way {
                Way::Direct | Way::Forwarded | Way::Stored => None,
                Way::Routed | Way::Derived | Way::Decided | Way::First | Way::Job => Some(pinned()),
            },
            failed: samples.iter().map(|s| s.failed).sum(),
            lost: samples.iter().map(|s| s.lost).sum(),
            problem: samples.iter().find_map(|s| s.problem.clone()),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "nobody sends 2^52 requests")]
fn count(number: u64) -> f64 {
    number as f64
}

fn per_second(sample: &Sample) -> f64 {
    count(sample.answered) / sample.took.as_secs_f64()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

impl Report {
    /// The first request that failed, in words.
    pub fn problem(&self) -> Option<String> {
        self.levels.iter().flat_map(|level| &level.figures).find_map(|figures| {
            let name = figures.way.name();
            match (&figures.problem, figures.lost) {
                (Some(problem), _) => Some(format!("{} requests failed ({name}): {problem}", figures.failed)),
                (None, 0) => None,
                (None, lost) => Some(format!("{lost} requests were not answered ({name})")),
            }
        })
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(NOTHING);
        table.set_header([
            "in flight",
            "way",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "server µs",
            "worker µs",
            "middle µs",
            "generator µs",
        ]);
        for level in &self.levels {
            for figures in &level.figures {
                table.add_row(row(level.in_flight, figures));
            }
        }
        for column in table.column_iter_mut().filter(|column| column.index != 1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = table.trim_fmt();
        text.push_str("\n\nµs: CPU time per request; middle: null forwarder or router. Medians of ");
        text.push_str(&format!("{} rounds, bodies of {} bytes, ", self.options.rounds, self.options.payload));
        // Whoever runs another cluster's worker has chosen its answers.
        if self.options.running.is_none() {
            text.push_str(&format!("answers of {}, ", self.options.answer.min(self.options.payload)));
        }
        text.push_str(&format!("{} pinned sessions.\n", self.options.sessions));
        for level in &self.levels {
            text.push_str(&format!(
                "{} in flight: router {:.2} of null forwarder, {:.2} of direct; null forwarder {:.2} of direct\n",
                level.in_flight, level.router_of_forwarder, level.router_of_direct, level.forwarder_of_direct
            ));
        }
        text.push_str(&self.about_others());
        if let Some(messages) = self.messages_per_request {
            let accepted = match self.options.accepts {
                Accepts::Yes => "accepted, ",
                Accepts::No => "",
            };
            let reply = match self.options.parts {
                1 => "reply".to_owned(),
                parts => format!("{parts} of reply"),
            };
            text.push_str(&format!(
                "NATS messages per pinned request: {messages:.2} (request, dispatch, {accepted}{reply}, finished)\n"
            ));
        }
        text
    }

    /// What sessions from the text cost against named ones, and the bodies' own way, where that was measured.
    fn about_others(&self) -> String {
        let mut text = String::new();
        for level in &self.levels {
            let Some(ratio) = level.text_of_named else { continue };
            let found = level.figures.iter().find(|figures| figures.way == Way::Derived);
            let pinned = 100.0 * found.and_then(|figures| figures.pinned).unwrap_or_default();
            text.push_str(&format!(
                "{} in flight: router by text {ratio:.2} of router; {pinned:.1} % of its answers continued a session\n",
                level.in_flight
            ));
        }
        for level in &self.levels {
            let (Some(routed), Some(direct)) = (level.decided_of_routed, level.decided_of_direct) else { continue };
            text.push_str(&format!(
                "{} in flight: router decides {routed:.2} of router, {direct:.2} of direct\n",
                level.in_flight
            ));
        }
        for level in &self.levels {
            let Some(ratio) = level.first_of_stored else { continue };
            text.push_str(&format!("{} in flight: first turns {ratio:.2} of storing forwarder\n", level.in_flight));
        }
        for level in &self.levels {
            let Some(ratio) = level.jobs_of_routed else { continue };
            text.push_str(&format!("{} in flight: durable jobs {ratio:.2} of router\n", level.in_flight));
        }
        text
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "payload_bytes": self.options.payload,
            "answer_bytes": self.options.running.is_none().then_some(self.options.answer.min(self.options.payload)),
            "sessions": self.options.sessions,
            "sessions_from": match self.options.sessions_from {
                SessionsFrom::Header => "header",
                SessionsFrom::Both => "both",
            },
            "rounds": self.options.rounds,
            "routers": self.options.routers,
            "duration_s": self.options.duration.as_secs_f64(),
            "accepts": matches!(self.options.accepts, Accepts::Yes),
            "messages_per_request": self.messages_per_request,
            "levels": self.levels.iter().map(level_json).collect::<Vec<_>>(),
        })
    }
}

fn row(in_flight: usize, figures: &Figures) -> Vec<String> {
    let ms = |us: f64| format!("{:.2}", us / 1000.0);
    let cpu = |names: &[&str]| {
        let found = figures.cpu_us.iter().find(|cpu| names.contains(&cpu.0));
        found.map_or_else(|| "-".to_owned(), |cpu| format!("{:.1}", cpu.1))
    };
    let mut row = vec![in_flight.to_string(), figures.way.name().to_owned(), format!("{:.0}", figures.per_second)];
    row.extend([figures.p50_us, figures.p99_us, figures.p999_us].map(ms));
    row.extend(CPU_COLUMNS.map(cpu));
    row
}

fn level_json(level: &Level) -> Value {
    let ways: serde_json::Map<String, Value> = level
        .figures
        .iter()
        .map(|figures| {
            let cpu: serde_json::Map<String, Value> =
                figures.cpu_us.iter().map(|(name, us)| ((*name).to_owned(), json!(us))).collect();
            let value = json!({
                "requests_per_second": figures.per_second,
                "p50_us": figures.p50_us,
                "p99_us": figures.p99_us,
                "p999_us": figures.p999_us,
                "cpu_us_per_request": cpu,
                "pinned_share": figures.pinned,
                "failed": figures.failed,
                "lost": figures.lost,
            });
            (figures.way.name().replace(", ", "_").replace(' ', "_"), value)
        })
        .collect();
    json!({
        "in_flight": level.in_flight,
        "ways": ways,
        "router_of_null_forwarder": level.router_of_forwarder,
        "router_of_direct": level.router_of_direct,
        "null_forwarder_of_direct": level.forwarder_of_direct,
        "router_by_text_of_router": level.text_of_named,
        "router_decides_of_router": level.decided_of_routed,
        "router_decides_of_direct": level.decided_of_direct,
        "first_turns_of_storing_forwarder": level.first_of_stored,
        "durable_jobs_of_router": level.jobs_of_routed,
    })
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;

    fn sample(answered: u64) -> Sample {
        let mut latencies = Histogram::new_with_max(1000, 3).expect("valid");
        latencies.record(answered).expect("in range");
        let cpu = vec![("server", Duration::from_millis(answered))];
        let took = Duration::from_secs(1);
        Sample { answered, pinned: answered / 2, took, latencies, cpu, failed: 0, lost: 0, problem: None }
    }

    #[test]
    fn medians_over_rounds_and_ratios_within_them() {
        let mut samples = Vec::new();
        for (direct, forwarded, routed) in [(100, 80, 40), (200, 100, 75), (400, 100, 50)] {
            samples.extend([
                (Way::Direct, sample(direct)),
                (Way::Forwarded, sample(forwarded)),
                (Way::Routed, sample(routed)),
            ]);
        }
        let level = Level::of(64, &Way::OF_NAMED, &samples);
        assert_eq!(level.figures.iter().map(|f| f.per_second).collect::<Vec<_>>(), [200.0, 100.0, 50.0]);
        assert_eq!(level.router_of_forwarder, 0.5);
        assert_eq!(level.forwarder_of_direct, 0.5);
        assert_eq!(level.figures[0].cpu_us, [("server", 1000.0)]);
        assert_eq!(level.figures[2].p50_us, 50.0);
        assert_eq!((level.figures[0].pinned, level.text_of_named), (None, None));
    }

    #[test]
    fn sessions_from_the_text_are_compared_with_named_ones() {
        let ways = [Way::Direct, Way::Forwarded, Way::Routed, Way::Derived, Way::Decided];
        let samples: Vec<_> = ways.iter().zip([400, 300, 200, 150, 350]).map(|(way, n)| (*way, sample(n))).collect();
        let level = Level::of(64, &ways, &samples);
        assert_eq!((level.text_of_named, level.decided_of_routed), (Some(0.75), Some(1.75)));
        assert_eq!(level.figures[3].pinned, Some(0.5));
    }
}
