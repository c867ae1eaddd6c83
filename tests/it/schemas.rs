//! The JSON Schemas under `schemas/`: generated from the types, true of what is sent, and of one mind with the
//! parsers about what is refused. The validator is another crate than the one that writes the schemas.

use jsonschema::Validator;
use rankpin::core::error::RouteError;
use rankpin::core::hash::PinKey;
use rankpin::core::id::{DpRank, Model, Origin, Placement, SessionId, Tenant, WorkerId};
use rankpin::wire::Encoding;
use rankpin::wire::drain::DrainAnswer;
use rankpin::wire::event::{Finished, Outcome};
use rankpin::wire::kv::{KvEvent, KvEvents, SessionBlocks};
use rankpin::wire::load::{LoadReport, RankReport};
use rankpin::wire::pin::PinValue;
use rankpin::wire::registration::{Registration, State};
use rankpin::wire::reply::ErrorBody;
use rankpin::wire::schema;
use serde_json::{Value, json};

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas");

#[test]
fn the_files_are_what_the_types_say() {
    let files = std::fs::read_dir(DIR).expect("the directory is there").map(|entry| entry.expect("readable"));
    let mut found: Vec<String> = files.map(|entry| entry.file_name().into_string().expect("names are UTF-8")).collect();
    found.sort();
    let generated = schema::all();
    let names: Vec<&str> = generated.iter().map(|(name, _)| *name).collect();
    assert_eq!(found, names, "`make schemas` writes what is missing; delete what is too many");
    for (name, text) in generated {
        let file = std::fs::read_to_string(format!("{DIR}/{name}")).expect("readable");
        assert!(file == text, "schemas/{name} differs from the types in src/wire: run `make schemas`");
    }
}

/// The committed schema, as somebody with another language would use it.
fn validator(name: &str) -> Validator {
    let file = std::fs::read_to_string(format!("{DIR}/{name}")).expect("readable");
    let schema = serde_json::from_str(&file).expect("a schema is JSON");
    jsonschema::draft202012::new(&schema).expect("a schema of draft 2020-12")
}

/// What the code that reads such a message says of it.
fn parse(name: &str, text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    let value: Value = serde_json::from_str(text).expect("the tests hold JSON");
    let text_of = |field: &str| value[field].as_str().unwrap_or_default();
    match name {
        "drain.json" => DrainAnswer::parse(bytes).map(drop),
        "error.json" => Encoding::Json.decode::<ErrorBody>(bytes).map(drop),
        "finished.json" => Encoding::Json.decode::<Finished>(bytes).map(drop),
        "kv.json" => KvEvents::parse(Encoding::Json, bytes).map(drop),
        "load.json" => LoadReport::parse(Encoding::Json, bytes).map(drop),
        "pin.json" => {
            let key = PinKey::of(text_of("tenant"), text_of("model"), text_of("session"));
            PinValue::parse(key, bytes).map(drop)
        }
        "registration.json" => Registration::parse(text_of("worker"), bytes).map(drop),
        other => panic!("no parser for {other}"),
    }
}

#[track_caller]
fn accepted_by_both(name: &str, value: &Value) {
    let validator = validator(name);
    if let Err(error) = validator.validate(value) {
        panic!("{name} refuses {value}: {error}");
    }
    assert_eq!(parse(name, &value.to_string()), Ok(()), "{name}: {value}");
}

fn to_value(message: &impl serde::Serialize) -> Value {
    serde_json::from_slice(&Encoding::Json.encode(message)).expect("what is encoded is JSON")
}

