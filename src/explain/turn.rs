//! One request, without any server.

use serde::Serialize;

use super::alias::{self, Under};
use super::show;
use crate::config::RouterConfig;
use crate::core::error::RouteError;
use crate::core::hash::PinKey;
use crate::core::id::{Model, Origin};
use crate::core::mode::{AffinityMode, FrontendTrust};
use crate::core::session::configured::BodyField;
use crate::core::session::derived::Part;
use crate::core::session::named;
use crate::wire::body::{self, Traced, TracedPlace, Verdict, Wanted, Why};
use crate::wire::header::Known;
use crate::wire::identity::{self, Identity, Sessions, Source};
use crate::wire::request::{Reading, RequestHead};

/// A request to explain.
#[derive(Debug, Clone)]
pub struct Given {
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
    /// The model of the subject; `None` where that names none.
    pub model: Option<Model>,
}

/// What headers and body of a request say.
#[derive(Debug, Serialize)]
pub struct Turn {
    /// The model.
    pub model: String,
    /// The alias that the request names, where it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// The tenant, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What kind of request it is.
    pub class: Class,
    /// The session.
    pub session: Option<String>,
    /// Where the session comes from.
    pub source: String,
    /// The parent whose subagents are grouped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The keys of the input's prefixes, shortest first.
    pub keys: Vec<Key>,
    /// The elements of the conversation; empty where the body is not read for it.
    pub elements: Vec<Element>,
    /// What else is worth knowing.
    pub notes: Vec<String>,
    #[serde(skip)]
    pub(super) head: RequestHead,
    #[serde(skip)]
    pub(super) identity: Identity,
    /// What says the partition of its session: a key made of what stays the same from turn to turn.
    #[serde(skip)]
    pub(super) constant: Option<PinKey>,
    #[serde(skip)]
    pub(super) under: Option<Under>,
    #[serde(skip)]
    pub(super) seen: Vec<Traced>,
    /// Bytes of the body.
    #[serde(skip)]
    pub(super) size: usize,
}

/// What kind of request it is, to a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Something names its session.
    Named,
    /// It goes on from a response.
    Chained,
    /// Its text is a first turn.
    Opening,
    /// Its text holds what the model has said before.
    LaterTurn,
    /// It has no session.
    Sessionless,
}

/// The key of one prefix.
#[derive(Debug, Serialize)]
pub struct Key {
    /// The item that the prefix ends with.
    pub item: String,
    /// The key, in hex.
    pub key: String,
    /// Whether the model wrote the item.
    pub assistant: bool,
    /// Whether it is looked up for a pin.
    pub looked_up: bool,
    /// When it is pinned, if ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<&'static str>,
}

/// One element of the conversation.
#[derive(Debug, Serialize)]
pub struct Element {
    /// Where it stands.
    pub item: String,
    /// Whether anything in it counts: only then it gives a key.
    pub counts: bool,
    /// Whether the model wrote it.
    pub assistant: bool,
    /// Its texts.
    pub texts: Vec<Text>,
}

