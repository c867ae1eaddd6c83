//! What goes wrong, as HTTP answers in the words of each API.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use serde_json::json;

use super::api::Family;
use crate::client::ClientError;

/// Code word under which a worker relays an engine's own error, which is passed on as it is (protocol section 6.1).
const ENGINE_ERROR: &str = "engine_error";
/// Tells client libraries, which try some statuses again by themselves, that this one stays as it is.
const SHOULD_RETRY: &str = "x-should-retry";

/// A request that has no answer, or whose answer ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The status.
    pub status: StatusCode,
    /// The code word.
    pub code: Cow<'static, str>,
    /// Words for people.
    pub message: String,
    /// Seconds after which another try is worth it.
    pub retry_after_s: Option<u32>,
    /// An engine's own answer, in place of one of ours.
    pub verbatim: Option<(Bytes, Option<String>)>,
}

impl Problem {
    /// One of our own.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code: code.into(), message: message.into(), retry_after_s: None, verbatim: None }
    }

    /// The request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// There is nothing of that name.
    pub fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    /// It may work in a moment.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self { retry_after_s: Some(1), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message) }
    }

    /// The whole answer.
    pub fn response(&self, family: Family) -> Response<Body> {
        let (body, media_type) = match &self.verbatim {
            Some((payload, media_type)) => (payload.clone(), media_type.as_deref()),
            None => (self.body(family), None),
        };
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let media_type = media_type.and_then(|text| HeaderValue::from_str(text).ok());
        let media_type = media_type.unwrap_or(HeaderValue::from_static("application/json"));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, media_type);
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::CONFLICT {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// The body of the error.
    pub fn body(&self, family: Family) -> Bytes {
        let body = match family {
            Family::OpenAi => json!({"error": {
                "message": self.message, "type": self.open_ai_type(), "param": null, "code": self.code,
            }}),
            Family::Anthropic => json!({"type": "error", "error": {
                "type": self.anthropic_type(), "message": self.message, "code": self.code,
            }}),
        };
        body.to_string().into()
    }

    /// The data of the event that ends a stream of OpenAI's responses: with the fields of its own `error` event, and with
    /// the object by which client libraries know an error.
    pub fn responses_event(&self, sequence: u64) -> Bytes {
        let error = json!({
            "message": self.message, "type": self.open_ai_type(), "param": null, "code": self.code,
        });
        let event = json!({
            "type": "error", "code": self.code, "message": self.message, "param": null, "sequence_number": sequence,
            "error": error,
        });
        event.to_string().into()
    }

    fn open_ai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        }
    }
}

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Self {
        let words = error.to_string();
        match error {
            ClientError::Service { status, code, message, retry_after_s, answer } => {
                // Statuses that HTTP has no answer for come from somebody who does not speak the protocol.
                let known = StatusCode::from_u16(status).ok().filter(|_| (400..600).contains(&status));
                let is_engines = code == ENGINE_ERROR;
                // A redirect, or an error without a word, tells a client nothing.
                let is_told = is_engines && known.is_some() && !answer.payload.is_empty();
                let message = match (is_engines, is_told) {
                    (true, false) => format!("the engine answered {status}, and nothing that can be passed on"),
                    (true, true) | (false, _) => message,
                };
                let verbatim = is_told.then_some((answer.payload, answer.content_type));
                let status = known.unwrap_or(StatusCode::BAD_GATEWAY);
                Self { status, code: code.into(), message, retry_after_s, verbatim }
            }
            ClientError::TooLarge { .. } => Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", words),
            ClientError::LargeBody(_) => Self::unavailable("body_store", words),
            ClientError::Body(_) => Self::invalid(words),
            ClientError::NoResponders => Self::unavailable("no_router", words),
            ClientError::Connect(_) | ClientError::Disconnected => Self::unavailable("no_connection", words),
            ClientError::TooManyOpen { .. } => {
                let message = "the gateway has as many requests under way as it may have; try again later";
                Self::unavailable("overloaded", message)
            }
            ClientError::Idle(_) => Self::new(StatusCode::GATEWAY_TIMEOUT, "answer_timeout", words),
            ClientError::Deadline(_) => Self::new(StatusCode::GATEWAY_TIMEOUT, "deadline", words),
            ClientError::Sequence(_)
            | ClientError::Unnumbered
            | ClientError::CutShort
            | ClientError::Unreadable(_)
            | ClientError::ReplyTooLarge { .. }
            | ClientError::Overflow { .. } => Self::new(StatusCode::BAD_GATEWAY, "broken_reply", words),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::client::Answer;

    fn service(status: u16, code: &str) -> Problem {
        let answer = Answer { payload: Bytes::from_static(b"own"), content_type: Some("text/plain".into()) };
        ClientError::Service { status, code: code.into(), message: "words".into(), retry_after_s: Some(7), answer }
            .into()
    }

    fn header<'r>(response: &'r Response<Body>, name: &str) -> &'r str {
        response.headers().get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }

    #[test]
    fn errors_are_told_in_the_words_of_each_api() {
        let problem = service(429, "overloaded");
        let read = |family| serde_json::from_slice::<Value>(&problem.body(family)).expect("JSON");
        let (open_ai, anthropic) = (read(Family::OpenAi), read(Family::Anthropic));
        assert_eq!(open_ai["error"]["type"], "rate_limit_error");
        assert_eq!((&open_ai["error"]["code"], &open_ai["error"]["message"]), (&"overloaded".into(), &"words".into()));
        assert_eq!((&anthropic["type"], &anthropic["error"]["type"]), (&"error".into(), &"rate_limit_error".into()));
        let response = problem.response(Family::OpenAi);
        assert_eq!((response.status().as_u16(), header(&response, "retry-after")), (429, "7"));
    }

    #[test]
    fn an_engines_own_answer_passes_as_it_is() {
        let problem = service(422, "engine_error");
        let response = problem.response(Family::Anthropic);
        assert_eq!((response.status().as_u16(), header(&response, "content-type")), (422, "text/plain"));
        assert_eq!(problem.verbatim.expect("kept").0, "own");
        assert_eq!(service(422, "other").verbatim, None);
        assert_eq!(service(302, "engine_error").verbatim, None, "a redirect is no answer");
    }

    #[test]
    fn a_status_that_is_none_is_a_bad_gateway() {
        for status in [0, 200, 399, 600, 65_535] {
            assert_eq!(service(status, "x").status, StatusCode::BAD_GATEWAY, "{status}");
        }
        assert_eq!(service(499, "cancelled").status.as_u16(), 499);
    }

    #[test]
    fn a_conflict_is_not_tried_again() {
        assert_eq!(header(&service(409, "pin_conflict").response(Family::OpenAi), SHOULD_RETRY), "false");
        assert_eq!(header(&service(503, "no_worker").response(Family::OpenAi), SHOULD_RETRY), "");
    }
}