#[test]
fn what_is_sent_is_valid() {
    let least = Registration::new("gpu-7", "i", &["m"], 65_535, 1);
    let full = Registration {
        max_inflight: Some(64),
        block_size: Some(16),
        kv_blocks: Some(u64::MAX),
        state: State::Draining,
        plain: true,
        ..Registration::new("gpu-7", "i", &["m", "meta-llama/Llama-3.1-8B"], 4, 4)
    };
    accepted_by_both("registration.json", &to_value(&least));
    accepted_by_both("registration.json", &to_value(&full));

    let rank = RankReport { dp_rank: 65_535, inflight: u32::MAX, prefill_tokens: u64::MAX, ..RankReport::default() };
    let report = LoadReport { v: 1, worker: "gpu-7".into(), instance: "i".into(), seq: u64::MAX, ranks: vec![rank] };
    accepted_by_both("load.json", &to_value(&report));
    let packed = Encoding::MessagePack.encode(&report);
    accepted_by_both("load.json", &Encoding::MessagePack.decode(&packed).expect("reads back"));

    let of = |blocks| SessionBlocks { session: "s".into(), blocks };
    let events = vec![KvEvent::Stored(of(0)), KvEvent::Removed(of(u32::MAX)), KvEvent::Cleared(true)];
    let events = KvEvents { v: 1, instance: "i".into(), seq: u64::MAX, events };
    accepted_by_both("kv.json", &to_value(&events));
    let packed = Encoding::MessagePack.encode(&events);
    accepted_by_both("kv.json", &Encoding::MessagePack.decode(&packed).expect("reads back"));

    let (tenant, model) = (Tenant::new("t").expect("valid"), Model::new("m").expect("valid"));
    let session = SessionId::named(&"😀".repeat(64)).expect("256 bytes");
    for rank in [None, Some(DpRank(6))] {
        let placement = Placement { worker: WorkerId::new("gpu-7").expect("valid"), rank };
        for origin in [Origin::Named, Origin::Derived] {
            let pin = PinValue::new(&tenant, &model, &session, origin, &placement);
            accepted_by_both("pin.json", &to_value(&pin));
            let root = Some("\u{1}px:0123456789abcdef".to_owned());
            accepted_by_both("pin.json", &to_value(&PinValue { root, shared: true, ..pin }));
        }
    }

    for outcome in [Outcome::Ok, Outcome::Error, Outcome::Cancelled] {
        let bare = Finished::outcome(outcome);
        let figures = Finished { prompt_tokens: Some(u64::MAX), response_id: Some("resp_1".into()), ..bare.clone() };
        accepted_by_both("finished.json", &to_value(&bare));
        accepted_by_both("finished.json", &to_value(&figures));
    }

    let error = RouteError::UnknownModel("m".into());
    accepted_by_both("error.json", &to_value(&ErrorBody::of(&error)));
}

