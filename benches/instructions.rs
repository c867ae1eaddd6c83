//! What `scripts/instructions` counts the instructions of: one case, so many times. With another number of times the
//! same start-up costs the same, so the difference is what the case itself costs.
//!
//! `instructions CASE TIMES [URL]`; the cases `requests` and `first-turns` send them through a router at that NATS server.

mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rankpin::client::{Client, ClientOptions, Request};
use rankpin::core::ask::Ask;
use rankpin::core::decide::{Pin, Rules, decide};
use rankpin::core::hash::PinKey;
use rankpin::core::id::{Model, Origin, SessionId};
use rankpin::core::mode::{AffinityMode, PolicyKind, RankChoice};
use rankpin::core::session::configured::BodyFields;
use rankpin::wire::Encoding;
use rankpin::wire::body::{Wanted, read};
use serde_json::json;

use self::support::{PINS, ask, conversation, fleet, fleet_with_caches, mirror, session};

/// As in the router.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Messages of a body whose keys are derived, and the bytes of each.
const MESSAGES: usize = 32;
const MESSAGE_BYTES: usize = 2048;
/// Sessions and bytes of the requests that are sent, and how many are under way at a time.
const SESSIONS: u32 = 100;
const PAYLOAD: usize = 1024;
const IN_FLIGHT: usize = 64;
/// Under an instruction counter a router is slow.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let case = arguments.first().map(String::as_str).unwrap_or_default();
    let times = arguments.get(1).and_then(|times| times.parse::<u32>().ok()).unwrap_or(1);
    let url = arguments.get(2).map(String::as_str).unwrap_or("nats://127.0.0.1:4222");
    match case {
        "pinned" => pinned(times),
        "fresh" => fresh(times),
        "kv" => kv(times),
        "keys" => keys(times),
        "requests" => requests(times, SESSIONS, url),
        "first-turns" => requests(times, u32::MAX, url),
        other => panic!("case {other:?}: is none of pinned, fresh, kv, keys, requests, first-turns"),
    }
}

fn rules(policy: PolicyKind) -> Rules {
    Rules { mode: AffinityMode::Hard, policy, rank_choice: RankChoice::Hash }
}

/// A turn of a session that has a pin: the look-up and the decision.
fn pinned(times: u32) {
    let now = Instant::now();
    let (mut fleet, mirror, mut rng) = (fleet(now), mirror(now), StdRng::seed_from_u64(1));
    for n in 0..times {
        let ask = ask(session(n * 7919 % PINS, Origin::Named));
        let key = PinKey::new(&ask.tenant, &ask.model, &ask.session.as_ref().expect("it has one").id);
        let pin = mirror.get(key, now).and_then(|entry| entry.pin.as_ref()).expect("it is pinned");
        let pin = Pin::At(&pin.placement);
        black_box(decide(&ask, &mut fleet, pin, rules(PolicyKind::LeastLoaded), now, &mut rng)).expect("placed");
    }
}

/// A first turn: the least loaded of 1,000 workers.
fn fresh(times: u32) {
    let now = Instant::now();
    let (mut fleet, mut rng) = (fleet(now), StdRng::seed_from_u64(1));
    for n in 0..times {
        let ask = ask(session(n, Origin::Named));
        black_box(decide(&ask, &mut fleet, Pin::None, rules(PolicyKind::LeastLoaded), now, &mut rng)).expect("placed");
    }
}

/// A first turn of 500 messages, by what 8,000 ranks have cached.
fn kv(times: u32) {
    let now = Instant::now();
    let (mut fleet, mut rng) = (fleet_with_caches(now), StdRng::seed_from_u64(1));
    let ask = Ask { prompt: conversation(17, 500), ..ask(session(0, Origin::Named)) };
    for _ in 0..times {
        black_box(decide(&ask, &mut fleet, Pin::None, rules(PolicyKind::Kv), now, &mut rng)).expect("placed");
    }
}

/// The keys of a conversation of 64 KiB.
fn keys(times: u32) {
    let text = |n: usize| format!("{n} the router keeps each conversation on its rank\n").repeat(MESSAGE_BYTES / 52);
    let role = |n: usize| if n.is_multiple_of(2) { "user" } else { "assistant" };
    let messages: Vec<_> = (0..MESSAGES).map(|n| json!({"role": role(n), "content": text(n)})).collect();
    let body = json!({"model": "m", "messages": messages}).to_string();
    for _ in 0..times {
        let wanted = Wanted { model: true, elements: true, fields: BodyFields::NONE };
        let reading = read(black_box(body.as_bytes()), Encoding::Json, wanted).expect("it is a body");
        black_box(reading);
    }
}

/// Requests of so many sessions in turn through a router, to a worker that echoes.
fn requests(times: u32, sessions: u32, url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let options = ClientOptions { idle_timeout: PATIENCE, request_timeout: PATIENCE, ..ClientOptions::new(url) };
        let client = Client::connect(options).await.unwrap_or_else(|e| panic!("cannot connect to {url}: {e}"));
        let one = async |n: u32| {
            let session = SessionId::named(&format!("session-{}", n % sessions)).expect("a valid id");
            let request = Request::new(Model::new("m").expect("a valid name"), "x".repeat(PAYLOAD))
                .session(&session)
                .timeout(PATIENCE);
            let mut replies = client.send(request).await.unwrap_or_else(|e| panic!("request {n}: {e}"));
            while let Some(reply) = replies.next().await {
                reply.unwrap_or_else(|e| panic!("request {n}: {e}"));
            }
        };
        stream::iter(0..times).map(one).buffer_unordered(IN_FLIGHT).collect::<()>().await;
    });
}
