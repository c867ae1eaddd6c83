//! Session sources that only the configuration turns on: further headers, fields of the body, and parents of subagents
//! (protocol section 3.1, the end of row 6).

use super::named::PRECEDENCE;

/// Most headers that may be configured; each is looked for in the header block of a request that nothing else names.
pub const MAX_HEADERS: usize = 16;

/// Names that stand for one request, for one try of it or for one trace. A session under one of them would be as many
/// sessions as there are requests: every turn would be placed and pinned anew.
const PER_REQUEST: [&str; 26] = [
    "rankpin-request-id",
    "nats-msg-id",
    "x-request-id",
    "request-id",
    "x-client-request-id",
    "client-request-id",
    "x-ms-client-request-id",
    "x-ms-request-id",
    "apim-request-id",
    "x-amzn-requestid",
    "x-amz-request-id",
    "x-goog-request-id",
    "x-correlation-request-id",
    "idempotency-key",
    "x-idempotency-key",
    "traceparent",
    "tracestate",
    "x-trace-id",
    "x-b3-traceid",
    "x-b3-spanid",
    "b3",
    "x-amzn-trace-id",
    "x-cloud-trace-context",
    "x-datadog-trace-id",
    "uber-trace-id",
    "cf-ray",
];

/// A field of the body that may name a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BodyField {
    /// `prompt_cache_key`, a string.
    PromptCacheKey,
    /// `metadata.user_id`, a string in which Claude Code puts its session.
    MetadataUserId,
    /// `conversation`, a string or an object with a string `id`.
    Conversation,
    /// `session_id`, a string.
    SessionId,
}

impl BodyField {
    /// Each field with its name.
    pub const NAMED: [(&'static str, Self); 4] = [
        ("prompt_cache_key", Self::PromptCacheKey),
        ("metadata.user_id", Self::MetadataUserId),
        ("conversation", Self::Conversation),
        ("session_id", Self::SessionId),
    ];

    /// Its name, as it is configured.
    pub fn name(self) -> &'static str {
        Self::NAMED[self.index()].0
    }

    /// Where the field is an object: the name inside it under which the session stands.
    pub fn inside(self) -> Option<&'static str> {
        match self {
            Self::MetadataUserId => Some("user_id"),
            Self::Conversation => Some("id"),
            Self::PromptCacheKey | Self::SessionId => None,
        }
    }

    /// Its place in [`BodyField::NAMED`].
    pub fn index(self) -> usize {
        match self {
            Self::PromptCacheKey => 0,
            Self::MetadataUserId => 1,
            Self::Conversation => 2,
            Self::SessionId => 3,
        }
    }
}

/// A set of body fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BodyFields(u8);

impl BodyFields {
    /// No field.
    pub const NONE: Self = Self(0);

    /// Whether a field is in it.
    pub fn contains(self, field: BodyField) -> bool {
        self.0 >> field.index() & 1 == 1
    }

    /// Whether it holds none.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

impl FromIterator<BodyField> for BodyFields {
    fn from_iter<I: IntoIterator<Item = BodyField>>(fields: I) -> Self {
        Self(fields.into_iter().fold(0, |set, field| set | 1 << field.index()))
    }
}

/// Why a header can be no session source. The text completes "\"name\" …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderRefusal {
    /// It can't be the name of a header.
    #[error("is no header name; allowed are letters, digits and ! # $ % & ' * + - . ^ _ ` | ~")]
    NoName,
    /// It names a request.
    #[error(
        "names one request, not a conversation: every turn would be a session of its own, and hop; name a header that \
         stays the same from turn to turn"
    )]
    PerRequest,
    /// It is in the table already.
    #[error("is a session source without being configured; leave it out")]
    BuiltIn,
    /// It is the router's or the server's.
    #[error("has a meaning of its own in the protocol, and can name no session")]
    Reserved,
}

/// Checks a header that is to be a session source; gives its name in lower case.
pub fn check_header(name: &str) -> Result<String, HeaderRefusal> {
    let lower = name.to_ascii_lowercase();
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if lower.is_empty() || !lower.bytes().all(is_token) {
        return Err(HeaderRefusal::NoName);
    }
    if PER_REQUEST.contains(&lower.as_str()) {
        return Err(HeaderRefusal::PerRequest);
    }
    if PRECEDENCE.iter().any(|row| row.header == lower || row.refined_by == Some(lower.as_str())) {
        return Err(HeaderRefusal::BuiltIn);
    }
    if lower.starts_with("rankpin-") || lower.starts_with("nats-") || lower == "content-type" {
        return Err(HeaderRefusal::Reserved);
    }
    Ok(lower)
}

/// The configured session sources; by default there are none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sources {
    /// Headers that name a session where no header of the table does, in the order in which they count, in lower case.
    pub headers: Vec<String>,
    /// Fields of the body that name one where no header does, in the order in which they count.
    pub body_fields: Vec<BodyField>,
    /// What becomes of sessions that name a parent.
    pub subagents: Subagents,
}

/// What becomes of sessions that name a parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subagents {
    /// Each is placed like any other session; no parent is read.
    #[default]
    Apart,
    /// Those of one parent are placed beside each other.
    Together,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_their_names_agree() {
        for (index, (name, field)) in BodyField::NAMED.into_iter().enumerate() {
            assert_eq!((field.index(), field.name()), (index, name));
        }
        let set: BodyFields = [BodyField::Conversation, BodyField::SessionId].into_iter().collect();
        let held = BodyField::NAMED.map(|(_, field)| set.contains(field));
        assert_eq!((held, set.is_empty()), ([false, false, true, true], false));
    }

    #[test]
    fn headers_that_can_be_no_source_are_refused_for_their_reason() {
        use HeaderRefusal::{BuiltIn, NoName, PerRequest, Reserved};
        assert_eq!(check_header("X-Chat-Id"), Ok("x-chat-id".into()));
        assert_eq!(
            check_header("x-correlation-id"),
            Ok("x-correlation-id".into()),
            "engines take it for a conversation"
        );
        for (name, refusal) in [
            ("", NoName),
            ("x chat", NoName),
            ("x-chat:", NoName),
            ("x-chät", NoName),
            ("X-Request-ID", PerRequest),
            ("traceparent", PerRequest),
            ("Rankpin-Request-Id", PerRequest),
            ("nats-msg-id", PerRequest),
            ("Thread-Id", BuiltIn),
            ("x-claude-code-agent-id", BuiltIn),
            ("Rankpin-Tenant", Reserved),
            ("Nats-Expected-Stream", Reserved),
            ("Content-Type", Reserved),
        ] {
            assert_eq!(check_header(name), Err(refusal), "{name}");
        }
    }

    #[test]
    fn no_source_of_the_table_is_a_name_of_a_request() {
        let rows = PRECEDENCE.iter().flat_map(|row| [Some(row.header), row.refined_by]).flatten();
        assert_eq!(rows.filter(|name| PER_REQUEST.contains(name)).count(), 0);
    }
}