#[test]
fn the_protocols_examples_are_valid() {
    // Word for word as in docs/protocol.md, with the placeholders filled in.
    let examples = [
        (
            "registration.json",
            r#"{"v":1,"worker":"gpu-7","instance":"<uuid of this process>","models":["m"],"pool":"default","dp_start":4,"dp_size":4,
            "device":"cuda","weight":1.0,"max_inflight":64,"block_size":16,"kv_blocks":8192,"state":"ready","plain":false}"#,
        ),
        (
            "load.json",
            r#"{"v":1,"worker":"gpu-7","instance":"…","seq":17,"ranks":[{"dp_rank":4,"inflight":3,"queued":0,"kv_used_blocks":512,"prefill_tokens":0}]}"#,
        ),
        (
            "kv.json",
            r#"{"v":1,"instance":"…","seq":9,"events":[{"stored":{"session":"…","blocks":12}},{"removed":{"session":"…","blocks":4}},{"cleared":true}]}"#,
        ),
        ("pin.json", r#"{"v":1,"session":"…","model":"…","tenant":"","worker":"gpu-7","dp_rank":6,"origin":"named"}"#),
        (
            "pin.json",
            r#"{"v":1,"session":"…","model":"…","tenant":"","worker":"gpu-7","dp_rank":null,"origin":"derived","root":"…","shared":true}"#,
        ),
        (
            "finished.json",
            r#"{"outcome":"ok","prompt_tokens":1,"cached_tokens":1,"output_tokens":1,"response_id":"…"}"#,
        ),
        ("finished.json", r#"{"outcome":"cancelled"}"#),
        ("drain.json", r#"{"v":1,"worker":"gpu-7","instance":"…","held":3}"#),
        ("error.json", r#"{"error":{"message":"…","type":"rankpin_error","code":"no_worker"}}"#),
    ];
    for (name, text) in examples {
        accepted_by_both(name, &serde_json::from_str(text).expect("JSON"));
    }
}

/// A small valid message of each kind.
fn good(name: &str) -> Value {
    match name {
        "drain.json" => json!({"v": 1, "worker": "w", "instance": "i", "held": 3}),
        "error.json" => json!({"error": {"message": "m", "type": "rankpin_error", "code": "c"}}),
        "finished.json" => json!({"outcome": "ok"}),
        "load.json" => json!({"v": 1, "worker": "w", "instance": "i", "seq": 0, "ranks": [{"dp_rank": 0}]}),
        "kv.json" => {
            json!({"v": 1, "instance": "i", "seq": 0, "events": [{"stored": {"session": "s", "blocks": 1}}, {"cleared": true}]})
        }
        "pin.json" => json!({"v": 1, "session": "s", "model": "m", "worker": "w"}),
        "registration.json" => json!({"v": 1, "worker": "w", "instance": "i", "models": ["m"], "dp_size": 1}),
        other => panic!("no example of {other}"),
    }
}

#[expect(clippy::too_many_lines, reason = "a table")]
/// Places in a message, the values that both sides take there, and those that both refuse.
fn table() -> Vec<(&'static str, &'static str, Vec<Value>, Vec<Value>)> {
    let version = || (vec![json!(1)], vec![json!(0), json!(2), json!("1"), json!(null), json!(-1)]);
    let word = || {
        let good = vec![json!("a"), json!("A-z_0"), json!("x".repeat(64))];
        (good, vec![json!(""), json!("a.b"), json!("a b"), json!("é"), json!("x".repeat(65)), json!(7), json!(null)])
    };
    let text64 = || {
        let good = vec![json!("a b"), json!("…"), json!("x".repeat(64)), json!("\u{80}")];
        let bad = vec![json!(""), json!("a\nb"), json!("\u{0}"), json!("\u{7f}"), json!("x".repeat(65)), json!(null)];
        (good, bad)
    };
    let bits32 = || {
        (vec![json!(0), json!(u32::MAX)], vec![json!(-1), json!(4_294_967_296_u64), json!(1.5), json!("1"), json!([])])
    };
    let bits64 = || (vec![json!(0), json!(u64::MAX)], vec![json!(-1), json!(1e20), json!(0.5), json!("1"), json!({})]);
    let from_one =
        || (vec![json!(1), json!(u32::MAX), json!(null)], vec![json!(0), json!(-1), json!(4_294_967_296_u64)]);
    let rank = || (vec![json!(0), json!(65_535)], vec![json!(-1), json!(65_536), json!("0"), json!(true)]);
    let flag = || (vec![json!(true), json!(false)], vec![json!(0), json!("true"), json!(null)]);
    let any_text = || (vec![json!(""), json!("x")], vec![json!(1), json!(null), json!({})]);
    let name256 = || (vec![json!("m"), json!("x".repeat(256))], vec![json!(1), json!(null)]);

    let mut table = Vec::new();
    let mut row = |name, place, (good, bad): (Vec<Value>, Vec<Value>)| table.push((name, place, good, bad));
    row("registration.json", "/v", version());
    row("registration.json", "/worker", word());
    row("registration.json", "/instance", text64());
    row("registration.json", "/models/0", (vec![json!("a.b"), json!("x".repeat(256))], vec![json!(""), json!(1)]));
    row("registration.json", "/models/0", (vec![], vec![json!("x".repeat(257)), json!(null)]));
    let many = |count: usize| json!(vec!["m"; count]);
    row("registration.json", "/models", (vec![many(1), many(256)], vec![many(0), many(257), json!("m"), json!(null)]));
    row("registration.json", "/pool", text64());
    row("registration.json", "/dp_start", rank());
    row(
        "registration.json",
        "/dp_size",
        (vec![json!(1), json!(65_536)], vec![json!(0), json!(65_537), json!(-1), json!(null)]),
    );
    row("registration.json", "/device", text64());
    row(
        "registration.json",
        "/weight",
        (vec![json!(1), json!(0.001), json!(1e300)], vec![json!(0), json!(0.0), json!(-1), json!("1"), json!(null)]),
    );
    row("registration.json", "/max_inflight", from_one());
    row("registration.json", "/block_size", from_one());
    row("registration.json", "/kv_blocks", bits64());
    row("registration.json", "/state", (vec![json!("ready"), json!("draining")], vec![json!("Ready"), json!(null)]));
    row("registration.json", "/plain", flag());

    row("kv.json", "/v", version());
    row("kv.json", "/instance", text64());
    row("kv.json", "/seq", bits64());
    row("kv.json", "/events", (vec![json!([])], vec![json!({}), json!(null), json!([1]), json!([{"lost": true}])]));
    row("kv.json", "/events/0/stored/session", any_text());
    row("kv.json", "/events/0/stored/blocks", bits32());
    row("kv.json", "/events/1/cleared", flag());

    row("load.json", "/v", version());
    row("load.json", "/worker", word());
    row("load.json", "/instance", text64());
    row("load.json", "/seq", bits64());
    row("load.json", "/ranks", (vec![json!([])], vec![json!({}), json!(null), json!([1]), json!([{}])]));
    row("load.json", "/ranks/0/dp_rank", rank());
    row("load.json", "/ranks/0/inflight", bits32());
    row("load.json", "/ranks/0/queued", bits32());
    row("load.json", "/ranks/0/kv_used_blocks", bits64());
    row("load.json", "/ranks/0/prefill_tokens", bits64());

    row("pin.json", "/v", version());
    row("pin.json", "/session", name256());
    row("pin.json", "/model", name256());
    row("pin.json", "/tenant", (vec![json!(""), json!("t")], vec![json!(1), json!(null)]));
    row("pin.json", "/worker", word());
    row("pin.json", "/dp_rank", rank());
    row("pin.json", "/dp_rank", (vec![json!(null)], vec![]));
    row("pin.json", "/origin", (vec![json!("named"), json!("derived")], vec![json!("other"), json!(null)]));
    row("pin.json", "/root", (vec![json!("x"), json!(null)], vec![json!(1)]));
    row("pin.json", "/shared", flag());

    row(
        "finished.json",
        "/outcome",
        (vec![json!("ok"), json!("error"), json!("cancelled")], vec![json!("OK"), json!(1)]),
    );
    row("finished.json", "/prompt_tokens", bits64());
    row("finished.json", "/cached_tokens", bits64());
    row("finished.json", "/output_tokens", bits64());
    row("finished.json", "/response_id", (vec![json!("x".repeat(1000)), json!(null)], vec![json!(1)]));

    row("drain.json", "/v", version());
    row("drain.json", "/worker", word());
    row("drain.json", "/instance", text64());
    row("drain.json", "/held", bits64());

    row("error.json", "/error/message", any_text());
    row("error.json", "/error/code", any_text());
    row("error.json", "/error/type", (vec![json!("rankpin_error")], vec![json!(1), json!(null)]));
    row("error.json", "/error", (vec![], vec![json!(null), json!("text"), json!({})]));
    table
}

fn put(value: &mut Value, place: &str, new: Value) {
    let (parent, field) = place.rsplit_once('/').expect("places start with /");
    let parent = value.pointer_mut(parent).expect("the place is there");
    match field.parse::<usize>() {
        Ok(index) => parent[index] = new,
        Err(_) => parent[field] = new,
    }
}

#[test]
fn schema_and_parser_agree() {
    for (name, place, accepted, refused) in table() {
        let validator = validator(name);
        for value in accepted {
            let mut message = good(name);
            put(&mut message, place, value);
            accepted_by_both(name, &message);
        }
        for value in refused {
            let mut message = good(name);
            put(&mut message, place, value);
            assert!(!validator.is_valid(&message), "{name} takes {message}");
            assert!(parse(name, &message.to_string()).is_err(), "the parser takes {message}");
        }
    }
}

#[test]
fn missing_fields_are_judged_alike_and_unknown_ones_ignored() {
    for (name, _) in schema::all() {
        let validator = validator(name);
        let whole = good(name);
        for field in whole.as_object().expect("messages are objects").keys() {
            let mut message = whole.clone();
            message.as_object_mut().expect("an object").remove(field);
            assert!(!validator.is_valid(&message), "{name} takes {message}");
            assert!(parse(name, &message.to_string()).is_err(), "the parser takes {message}");
        }
        let mut message = whole;
        message["of_a_later_version"] = json!({"a": [1, null]});
        accepted_by_both(name, &message);
        for other in [json!(null), json!([]), json!("x"), json!(1)] {
            assert!(!validator.is_valid(&other) && parse(name, &other.to_string()).is_err(), "{name}: {other}");
        }
    }
}

#[expect(clippy::too_many_lines, reason = "a table")]
/// Where schema and parser differ, and why that is right. Each row: schema, message, whether the schema takes it,
/// whether the parser does, the reason.
fn differences() -> Vec<(&'static str, String, bool, bool, &'static str)> {
    let with = |name: &str, place: &str, value: Value| {
        let mut message = good(name);
        put(&mut message, place, value);
        message.to_string()
    };
    vec![
        (
            "registration.json",
            r#"{"v":1,"worker":"w","instance":"i","models":["m"],"dp_start":65535,"dp_size":2}"#.into(),
            true,
            false,
            "a schema can't add dp_start and dp_size",
        ),
        (
            "registration.json",
            with("registration.json", "/pool", json!("é".repeat(64))),
            true,
            false,
            "a schema counts characters, the protocol bytes",
        ),
        (
            "registration.json",
            with("registration.json", "/dp_size", json!(1.0)),
            true,
            false,
            "a schema takes 1.0 for an integer",
        ),
        (
            "registration.json",
            r#"{"v":1,"v":1,"worker":"w","instance":"i","models":["m"],"dp_size":1}"#.into(),
            true,
            false,
            "a schema sees only one of two fields of one name",
        ),
        (
            "pin.json",
            with("pin.json", "/session", json!("")),
            false,
            true,
            "a router looks pins up by key, and no session that has a key has such an id",
        ),
        (
            "pin.json",
            with("pin.json", "/model", json!("x".repeat(257))),
            false,
            true,
            "as above: such a model is never looked up",
        ),
        (
            "pin.json",
            with("pin.json", "/tenant", json!("x".repeat(257))),
            false,
            true,
            "as above: such a tenant is never looked up",
        ),
        (
            "error.json",
            with("error.json", "/error/type", json!("engine_error")),
            false,
            true,
            "a frontend reads an engine's own error too",
        ),
        (
            "load.json",
            r#"[1,"w","i",0,[]]"#.into(),
            false,
            true,
            "MessagePack libraries write records as arrays; the same reader reads both encodings",
        ),
    ]
}

#[test]
fn known_differences_are_as_described() {
    for (name, text, by_schema, by_parser, reason) in differences() {
        let value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(validator(name).is_valid(&value), by_schema, "{name}, {reason}: {text}");
        assert_eq!(parse(name, &text).is_ok(), by_parser, "{name}, {reason}: {text}");
    }
}
