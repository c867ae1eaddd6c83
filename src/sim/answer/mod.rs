//! Answers in the shape of the API that asked: what a client library needs to read them, with honest usage.

mod chat;
mod completions;
mod messages;
mod numbers;
mod responses;

use std::time::SystemTime;

use bytes::Bytes;
use serde_json::Value;

/// The API that a body is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// OpenAI chat completions.
    Chat,
    /// OpenAI completions.
    Completions,
    /// Anthropic messages.
    Messages,
    /// OpenAI responses.
    Responses,
    /// OpenAI embeddings.
    Embeddings,
    /// Anthropic's count of a prompt's tokens.
    CountTokens,
}

impl Api {
    /// The API of an HTTP path.
    pub fn of_path(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/messages" => Self::Messages,
            "/v1/responses" => Self::Responses,
            "/v1/embeddings" => Self::Embeddings,
            "/v1/messages/count_tokens" => Self::CountTokens,
            _ => return None,
        })
    }
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of these, from the prefix cache.
    pub cached_tokens: u64,
    /// Generated.
    pub output_tokens: u64,
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The model had said what it had to say.
    End,
    /// It was as long as the body allowed.
    Length,
    /// The model calls a tool, and waits for what comes of it.
    Tool,
}

/// What the model says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said<'s> {
    /// A text.
    Text(&'s str),
    /// A call of a tool.
    Call {
        /// The tool.
        name: &'s str,
        /// Its arguments, a JSON object.
        arguments: &'s str,
    },
}

/// Writes one answer.
#[derive(Debug)]
pub struct Answer {
    api: Api,
    frame: Frame,
}

/// What stands on every part of an answer.
#[derive(Debug)]
struct Frame {
    id: String,
    /// The same without what the API puts before it.
    bare: String,
    model: String,
    created: u64,
    /// Number of the next event, where the API numbers them.
    seq: u64,
}

impl Answer {
    /// An answer to one request.
    pub fn new(api: Api, request_id: &str, model: &str) -> Self {
        let prefix = match api {
            Api::Chat => "chatcmpl-",
            Api::Completions => "cmpl-",
            Api::Messages | Api::CountTokens => "msg_",
            Api::Responses => "resp_",
            Api::Embeddings => "embd-",
        };
        let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let id = format!("{prefix}{request_id}");
        let frame = Frame { id, bare: request_id.to_owned(), model: model.to_owned(), created, seq: 0 };
        Self { api, frame }
    }

    /// Id by which a later request may name this answer, where the API has that.
    pub fn response_id(&self) -> Option<String> {
        match self.api {
            Api::Chat | Api::Completions | Api::Messages | Api::Embeddings | Api::CountTokens => None,
            Api::Responses => Some(self.frame.id.clone()),
        }
    }

    /// The whole answer.
    pub fn whole(&self, said: Said<'_>, usage: &Usage, stop: Stop) -> Bytes {
        let frame = &self.frame;
        bytes(match self.api {
            Api::Chat => chat::whole(frame, said, usage, stop),
            Api::Completions => completions::whole(frame, text_of(said), usage, stop),
            Api::Messages => messages::whole(frame, said, usage, stop),
            Api::Responses => responses::whole(frame, said, usage, stop),
            Api::Embeddings | Api::CountTokens => numbers::token_count(usage),
        })
    }

    /// The vectors of texts.
    pub fn vectors(&self, texts: &[String], usage: &Usage, base64: bool) -> Bytes {
        bytes(numbers::vectors(&self.frame.model, texts, usage, base64))
    }

    /// Events before the first word. Each event of a stream is the data of one server-sent event.
    pub fn opening(&mut self, usage: &Usage) -> Vec<Bytes> {
        let frame = &mut self.frame;
        let events = match self.api {
            Api::Chat => chat::opening(frame),
            Api::Messages => messages::opening(frame, usage),
            Api::Responses => responses::opening(frame),
            Api::Completions | Api::Embeddings | Api::CountTokens => Vec::new(),
        };
        events.into_iter().map(bytes).collect()
    }

    /// The event of some words.
    pub fn delta(&mut self, words: &str) -> Bytes {
        let frame = &mut self.frame;
        bytes(match self.api {
            Api::Chat => chat::delta(frame, words),
            Api::Messages => messages::delta(words),
            Api::Responses => responses::delta(frame, words),
            Api::Completions | Api::Embeddings | Api::CountTokens => completions::delta(frame, words),
        })
    }

    /// Events after the last word.
    pub fn closing(&mut self, text: &str, usage: &Usage, stop: Stop) -> Vec<Bytes> {
        let frame = &mut self.frame;
        let events = match self.api {
            Api::Chat => chat::closing(frame, usage, stop),
            Api::Messages => messages::closing(usage, stop),
            Api::Responses => responses::closing(frame, text, usage, stop),
            Api::Completions | Api::Embeddings | Api::CountTokens => completions::closing(frame, usage, stop),
        };
        events.into_iter().map(bytes).collect()
    }

