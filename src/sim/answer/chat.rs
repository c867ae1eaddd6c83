//! OpenAI chat completions.

use serde_json::{Value, json};

use super::{Frame, Said, Stop, Usage};

pub(super) fn whole(frame: &Frame, said: Said<'_>, usage: &Usage, stop: Stop) -> Value {
    let message = match said {
        Said::Text(text) => json!({"role": "assistant", "content": text}),
        Said::Call { name, arguments } => {
            json!({"role": "assistant", "content": null, "tool_calls": [tool_call(frame, name, arguments)]})
        }
    };
    json!({
        "id": frame.id, "object": "chat.completion", "created": frame.created, "model": frame.model,
        "choices": [{
            "index": 0, "message": message, "logprobs": null,
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

pub(super) fn call(frame: &Frame, name: &str, arguments: &str, usage: &Usage) -> Vec<Value> {
    let mut begun = tool_call(frame, name, "");
    begun["index"] = 0.into();
    let opens = json!({"role": "assistant", "content": null, "tool_calls": [begun]});
    let goes_on = json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]});
    let mut events = vec![choice(frame, opens, None), choice(frame, goes_on, None)];
    events.extend(closing(frame, usage, Stop::Tool));
    events
}

fn tool_call(frame: &Frame, name: &str, arguments: &str) -> Value {
    let id = format!("call_{}", frame.bare);
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
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

pub(super) fn tokens(usage: &Usage) -> Value {
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
        Stop::Tool => "tool_calls",
    }
}
