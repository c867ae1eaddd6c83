//! Versions next to each other: what an earlier release has put on the wire is read as it was meant, and what this one
//! writes has everything that the earlier one reads.
//!
//! `tests/recorded/v0.1/messages.jsonl` was recorded from processes of that release by [`record`]. A release adds a
//! directory of its own, and never changes an old one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rankpin::client::Request;
use rankpin::client::jobs::{Jobs, JobsOptions};
use rankpin::core::hash::PinKey;
use rankpin::core::id::{Model, RequestId, SessionId};
use rankpin::wire::Encoding;
use rankpin::wire::event::Event;
use rankpin::wire::header::{self, Known};
use rankpin::wire::job::Tried;
use rankpin::wire::kv::KvEvents;
use rankpin::wire::load::{LoadReport, RankReport};
use rankpin::wire::pin::PinValue;
use rankpin::wire::registration::Registration;
use rankpin::wire::reply::{ErrorBody, ReplyHead};
use rankpin::wire::request::{Reading, RequestHead};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{LONG, frontend, served, sim, turn};
use crate::support::{NatsServer, PATIENCE, RouterProcess, eventually, so_far};

/// The releases whose messages are there.
const RELEASES: [&str; 1] = ["v0.1"];

/// What a router expects where it only wants to hear whether it may publish.
const NO_REVISION: &str = "4611686018427387904";

/// One message as it stood on the wire.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Recorded {
    kind: String,
    subject: String,
    headers: Vec<(String, String)>,
    /// As text; in hex where it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

impl Recorded {
    fn payload(&self) -> Vec<u8> {
        match (&self.text, &self.hex) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(hex)) => {
                let digits: Vec<u8> = hex.bytes().collect();
                let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex");
                digits.chunks(2).map(byte).collect()
            }
            (None, None) => Vec::new(),
        }
    }

    fn encoding(&self) -> Encoding {
        Encoding::of(self.header(header::CONTENT_TYPE))
    }

    fn header(&self, name: &str) -> Option<&str> {
        header::find(self.pairs(), name)
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    fn value(&self) -> Value {
        let payload = self.payload();
        self.encoding().decode(&payload).unwrap_or_else(|e| panic!("{}: {e}", self.kind))
    }

    /// The same message as a later release might write it: with headers and fields that this one does not know.
    fn of_a_later_release(&self) -> Self {
        let mut later = self.clone();
        later.headers.push(("Rankpin-Of-A-Later-Release".into(), "x".into()));
        let objects = ["registration", "load", "pin", "finished", "error", "kv"];
        if objects.contains(&self.kind.as_str()) {
            let mut value = self.value();
            let fields = value.as_object_mut().expect("an object");
            fields.insert("of_a_later_release".into(), json!({"nested": [1, {"deep": null}]}));
            let payload = self.encoding().encode(&value);
            later.text = String::from_utf8(payload.clone()).ok();
            later.hex = later.text.is_none().then(|| payload.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        later
    }

    /// What this release reads in it, in words; for types that are written too, what it writes again.
    fn read(&self) -> (String, Option<Value>) {
        let (payload, encoding) = (self.payload(), self.encoding());
        let again = |value: Vec<u8>| serde_json::from_slice(&value).expect("JSON");
        match self.kind.as_str() {
            "registration" => {
                let key = self.subject.rsplit('.').next().expect("a key");
                let spec = Registration::parse(key, &payload).expect("valid");
                let written: Registration = encoding.decode(&payload).expect("valid");
                (format!("{spec:?}"), Some(again(Encoding::Json.encode(&written))))
            }
            "load" => {
                let report = LoadReport::parse(encoding, &payload).expect("valid");
                let written: LoadReport = encoding.decode(&payload).expect("valid");
                (format!("{report:?}"), Some(again(Encoding::Json.encode(&written))))
            }
            "kv" => (format!("{:?}", KvEvents::parse(encoding, &payload).expect("valid")), None),
            "pin" => {
                let key = PinKey::parse(self.subject.rsplit('.').next().expect("a key")).expect("a key");
                let pin = PinValue::parse(key, &payload).expect("valid");
                let written: PinValue = encoding.decode(&payload).expect("valid");
                (format!("{pin:?}"), Some(again(written.encode())))
            }
            "error" => {
                let error: ErrorBody = encoding.decode(&payload).expect("valid");
                (format!("{error:?} {:?}", ReplyHead::read(self.pairs())), Some(again(Encoding::Json.encode(&error))))
            }
            "accepted" | "progress" | "rejected" | "finished" => {
                (format!("{:?}", Event::read(self.pairs(), &payload).expect("an event")), None)
            }
            "reply" | "result" => (format!("{:?}", ReplyHead::read(self.pairs())), None),
            "request" => {
                let known = Known::read(self.pairs());
                let head = RequestHead::read(&known, Reading { trusted: true, sessions: true }).expect("valid");
                (format!("{head:?}"), None)
            }
            "job" => {
                let id = RequestId::new(self.header(header::REQUEST_ID).expect("an id")).expect("valid");
                (format!("{:?}", Tried::read(self.pairs(), &id)), None)
            }
            "dispatch" | "cancel" | "probe" => {
                let read = [header::REQUEST_ID, header::ATTEMPT, header::REPLY_TO, header::DP_RANK, header::SESSION]
                    .map(|name| self.header(name).map(str::to_owned));
                (format!("{read:?} {:?}", self.header(header::PROBE)), None)
            }
            other => panic!("{other:?} is no kind of message"),
        }
    }
}

fn file(release: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recorded").join(release).join("messages.jsonl")
}

fn messages(release: &str) -> Vec<Recorded> {
    let text = std::fs::read_to_string(file(release)).expect("it was recorded");
    text.lines().map(|line| serde_json::from_str(line).expect("a recorded message")).collect()
}

/// Whether everything of `old` stands in `new`, whatever else does.
fn holds(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => {
            old.iter().all(|(name, value)| new.get(name).is_some_and(|found| holds(found, value)))
        }
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| holds(new, old))
        }
        (new, old) => new == old,
    }
}

