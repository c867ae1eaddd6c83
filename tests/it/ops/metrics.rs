//! `/metrics`, the page and the service protocol of a router that has something to tell.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rankpin::wire::service::{RouterState, Stats};
use serde_json::{Value, json};

use crate::support::rankpin::sim;
use crate::support::{Ask, Cluster, NatsServer, PATIENCE, RouterProcess, eventually};

/// A router process that has served some requests, failed some, and its cluster.
async fn busy() -> (Cluster, RouterProcess, crate::support::process::Process) {
    let server = NatsServer::start();
    let router = RouterProcess::start("router", &server, &[]).await;
    let worker = sim(&server, "w", &["--dp-start", "4", "--dp-size", "2", "--speed", "1000"]);
    let cluster = Cluster::on(server, 0, &[]).await;
    eventually("the worker is known", PATIENCE, async || (router.metric("workers").await == 1.0).then_some(())).await;
    // Long enough to fill blocks of the cache.
    let long = "words that fill blocks ".repeat(20);
    for session in ["s", "s", "t"] {
        let body = json!({"messages": [{"role": "user", "content": long}], "max_tokens": 2});
        cluster.ask(Ask::new().session(session).body(body.to_string())).await;
    }
    cluster.ask(Ask::new().body(r#"{"messages":[{"role":"user","content":"a beginning"}],"max_tokens":2}"#)).await;
    cluster.ask(Ask::new().model("nobody-serves-this")).await;
    (cluster, router, worker)
}

/// Families of a page in the text format: name to type, help, and samples (name, labels, value).
#[derive(Default)]
struct Page {
    types: BTreeMap<String, String>,
    helps: BTreeMap<String, String>,
    samples: Vec<(String, String, f64)>,
}

fn parse(page: &str) -> Page {
    let mut parsed = Page::default();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(parsed.types.insert(name.to_owned(), kind.to_owned()), None, "{name} twice");
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            parsed.helps.insert(name.to_owned(), help.to_owned());
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
            parsed.samples.push((name.to_owned(), labels.trim_end_matches('}').to_owned(), value));
        }
    }
    parsed
}

/// The family that a sample belongs to.
fn family<'f>(page: &'f Page, sample: &str) -> Option<(&'f str, &'f str)> {
    let exact = page.types.get_key_value(sample);
    let of_histogram = || {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| sample.strip_suffix(suffix))?;
        page.types.get_key_value(base).filter(|(_, kind)| *kind == "histogram")
    };
    exact.or_else(of_histogram).map(|(name, kind)| (name.as_str(), kind.as_str()))
}

/// Labels whose values are bounded: names of the configuration and of workers, or words of this program.
const LABELS: [&str; 20] = [
    "model",
    "outcome",
    "reason",
    "cause",
    "source",
    "worker",
    "pool",
    "dp_rank",
    "connection",
    "bucket",
    "kind",
    "failure",
    "how",
    "end",
    "alias",
    "le",
    "version",
    "state",
    "code",
    "path",
];

/// The rules of `promtool check metrics`, and ours.
fn lint(page: &Page) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut say = |name: &str, what: &str| wrong.push(format!("{name}: {what}"));
    for (name, kind) in &page.types {
        let counter = kind == "counter";
        match page.helps.get(name) {
            Some(help) if help.len() > 10 => {}
            Some(_) | None => say(name, "no help text"),
        }
        if !name.starts_with("rankpin_") {
            say(name, "no prefix rankpin_");
        }
        if counter != name.ends_with("_total") {
            say(name, "counters, and they alone, end in _total");
        }
        if name.chars().any(|c| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')) {
            say(name, "not in lower snake case");
        }
        let words: BTreeSet<&str> = name.split('_').collect();
        for bad in ["ms", "milliseconds", "us", "microseconds", "minutes", "hours", "kib", "mib", "kb", "mb", "percent"]
        {
            if words.contains(bad) {
                say(name, "units are seconds, bytes, ratios and plain counts");
            }
        }
        for bad in ["counter", "gauge", "histogram", "summary"] {
            if words.contains(bad) {
                say(name, "its type stands in its name");
            }
        }
        if kind != "histogram" && ["_count", "_sum", "_bucket"].iter().any(|suffix| name.ends_with(suffix)) {
            say(name, "ends as a part of a histogram does");
        }
        if kind == "histogram" && !name.ends_with("_seconds") {
            say(name, "a histogram without its unit");
        }
    }
    for (name, labels, value) in &page.samples {
        if family(page, name).is_none() {
            say(name, "a sample without TYPE");
        }
        if value.is_nan() {
            say(name, "not a number");
        }
        let names = labels.split("\",").filter_map(|pair| pair.split_once("=\"")).map(|(label, _)| label);
        for label in names.filter(|label| !LABELS.contains(label)) {
            say(name, &format!("label {label} is none that is known to be bounded"));
        }
    }
    wrong
}

