//! Bodies: JSON and MessagePack say the same, and the keys are those of a naive implementation.

use rankpin::core::id::Model;
use rankpin::core::session::configured::{BodyField, BodyFields};
use rankpin::wire::Encoding;
use rankpin::wire::body::{BodyError, MAX_ARGUMENTS_LEVELS, Reading, Wanted, read};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::reference;

fn everything() -> Wanted {
    Wanted { model: true, elements: true, fields: BodyField::NAMED.into_iter().map(|(_, field)| field).collect() }
}

fn json(body: &[u8]) -> Result<Reading, BodyError> {
    read(body, Encoding::Json, everything())
}

fn packed(body: &[u8]) -> Result<Reading, BodyError> {
    read(body, Encoding::MessagePack, everything())
}

/// A body in JSON: what is accepted is JSON, MessagePack of it reads the same, and so does JSON written by others.
pub fn json_body(data: &[u8]) {
    let reading = json(data);
    same_whatever_is_wanted(data, Encoding::Json, &reading);
    let is_json = serde_json::from_slice::<IgnoredAny>(data).is_ok() && std::str::from_utf8(data).is_ok();
    match &reading {
        Ok(_) => assert!(is_json, "accepted, and no JSON"),
        Err(BodyError::Twice { .. }) => {}
        Err(error) => assert!(!is_json, "{error}"),
    }
    // A tree can't hold everything that JSON can say: then there is nothing to compare with.
    if let Ok(tree) = serde_json::from_slice::<rmpv::Value>(data) {
        same(&packed(&pack(&tree)), &reading);
        let mut written = String::new();
        write_json(&tree, &mut written);
        same(&json(written.as_bytes()), &reading);
    }
    if let Ok(tree) = serde_json::from_slice::<Value>(data) {
        keys_are_right(&tree);
    }
}

/// A body in MessagePack: what is accepted is MessagePack, and JSON of it reads the same.
pub fn packed_body(data: &[u8]) {
    let reading = packed(data);
    same_whatever_is_wanted(data, Encoding::MessagePack, &reading);
    let mut rest = data;
    // It refuses what is nested very deep, and passes over texts that are not UTF-8.
    let Ok(tree) = rmpv::decode::read_value(&mut rest) else { return };
    if !rest.is_empty() || !is_text(&tree) {
        assert!(reading.is_err(), "accepted, and no MessagePack");
        return;
    }
    // The other reader takes the byte that is reserved for nil.
    if matches!(&reading, Err(BodyError::Invalid { at, .. }) if data.get(*at) == Some(&0xc1)) {
        return;
    }
    same(&packed(&pack(&tree)), &reading);
    let mut written = String::new();
    if write_json(&tree, &mut written) {
        same(&json(written.as_bytes()), &reading);
    }
}

/// Both are refused, or both say the same. Where something stands differs.
fn same(one: &Result<Reading, BodyError>, other: &Result<Reading, BodyError>) {
    match (one, other) {
        (Ok(one), Ok(other)) => assert_eq!(one, other),
        (Err(BodyError::Twice { field: one, .. }), Err(BodyError::Twice { field: other, .. })) => {
            assert_eq!(one, other);
        }
        _ => panic!("{one:?} and {other:?}"),
    }
}

/// What is wanted changes what is told, and not what is refused.
fn same_whatever_is_wanted(data: &[u8], encoding: Encoding, all: &Result<Reading, BodyError>) {
    for (model, elements) in [(true, false), (false, true), (false, false)] {
        let some = read(data, encoding, Wanted { model, elements, fields: BodyFields::NONE });
        assert_eq!(some.as_ref().err(), all.as_ref().err());
        if let (Ok(some), Ok(all)) = (some, all) {
            assert_eq!(some.model, all.model.clone().filter(|_| model));
            assert_eq!(some.elements, all.elements.clone().filter(|_| elements));
        }
    }
}

/// The keys of a body are those of the reference, and stay when the conversation goes on.
fn keys_are_right(body: &Value) {
    if !is_comparable(body, false, 0) {
        return;
    }
    let found = keys(body);
    assert_eq!(found, reference::keys(body, "m"));
    let Some((all, _)) = found else { return };
    let mut shorter = body.clone();
    let items = if body["messages"].is_null() { &mut shorter["input"] } else { &mut shorter["messages"] };
    let Some(items) = items.as_array_mut() else { return };
    items.pop();
    if let Some((before, _)) = keys(&shorter) {
        assert!(all.starts_with(&before), "an item changed the keys before it");
    }
}

fn keys(body: &Value) -> Option<(Vec<u64>, Option<u64>)> {
    let reading = json(body.to_string().as_bytes()).expect("it is JSON, and nothing stands twice");
    let prefixes = reading.prefixes(&Model::new("m").expect("a model's name"))?;
    Some((prefixes.keys().to_vec(), prefixes.last_assistant()))
}

/// Whether the reference can read every text of arguments: it builds trees, and has no limit of levels.
fn is_comparable(value: &Value, arguments: bool, levels: usize) -> bool {
    match value {
        Value::String(text) if arguments && serde_json::from_str::<IgnoredAny>(text).is_ok() => {
            let inside = serde_json::from_str(text);
            levels < MAX_ARGUMENTS_LEVELS && inside.is_ok_and(|inside| is_comparable(&inside, false, levels + 1))
        }
        Value::Array(values) => values.iter().all(|value| is_comparable(value, false, levels)),
        Value::Object(fields) => fields.iter().all(|(name, value)| is_comparable(value, name == "arguments", levels)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

fn pack(tree: &rmpv::Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, tree).expect("memory takes it");
    bytes
}

/// Whether every text in it is UTF-8.
fn is_text(tree: &rmpv::Value) -> bool {
    match tree {
        rmpv::Value::String(text) => text.is_str(),
        rmpv::Value::Array(values) => values.iter().all(is_text),
        rmpv::Value::Map(pairs) => pairs.iter().all(|(name, value)| is_text(name) && is_text(value)),
        _ => true,
    }
}

/// Writes JSON that says the same: what is neither text nor container only stands there, and names that are no texts
/// match nothing. False where a name is a container, for which JSON has nothing.
fn write_json(tree: &rmpv::Value, json: &mut String) -> bool {
    match tree {
        rmpv::Value::Nil => json.push_str("null"),
        rmpv::Value::String(text) => json.push_str(&quoted(text.as_str().unwrap_or_default())),
        rmpv::Value::Array(values) => {
            json.push('[');
            for (number, value) in values.iter().enumerate() {
                if number > 0 {
                    json.push(',');
                }
                if !write_json(value, json) {
                    return false;
                }
            }
            json.push(']');
        }
        rmpv::Value::Map(pairs) => {
            json.push('{');
            for (number, (name, value)) in pairs.iter().enumerate() {
                if number > 0 {
                    json.push(',');
                }
                match name {
                    rmpv::Value::String(name) => json.push_str(&quoted(name.as_str().unwrap_or_default())),
                    rmpv::Value::Array(_) | rmpv::Value::Map(_) => return false,
                    _ => json.push_str("\"no text\""),
                }
                json.push(':');
                if !write_json(value, json) {
                    return false;
                }
            }
            json.push('}');
        }
        _ => json.push('0'),
    }
    true
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text is JSON")
}