#[test]
fn messages_of_earlier_releases_are_read_and_unknown_fields_are_ignored() {
    for release in RELEASES {
        let mut kinds = BTreeMap::<String, usize>::new();
        for message in messages(release) {
            let (meaning, again) = message.read();
            if let Some(again) = again {
                assert!(holds(&again, &message.value()), "{release}: a field of {message:?} is lost in {again}");
            }
            let (later, _) = message.of_a_later_release().read();
            assert_eq!(later, meaning, "what is unknown changes nothing");
            *kinds.entry(message.kind).or_default() += 1;
        }
        for kind in [
            "registration",
            "load",
            "pin",
            "request",
            "dispatch",
            "accepted",
            "rejected",
            "finished",
            "reply",
            "error",
            "cancel",
            "probe",
            "job",
            "result",
        ] {
            assert!(kinds.contains_key(kind), "{release} has no {kind}");
        }
    }
}

/// What a recorded message is; nothing where it is none of the protocol's own.
fn kind(message: &async_nats::Message) -> Option<String> {
    let header = |name: &str| crate::support::frontend::find(message, name);
    if let Some(event) = header(header::EVENT) {
        return Some(event.to_owned());
    }
    let subject = message.subject.as_str();
    if subject.contains("rankpin-permission-check")
        || header("Nats-Expected-Last-Subject-Sequence") == Some(NO_REVISION)
    {
        return None;
    }
    let kind = match subject {
        s if s.starts_with("$KV.rankpin_workers.") && !message.payload.is_empty() => "registration",
        s if s.starts_with("$KV.rankpin_pins.") && !message.payload.is_empty() => "pin",
        s if s.starts_with("rankpin.load.") => "load",
        s if s.starts_with("rankpin.kv.") => "kv",
        s if s.starts_with("rankpin.request.") => "request",
        s if s.starts_with("rankpin.job.") => "job",
        s if s.starts_with("rankpin.result.") => "result",
        s if s.ends_with(".cancel") && header(header::PROBE).is_some() => "probe",
        s if s.ends_with(".cancel") => "cancel",
        s if s.starts_with("rankpin.worker.") => "dispatch",
        s if s.starts_with("_INBOX.") && header(header::SERVICE_ERROR_CODE).is_some() => "error",
        s if s.starts_with("_INBOX.") && header(header::SEQ).is_some() => "reply",
        _ => return None,
    };
    Some(kind.to_owned())
}

