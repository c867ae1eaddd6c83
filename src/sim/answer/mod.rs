//! Answers in the shape of the API that asked: what a client library needs to read them, with honest usage.

mod chat;
mod messages;
mod responses;

use std::time::SystemTime;

use bytes::Bytes;
use serde_json::Value;

/// The API that a body is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// OpenAI chat completions.
    Chat,
    /// Anthropic messages.
    Messages,
    /// OpenAI responses.
    Responses,
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
            Api::Messages => "msg_",
            Api::Responses => "resp_",
        };
        let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let frame = Frame { id: format!("{prefix}{request_id}"), model: model.to_owned(), created, seq: 0 };
        Self { api, frame }
    }

    /// Id by which a later request may name this answer, where the API has that.
    pub fn response_id(&self) -> Option<String> {
        match self.api {
            Api::Chat | Api::Messages => None,
            Api::Responses => Some(self.frame.id.clone()),
        }
    }

    /// The whole answer.
    pub fn whole(&self, text: &str, usage: &Usage, stop: Stop) -> Bytes {
        let frame = &self.frame;
        bytes(match self.api {
            Api::Chat => chat::whole(frame, text, usage, stop),
            Api::Messages => messages::whole(frame, text, usage, stop),
            Api::Responses => responses::whole(frame, text, usage, stop),
        })
    }

    /// Events before the first word. Each event of a stream is the data of one server-sent event.
    pub fn opening(&mut self, usage: &Usage) -> Vec<Bytes> {
        let frame = &mut self.frame;
        let events = match self.api {
            Api::Chat => chat::opening(frame),
            Api::Messages => messages::opening(frame, usage),
            Api::Responses => responses::opening(frame),
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
        })
    }

    /// Events after the last word.
    pub fn closing(&mut self, text: &str, usage: &Usage, stop: Stop) -> Vec<Bytes> {
        let frame = &mut self.frame;
        let events = match self.api {
            Api::Chat => chat::closing(frame, usage, stop),
            Api::Messages => messages::closing(usage, stop),
            Api::Responses => responses::closing(frame, text, usage, stop),
        };
        let done = match self.api {
            Api::Chat => Some(Bytes::from_static(b"[DONE]")),
            Api::Messages | Api::Responses => None,
        };
        events.into_iter().map(bytes).chain(done).collect()
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
        let usage = |api| value(&Answer::new(api, "r", "m").whole("x", &USAGE, Stop::End))["usage"].clone();
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
    fn chat_streams_end_with_usage_and_done() {
        let events = stream(Api::Chat);
        assert_eq!(events.last().map(|e| &e[..]), Some(&b"[DONE]"[..]));
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
}
