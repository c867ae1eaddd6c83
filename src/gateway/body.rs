//! Bodies of requests: read up to the limit, and looked into for no more than what is needed to send them on.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde::de::Error as _;

use super::pace::unreadable;
use super::problem::Problem;
use crate::core::id::Model;

/// Reads a body. One that comes in one piece is not copied.
pub async fn read(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, Problem> {
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|value| *value != "identity") {
        let message = format!("bodies are taken as they are, and not in the content encoding {encoding:?}");
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message));
    }
    let told = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if told.is_some_and(|length| length > max) {
        return Err(too_large(max));
    }
    let mut pieces = body.into_data_stream();
    let mut whole = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| unreadable("the body can't be read", &error))?;
        if whole.len() + joined.len() + piece.len() > max {
            return Err(too_large(max));
        }
        if whole.is_empty() && joined.is_empty() {
            whole = piece;
            continue;
        }
        if joined.is_empty() {
            joined.reserve(told.unwrap_or(whole.len() * 2).max(whole.len() + piece.len()));
            joined.extend_from_slice(&std::mem::take(&mut whole));
        }
        joined.extend_from_slice(&piece);
    }
    Ok(if joined.is_empty() { whole } else { joined.freeze() })
}

fn too_large(max: usize) -> Problem {
    let message = format!("the body is larger than the {max} bytes that this gateway takes (max_body)");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message)
}

/// What is looked for in a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Peek {
    /// The model.
    pub model: Model,
    /// Whether the answer is to come in parts.
    pub stream: bool,
}

/// Looks into a JSON body: one pass that builds nothing, and copies nothing but the name of the model.
pub fn peek(body: &[u8]) -> Result<Peek, Problem> {
    #[derive(Deserialize)]
    struct Fields<'b> {
        #[serde(borrow)]
        model: Cow<'b, str>,
        #[serde(default, deserialize_with = "flag")]
        stream: bool,
    }

    // An array of a name and a flag would be read as the fields in their order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::invalid("the body is no JSON object of a request"));
    }
    let fields: Fields<'_> = serde_json::from_slice(body)
        .map_err(|error| Problem::invalid(format!("the body is no JSON object of a request: {error}")))?;
    let model = Model::new(&fields.model).map_err(|error| Problem::invalid(format!("the body's model {error}")))?;
    Ok(Peek { model, stream: fields.stream })
}

/// A flag that may be null.
fn flag<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::<bool>::deserialize(deserializer)
        .map(Option::unwrap_or_default)
        .map_err(|error| D::Error::custom(format!("stream: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peek_finds_model_and_stream_and_nothing_else_matters() {
        let peek = |body: &str| peek(body.as_bytes()).expect("valid");
        let plain = peek(r#"{"messages":[{"model":"inner","stream":true,"n":1e999}],"model":"m"}"#);
        assert_eq!((plain.model.as_str(), plain.stream), ("m", false));
        let other = peek(r#"{"model":"a\u002fb","stream":true}"#);
        assert_eq!((other.model.as_str(), other.stream), ("a/b", true));
        assert!(!peek(r#"{"model":"m","stream":null}"#).stream);
    }

    #[test]
    fn what_is_no_request_is_refused_with_what_is_wrong() {
        for (body, told) in [
            ("", "no JSON object"),
            (r#"["m",true]"#, "no JSON object"),
            ("{", "EOF"),
            (r#"{"messages":[]}"#, "missing field `model`"),
            (r#"{"model":7}"#, "invalid type: integer"),
            (r#"{"model":""}"#, "the body's model"),
            (r#"{"model":"m","model":"n"}"#, "duplicate field `model`"),
            (r#"{"model":"m","stream":"yes"}"#, "stream"),
            (r#"{"model":"m"} x"#, "trailing characters"),
        ] {
            let problem = peek(body.as_bytes()).expect_err(body);
            assert_eq!((problem.status.as_u16(), problem.message.contains(told)), (400, true), "{}", problem.message);
        }
    }

    #[tokio::test]
    async fn bodies_are_read_to_the_limit_and_no_further() {
        let pieces = |sizes: &[usize]| {
            let pieces: Vec<Result<Bytes, std::io::Error>> =
                sizes.iter().map(|size| Ok(Bytes::from(vec![b'x'; *size]))).collect();
            Body::from_stream(futures_util::stream::iter(pieces))
        };
        let none = HeaderMap::new();
        assert_eq!(read(&none, pieces(&[]), 8).await.expect("empty").len(), 0);
        assert_eq!(read(&none, pieces(&[8]), 8).await.expect("whole").len(), 8);
        assert_eq!(read(&none, pieces(&[3, 0, 3, 2]), 8).await.expect("joined").len(), 8);
        for too_many in [&[9][..], &[4, 5], &[8, 0, 1]] {
            assert_eq!(read(&none, pieces(too_many), 8).await.expect_err("too large").status.as_u16(), 413);
        }
        let mut told = HeaderMap::new();
        told.insert(header::CONTENT_LENGTH, 9.into());
        assert_eq!(read(&told, pieces(&[]), 8).await.expect_err("said to be too large").status.as_u16(), 413);
        told.clear();
        told.insert(header::CONTENT_ENCODING, "zstd".parse().expect("valid"));
        assert_eq!(read(&told, pieces(&[1]), 8).await.expect_err("not understood").status.as_u16(), 415);
    }
}
