//! What is read of an engine's answers: tokens, the answer's id, errors inside a stream.

use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;

use crate::wire::event::{Finished, Outcome};

/// The last events of Anthropic's messages and OpenAI's responses.
const LAST_EVENTS: [&str; 4] = ["message_stop", "response.completed", "response.incomplete", "response.failed"];
/// The field of OpenAI's chat and completions that says why the model stopped; null until it has.
const FINISH_REASON: &[u8] = b"\"finish_reason\"";

/// What a request has cost, as far as the engine has said so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    prompt: Option<u64>,
    cached: Option<u64>,
    output: Option<u64>,
    response_id: Option<String>,
}

/// An error that an engine puts into a stream whose status was 200.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamError {
    /// The status that it would have had.
    pub status: u16,
}

/// What is looked at of an answer or an event of any of the APIs.
#[derive(Debug, Default, Deserialize)]
struct Seen {
    id: Option<String>,
    object: Option<String>,
    usage: Option<Usage>,
    /// Responses: the events that hold the whole answer.
    response: Option<Inner>,
    /// Anthropic: the first event.
    message: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct Inner {
    id: Option<String>,
    usage: Option<Usage>,
}

/// An event that says in its data what it is.
#[derive(Debug, Deserialize)]
struct Typed<'d> {
    #[serde(rename = "type")]
    kind: &'d str,
}

/// Usage in the words of each API.
#[derive(Debug, Default, Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    input_tokens_details: Option<Details>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Tally {
    /// Reads a whole answer, or the data of one event. Most events tell nothing and are not parsed.
    pub fn read(&mut self, data: &[u8]) {
        if memmem::find(data, b"\"usage\"").is_none() && memmem::find(data, b"\"response\"").is_none() {
            return;
        }
        let Ok(seen) = serde_json::from_slice::<Seen>(data) else { return };
        if seen.object.as_deref() == Some("response") {
            self.response_id = seen.id;
        }
        if let Some(usage) = &seen.usage {
            self.add(usage);
        }
        if let Some(response) = seen.response {
            self.response_id = response.id.or_else(|| self.response_id.take());
            response.usage.iter().for_each(|usage| self.add(usage));
        }
        let message = seen.message.and_then(|message| serde_json::from_value::<Inner>(message).ok());
        message.and_then(|message| message.usage).iter().for_each(|usage| self.add(usage));
    }

    fn add(&mut self, usage: &Usage) {
        let cached = |details: &Option<Details>| details.as_ref().and_then(|details| details.cached_tokens);
        // Anthropic counts what was cached apart from the input.
        let beside = usage.cache_read_input_tokens.unwrap_or(0) + usage.cache_creation_input_tokens.unwrap_or(0);
        let prompt = usage.prompt_tokens.or_else(|| usage.input_tokens.map(|input| input.saturating_add(beside)));
        let cached = cached(&usage.prompt_tokens_details)
            .or_else(|| cached(&usage.input_tokens_details))
            .or(usage.cache_read_input_tokens);
        // What a later event leaves out stands as it was; a first event's zeros are replaced.
        self.prompt = prompt.or(self.prompt);
        self.cached = cached.or(self.cached);
        self.output = usage.completion_tokens.or(usage.output_tokens).or(self.output);
    }

    /// As the router is told.
    pub fn finished(self, outcome: Outcome) -> Finished {
        Finished {
            outcome,
            prompt_tokens: self.prompt,
            cached_tokens: self.cached,
            output_tokens: self.output,
            response_id: self.response_id,
        }
    }
}

/// Whether an event of a stream is an error of the engine: named so, or an object with a top-level `error`.
pub fn error_in(name: Option<&str>, data: &[u8]) -> Option<StreamError> {
    let named = name == Some("error");
    if !named && memmem::find(data, b"\"error\"").is_none() {
        return None;
    }
    let parsed: Value = serde_json::from_slice(data).unwrap_or_default();
    let inner = parsed.get("error").filter(|error| error.is_object() || error.is_string());
    // Older servers put the error at the top.
    let flat = parsed.get("object").and_then(Value::as_str) == Some("error")
        || (inner.is_none() && parsed.get("type").and_then(Value::as_str) == Some("error"));
    if !named && inner.is_none() && !flat {
        return None;
    }
    Some(StreamError { status: status_of(inner.unwrap_or(&parsed)) })
}

/// Whether an event says that the answer is whole: a reason why the model stopped, or the last event of an API that has one.
/// `[DONE]` is told apart by whoever reads the stream.
pub fn is_end(name: Option<&str>, data: &[u8]) -> bool {
    if name.is_some_and(|name| LAST_EVENTS.contains(&name)) {
        return true;
    }
    if let Some(at) = memmem::find(data, FINISH_REASON) {
        let value = data[at + FINISH_REASON.len()..].trim_ascii_start();
        let value = value.strip_prefix(b":").map_or(&b"null"[..], <[u8]>::trim_ascii_start);
        return !value.starts_with(b"null");
    }
    // Servers that name no events write what they are into their data.
    name.is_none()
        && LAST_EVENTS.iter().any(|last| memmem::find(data, last.as_bytes()).is_some())
        && serde_json::from_slice::<Typed<'_>>(data).is_ok_and(|event| LAST_EVENTS.contains(&event.kind))
}

