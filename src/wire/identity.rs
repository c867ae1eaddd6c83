//! Whose a request is: its model and its session, from headers and, only where it must be read, the body (protocol
//! sections 3.1, 3.2 and 4).

use super::body::{self, Reading, Wanted};
use super::header::{self, Known};
use super::request::RequestHead;
use crate::core::error::RouteError;
use crate::core::id::{Model, Origin, SessionId};
use crate::core::kv::{ElementText, Prompt};
use crate::core::session::configured::{BodyField, BodyFields, Sources, Subagents};
use crate::core::session::derived::{Element, Prefixes};
use crate::core::session::{Session, named as names};

/// Which sessions are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sessions<'s> {
    /// None: affinity is off.
    Off,
    /// All that the protocol names, and what the configuration adds.
    On(&'s Sources),
}

/// Paths of engines' APIs (`Rankpin-Path`) whose requests are no turns of a conversation: nothing of them stays in a prefix
/// cache for a later one. They have no session, and pin nothing.
const NO_TURNS: [&str; 2] = ["/v1/messages/count_tokens", "/v1/embeddings"];

/// Whether a request for this path may be a turn of a conversation.
pub fn is_turn(path: Option<&str>) -> bool {
    path.is_none_or(|path| !NO_TURNS.contains(&path.split('?').next().unwrap_or(path)))
}

/// Model and session of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The model.
    pub model: Model,
    /// The session, where there is one.
    pub session: Option<Session>,
    /// The session's parent, where subagents are grouped.
    pub group: Option<SessionId>,
    /// Where the session comes from.
    pub source: Source,
    /// Of a session that is derived from the conversation: the keys of its prefixes.
    pub prefixes: Option<Prefixes>,
    /// The prompt, where it was to be read and gives one.
    pub prompt: Option<Prompt>,
    /// The elements that keys and prompt are made of, and their texts.
    pub elements: Vec<Element>,
    /// See `elements`; none where the prompt was not to be read.
    pub texts: Vec<ElementText>,
}

/// Whether a request is read for its prompt (policy `kv`), whatever names its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompts {
    /// Only its size counts.
    Unread,
    /// Its prefixes count.
    Read,
}

/// Where a session comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A header of the protocol's own table.
    Header,
    /// A header that the configuration names.
    FurtherHeader(String),
    /// A field of the body that the configuration names.
    Field(BodyField),
    /// The response that the body goes on from.
    Response,
    /// The conversation's text.
    Text,
    /// There is no session.
    Nowhere,
}

/// Finds out whose a request is, without reading its prompt; see [`find_and_read`].
pub fn find<'h>(
    head: &RequestHead,
    headers: impl Iterator<Item = (&'h str, &'h str)> + Clone,
    payload: &[u8],
    model: Option<Model>,
    sessions: Sessions<'_>,
) -> Result<Identity, RouteError> {
    find_and_read(head, headers, payload, model, sessions, Prompts::Unread)
}

