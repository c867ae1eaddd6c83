//! OpenAI completions.

use serde_json::{Value, json};

use super::{Frame, Stop, Usage, chat};

pub(super) fn whole(frame: &Frame, text: &str, usage: &Usage, stop: Stop) -> Value {
    let mut whole = part(frame, text, Some(stop));
    whole["usage"] = chat::tokens(usage);
    whole
}

pub(super) fn delta(frame: &Frame, words: &str) -> Value {
    part(frame, words, None)
}

pub(super) fn closing(frame: &Frame, usage: &Usage, stop: Stop) -> Vec<Value> {
    vec![whole(frame, "", usage, stop)]
}

fn part(frame: &Frame, text: &str, stop: Option<Stop>) -> Value {
    let reason = stop.map(|stop| match stop {
        Stop::End | Stop::Tool => "stop",
        Stop::Length => "length",
    });
    json!({
        "id": frame.id, "object": "text_completion", "created": frame.created, "model": frame.model,
        "choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": reason}],
    })
}
