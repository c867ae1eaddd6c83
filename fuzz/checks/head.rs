//! The head of a request: headers and subject.

use rankpin::core::id::Namespace;
use rankpin::wire::header::{self, Known, NAMES};
use rankpin::wire::request::{self, Reading, RequestHead};
use rankpin::wire::subject::{Subjects, decode_model, encode_model};

use super::head_and_payload;

/// Lines of headers: the values found are those of the naive rule, and what is read of them keeps the limits.
pub fn headers(data: &[u8]) {
    let (headers, _) = head_and_payload(data);
    // The wire gives the values of one spelling in their order; spellings come in any.
    let pairs = || headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let known = Known::read(pairs());
    for name in NAMES {
        assert_eq!(known.get(name), naive(&headers, name), "{name}");
        assert_eq!(header::find(pairs(), name), known.get(name), "{name}");
    }
    for (name, _) in &headers {
        let lower = name.to_ascii_lowercase();
        assert!(!(lower.starts_with("nats-") && header::goes_to_worker(name)));
        assert!(!(lower.starts_with("rankpin-") && header::goes_to_frontend(name)));
    }
    for (trusted, sessions) in [(true, true), (true, false), (false, true), (false, false)] {
        let Ok(head) = RequestHead::read(&known, Reading { trusted, sessions }) else { continue };
        assert!(head.tenant.as_str().len() <= 256 && (trusted || head.tenant.as_str().is_empty()));
        let Some(session) = head.session else { continue };
        let id = session.id.as_str();
        assert!(sessions && (1..=256).contains(&id.len()) && !id.contains(|c: char| c < ' ' || c == '\u{7f}'));
    }
    if let Ok(Some(id)) = request::request_id(&known) {
        assert!((1..=64).contains(&id.as_str().len()));
    }
}

/// Of one spelling the first value that is not blank; of several spellings the one that sorts first.
fn naive<'h>(headers: &'h [(String, String)], wanted: &str) -> Option<&'h str> {
    let matching = headers.iter().filter(|(name, value)| name.eq_ignore_ascii_case(wanted) && !value.trim().is_empty());
    let first = matching.clone().map(|(name, _)| name).min()?;
    matching.clone().find(|(name, _)| name == first).map(|(_, value)| value.trim())
}

/// A subject, and the same bytes as a model's name.
pub fn subject(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let subjects = Subjects::new(Namespace::new("rankpin").expect("a valid name"));
    if let Some(parsed) = subjects.parse_request(&text)
        && let Some(Ok(model)) = parsed.model.map(decode_model)
    {
        let again = subjects.request(&model);
        let again = subjects.parse_request(&again).expect("a subject of our own");
        assert_eq!(again.model.map(decode_model), Some(Ok(model)));
    }
    let token = encode_model(&text);
    assert!(token.bytes().all(|byte| byte.is_ascii_graphic() && !b".*>".contains(&byte)), "{token}");
    if let Ok(model) = decode_model(&token) {
        assert_eq!(model.as_str(), text);
    }
}