/// Not a test: records what this release says, into the last directory of [`RELEASES`]:
/// `cargo test --test it -- reliability::recorded::record --ignored`.
#[tokio::test]
#[ignore = "it writes a file, once for each release"]
async fn record() {
    let server = NatsServer::start();
    let client = server.client().await;
    let mut tap = client.subscribe(">").await.expect("subscribes");
    let router = RouterProcess::start("router", &server, &[]).await;
    let slow = ["--dp-size", "2", "--decode-rate", "2", "--max-inflight", "1"];
    let worker = sim(&server.url(), server.dir(), "w", &slow);
    let frontend = frontend(&server.url()).await;
    served(&frontend, "named").await;
    let derived = r#"{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}"#;
    let model = |name| Model::new(name).expect("valid");
    let plain = Request::new(model("m"), derived);
    let sent = frontend.send(plain.clone()).await.expect("is published");
    sent.collect().await.expect("it is served");
    let jobs = Jobs::connect(JobsOptions::new(&server.url())).await.expect("connects");
    let id = RequestId::new("job-1").expect("valid");
    jobs.submit(&plain.request_id(id.clone())).await.expect("it is taken");
    eventually("the job is done", LONG, async || jobs.result(&id).await.ok().flatten()).await;
    // Long enough to be probed, then cancelled; and one for a model that there is not.
    let long = frontend.send(turn("cancelled", 1000)).await.expect("is published");
    tokio::time::sleep(Duration::from_secs(7)).await;
    drop(long);
    let refused = frontend.send(Request::new(model("unknown"), "{}")).await.expect("is published");
    refused.collect().await.expect_err("nobody serves it");
    // The session is named, so that the worker is the first to read the body.
    let invalid = Request::new(model("m"), "{").session(&SessionId::named("invalid").expect("valid"));
    let refused = frontend.send(invalid).await.expect("is published");
    refused.collect().await.expect_err("the worker refuses it");
    let held = async || (router.metric("requests_in_flight").await == 0.0).then_some(());
    eventually("nothing is held", PATIENCE, held).await;
    drop(worker);

    let mut counts = BTreeMap::<String, usize>::new();
    let mut lines = String::new();
    for message in so_far(&client, &mut tap).await {
        let Some(kind) = kind(&message).filter(|kind| {
            let count = counts.entry(kind.clone()).or_default();
            *count += 1;
            *count <= 2
        }) else {
            continue;
        };
        let pairs = message.headers.iter().flat_map(|headers| headers.iter());
        let headers = pairs
            .flat_map(|(name, values)| values.iter().map(move |value| (name.to_string(), value.as_str().to_owned())));
        let text = String::from_utf8(message.payload.to_vec()).ok();
        let hex = text.is_none().then(|| message.payload.iter().map(|byte| format!("{byte:02x}")).collect());
        let subject = message.subject.to_string();
        let recorded = Recorded { kind, subject, headers: headers.collect(), text, hex };
        lines.push_str(&serde_json::to_string(&recorded).expect("plain data"));
        lines.push('\n');
    }
    for made in made() {
        lines.push_str(&serde_json::to_string(&made).expect("plain data"));
        lines.push('\n');
    }
    std::fs::write(file(RELEASES[RELEASES.len() - 1]), lines).expect("the directory is there");
}

/// What simulated workers don't say: caches by session, and reports in MessagePack.
fn made() -> Vec<Recorded> {
    let rank = RankReport { dp_rank: 5, inflight: 3, queued: 1, kv_used_blocks: 512, prefill_tokens: 70_000 };
    let load = LoadReport { v: 1, worker: "w".into(), instance: "i".into(), seq: 300, ranks: vec![rank] };
    let kv = json!({"v": 1, "instance": "i", "seq": 9, "events": [
        {"stored": {"session": "s", "blocks": 12}}, {"removed": {"session": "s", "blocks": 4}}, {"cleared": true}
    ]});
    let message = |kind: &str, subject: &str, encoding: Encoding, payload: Vec<u8>| {
        let text = String::from_utf8(payload.clone()).ok();
        let hex = text.is_none().then(|| payload.iter().map(|byte| format!("{byte:02x}")).collect());
        let headers = vec![(header::CONTENT_TYPE.to_owned(), encoding.media_type().to_owned())];
        Recorded { kind: kind.into(), subject: subject.into(), headers, text, hex }
    };
    [Encoding::Json, Encoding::MessagePack]
        .into_iter()
        .flat_map(|encoding| {
            [
                message("load", "rankpin.load.w", encoding, encoding.encode(&load)),
                message("kv", "rankpin.kv.w.5", encoding, encoding.encode(&kv)),
            ]
        })
        .collect()
}
