//! The one pass over a request's body (protocol sections 3.2 and 4): its model and what its conversation hashes to.
//!
//! No tree is built. [`json`] and [`msgpack`] walk the bytes, iteratively and whatever their depth, and tell the
//! [`counter`] what begins, what ends and what texts there are. The counter alone knows the shapes of bodies, and its
//! [`tally`] the rules of section 4 inside an element: each is written once.
//!
//! Time is linear in the body. Memory is that of the longest text with escapes, of 16 bytes an item, and of a bit for
//! each level of nesting.

mod counter;
mod fields;
mod json;
mod marks;
mod msgpack;
mod tally;
mod text;
mod trace;

use super::Encoding;
use crate::core::error::RouteError;
use crate::core::id::{Model, NameError};
use crate::core::kv::{ElementText, Prompt};
use crate::core::session::configured::BodyFields;
use crate::core::session::derived::{Element, Prefixes};
use counter::Counter;
pub use counter::MAX_ARGUMENTS_LEVELS;
pub use fields::SessionFields;
pub use trace::{Traced, TracedPlace, TracedText, Verdict, Why};

/// A body nested deeper gives no derived session (protocol section 3.2); the body itself is level 1.
pub const MAX_LEVELS: usize = 128;

/// What a router wants to know of a body. Whether it is valid is always found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The model: the subject names none.
    pub model: bool,
    /// The elements of the conversation: no header names a session, and affinity is on.
    pub elements: bool,
    /// Fields that the configuration lets name a session, and no header does.
    pub fields: BodyFields,
}

/// What a valid body says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    /// The `model` at the top, where it was wanted and is a string.
    pub model: Option<String>,
    /// The `previous_response_id` at the top, where it is a string: the response whose session goes on.
    pub previous_response_id: Option<String>,
    /// The counted elements in order, `system` first. `None` where they were not wanted, or where the body gives no
    /// derived session: its shape is unexpected, it is nested too deep, or nothing in it counts.
    pub elements: Option<Vec<Element>>,
    /// What the wanted fields that may name a session say.
    pub fields: SessionFields,
    /// The texts of the elements, one for each, where [`read_texts`] was asked.
    pub texts: Vec<ElementText>,
}

impl Reading {
    /// The model of a request whose subject names none.
    pub fn model(&self) -> Result<Model, BodyError> {
        Model::new(self.model.as_deref().ok_or(BodyError::NoModel)?).map_err(BodyError::Model)
    }

    /// The keys of the input's prefixes, where the body gives a derived session.
    pub fn prefixes(&self, model: &Model) -> Option<Prefixes> {
        Prefixes::of(model, self.elements.as_deref()?)
    }

    /// The prompt with its marks, where its texts were read.
    pub fn prompt(&self, model: &Model) -> Option<Prompt> {
        let elements = self.elements.as_deref()?;
        (elements.len() == self.texts.len()).then(|| Prompt::of(model, elements, &self.texts))
    }
}

/// Why a body is refused: every case is a 400 `invalid_request` (protocol section 3.2). `Display` completes nothing, it
/// is the message that the frontend reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// A byte order mark, which common parsers refuse and others skip.
    #[error("the body starts with a byte order mark")]
    ByteOrderMark,
    /// Not one JSON or MessagePack value.
    #[error("the body is not valid {}: {problem} at byte {at}", .encoding.name())]
    Invalid {
        /// What it should have been.
        encoding: Encoding,
        /// What is wrong.
        problem: &'static str,
        /// Offset in bytes, from 0.
        at: usize,
    },
    /// A field that routing depends on stands twice: parsers differ in which of them counts.
    #[error("the body has {field:?} twice at the top, again at byte {at}")]
    Twice {
        /// The field.
        field: &'static str,
        /// Offset of the second one in bytes, from 0.
        at: usize,
    },
    /// Neither subject nor body says which model.
    #[error("the subject names no model, and the body has no string \"model\" at the top")]
    NoModel,
    /// The body's model can't be one.
    #[error("the body's model {0}")]
    Model(NameError),
}

impl From<BodyError> for RouteError {
    fn from(error: BodyError) -> Self {
        Self::InvalidRequest(error.to_string())
    }
}

impl Encoding {
    fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::MessagePack => "MessagePack",
        }
    }
}

/// What is wrong, and at which byte; small, since nested texts fail often and silently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flaw {
    kind: FlawKind,
    at: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlawKind {
    Syntax(&'static str),
    Twice(&'static str),
}

impl Flaw {
    fn syntax(problem: &'static str, at: usize) -> Self {
        Self { kind: FlawKind::Syntax(problem), at }
    }

    fn twice(field: &'static str, at: usize) -> Self {
        Self { kind: FlawKind::Twice(field), at }
    }
}

/// Reads a body once, from its first byte to its last.
pub fn read(body: &[u8], encoding: Encoding, wanted: Wanted) -> Result<Reading, BodyError> {
    Ok(pass(body, encoding, Counter::new(wanted, None))?.0)
}

/// The same, and how long the texts of each element are, with marks inside long ones.
pub fn read_texts(body: &[u8], encoding: Encoding, wanted: Wanted) -> Result<Reading, BodyError> {
    let mut counter = Counter::new(wanted, None);
    counter.keep_texts();
    Ok(pass(body, encoding, counter)?.0)
}

/// The same, and what was seen in each element on the way: it copies every text.
pub fn read_traced(body: &[u8], encoding: Encoding, wanted: Wanted) -> Result<(Reading, Vec<Traced>), BodyError> {
    pass(body, encoding, Counter::new(wanted, Some(Box::default())))
}

fn pass(body: &[u8], encoding: Encoding, mut counter: Counter) -> Result<(Reading, Vec<Traced>), BodyError> {
    const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
    if encoding == Encoding::Json && body.starts_with(BYTE_ORDER_MARK) {
        return Err(BodyError::ByteOrderMark);
    }
    let read = match encoding {
        Encoding::Json => json::read(body, &mut counter),
        Encoding::MessagePack => msgpack::read(body, &mut counter),
    };
    match read {
        Ok(()) => Ok(counter.finish()),
        Err(Flaw { kind: FlawKind::Syntax(problem), at }) => Err(BodyError::Invalid { encoding, problem, at }),
        Err(Flaw { kind: FlawKind::Twice(field), at }) => Err(BodyError::Twice { field, at }),
    }
}