    /// All events of a call.
    pub fn call(&mut self, name: &str, arguments: &str, usage: &Usage) -> Vec<Bytes> {
        let frame = &mut self.frame;
        let events = match self.api {
            Api::Chat => chat::call(frame, name, arguments, usage),
            Api::Messages => messages::call(frame, name, arguments, usage),
            Api::Responses => responses::call(frame, name, arguments, usage),
            Api::Completions | Api::Embeddings | Api::CountTokens => completions::closing(frame, usage, Stop::End),
        };
        events.into_iter().map(bytes).collect()
    }
}

/// Completions know no tools.
fn text_of(said: Said<'_>) -> &str {
    match said {
        Said::Text(text) => text,
        Said::Call { arguments, .. } => arguments,
    }
}

fn bytes(value: Value) -> Bytes {
    value.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: Usage = Usage { prompt_tokens: 100, cached_tokens: 64, output_tokens: 2 };

    fn value(bytes: &Bytes) -> Value {
        serde_json::from_slice(bytes).expect("JSON")
    }

    fn stream(api: Api) -> Vec<Bytes> {
        let mut answer = Answer::new(api, "r", "m");
        let mut events = answer.opening(&USAGE);
        events.extend([answer.delta("the "), answer.delta("sun ")]);
        events.extend(answer.closing("the sun ", &USAGE, Stop::End));
        events
    }

    #[test]
    fn usage_is_told_in_the_words_of_each_api() {
        let usage = |api| value(&Answer::new(api, "r", "m").whole(Said::Text("x"), &USAGE, Stop::End))["usage"].clone();
        let chat = usage(Api::Chat);
        assert_eq!(
            (&chat["prompt_tokens"], &chat["prompt_tokens_details"]["cached_tokens"]),
            (&100.into(), &64.into())
        );
        let messages = usage(Api::Messages);
        assert_eq!(
            (&messages["input_tokens"], &messages["cache_read_input_tokens"]),
            (&36.into(), &64.into()),
            "Anthropic counts what was cached apart"
        );
        let responses = usage(Api::Responses);
        assert_eq!(
            (&responses["input_tokens"], &responses["input_tokens_details"]["cached_tokens"]),
            (&100.into(), &64.into())
        );
    }

    #[test]
    fn chat_streams_end_with_usage() {
        let events = stream(Api::Chat);
        assert_eq!(events.len(), 5);
        let text: String =
            events[1..3].iter().map(|e| value(e)["choices"][0]["delta"]["content"].to_string()).collect();
        assert_eq!(text, "\"the \"\"sun \"");
        assert_eq!(value(&events[3])["choices"][0]["finish_reason"], "stop");
        assert_eq!(value(&events[4])["usage"]["completion_tokens"], 2);
    }

    #[test]
    fn typed_streams_open_and_close_what_they_say() {
        let types =
            |api| stream(api).iter().map(|e| value(e)["type"].as_str().unwrap_or("-").to_owned()).collect::<Vec<_>>();
        assert_eq!(
            types(Api::Messages),
            [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop"
            ]
        );
        assert_eq!(
            types(Api::Responses),
            [
                "response.created",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.completed"
            ]
        );
        let numbers: Vec<_> = stream(Api::Responses).iter().map(|e| value(e)["sequence_number"].as_u64()).collect();
        assert_eq!(numbers, (0..9).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn calls_are_told_in_the_words_of_each_api() {
        let said = Said::Call { name: "look", arguments: "{\"at\":1}" };
        let whole = |api| value(&Answer::new(api, "r", "m").whole(said, &USAGE, Stop::Tool));
        let chat = &whole(Api::Chat)["choices"][0];
        assert_eq!(chat["finish_reason"], "tool_calls");
        assert_eq!(chat["message"]["tool_calls"][0]["function"]["arguments"], "{\"at\":1}");
        let messages = whole(Api::Messages);
        assert_eq!((&messages["stop_reason"], &messages["content"][0]["input"]["at"]), (&"tool_use".into(), &1.into()));
        let responses = whole(Api::Responses);
        assert_eq!(responses["output"][0]["type"], "function_call");
        assert_eq!(responses["status"], "completed");
        let types = |api| {
            let events = Answer::new(api, "r", "m").call("look", "{}", &USAGE);
            events.iter().map(|e| value(e)["type"].as_str().unwrap_or("-").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(types(Api::Chat).len(), 4);
        assert_eq!(
            types(Api::Messages),
            [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop"
            ]
        );
        assert_eq!(
            types(Api::Responses),
            [
                "response.created",
                "response.output_item.added",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
                "response.completed"
            ]
        );
    }
}