/// One text.
#[derive(Debug, Serialize)]
pub struct Text {
    /// The nearest name before it.
    pub name: String,
    /// Its beginning, in quotes.
    pub text: String,
    /// Its length.
    pub bytes: usize,
    /// Whether it counts.
    pub counts: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Reads a request as a router with this configuration would. The error is what its frontend would be told.
pub fn read(given: &Given, config: &RouterConfig) -> Result<Turn, RouteError> {
    let headers = || given.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let known = Known::read(headers());
    let on = config.affinity != AffinityMode::Off;
    let trusted = match config.frontends {
        FrontendTrust::Everywhere => true,
        FrontendTrust::TrustedSubjectOnly => false,
    };
    let head = RequestHead::read(&known, Reading { trusted, sessions: on })?;
    let sessions = if on { Sessions::On(&config.session) } else { Sessions::Off };
    let identity = identity::find(&head, headers(), &given.body, given.model.clone(), sessions)?;
    let named = identity.session.as_ref().is_some_and(|session| session.origin == Origin::Named);
    let by_header = matches!(identity.source, Source::Header | Source::FurtherHeader(_));
    let wanted = identity::wanted(given.model.is_none(), by_header, sessions);
    let seen = if wanted.elements { body::read_traced(&given.body, head.encoding, wanted)?.1 } else { Vec::new() };
    let class = match (&identity.source, &identity.prefixes) {
        _ if named => Class::Named,
        (Source::Response, _) => Class::Chained,
        (_, Some(prefixes)) if prefixes.has_assistant() => Class::LaterTurn,
        (_, Some(_)) => Class::Opening,
        (_, None) => Class::Sessionless,
    };
    let mut notes = notes(class, by_header, config);
    if !trusted && known.get("rankpin-tenant").is_some() {
        notes.push(
            "the tenant is not believed: with untrusted_frontends only a gateway on {ns}.trusted.{model} sets one"
                .into(),
        );
    }
    let alias = identity.model.clone();
    let constant = identity.constant().map(|session| PinKey::new(&head.tenant, &alias, &session));
    let under = alias::under(&identity, config);
    let identity = under.as_ref().map_or(identity, |under| under.identities[under.expected].clone());
    notes.extend(under.as_ref().map(|under| under.note.clone()));
    if !by_header && on {
        notes.extend(unused_fields(given, &head, config)?);
    }
    Ok(Turn {
        model: identity.model.as_str().to_owned(),
        alias: under.is_some().then(|| alias.as_str().to_owned()),
        tenant: Some(head.tenant.as_str().to_owned()).filter(|tenant| !tenant.is_empty()),
        class,
        session: identity.session.as_ref().map(|session| session.id.as_str().to_owned()),
        source: source(&identity.source, &known),
        parent: identity.group.as_ref().map(|parent| parent.as_str().to_owned()),
        keys: keys(&identity, &seen),
        elements: seen.iter().map(element).collect(),
        notes,
        head,
        identity,
        constant,
        under,
        seen,
        size: given.body.len(),
    })
}

fn source(source: &Source, known: &Known<'_>) -> String {
    match source {
        Source::Header => {
            let found = named::resolve(|name| known.get(name));
            format!("header {}", found.map_or("of the table", |(name, _)| name))
        }
        Source::FurtherHeader(name) => format!("header {name}, which the configuration names"),
        Source::Field(field) => format!("body field {}, which the configuration names", field.name()),
        Source::Response => "previous_response_id of the body".into(),
        Source::Text => "derived from the conversation's text".into(),
        Source::Nowhere => "none".into(),
    }
}

fn keys(identity: &Identity, seen: &[Traced]) -> Vec<Key> {
    let Some(prefixes) = &identity.prefixes else { return Vec::new() };
    let last = prefixes.keys().len() - 1;
    let items = seen.iter().filter_map(|traced| Some((traced.place, traced.element?.part)));
    let items = items.filter(|(_, part)| *part != Part::System);
    let pinned = |index: usize, key: u64| {
        if prefixes.last_assistant() == Some(key) && index < last {
            Some("once accepted, where no pin that covers an item of the assistant is continued")
        } else {
            (index == last).then_some("once accepted, where nothing is continued")
        }
    };
    let keys = prefixes.keys().iter().enumerate().zip(items);
    keys.map(|((index, &key), (place, part))| Key {
        item: item(place),
        key: format!("{key:016x}"),
        assistant: part == Part::AssistantItem,
        looked_up: index < last,
        pinned: pinned(index, key),
    })
    .collect()
}

pub(super) fn item(place: TracedPlace) -> String {
    match place {
        TracedPlace::System => "system".into(),
        TracedPlace::Message(index) => format!("messages[{index}]"),
        TracedPlace::Input(index) => format!("input[{index}]"),
    }
}

fn element(traced: &Traced) -> Element {
    Element {
        item: item(traced.place),
        counts: traced.element.is_some(),
        assistant: traced.element.is_some_and(|element| element.part == Part::AssistantItem),
        texts: traced
            .texts
            .iter()
            .map(|text| Text {
                name: text.name.clone(),
                text: show::beginning(&text.text),
                bytes: text.text.len(),
                counts: text.verdict == Verdict::Counts,
                why: match &text.verdict {
                    Verdict::Counts => None,
                    Verdict::LeftOut(why) => Some(reason(why)),
                },
            })
            .collect(),
    }
}

fn reason(why: &Why) -> String {
    match why {
        Why::Under(name) => format!("nothing under {name:?} counts"),
        Why::Reasoning(kind) => format!("it stands in an object of type {kind:?}"),
        Why::Billing => "it changes with every request".into(),
    }
}

fn notes(class: Class, by_header: bool, config: &RouterConfig) -> Vec<String> {
    let mut notes = Vec::new();
    match class {
        Class::Named if by_header => notes.push("a header names the session: the body is not read for it".into()),
        Class::Named => notes.push("a field of the body names the session: its text is not looked up".into()),
        Class::Chained => notes.push(
            "the body holds only what is new since that response, so its own text is neither looked up nor pinned".into(),
        ),
        Class::Opening => notes.push(
            "it holds nothing that the model has said: a first turn, placed on its own even where others begin the same way"
                .into(),
        ),
        Class::LaterTurn => {}
        Class::Sessionless if config.affinity == AffinityMode::Off => notes.push("with affinity off no session is read".into()),
        Class::Sessionless => notes.push(
            "nothing names a session, and the body gives none: its messages, input or system are missing or of an unexpected \
             shape, nested deeper than 128 levels, or hold no text that counts"
                .into(),
        ),
    }
    notes
}

/// What fields of the body would say if the configuration let them name a session.
fn unused_fields(given: &Given, head: &RequestHead, config: &RouterConfig) -> Result<Vec<String>, RouteError> {
    let unused = BodyField::NAMED.map(|(_, field)| field);
    let unused: Vec<_> = unused.into_iter().filter(|field| !config.session.body_fields.contains(field)).collect();
    let wanted = Wanted { fields: unused.iter().copied().collect(), ..Wanted::default() };
    let reading = body::read(&given.body, head.encoding, wanted)?;
    let holds = |field: BodyField| Some((field, reading.fields.first(&[field])?.1));
    let told = |(field, id): (BodyField, &str)| {
        let (name, id) = (field.name(), show::beginning(id));
        format!("body field {name} holds {id}: it would name the session if body_fields of [session] listed it")
    };
    Ok(unused.into_iter().filter_map(holds).map(told).collect())
}
