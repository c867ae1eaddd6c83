//! Bodies made to break a reader. That they return at all, without exhausting stack or memory, is most of the test.

use serde_json::Value;

use super::{json, keys, packed, prefixes};
use crate::support::conversations::Conversations;

const MANY: usize = 100_000;
const LONG: usize = 10 << 20;

#[test]
fn nesting_without_end_costs_no_stack() {
    let deep = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":{}"x"{}}}]}}"#,
        "[".repeat(MANY),
        "]".repeat(MANY)
    );
    let reading = json(&deep).expect("valid");
    assert_eq!((reading.model.as_deref(), reading.elements), (Some("m"), None));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(MANY), "}".repeat(MANY));
    assert_eq!(json(&objects).expect("valid").elements, None);
    assert!(json("[".repeat(MANY)).is_err());
    assert!(json(format!("{}]", r#"{"a":["#.repeat(MANY))).is_err());

    let mut bytes = b"\x82\xa8messages".to_vec();
    bytes.extend([0x91].repeat(MANY));
    bytes.extend(b"\xc0\xa5model\xa1m");
    let reading = packed(&bytes).expect("valid");
    assert_eq!((reading.model.as_deref(), reading.elements), (Some("m"), None));
    assert!(packed([0x91].repeat(MANY)).is_err());
    // As deep in names as in values: maps whose first name is a map.
    assert!(packed([0x81].repeat(MANY)).is_err());
}

#[test]
fn what_follows_too_deep_a_field_is_still_read() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for body in [
        format!(r#"{{"tools":{deep},"messages":[{{"role":"user","content":"x"}}],"model":"m"}}"#),
        format!(r#"{{"messages":[{{"role":"user","content":{deep}}},{{"role":"user"}}],"model":"m"}}"#),
        format!(r#"{{"system":["x",{deep},"y"],"messages":[{{"role":"user"}}],"model":"m"}}"#),
    ] {
        let reading = json(&body).expect("valid");
        assert_eq!((reading.model.as_deref(), reading.elements), (Some("m"), None), "{body}");
        let twice = body.replace(r#""model":"m""#, r#""model":"m","model":"n""#);
        assert!(json(twice).is_err());
    }
}

#[test]
fn the_limit_is_128_levels_wherever_they_stand() {
    let body = |levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"messages":[{{"role":"user"}}],"tools":{open}{close}}}"#)
    };
    assert!(prefixes(body(127)).is_some());
    assert!(prefixes(body(128)).is_none());
    let body = |levels: usize| {
        let value = (0..levels).fold(Value::Null, |inside, _| serde_json::json!([inside]));
        let body = serde_json::json!({"messages": [{"role": "user"}], "tools": value});
        packed(rmp_serde::to_vec(&body).expect("MessagePack")).expect("valid").elements
    };
    assert!(body(127).is_some());
    assert!(body(128).is_none());
}

#[test]
fn single_texts_of_ten_megabytes() {
    let plain = "x".repeat(LONG);
    let escaped = plain.replace("xxxx", r"x\u0078\nx");
    let of = |text: &str| keys(format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#));
    assert_eq!(of(&plain).len(), 1);
    assert_eq!(of(&escaped), of(&escaped.replace(r"\u0078", "x")));
    assert!(json(format!(r#"{{"messages":["{escaped}"#)).is_err());
    assert_eq!(of(&r"\".repeat(1 << 20)).len(), 1);
}

#[test]
fn a_hundred_thousand_items() {
    let items = vec![r#"{"role":"user","content":"x"}"#; MANY].join(",");
    assert_eq!(keys(format!(r#"{{"messages":[{items}]}}"#)).len(), MANY);
    let parts = vec![r#"{"type":"text","text":"x","type":"text"}"#; MANY].join(",");
    assert_eq!(keys(format!(r#"{{"input":[{{"role":"user","content":[{parts}]}}]}}"#)).len(), 1);
    let fields = vec![r#""role":"assistant","type":"x""#; MANY].join(",");
    assert_eq!(keys(format!(r#"{{"input":[{{{fields}}}]}}"#)).len(), 1);
}

#[test]
fn arguments_inside_arguments_all_the_way_down() {
    // Each level is 5 bytes a quote longer, so hundreds of levels fit; only some of them are looked into.
    let mut inside = format!(r#"{{"k":"{}"}}"#, "x".repeat(1 << 20));
    for _ in 0..100 {
        inside = format!(r#"{{"arguments":"{}"}}"#, inside.replace('\\', r"\u005c").replace('"', r"\u0022"));
    }
    assert_eq!(keys(format!(r#"{{"messages":[{{"role":"user","content":{inside}}}]}}"#)).len(), 1);
}

#[test]
fn lengths_that_lie_reserve_nothing() {
    for head in [
        &b"\xdd\xff\xff\xff\xff"[..],
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff",
    ] {
        assert!(packed(head).is_err());
        let inside = [b"\x81\xa8messages", head].concat();
        assert!(packed(&inside).is_err());
        assert!(packed([&[0x91; 200], head].concat()).is_err());
        assert!(packed(head.repeat(1_000)).is_err());
    }
}

#[test]
fn text_that_looks_like_fields_is_text() {
    let text = serde_json::to_string(r#"","session_id":"x","messages":[{"role":"assistant"}],"model":"evil"#)
        .expect("a string");
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":{text}}}]}}"#);
    let reading = json(body).expect("valid");
    assert_eq!(reading.model.as_deref(), Some("m"));
    assert_eq!(reading.elements.expect("a session").len(), 1);
}

#[test]
fn a_real_body_that_is_cut_off_anywhere_is_refused() {
    let conversations = Conversations::load().all;
    // One of each API, of moderate size: every cut reads the body once more.
    for api in ["chat", "messages", "responses"] {
        let of_api = conversations.iter().filter(|conversation| conversation.api == api);
        let bodies = of_api.map(|conversation| conversation.body(conversation.turns() - 1));
        let body = bodies.filter(|body| body.len() < 8_000).max_by_key(|body| body.len());
        let body = body.unwrap_or_else(|| panic!("no small body of {api}"));
        let tree: Value = serde_json::from_slice(body).expect("JSON");
        let as_packed = rmp_serde::to_vec(&tree).expect("MessagePack");
        assert_eq!(json(body), packed(&as_packed));
        for end in 0..body.len() {
            assert!(json(&body[..end]).is_err(), "{api} cut off at {end}");
        }
        for end in 0..as_packed.len() {
            assert!(packed(&as_packed[..end]).is_err(), "{api} cut off at {end}");
        }
    }
}
