//! OpenAI responses.

use serde_json::{Value, json};

use super::{Frame, Stop, Usage};

pub(super) fn whole(frame: &Frame, text: &str, usage: &Usage, stop: Stop) -> Value {
    let mut response = response(frame, state(stop), json!([item(frame, text, state(stop))]));
    response["usage"] = tokens(usage);
    if stop == Stop::Length {
        response["incomplete_details"] = json!({"reason": "max_output_tokens"});
    }
    response
}

pub(super) fn opening(frame: &mut Frame) -> Vec<Value> {
    let mut empty = item(frame, "", "in_progress");
    empty["content"] = json!([]);
    let created = response(frame, "in_progress", json!([]));
    vec![
        event(frame, "response.created", json!({ "response": created })),
        event(frame, "response.output_item.added", json!({"output_index": 0, "item": empty})),
        event(frame, "response.content_part.added", at_part(frame, json!({"part": part("")}))),
    ]
}

pub(super) fn delta(frame: &mut Frame, words: &str) -> Value {
    event(frame, "response.output_text.delta", at_part(frame, json!({ "delta": words })))
}

pub(super) fn closing(frame: &mut Frame, text: &str, usage: &Usage, stop: Stop) -> Vec<Value> {
    let (done, all) = (item(frame, text, state(stop)), whole(frame, text, usage, stop));
    let last = match stop {
        Stop::End => "response.completed",
        Stop::Length => "response.incomplete",
    };
    vec![
        event(frame, "response.output_text.done", at_part(frame, json!({ "text": text }))),
        event(frame, "response.content_part.done", at_part(frame, json!({"part": part(text)}))),
        event(frame, "response.output_item.done", json!({"output_index": 0, "item": done})),
        event(frame, last, json!({ "response": all })),
    ]
}

fn event(frame: &mut Frame, kind: &str, mut fields: Value) -> Value {
    fields["type"] = kind.into();
    fields["sequence_number"] = frame.seq.into();
    frame.seq += 1;
    fields
}

fn at_part(frame: &Frame, mut fields: Value) -> Value {
    fields["item_id"] = item_id(frame).into();
    fields["output_index"] = 0.into();
    fields["content_index"] = 0.into();
    fields
}

fn response(frame: &Frame, status: &str, output: Value) -> Value {
    json!({
        "id": frame.id, "object": "response", "created_at": frame.created, "model": frame.model, "status": status,
        "output": output, "error": null, "incomplete_details": null, "parallel_tool_calls": true,
        "tool_choice": "auto", "tools": [],
    })
}

fn item(frame: &Frame, text: &str, status: &str) -> Value {
    json!({
        "id": item_id(frame), "type": "message", "role": "assistant", "status": status, "content": [part(text)],
    })
}

fn item_id(frame: &Frame) -> String {
    format!("msg_{}", frame.id)
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": []})
}

fn state(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "completed",
        Stop::Length => "incomplete",
    }
}

fn tokens(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    })
}