/// Finds out whose a request is. `model` is the one of the subject, `None` where that names none; the header values
/// come in any order.
pub fn find_and_read<'h>(
    head: &RequestHead,
    headers: impl Iterator<Item = (&'h str, &'h str)> + Clone,
    payload: &[u8],
    model: Option<Model>,
    sessions: Sessions<'_>,
    prompts: Prompts,
) -> Result<Identity, RouteError> {
    let named = match (sessions, &head.session) {
        (Sessions::Off, _) => None,
        (Sessions::On(_), Some(session)) => Some((session.clone(), Source::Header)),
        (Sessions::On(sources), None) => further_header(headers.clone(), sources)?,
    };
    let wanted = wanted(model.is_none(), named.is_some(), sessions);
    let reading = match prompts {
        Prompts::Read => body::read_texts(payload, head.encoding, Wanted { elements: true, ..wanted })?,
        Prompts::Unread if wanted.model || wanted.elements => body::read(payload, head.encoding, wanted)?,
        Prompts::Unread => Reading::default(),
    };
    let model = match model {
        Some(model) => model,
        None => reading.model()?,
    };
    let named = match (named, sessions) {
        (None, Sessions::On(sources)) => field(&reading, sources)?,
        (named, Sessions::On(_) | Sessions::Off) => named,
    };
    let prompt = reading.prompt(&model);
    let continued = response(&reading);
    let elements = reading.elements.unwrap_or_default();
    let (session, source, prefixes) = match (named, sessions, continued) {
        (Some((session, source)), ..) => (Some(session), source, None),
        (None, Sessions::Off, _) => (None, Source::Nowhere, None),
        // Its text is only what is new since then, and the beginning of no conversation.
        (None, Sessions::On(_), Some(id)) => (Some(Session { id, origin: Origin::Derived }), Source::Response, None),
        (None, Sessions::On(_), None) => match Prefixes::of(&model, &elements) {
            Some(prefixes) => (Some(session_of(&prefixes)), Source::Text, Some(prefixes)),
            None => (None, Source::Nowhere, None),
        },
    };
    // Who names itself as its parent begins a group, and is nobody's sibling.
    let own = session.as_ref().map(|session| &session.id);
    let group = parent(headers, sessions)?.filter(|parent| Some(parent) != own);
    let texts = reading.texts;
    Ok(Identity { model, session, group, source, prefixes, prompt, elements, texts })
}

/// Finds out whose a request is whose body travels elsewhere, by its headers and the keys that came with it
/// (protocol section 3.4).
pub fn of_claim<'h>(
    head: &RequestHead,
    headers: impl Iterator<Item = (&'h str, &'h str)> + Clone,
    model: Model,
    sessions: Sessions<'_>,
    keys: Option<Prefixes>,
) -> Result<Identity, RouteError> {
    let named = match (sessions, &head.session) {
        (Sessions::Off, _) => None,
        (Sessions::On(_), Some(session)) => Some((session.clone(), Source::Header)),
        (Sessions::On(sources), None) => further_header(headers.clone(), sources)?,
    };
    let (session, source, prefixes) = match (named, sessions, keys) {
        (Some((session, source)), ..) => (Some(session), source, None),
        (None, Sessions::On(_), Some(keys)) => (Some(session_of(&keys)), Source::Text, Some(keys)),
        (None, Sessions::Off, _) | (None, Sessions::On(_), None) => (None, Source::Nowhere, None),
    };
    let own = session.as_ref().map(|session| &session.id);
    let group = parent(headers, sessions)?.filter(|parent| Some(parent) != own);
    let (elements, texts) = (Vec::new(), Vec::new());
    Ok(Identity { model, session, group, source, prefixes, prompt: None, elements, texts })
}

fn session_of(prefixes: &Prefixes) -> Session {
    Session { id: SessionId::derived(prefixes.full()), origin: Origin::Derived }
}

/// Whether the body of a request has to be read, as its headers say.
pub fn reads_body<'h>(
    headers: impl Iterator<Item = (&'h str, &'h str)> + Clone,
    has_model: bool,
    sessions: Sessions<'_>,
    prompts: Prompts,
) -> bool {
    let unnamed = || match sessions {
        Sessions::Off => false,
        Sessions::On(sources) => {
            let known = Known::read(headers.clone());
            names::resolve(|name| known.get(name)).is_none() && matches!(further_header(headers, sources), Ok(None))
        }
    };
    prompts == Prompts::Read || !has_model || unnamed()
}

impl Identity {
    /// The same request as one for another model.
    pub fn under(&self, model: &Model) -> Self {
        let prefixes = self.prefixes.as_ref().and_then(|known| match self.elements.is_empty() {
            // Of a body that travels elsewhere there are only the keys: they stay those of the name that was asked for.
            true => Some(known.clone()),
            false => Prefixes::of(model, &self.elements),
        });
        let session = prefixes.as_ref().map(session_of).or_else(|| self.session.clone());
        Self {
            model: model.clone(),
            session,
            group: self.group.clone(),
            source: self.source.clone(),
            prefixes,
            prompt: self.prompt.as_ref().map(|_| Prompt::of(model, &self.elements, &self.texts)),
            elements: Vec::new(),
            texts: Vec::new(),
        }
    }

