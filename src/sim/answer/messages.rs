//! Anthropic messages.

use serde_json::{Value, json};

use super::{Frame, Said, Stop, Usage};

pub(super) fn whole(frame: &Frame, said: Said<'_>, usage: &Usage, stop: Stop) -> Value {
    let mut message = message(frame, usage);
    message["content"] = match said {
        Said::Text(text) => json!([{"type": "text", "text": text}]),
        Said::Call { name, arguments } => {
            let input: Value = serde_json::from_str(arguments).unwrap_or_default();
            json!([tool_use(frame, name, input)])
        }
    };
    message["stop_reason"] = reason(stop).into();
    message
}

pub(super) fn opening(frame: &Frame, usage: &Usage) -> Vec<Value> {
    vec![
        json!({"type": "message_start", "message": message(frame, usage)}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    ]
}

pub(super) fn delta(words: &str) -> Value {
    json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": words}})
}

pub(super) fn closing(usage: &Usage, stop: Stop) -> Vec<Value> {
    vec![
        json!({"type": "content_block_stop", "index": 0}),
        json!({
            "type": "message_delta", "delta": {"stop_reason": reason(stop), "stop_sequence": null},
            "usage": tokens(usage),
        }),
        json!({"type": "message_stop"}),
    ]
}

pub(super) fn call(frame: &Frame, name: &str, arguments: &str, usage: &Usage) -> Vec<Value> {
    let block = tool_use(frame, name, json!({}));
    let delta = json!({"type": "input_json_delta", "partial_json": arguments});
    let mut events = vec![
        json!({"type": "message_start", "message": message(frame, usage)}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
    ];
    events.extend(closing(usage, Stop::Tool));
    events
}

fn tool_use(frame: &Frame, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": format!("toolu_{}", frame.bare), "name": name, "input": input})
}

fn message(frame: &Frame, usage: &Usage) -> Value {
    json!({
        "id": frame.id, "type": "message", "role": "assistant", "model": frame.model, "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": tokens(usage),
    })
}

fn tokens(usage: &Usage) -> Value {
    json!({
        // This API counts what came from the cache apart.
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.output_tokens,
    })
}

fn reason(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "end_turn",
        Stop::Length => "max_tokens",
        Stop::Tool => "tool_use",
    }
}
