//! What reading a body costs, beside what parsing it costs anyway. In one run: (a) `serde_json` to `IgnoredAny`, which
//! checks and keeps nothing, (b) the straightforward way, borrowed raw slices of the items, each parsed to a `Value`
//! that is walked and hashed, (c) ours, everything included: validity, model, hashes, keys.
//!
//! `cargo bench --bench body` prints time and bytes a second; the ratios of (c) to (a) and (b) are printed first.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rankpin::core::id::Model;
use rankpin::core::session::configured::BodyFields;
use rankpin::core::session::derived::text_hash;
use rankpin::wire::Encoding;
use rankpin::wire::body::{Wanted, read};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Messages in the large body.
const MESSAGES: usize = 500;
/// Bytes of the large body.
const LARGE: usize = 3_200_000;
/// Bodies measured: messages, and bytes in JSON.
const SIZES: [(usize, usize); 4] = [(4, 2 << 10), (20, 64 << 10), (80, 512 << 10), (MESSAGES, LARGE)];

/// What the texts of a body are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// ASCII prose in one line: no escapes.
    Plain,
    /// Source code: a line break, a tab or a quote every few words.
    Escaped,
    /// Chinese: three bytes a character, no escapes.
    Wide,
    /// The same with every character escaped, six bytes each, as Python's `json` writes it by default.
    Ascii,
}

const KINDS: [Kind; 4] = [Kind::Plain, Kind::Escaped, Kind::Wide, Kind::Ascii];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Escaped => "escaped",
            Self::Wide => "wide",
            Self::Ascii => "ascii",
        }
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Plain => {
                &["the router ", "keeps each ", "conversation ", "on its rank, ", "where the prefix ", "is. "]
            }
            Self::Escaped => {
                &["let rank = hash(session) % size;\n", "\tif rank == 0 { ", "print(\"zero\");\n", "\t}\n"]
            }
            Self::Wide | Self::Ascii => &["每个会话都固定在", "它的等级上，", "前缀缓存在那里。"],
        }
    }

    fn json(self, value: &Value) -> Vec<u8> {
        let json = serde_json::to_string(value).expect("JSON");
        if self != Self::Ascii {
            return json.into_bytes();
        }
        let escape = |char: char| format!("\\u{:04x}", u32::from(char));
        json.chars()
            .map(|char| if char.is_ascii() { char.to_string() } else { escape(char) })
            .collect::<String>()
            .into()
    }

    /// A text of about `bytes` in JSON, each one another.
    fn text(self, bytes: usize, number: usize) -> String {
        let mut text = format!("{number}: ");
        let mut written = text.len();
        for word in self.words().iter().cycle() {
            if written >= bytes {
                break;
            }
            text.push_str(word);
            written += self.json(&Value::from(*word)).len() - 2;
        }
        text
    }
}

/// A conversation of about `bytes` in JSON.
fn body(kind: Kind, messages: usize, bytes: usize) -> Value {
    let share = bytes / messages - 35;
    let items: Vec<_> = (0..messages)
        .map(|i| {
            let role = if i % 2 == 0 { "user" } else { "assistant" };
            json!({"role": role, "content": kind.text(share, i)})
        })
        .collect();
    json!({"model": "meta-llama/Llama-3.1-8B", "messages": items, "stream": true})
}

fn ignored(body: &[u8]) {
    serde_json::from_slice::<serde::de::IgnoredAny>(black_box(body)).expect("valid");
}

#[derive(serde::Deserialize)]
struct Raw<'b> {
    #[serde(borrow)]
    messages: Vec<&'b RawValue>,
}

/// Sums the hashes of all strings: the rules of section 4 would come on top.
fn walked(value: &Value) -> u64 {
    match value {
        Value::String(text) => text_hash(text.as_bytes()).unwrap_or(0),
        Value::Array(items) => items.iter().map(walked).fold(0, u64::wrapping_add),
        Value::Object(fields) => fields.values().map(walked).fold(0, u64::wrapping_add),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn straightforward(body: &[u8]) -> u64 {
    let raw: Raw<'_> = serde_json::from_slice(black_box(body)).expect("valid");
    let items = raw.messages.iter().map(|item| walked(&serde_json::from_str(item.get()).expect("valid")));
    items.fold(0, u64::wrapping_add)
}

fn ours(body: &[u8], encoding: Encoding, model: &Model) -> u64 {
    let reading = read(black_box(body), encoding, Wanted { model: true, elements: true, fields: BodyFields::NONE })
        .expect("valid");
    reading.prefixes(model).expect("a conversation").full()
}

/// Time of one call: the fastest of many runs of each, taken in turn so that noise hits all alike.
fn fastest<const N: usize>(calls: u32, mut runs: [Box<dyn FnMut() + '_>; N]) -> [Duration; N] {
    let mut best = [Duration::MAX; N];
    for _ in 0..100 {
        for (run, best) in runs.iter_mut().zip(&mut best) {
            let start = Instant::now();
            for _ in 0..calls {
                run();
            }
            *best = (start.elapsed() / calls).min(*best);
        }
    }
    best
}

fn ratios(kind: Kind, messages: usize, size: usize, model: &Model) {
    let value = body(kind, messages, size);
    let (bytes, packed) = (kind.json(&value), rmp_serde::to_vec(&value).expect("MessagePack"));
    let calls = u32::try_from(LARGE / size).expect("few").min(500);
    let [a, b, c, c_packed] = fastest(
        calls,
        [
            Box::new(|| ignored(&bytes)),
            Box::new(|| {
                black_box(straightforward(&bytes));
            }),
            Box::new(|| {
                black_box(ours(&bytes, Encoding::Json, model));
            }),
            Box::new(|| {
                black_box(ours(&packed, Encoding::MessagePack, model));
            }),
        ],
    );
    println!(
        "{:8} {:7} bytes: (a) {a:9.2?} (b) {b:9.2?} (c) {c:9.2?} = {:.2} x (a) = {:.2} x (b), {:.1} GB/s; MessagePack {:.1} GB/s",
        kind.name(),
        bytes.len(),
        c.div_duration_f64(a),
        c.div_duration_f64(b),
        bytes.len() as f64 / c.as_secs_f64() / 1e9,
        packed.len() as f64 / c_packed.as_secs_f64() / 1e9,
    );
}

fn bodies(criterion: &mut Criterion) {
    let model = Model::new("meta-llama/Llama-3.1-8B").expect("a model's name");
    for kind in KINDS {
        for (messages, bytes) in SIZES {
            ratios(kind, messages, bytes, &model);
        }
    }
    for kind in KINDS {
        let mut group = criterion.benchmark_group(kind.name());
        for (messages, bytes) in SIZES {
            let value = body(kind, messages, bytes);
            let json = kind.json(&value);
            let packed = rmp_serde::to_vec(&value).expect("MessagePack");
            group.throughput(Throughput::Bytes(json.len() as u64));
            group.bench_with_input(BenchmarkId::new("a, ignored", bytes), &json, |b, json| b.iter(|| ignored(json)));
            group.bench_with_input(BenchmarkId::new("b, values", bytes), &json, |b, json| {
                b.iter(|| straightforward(json));
            });
            group.bench_with_input(BenchmarkId::new("c, ours", bytes), &json, |b, json| {
                b.iter(|| ours(json, Encoding::Json, &model));
            });
            group.throughput(Throughput::Bytes(packed.len() as u64));
            group.bench_with_input(BenchmarkId::new("c, ours, MessagePack", bytes), &packed, |b, packed| {
                b.iter(|| ours(packed, Encoding::MessagePack, &model));
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(300));
    targets = bodies
}
criterion_main!(benches);
