//! Section 4 once more, as naively as it can be written: over a tree, with recursion, without regard to cost.

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

const IGNORED: [&str; 15] = [
    "type",
    "cache_control",
    "id",
    "status",
    "call_id",
    "tool_call_id",
    "tool_use_id",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "thinking",
    "signature",
    "encrypted_content",
    "annotations",
    "logprobs",
];

/// Keys of a body, and the strict prefix that ends with the last assistant item; `None` where there is no session.
pub fn keys(body: &Value, model: &str) -> Option<(Vec<u64>, Option<u64>)> {
    let mut key = xxh3_64(format!("rankpin/px/1\0{model}").as_bytes());
    match &body["system"] {
        Value::Null => {}
        system @ (Value::String(_) | Value::Array(_)) => extend(&mut key, &texts(system)),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
    }
    let items = match (&body["messages"], &body["input"]) {
        (Value::Array(items), _) | (Value::Null, Value::Array(items)) => items.clone(),
        (Value::Null, Value::String(input)) => vec![serde_json::json!({"role": "user", "content": input})],
        _ => return None,
    };
    let mut keys = Vec::new();
    let mut assistants = Vec::new();
    for item in items.iter().filter_map(Value::as_object) {
        let texts = object_texts(item);
        if texts.is_empty() {
            continue;
        }
        extend(&mut key, &texts);
        keys.push(key);
        assistants.push(is_assistant(item));
    }
    let strict = keys.len().checked_sub(1)?;
    let last = (0..strict).rev().find(|index| assistants[*index]);
    Some((keys.clone(), last.map(|index| keys[index])))
}

fn extend(key: &mut u64, texts: &[String]) {
    if texts.is_empty() {
        return;
    }
    let sum = texts.iter().map(|text| xxh3_64(text.as_bytes())).fold(0, u64::wrapping_add);
    *key = xxh3_64(&[key.to_le_bytes(), sum.to_le_bytes()].concat());
}

fn is_assistant(item: &Map<String, Value>) -> bool {
    match item.get("role").unwrap_or(&Value::Null) {
        Value::Null => item.get("type").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("_call")),
        role => role == "assistant",
    }
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) if text.starts_with("x-anthropic-billing-header:") => vec![],
        Value::String(text) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::Object(object) => object_texts(object),
        Value::Null | Value::Bool(_) | Value::Number(_) => vec![],
    }
}

fn object_texts(object: &Map<String, Value>) -> Vec<String> {
    let kind = object.get("type").and_then(Value::as_str).unwrap_or_default();
    if ["reasoning", "thinking", "redacted_thinking"].contains(&kind) {
        return vec![];
    }
    let counted = object.iter().filter(|(key, _)| !IGNORED.contains(&key.as_str()) && !key.starts_with("__"));
    counted
        .flat_map(|(key, value)| match value.as_str().map(serde_json::from_str) {
            Some(Ok(Value::Object(inside))) if key == "arguments" => object_texts(&inside),
            _ => texts(value),
        })
        .collect()
}
