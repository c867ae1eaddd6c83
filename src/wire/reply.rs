//! The reply stream: what a frontend reads on its inbox (protocol section 6.1).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::header;
use crate::core::error::RouteError;

/// Payload of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// What was wrong and what to do, for people.
    pub message: String,
    /// `rankpin_error`.
    #[serde(rename = "type")]
    #[schemars(extend("const" = "rankpin_error"))]
    pub kind: String,
    /// The code word, for programs.
    pub code: String,
}

impl ErrorBody {
    /// An error's payload.
    pub fn new(code: &str, message: &str) -> Self {
        Self {
            error: ErrorDetail { message: message.to_owned(), kind: "rankpin_error".to_owned(), code: code.to_owned() },
        }
    }

    /// The payload of a router's error.
    pub fn of(error: &RouteError) -> Self {
        Self::new(error.code(), &error.to_string())
    }
}

/// The `error.message` of a payload in the shape of an error, if it is one.
pub fn error_message(payload: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Lenient {
        error: LenientDetail,
    }
    #[derive(Deserialize)]
    struct LenientDetail {
        message: String,
    }
    serde_json::from_slice::<Lenient>(payload).ok().map(|body| body.error.message)
}

/// Most bytes that one reply may have, in however many messages.
pub const MAX_REPLY_BYTES: usize = 64 * 1024 * 1024;

/// Headers of one reply message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyHead {
    /// `Rankpin-Request-Id`.
    pub request_id: Option<String>,
    /// `Rankpin-Seq`; a router's own messages have none.
    pub seq: Option<u64>,
    /// `Rankpin-Attempt`.
    pub attempt: Option<u32>,
    /// `Rankpin-Final: true`.
    pub last: bool,
    /// `Rankpin-Continues: true`.
    pub continues: bool,
    /// `Rankpin-Worker`, on the first message.
    pub worker: Option<String>,
    /// `Rankpin-Dp-Rank`, on the first message, where there is a rank.
    pub dp_rank: Option<u16>,
    /// `Rankpin-Decision`, on the first message.
    pub decision: Option<String>,
    /// `Content-Type`.
    pub content_type: Option<String>,
    /// Status and code word of an error.
    pub error: Option<(u16, String)>,
    /// `Retry-After`, seconds.
    pub retry_after_s: Option<u32>,
}

impl ReplyHead {
    /// Reads the headers of a reply message. Values that are no numbers where numbers belong are as if missing.
    pub fn read<'h>(headers: impl Iterator<Item = (&'h str, &'h str)> + Clone) -> Self {
        const NAMES: [&str; 12] = [
            header::SEQ,
            header::ATTEMPT,
            header::REQUEST_ID,
            header::FINAL,
            header::WORKER,
            header::DP_RANK,
            header::DECISION,
            header::CONTENT_TYPE,
            header::SERVICE_ERROR_CODE,
            header::SERVICE_ERROR,
            header::RETRY_AFTER,
            header::CONTINUES,
        ];
        // One pass: it is made for every token of every answer.
        let [
            seq,
            attempt,
            request_id,
            last,
            worker,
            dp_rank,
            decision,
            content_type,
            code,
            word,
            retry_after,
            continues,
        ] = header::find_all(headers, NAMES);
        let is_true = |value: Option<&str>| value.is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let text = |value: Option<&str>| value.map(str::to_owned);
        let code = code.and_then(|code| code.parse().ok());
        Self {
            request_id: text(request_id),
            seq: seq.and_then(|v| v.parse().ok()),
            attempt: attempt.and_then(|v| v.parse().ok()),
            last: is_true(last),
            continues: is_true(continues),
            worker: text(worker),
            dp_rank: dp_rank.and_then(|v| v.parse().ok()),
            decision: text(decision),
            content_type: text(content_type),
            error: match (code, text(word)) {
                (None, None) => None,
                (code, word) => Some((code.unwrap_or(500), word.unwrap_or_default())),
            },
            retry_after_s: retry_after.and_then(|v| v.parse().ok()),
        }
    }
}
