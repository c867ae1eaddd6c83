//! Anthropic messages.

use serde_json::{Value, json};

use super::{Frame, Stop, Usage};

pub(super) fn whole(frame: &Frame, text: &str, usage: &Usage, stop: Stop) -> Value {
    let mut message = message(frame, usage);
    message["content"] = json!([{"type": "text", "text": text}]);
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
    }
}