    /// What stays the same from turn to turn of the session: its name; of a session derived from the text what stands
    /// before the first thing that the model has said.
    pub fn constant(&self) -> Option<SessionId> {
        let opening = self.prefixes.as_ref().map(|prefixes| SessionId::derived(prefixes.opening()));
        opening.or_else(|| self.session.as_ref().map(|session| session.id.clone()))
    }

    /// The session ids under which the request's pin may stand, the one that counts most first: of a session derived from
    /// the text the strict prefixes, deepest first, else the session itself.
    pub fn lookups(&self) -> impl Iterator<Item = SessionId> {
        let strict = self.prefixes.as_ref().map_or(&[][..], Prefixes::strict);
        let own = self.session.as_ref().filter(|_| self.prefixes.is_none()).map(|session| session.id.clone());
        strict.iter().rev().map(|&key| SessionId::derived(key)).chain(own)
    }
}

/// The response that a body goes on from. What can be no response's id is the engine's business alone.
fn response(reading: &Reading) -> Option<SessionId> {
    SessionId::of_response(reading.previous_response_id.as_deref()?).ok()
}

/// What of the body has to be read (protocol section 3.2).
pub fn wanted(model: bool, is_named: bool, sessions: Sessions<'_>) -> Wanted {
    match sessions {
        Sessions::On(sources) if !is_named => {
            Wanted { model, elements: true, fields: sources.body_fields.iter().copied().collect() }
        }
        Sessions::On(_) | Sessions::Off => Wanted { model, elements: false, fields: BodyFields::NONE },
    }
}

fn further_header<'h>(
    headers: impl Iterator<Item = (&'h str, &'h str)> + Clone,
    sources: &Sources,
) -> Result<Option<(Session, Source)>, RouteError> {
    let found = sources.headers.iter().find_map(|name| Some((name, header::find(headers.clone(), name)?)));
    let Some((name, value)) = found else { return Ok(None) };
    let session = named(value, format_args!("header {name}"))?;
    Ok(Some((session, Source::FurtherHeader(name.clone()))))
}

fn field(reading: &Reading, sources: &Sources) -> Result<Option<(Session, Source)>, RouteError> {
    let Some((field, value)) = reading.fields.first(&sources.body_fields) else { return Ok(None) };
    let session = named(value, format_args!("body field {}", field.name()))?;
    Ok(Some((session, Source::Field(field))))
}

fn parent<'h>(
    headers: impl Iterator<Item = (&'h str, &'h str)> + Clone,
    sessions: Sessions<'_>,
) -> Result<Option<SessionId>, RouteError> {
    match sessions {
        Sessions::On(Sources { subagents: Subagents::Together, .. }) => {}
        Sessions::On(_) | Sessions::Off => return Ok(None),
    }
    let values = header::find_all(headers, header::PARENT_NAMES);
    let found = header::PARENT_NAMES.iter().zip(values).find_map(|(name, value)| Some((name, value?)));
    found.map(|(name, value)| Ok(named(value, format_args!("header {name}"))?.id)).transpose()
}

