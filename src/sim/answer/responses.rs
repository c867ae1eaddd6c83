//! OpenAI responses.

use serde_json::{Value, json};

use super::{Frame, Said, Stop, Usage};

pub(super) fn whole(frame: &Frame, said: Said<'_>, usage: &Usage, stop: Stop) -> Value {
    let item = match said {
        Said::Text(text) => item(frame, text, state(stop)),
        Said::Call { name, arguments } => function_call(frame, name, arguments, state(stop)),
    };
    let mut response = response(frame, state(stop), json!([item]));
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
    let (done, all) = (item(frame, text, state(stop)), whole(frame, Said::Text(text), usage, stop));
    let last = match stop {
        Stop::End | Stop::Tool => "response.completed",
        Stop::Length => "response.incomplete",
    };
    vec![
        event(frame, "response.output_text.done", at_part(frame, json!({ "text": text }))),
        event(frame, "response.content_part.done", at_part(frame, json!({"part": part(text)}))),
        event(frame, "response.output_item.done", json!({"output_index": 0, "item": done})),
        event(frame, last, json!({ "response": all })),
    ]
}

pub(super) fn call(frame: &mut Frame, name: &str, arguments: &str, usage: &Usage) -> Vec<Value> {
    let said = Said::Call { name, arguments };
    let begun = function_call(frame, name, "", "in_progress");
    let (done, all) = (function_call(frame, name, arguments, "completed"), whole(frame, said, usage, Stop::Tool));
    let created = response(frame, "in_progress", json!([]));
    let place = |frame: &Frame, key: &str| {
        let mut fields = json!({"item_id": call_id(frame, "fc"), "output_index": 0});
        fields[key] = arguments.into();
        fields
    };
    let (delta, mut whole_call) = (place(frame, "delta"), place(frame, "arguments"));
    whole_call["name"] = name.into();
    vec![
        event(frame, "response.created", json!({ "response": created })),
        event(frame, "response.output_item.added", json!({"output_index": 0, "item": begun})),
        event(frame, "response.function_call_arguments.delta", delta),
        event(frame, "response.function_call_arguments.done", whole_call),
        event(frame, "response.output_item.done", json!({"output_index": 0, "item": done})),
        event(frame, "response.completed", json!({ "response": all })),
    ]
}

fn function_call(frame: &Frame, name: &str, arguments: &str, status: &str) -> Value {
    json!({
        "id": call_id(frame, "fc"), "type": "function_call", "status": status, "call_id": call_id(frame, "call"),
        "name": name, "arguments": arguments,
    })
}

fn call_id(frame: &Frame, kind: &str) -> String {
    format!("{kind}_{}", frame.bare)
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
        Stop::End | Stop::Tool => "completed",
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