#[tokio::test]
async fn metrics_are_well_formed_and_all_documented() {
    let (_cluster, router, _worker) = busy().await;
    let (status, text) = router.get("/metrics").await;
    assert_eq!(status, 200);
    let page = parse(&text);
    assert_eq!(lint(&page), Vec::<String>::new());
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).expect("readable");
    for name in page.types.keys() {
        assert!(docs.contains(&format!("| `{name}` |")), "docs/metrics.md has no row for {name}");
    }
    // No session and no request: what a frontend may write without bound is no label.
    assert!(!text.contains("nobody-serves-this"), "{text}");
    let value = |name: &str, label: &str| -> f64 {
        page.samples.iter().filter(|(n, l, _)| n == name && l.contains(label)).map(|(_, _, value)| value).sum()
    };
    assert_eq!(value("rankpin_router_requests_total", "model=\"m\",outcome=\"ok\""), 4.0);
    assert_eq!(value("rankpin_router_requests_total", "model=\"other\",outcome=\"unknown_model\""), 1.0);
    assert_eq!(value("rankpin_router_sessions_total", "source=\"header\""), 3.0);
    assert_eq!(value("rankpin_router_sessions_total", "source=\"text\""), 1.0);
    assert_eq!(value("rankpin_router_accept_seconds_count", ""), 4.0);
    assert_eq!(value("rankpin_router_rank_dispatches_total", "worker=\"w\""), 4.0);
    assert_eq!(value("rankpin_router_rank_pins", "worker=\"w\""), 3.0);
    assert!(
        value("rankpin_router_rank_cached_prompt_tokens_total", "worker=\"w\"") > 0.0,
        "the second turn was cached"
    );
    assert_eq!(value("rankpin_router_worker_ready", "worker=\"w\""), 1.0);
    assert_eq!(value("rankpin_router_nats_connected", ""), 4.0);
}

#[tokio::test]
async fn the_page_and_its_figures() {
    let (cluster, router, _worker) = busy().await;
    let (status, page) = router.get("/").await;
    assert_eq!(status, 200);
    assert!(page.contains("<title>rankpin</title>"));
    // One file that asks nobody else for anything.
    for outside in ["http://", "https://", "//cdn", "@import", "src=\"", "url("] {
        let found: Vec<&str> =
            page.lines().filter(|line| line.contains(outside) && !line.contains("www.w3.org")).collect();
        assert!(found.is_empty(), "{outside}: {found:?}");
    }
    let (status, text) = router.get("/api/state").await;
    assert_eq!(status, 200);
    let state: RouterState = serde_json::from_str(&text).expect("as it is declared");
    assert!(state.ready && state.pins.fresh);
    assert_eq!((state.requests.admitted, state.requests.ended["ok"], state.decisions["pinned"]), (5, 4, 1));
    assert_eq!((state.workers[0].worker.as_str(), state.workers[0].ranks.len()), ("w", 2));
    assert!(state.events.iter().any(|event| event.text == "worker w registered"), "{:?}", state.events);
    // The same by NATS, asked as `nats micro` does.
    for (subject, kind) in [
        ("$SRV.PING", "ping"),
        ("$SRV.INFO.rankpin-router", "info"),
        (&format!("$SRV.STATS.rankpin-router.{}", state.router), "stats"),
    ] {
        let asked =
            tokio::time::timeout(Duration::from_secs(10), cluster.client.request(subject.to_owned(), "".into()));
        let answer = asked.await.expect("in time").expect("it answers");
        let value: Value = serde_json::from_slice(&answer.payload).expect("JSON");
        assert_eq!(value["type"], format!("io.nats.micro.v1.{kind}_response"));
        assert_eq!((&value["name"], &value["id"]), (&"rankpin-router".into(), &state.router.as_str().into()));
        if kind == "info" {
            assert_eq!(value["endpoints"][0]["subject"], "rankpin.request.>");
        }
        if kind == "stats" {
            let stats: Stats = serde_json::from_slice(&answer.payload).expect("as it is declared");
            assert_eq!((stats.endpoints[0].num_requests, stats.endpoints[0].num_errors), (5, 1));
            assert_eq!(stats.endpoints[0].data.as_ref().expect("data").router, state.router);
        }
    }
}