/// The status of an error by its code or, where it has none, by the words of its type.
fn status_of(error: &Value) -> u16 {
    let code = error.get("code");
    let number = code.and_then(|code| code.as_u64().or_else(|| code.as_str()?.parse().ok()));
    if let Some(status) = number.and_then(|code| u16::try_from(code).ok()).filter(|code| (400..600).contains(code)) {
        return status;
    }
    match error.get("type").and_then(Value::as_str) {
        Some("invalid_request_error" | "BadRequestError") => 400,
        Some("authentication_error") => 401,
        Some("permission_error") => 403,
        Some("not_found_error" | "NotFoundError") => 404,
        Some("request_too_large") => 413,
        Some("rate_limit_error") => 429,
        Some("overloaded_error") => 503,
        _ => 500,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(events: &[&str]) -> Finished {
        let mut tally = Tally::default();
        events.iter().for_each(|event| tally.read(event.as_bytes()));
        tally.finished(Outcome::Ok)
    }

    #[test]
    fn usage_of_each_api() {
        let chat = r#"{"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        let responses = [
            r#"{"type":"response.created","response":{"id":"resp_1","usage":null}}"#,
            r#"{"type":"response.completed","response":{"id":"resp_1","usage":{"input_tokens":9,"output_tokens":2,"input_tokens_details":{"cached_tokens":4}}}}"#,
        ];
        let messages = [
            r#"{"type":"message_start","message":{"id":"msg","usage":{"input_tokens":5,"cache_read_input_tokens":4,"output_tokens":0}}}"#,
            r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":2}}"#,
        ];
        let whole = r#"{"id":"resp_1","object":"response","usage":{"input_tokens":9,"output_tokens":2,"input_tokens_details":{"cached_tokens":4}}}"#;
        for (events, id) in [
            (&[chat][..], None),
            (&responses[..], Some("resp_1")),
            (&messages[..], None),
            (&[whole][..], Some("resp_1")),
        ] {
            let read = tally(events);
            assert_eq!((read.prompt_tokens, read.cached_tokens, read.output_tokens), (Some(9), Some(4), Some(2)));
            assert_eq!(read.response_id.as_deref(), id);
        }
        let nothing =
            tally(&[r#"{"choices":[],"usage":null}"#, "no json with \"usage\"", r#"{"usage":{"prompt_tokens":-1}}"#]);
        assert_eq!(nothing, Finished::outcome(Outcome::Ok));
    }

    #[test]
    fn the_end_of_an_answer_is_told_from_words_about_it() {
        let end = |name, data: &str| is_end(name, data.as_bytes());
        assert!(end(None, r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#));
        assert!(end(None, r#"{"choices":[{"text":"","finish_reason" : "length"}]}"#));
        assert!(end(Some("message_stop"), r#"{"type":"message_stop"}"#));
        assert!(end(None, r#"{"type":"message_stop"}"#));
        assert!(end(Some("response.incomplete"), "{}"));
        assert!(end(None, r#"{"response":{},"type":"response.completed"}"#));
        for data in [
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason": null}]}"#,
            r#"{"choices":[{"delta":{"content":"\"finish_reason\":\"stop\""}}]}"#,
            r#"{"type":"content_block_delta","delta":{"text":"message_stop"}}"#,
            r#"{"type":"response.output_text.delta","delta":"response.completed"}"#,
            "message_stop",
            "\"finish_reason\"",
            "",
        ] {
            assert!(!end(None, data), "{data}");
        }
        assert!(!end(Some("message_delta"), r#"{"type":"message_delta"}"#));
    }

    #[test]
    fn errors_are_told_from_words_about_errors() {
        let status = |name, data: &str| error_in(name, data.as_bytes()).map(|error| error.status);
        assert_eq!(status(None, r#"{"error":{"message":"rank","type":"BadRequestError","code":400}}"#), Some(400));
        assert_eq!(status(None, r#"{"error":{"message":"x","code":"503"}}"#), Some(503));
        assert_eq!(status(None, r#"{"error":{"message":"x","type":"odd","code":7}}"#), Some(500));
        assert_eq!(status(None, r#"{"object":"error","message":"x","code":400}"#), Some(400));
        assert_eq!(status(Some("error"), r#"{"type":"error","error":{"type":"overloaded_error"}}"#), Some(503));
        assert_eq!(status(Some("error"), "words"), Some(500));
        assert_eq!(status(None, r#"{"choices":[{"delta":{"content":"{\"error\":1}"}}]}"#), None);
        assert_eq!(status(None, r#"{"type":"response.created","response":{"error":null},"error":null}"#), None);
        assert_eq!(status(Some("message_stop"), "{}"), None);
    }
}
