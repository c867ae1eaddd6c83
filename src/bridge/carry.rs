//! What of a request's headers an engine gets, and on which of its paths.

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::body;
use super::engines::Dialect;
use crate::nats::Headers;
use crate::wire::header;
use crate::worker::{EngineRequest, Refusal};

/// Headers that are of one connection, of the body as we send it, or of the choice of a rank: never carried.
const KEPT_BACK: [&str; 22] = [
    "host",
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
    "content-length",
    "content-type",
    "content-encoding",
    // The answer is read, so it must not come packed.
    "accept-encoding",
    "x-data-parallel-rank",
    "x-dp-rank",
    "x-dynamo-dp-rank",
    "x-dynamo-worker-instance-id",
    "retry-after",
    "cookie",
    "forwarded",
];

/// What of a session's id no header can carry as it is; `%` itself, so that it reads back the same.
const NOT_IN_A_HEADER: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// A session's id as it stands in a header. Ids of derived sessions begin with a control character.
pub fn session_value(session: &str) -> String {
    utf8_percent_encode(session, NOT_IN_A_HEADER).to_string()
}

/// The session's id of such a header.
pub fn session_of(value: &str) -> String {
    percent_decode_str(value).decode_utf8_lossy().into_owned()
}

/// The path that a request is for: the one it came in on, else the one that its headers and body are written for.
pub fn path_of(headers: &Headers, body: &[u8], dialect: &Dialect) -> Result<&'static str, Refusal> {
    let named = headers.find(header::PATH).map(|path| path.split('?').next().unwrap_or(path));
    let wanted = match named {
        Some(path) => path,
        None => {
            let shape = body::shape(body);
            if shape.system || headers.find("anthropic-version").is_some() {
                "/v1/messages"
            } else if shape.input && !shape.messages {
                "/v1/responses"
            } else {
                "/v1/chat/completions"
            }
        }
    };
    dialect.paths.iter().copied().find(|path| *path == wanted).ok_or_else(|| {
        Refusal::not_found(
            "unknown_path",
            format!("{wanted:?} is none of the paths that {} is asked for", dialect.name),
        )
    })
}

/// The headers of a request to the engine.
pub fn headers(
    request: &EngineRequest,
    dialect: &Dialect,
    key: Option<&HeaderValue>,
    rank: Option<(&'static str, u32)>,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in request.headers.iter().filter(|(name, _)| is_carried(name)) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.trim().parse::<HeaderValue>()) {
            headers.append(name, value);
        }
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(key) = key {
        headers.insert(AUTHORIZATION, key.clone());
        // A client's own, in the other way of showing one, would count beside it.
        headers.remove("x-api-key");
    }
    if let Some((name, rank)) = rank {
        headers.insert(HeaderName::from_static(name), rank.into());
    }
    if let (Some(name), Some(session)) = (dialect.session_header, &request.session)
        && let Ok(value) = session_value(session).parse::<HeaderValue>()
    {
        headers.insert(HeaderName::from_static(name), value);
    }
    const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
    if !headers.contains_key(REQUEST_ID) {
        // Engines take no id twice at once, and an earlier attempt may still be ending there.
        let id = match request.attempt {
            1 => request.id.as_str().to_owned(),
            attempt => format!("{}-{attempt}", request.id),
        };
        if let Ok(id) = id.parse() {
            headers.insert(REQUEST_ID, id);
        }
    }
    headers
}

fn is_carried(name: &str) -> bool {
    let starts = |prefix: &str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    !starts("rankpin-") && !starts("nats-") && !KEPT_BACK.iter().any(|kept| kept.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::engines::EngineKind;
    use super::*;
    use crate::core::id::RequestId;
    use crate::worker::CancelToken;

    fn request(session: Option<&str>, headers: &[(&str, &str)]) -> EngineRequest {
        EngineRequest {
            id: RequestId::new("r1").expect("valid"),
            attempt: 2,
            rank: None,
            session: session.map(Into::into),
            model: None,
            headers: headers.iter().copied().collect(),
            payload: Bytes::new(),
            cancel: CancelToken::default(),
        }
    }

    #[test]
    fn a_rank_comes_from_us_alone() {
        let from = [
            ("X-Data-Parallel-Rank", "9"),
            ("x-dp-rank", "9"),
            ("Rankpin-Dp-Rank", "9"),
            ("Host", "elsewhere"),
            ("accept-encoding", "gzip"),
            ("anthropic-version", "2023-06-01"),
            ("X-Session-ID", "theirs"),
            ("authorization", "Bearer client"),
        ];
        let dialect = EngineKind::Vllm.dialect();
        let key = HeaderValue::from_static("Bearer ours");
        let sent = headers(&request(Some("ours"), &from), dialect, Some(&key), Some(("x-data-parallel-rank", 1)));
        let mut sent: Vec<_> = sent.iter().map(|(n, v)| (n.as_str(), v.to_str().expect("ASCII"))).collect();
        sent.sort_unstable();
        let expected = [
            ("anthropic-version", "2023-06-01"),
            ("authorization", "Bearer ours"),
            ("content-type", "application/json"),
            ("x-data-parallel-rank", "1"),
            ("x-request-id", "r1-2"),
            ("x-session-id", "ours"),
        ];
        assert_eq!(sent, expected);
        let without = headers(&request(None, &from), dialect, None, None);
        assert!(without.get("x-data-parallel-rank").is_none());
        assert_eq!(without["x-session-id"], "theirs");
        assert_eq!(without["authorization"], "Bearer client");
    }

    #[test]
    fn any_session_can_be_told_and_read_back() {
        for session in ["plain-1", "\u{1}px:0123456789abcdef", "50% é ", "%01px:0"] {
            let value = session_value(session);
            assert!(value.parse::<HeaderValue>().is_ok() && value.is_ascii(), "{value:?}");
            assert_eq!(session_of(&value), session);
        }
    }

    #[test]
    fn paths() {
        let path = |headers: &[(&str, &str)], body: &str, kind: EngineKind| {
            path_of(&headers.iter().copied().collect(), body.as_bytes(), kind.dialect())
        };
        let vllm = |headers: &[(&str, &str)], body: &str| path(headers, body, EngineKind::Vllm);
        assert_eq!(vllm(&[("Rankpin-Path", "/v1/completions")], r#"{"system":1}"#), Ok("/v1/completions"));
        assert_eq!(vllm(&[("Rankpin-Path", "/v1/messages?beta=true")], ""), Ok("/v1/messages"));
        assert_eq!(vllm(&[], r#"{"messages":[],"system":"x"}"#), Ok("/v1/messages"));
        assert_eq!(vllm(&[("anthropic-version", "2023-06-01")], r#"{"messages":[]}"#), Ok("/v1/messages"));
        assert_eq!(vllm(&[], r#"{"input":"x"}"#), Ok("/v1/responses"));
        assert_eq!(vllm(&[], r#"{"input":"x","messages":[]}"#), Ok("/v1/chat/completions"));
        assert_eq!(vllm(&[], "no json"), Ok("/v1/chat/completions"));
        for odd in ["/v1/../admin", "/metrics", "/v1/messages/", "//e/v1/messages"] {
            assert!(path(&[("Rankpin-Path", odd)], "", EngineKind::Vllm).is_err(), "{odd}");
        }
    }
}