fn named(value: &str, place: std::fmt::Arguments<'_>) -> Result<Session, RouteError> {
    match SessionId::named(value) {
        Ok(id) => Ok(Session { id, origin: Origin::Named }),
        Err(e) => Err(RouteError::InvalidSessionId(format!("{place}: the session id {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::header::Known;
    use crate::wire::request::Reading as HeadReading;

    fn sources() -> Sources {
        Sources {
            headers: vec!["x-chat".into(), "x-room".into()],
            body_fields: vec![BodyField::Conversation, BodyField::SessionId],
            subagents: Subagents::Apart,
        }
    }

    fn read(headers: &[(&str, &str)], body: &str, sessions: Sessions<'_>) -> Result<Identity, RouteError> {
        let reading = HeadReading { trusted: true, sessions: sessions != Sessions::Off };
        let head = RequestHead::read(&Known::read(headers.iter().copied()), reading)?;
        find(&head, headers.iter().copied(), body.as_bytes(), Model::new("m").ok(), sessions)
    }

    const BODY: &str = r#"{"session_id":"field","messages":[{"role":"user","content":"hi"}]}"#;

    #[test]
    fn the_table_wins_over_further_headers_they_over_fields_and_those_over_the_text() {
        let sources = sources();
        let of = |headers: &[(&str, &str)], body| {
            let identity = read(headers, body, Sessions::On(&sources)).expect("valid");
            (identity.session.expect("there is one").id.as_str().to_owned(), identity.source)
        };
        let (table, chat, room) = (("x-roo-task-id", "table"), ("X-Chat", " further "), ("x-room", "last"));
        assert_eq!(of(&[room, chat, table], BODY), ("table".into(), Source::Header));
        assert_eq!(of(&[room, chat], BODY), ("further".into(), Source::FurtherHeader("x-chat".into())));
        assert_eq!(of(&[("x-chat", " "), room], BODY), ("last".into(), Source::FurtherHeader("x-room".into())));
        assert_eq!(of(&[], BODY), ("field".into(), Source::Field(BodyField::SessionId)));
        let text = of(&[], r#"{"session_id":"","messages":[{"role":"user","content":"hi"}]}"#);
        assert!(text.0.starts_with("\u{1}px:") && text.1 == Source::Text, "{text:?}");
        let none = read(&[], "{}", Sessions::On(&sources)).expect("valid");
        assert_eq!((none.session, none.source), (None, Source::Nowhere));
    }

    #[test]
    fn what_is_not_configured_and_affinity_off_name_none() {
        let none = Sources::default();
        let headers = [("x-chat", "further")];
        assert_eq!(read(&headers, BODY, Sessions::On(&none)).expect("valid").source, Source::Text);
        assert_eq!(read(&headers, BODY, Sessions::Off).expect("valid").source, Source::Nowhere);
    }

    #[test]
    fn a_body_is_not_read_where_a_header_names_the_session() {
        let sources = sources();
        for header in ["x-chat", "thread-id"] {
            assert!(read(&[(header, "s")], "{", Sessions::On(&sources)).is_ok(), "{header}");
        }
        assert!(read(&[], "{", Sessions::On(&sources)).is_err());
    }

    #[test]
    fn a_parent_is_read_only_where_subagents_are_grouped() {
        let together = Sources { subagents: Subagents::Together, ..Sources::default() };
        let group = |headers: &[(&str, &str)], sources: &Sources| {
            let group = read(headers, BODY, Sessions::On(sources)).map(|identity| identity.group);
            group.map(|group| group.map(|id| id.as_str().to_owned()))
        };
        let (codex, ours) = (("X-Codex-Parent-Thread-Id", "codex"), ("Rankpin-Parent-Session-Id", "ours"));
        assert_eq!(group(&[codex, ours], &together).expect("valid").as_deref(), Some("ours"));
        assert_eq!(
            group(&[codex, ("Rankpin-Parent-Session-Id", " ")], &together).expect("valid").as_deref(),
            Some("codex")
        );
        assert_eq!(group(&[codex, ours], &Sources::default()), Ok(None));
        assert_eq!(group(&[("thread-id", "codex"), codex], &together), Ok(None), "nobody is its own sibling");
        assert!(group(&[("x-parent-session-id", "a\u{7f}")], &together).is_err());
        assert!(group(&[("x-parent-session-id", "a\u{7f}")], &Sources::default()).is_ok(), "it is not looked at");
    }

    #[test]
    fn a_response_that_goes_on_counts_before_the_text_and_after_names() {
        let sources = sources();
        let of = |headers: &[(&str, &str)], body: &str, sessions| read(headers, body, sessions).expect("valid");
        let body = r#"{"input":"go on","previous_response_id":"resp_1"}"#;
        let chained = of(&[], body, Sessions::On(&sources));
        let session = chained.session.clone().expect("there is one");
        assert_eq!((session.id.as_str(), session.origin), ("\u{1}rs:resp_1", Origin::Derived));
        assert_eq!((&chained.source, &chained.prefixes), (&Source::Response, &None));
        assert!(chained.lookups().eq([session.id]), "its own text is not looked up");
        assert_eq!(of(&[("thread-id", "t")], body, Sessions::On(&sources)).source, Source::Header);
        assert_eq!(of(&[], body, Sessions::Off).session, None);
        for none in ["", "\\u0001", &"x".repeat(253)] {
            let body = body.replace("resp_1", none);
            assert_eq!(of(&[], &body, Sessions::On(&sources)).source, Source::Text, "{none}");
        }
    }

    #[test]
    fn what_is_looked_up_stands_deepest_first_and_never_holds_the_full_input() {
        let sources = Sources::default();
        let item = |text: &str| format!(r#"{{"role":"user","content":"{text}"}}"#);
        let body = format!(r#"{{"messages":[{},{},{}]}}"#, item("a"), item("b"), item("c"));
        let identity = read(&[], &body, Sessions::On(&sources)).expect("valid");
        let keys = identity.prefixes.clone().expect("derived").keys().to_vec();
        assert!(identity.lookups().eq([keys[1], keys[0]].map(SessionId::derived)));
    }

    #[test]
    fn a_body_that_travels_elsewhere_has_the_session_of_its_keys_unless_a_header_names_one() {
        let sources = sources();
        let keys = || Prefixes::from_parts(vec![1, 2], vec![0]);
        let of = |headers: &[(&str, &str)], sessions, keys| {
            let reading = HeadReading { trusted: true, sessions: sessions != Sessions::Off };
            let head = RequestHead::read(&Known::read(headers.iter().copied()), reading).expect("valid");
            let model = Model::new("m").expect("valid");
            of_claim(&head, headers.iter().copied(), model, sessions, keys).expect("valid")
        };
        let on = Sessions::On(&sources);
        let by_keys = of(&[], on, keys());
        assert_eq!((by_keys.source.clone(), by_keys.lookups().collect()), (Source::Text, vec![SessionId::derived(1)]));
        let under = by_keys.under(&Model::new("n").expect("valid"));
        assert_eq!((under.model.as_str(), under.prefixes), ("n", keys()), "an alias keeps the keys");
        let named = of(&[("x-chat", "c")], on, keys());
        assert_eq!((named.source, named.prefixes), (Source::FurtherHeader("x-chat".into()), None));
        assert_eq!(of(&[("thread-id", "t")], on, keys()).source, Source::Header);
        assert_eq!(of(&[], on, None).session, None);
        assert_eq!(of(&[("thread-id", "t")], Sessions::Off, keys()).session, None);
    }

    #[test]
    fn a_body_is_read_only_where_the_headers_say_too_little() {
        let sources = sources();
        let reads = |headers: &[(&str, &str)], has_model, sessions, prompts| {
            reads_body(headers.iter().copied(), has_model, sessions, prompts)
        };
        let on = Sessions::On(&sources);
        assert!(reads(&[], true, on, Prompts::Unread));
        for named in ["thread-id", "X-Room"] {
            assert!(!reads(&[(named, "t")], true, on, Prompts::Unread), "{named}");
            assert!(reads(&[(named, " ")], true, on, Prompts::Unread), "{named}");
            assert!(reads(&[(named, "t")], false, on, Prompts::Unread), "the model is in the body");
            assert!(reads(&[(named, "t")], true, on, Prompts::Read), "the prompt counts");
        }
        assert!(!reads(&[("X-Room", &"x".repeat(257))], true, on, Prompts::Unread), "it is refused for its header");
        assert!(!reads(&[], true, Sessions::Off, Prompts::Unread));
    }

    #[test]
    fn ids_that_break_the_rules_are_refused_with_their_place() {
        let sources = sources();
        let long = "x".repeat(257);
        let told = |headers: &[(&str, &str)], body: &str| {
            let error = read(headers, body, Sessions::On(&sources)).expect_err("invalid");
            assert_eq!(error.code(), "invalid_session_id");
            error.to_string()
        };
        assert!(told(&[("X-Room", &long)], BODY).contains("header x-room: the session id is 257 bytes long"));
        let body = r#"{"conversation":{"id":"\u0001px:0000000000000000"},"session_id":"s"}"#;
        assert!(told(&[], body).contains("body field conversation: the session id holds '\\u{1}'"));
    }
}
