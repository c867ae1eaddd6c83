//! OpenAI chat completions.

use serde_json::{Value, json};

use super::{Frame, Stop, Usage};

pub(super) fn whole(frame: &Frame, text: &str, usage: &Usage, stop: Stop) -> Value {
    json!({
        "id": frame.id, "object": "chat.completion", "created": frame.created, "model": frame.model,
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": text}, "logprobs": null,
            "finish_reason": reason(stop),
        }],
        "usage": tokens(usage),
    })
}

pub(super) fn opening(frame: &Frame) -> Vec<Value> {
    vec![choice(frame, json!({"role": "assistant", "content": ""}), None)]
}

pub(super) fn delta(frame: &Frame, words: &str) -> Value {
    choice(frame, json!({ "content": words }), None)
}

pub(super) fn closing(frame: &Frame, usage: &Usage, stop: Stop) -> Vec<Value> {
    let mut last = chunk(frame, json!([]));
    last["usage"] = tokens(usage);
    vec![choice(frame, json!({}), Some(stop)), last]
}

fn choice(frame: &Frame, delta: Value, stop: Option<Stop>) -> Value {
    let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": stop.map(reason)});
    chunk(frame, json!([choice]))
}

fn chunk(frame: &Frame, choices: Value) -> Value {
    json!({
        "id": frame.id, "object": "chat.completion.chunk", "created": frame.created, "model": frame.model,
        "choices": choices,
    })
}

fn tokens(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

fn reason(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "stop",
        Stop::Length => "length",
    }
}
