//! The shapes of bodies as one state machine: which fields there are, and which elements. Both readers drive it with
//! the same events: [`Counter::open`], [`Counter::close`], [`Counter::key`], [`Counter::text`] and
//! [`Counter::scalar`].

use super::tally::{Kind, Tally, Told};
use super::trace::{Trace, Traced, TracedPlace};
use super::{Reading, Wanted, json};
use crate::core::kv::ElementText;
use crate::core::session::configured::BodyField;
use crate::core::session::derived::{Element, Part, text_hash};

/// How deep strings of arguments inside strings of arguments are looked into; deeper ones count as plain texts. Each
/// level reads and holds the text inside it once more, so this bounds time and memory of a body made of nothing else.
pub const MAX_ARGUMENTS_LEVELS: usize = 16;

/// The two kinds of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Object,
    Array,
}

/// A value that is neither container nor wanted text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    /// As if missing, where a field of that name matters.
    Null,
    Other,
}

/// What counts of the value behind a name that is no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    /// The value, as behind any name.
    Value,
    /// Nothing: what follows is the name itself, a container.
    Nothing,
}

/// Where the reader stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before or after the body, or in a body that is no object.
    Outside,
    /// In the body's object: names are fields.
    Top,
    /// In the object of a field that may name a session: one of its names does.
    Session,
    /// In the array of `messages` or `input`: objects are items.
    Items,
    /// In an element: the tally judges names and texts.
    Element,
}

/// Fields at the top of the body. To read another one, add it here and in [`Field::of`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Model,
    PreviousResponseId,
    System,
    Messages,
    Input,
    Session(BodyField),
    Other,
}

impl Field {
    fn of(name: &[u8]) -> Self {
        match name {
            b"model" => Self::Model,
            b"previous_response_id" => Self::PreviousResponseId,
            b"system" => Self::System,
            b"messages" => Self::Messages,
            b"input" => Self::Input,
            b"prompt_cache_key" => Self::Session(BodyField::PromptCacheKey),
            b"metadata" => Self::Session(BodyField::MetadataUserId),
            b"conversation" => Self::Session(BodyField::Conversation),
            b"session_id" => Self::Session(BodyField::SessionId),
            _ => Self::Other,
        }
    }

    /// The name of a field that must not stand twice, and its bit in [`Counter::seen`].
    fn only_once(self) -> Option<(&'static str, u8)> {
        match self {
            Self::Model => Some(("model", 1)),
            Self::System => Some(("system", 2)),
            Self::Messages => Some(("messages", 4)),
            Self::Input => Some(("input", 8)),
            Self::PreviousResponseId | Self::Session(_) | Self::Other => None,
        }
    }

    fn is_wanted(self, wanted: Wanted) -> bool {
        match self {
            Self::Model => wanted.model,
            Self::System | Self::Messages | Self::Input => wanted.elements,
            Self::PreviousResponseId => true,
            Self::Session(field) => wanted.fields.contains(field),
            Self::Other => false,
        }
    }
}

/// A field that holds elements.
#[derive(Debug)]
enum Shape<T> {
    Missing,
    Unexpected,
    Found(T),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Counter {
    wanted: Wanted,
    reading: Reading,
    place: Place,
    /// Containers open, those that are passed over and those inside argument texts included.
    depth: usize,
    /// The depth of the container that is being passed over as a whole.
    passing_over: Option<usize>,
    field: Field,
    /// Whether the last name in the object of a field is the one that names the session.
    names_session: bool,
    /// Which of the fields that must not stand twice were seen.
    seen: u8,
    tally: Tally,
    /// Index of the next value in the array of items.
    index: usize,
    arguments_levels: usize,
    system: Shape<Option<Element>>,
    messages: Shape<Vec<Element>>,
    input: Shape<Vec<Element>>,
    texts: Texts,
}

/// The texts of the elements that count, where they are wanted.
#[derive(Debug, Default)]
struct Texts {
    system: Option<ElementText>,
    messages: Vec<ElementText>,
    input: Vec<ElementText>,
}

impl Counter {
    pub(super) fn new(wanted: Wanted, trace: Option<Box<Trace>>) -> Self {
        Self {
            wanted,
            reading: Reading::default(),
            place: Place::Outside,
            depth: 0,
            passing_over: None,
            field: Field::Other,
            names_session: false,
            seen: 0,
            tally: Tally::new(trace),
            index: 0,
            arguments_levels: 0,
            system: Shape::Missing,
            messages: Shape::Missing,
            input: Shape::Missing,
            texts: Texts::default(),
        }
    }

    /// The texts of the elements are wanted too.
    pub(super) fn keep_texts(&mut self) {
        self.tally.keep_texts();
    }

    /// A container begins.
    pub(super) fn open(&mut self, container: Container) {
        self.depth += 1;
        if self.passing_over.is_some() {
            return;
        }
        let inside = match (self.place, container) {
            (Place::Outside, Container::Object) => Some(Place::Top),
            (Place::Top, _) => self.open_field(container),
            (Place::Items, Container::Object) => {
                self.index += 1;
                self.tally.begin(Kind::Item);
                Some(Place::Element)
            }
            (Place::Element, _) => self.tally.open(container).then_some(Place::Element),
            (Place::Items, Container::Array) => {
                self.index += 1;
                None
            }
            (Place::Outside, Container::Array) | (Place::Session, _) => None,
        };
        match inside {
            Some(place) => self.place = place,
            None => self.passing_over = Some(self.depth),
        }
    }

    fn open_field(&mut self, container: Container) -> Option<Place> {
        self.index = 0;
        match (self.field, container) {
            (Field::Messages, Container::Array) => self.messages = Shape::Found(Vec::new()),
            (Field::Input, Container::Array) => self.input = Shape::Found(Vec::new()),
            (Field::System, Container::Array) => {
                self.tally.begin(Kind::System);
                return Some(Place::Element);
            }
            (Field::Session(field), Container::Object) if field.inside().is_some() => {
                self.names_session = false;
                return Some(Place::Session);
            }
            (Field::Messages | Field::Input | Field::System, Container::Object) => {
                self.unexpected();
                return None;
            }
            (Field::Model | Field::PreviousResponseId | Field::Session(_) | Field::Other, _) => return None,
        }
        Some(Place::Items)
    }

    /// The innermost container ends.
    pub(super) fn close(&mut self, container: Container) {
        let closed = self.depth;
        self.depth -= 1;
        self.tally.forget_key();
        match self.passing_over {
            Some(depth) if depth == closed => self.passing_over = None,
            Some(_) => {}
            None => self.leave(container),
        }
    }

    fn leave(&mut self, container: Container) {
        match (self.place, container) {
            (Place::Outside, _) => {}
            (Place::Top, _) => self.place = Place::Outside,
            (Place::Items | Place::Session, _) => self.place = Place::Top,
            // Only the array of a `system`, directly at the top, is one that the tally knows.
            (Place::Element, Container::Array) if self.depth > 1 => {}
            (Place::Element, _) => {
                if let Some(element) = self.tally.close() {
                    self.end_element(element);
                }
            }
        }
    }

    fn end_element(&mut self, element: Option<Element>) {
        let last = self.index.saturating_sub(1);
        let text = self.tally.take_text().filter(|_| element.is_some());
        let (place, list) = match self.field {
            Field::Messages => {
                self.tally.trace_end(TracedPlace::Message(last), element);
                self.texts.messages.extend(text);
                (Place::Items, &mut self.messages)
            }
            Field::Input => {
                self.tally.trace_end(TracedPlace::Input(last), element);
                self.texts.input.extend(text);
                (Place::Items, &mut self.input)
            }
            Field::System | Field::Model | Field::PreviousResponseId | Field::Session(_) | Field::Other => {
                self.place = Place::Top;
                self.tally.trace_end(TracedPlace::System, element);
                self.texts.system = text;
                self.system = Shape::Found(element);
                return;
            }
        };
        self.place = place;
        if let Shape::Found(items) = list {
            items.extend(element);
        }
    }

    /// Whether the next name matters; if so it is given to [`Counter::key`].
    pub(super) fn wants_key(&self) -> bool {
        self.passing_over.is_none()
            && match self.place {
                Place::Outside | Place::Items => false,
                Place::Top | Place::Session => true,
                Place::Element => self.tally.wants_key(),
            }
    }

    /// A name, decoded. Gives the field that stands twice, where that is an error.
    pub(super) fn key(&mut self, name: &[u8]) -> Result<(), &'static str> {
        match self.place {
            Place::Outside | Place::Items => {}
            Place::Top => {
                let field = Field::of(name);
                if let Some((name, bit)) = field.only_once() {
                    if self.seen & bit != 0 {
                        return Err(name);
                    }
                    self.seen |= bit;
                }
                self.field = if field.is_wanted(self.wanted) { field } else { Field::Other };
                if let Field::Session(field) = self.field {
                    // Of a field that stands twice the last counts, as to the parsers of engines.
                    self.reading.fields.forget(field);
                }
            }
            Place::Session => {
                self.names_session = false;
                if let Field::Session(field) = self.field
                    && field.inside().is_some_and(|inside| inside.as_bytes() == name)
                {
                    self.names_session = true;
                    self.reading.fields.forget(field);
                }
            }
            Place::Element => self.tally.key(name),
        }
        Ok(())
    }

    /// A name that is no text, and so matches nothing.
    pub(super) fn nameless_key(&mut self, counts: Counts) {
        if self.passing_over.is_some() {
            return;
        }
        match self.place {
            Place::Outside | Place::Items => {}
            Place::Top => self.field = Field::Other,
            Place::Session => self.names_session = false,
            Place::Element => self.tally.nameless_key(counts),
        }
    }

    /// Whether the next value, a text, matters; if so it is given to [`Counter::text`], else to [`Counter::scalar`].
    pub(super) fn wants_text(&self) -> bool {
        if self.passing_over.is_some() {
            return self.place == Place::Element && self.tally.traces();
        }
        match self.place {
            Place::Outside | Place::Items => false,
            Place::Top => self.field != Field::Other,
            Place::Session => self.names_session,
            Place::Element => self.tally.wants_text(),
        }
    }

    /// A text, decoded; it is UTF-8.
    pub(super) fn text(&mut self, text: &[u8]) {
        if self.passing_over.is_some() {
            return self.tally.pass_over_text(text);
        }
        match self.place {
            Place::Outside | Place::Items => {}
            Place::Top | Place::Session => self.field_text(text),
            Place::Element => match self.tally.text(text) {
                Told::Done => {}
                Told::Arguments => self.arguments(text),
            },
        }
    }

    fn field_text(&mut self, text: &[u8]) {
        let owned = || std::str::from_utf8(text).expect("both readers check it").to_owned();
        match self.field {
            Field::Model => self.reading.model = Some(owned()),
            Field::PreviousResponseId => self.reading.previous_response_id = Some(owned()),
            Field::System => {
                let element = text_hash(text).map(|hash| Element { part: Part::System, hash });
                self.tally.trace_texts(TracedPlace::System, element, &[("system", text)]);
                self.texts.system = self.tally.text_of(&[text]).filter(|_| element.is_some());
                self.system = Shape::Found(element);
            }
            Field::Input => {
                // It is the one item {"role":"user","content":input}.
                let hashes = [b"user".as_slice(), text].into_iter().filter_map(text_hash);
                let element = Element { part: Part::Item, hash: hashes.fold(0, u64::wrapping_add) };
                let texts = [("role", b"user".as_slice()), ("content", text)];
                self.tally.trace_texts(TracedPlace::Input(0), Some(element), &texts);
                self.texts.input = self.tally.text_of(&[b"user", text]).into_iter().collect();
                self.input = Shape::Found(vec![element]);
            }
            Field::Messages => self.unexpected(),
            // Only in its object does `metadata` name a session, and there alone.
            Field::Session(BodyField::MetadataUserId) if self.place == Place::Top => {}
            Field::Session(field) => self.reading.fields.take(field, text),
            Field::Other => {}
        }
    }

    /// Counts the texts inside, where the text is an object itself, else the text.
    fn arguments(&mut self, text: &[u8]) {
        let (mark, depth) = (self.tally.mark(), self.depth);
        if self.arguments_levels < MAX_ARGUMENTS_LEVELS {
            self.arguments_levels += 1;
            let is_object = json::read_object(text, self);
            self.arguments_levels -= 1;
            if is_object {
                return;
            }
        }
        // As if it had never been looked into.
        self.tally.back_to(mark);
        (self.depth, self.passing_over) = (depth, None);
        self.tally.count(text);
    }

    /// Any other value that is no container, or a text that was not wanted.
    pub(super) fn scalar(&mut self, scalar: Scalar) {
        self.index += usize::from(self.place == Place::Items && self.passing_over.is_none());
        if self.passing_over.is_some() || scalar == Scalar::Null {
            return;
        }
        match self.place {
            Place::Outside | Place::Items | Place::Session => {}
            Place::Top => self.unexpected(),
            Place::Element => self.tally.other_value(),
        }
    }

    /// The field holds what no conversation is.
    fn unexpected(&mut self) {
        match self.field {
            Field::System => self.system = Shape::Unexpected,
            Field::Messages => self.messages = Shape::Unexpected,
            Field::Input => self.input = Shape::Unexpected,
            Field::Model | Field::PreviousResponseId | Field::Session(_) | Field::Other => {}
        }
    }

    /// The body is nested deeper than a derived session may be: nothing of it counts any more.
    pub(super) fn too_deep(&mut self) {
        self.wanted.elements = false;
        if self.place != Place::Outside {
            // Whatever field this is in, the reader goes on at the top behind it.
            self.place = Place::Top;
            self.passing_over = Some(2);
        }
    }

    /// What was found, and what was seen on the way where that was wanted: of the elements that count alone.
    pub(super) fn finish(self) -> (Reading, Vec<Traced>) {
        let of_messages = !matches!(self.messages, Shape::Missing);
        let mut seen = self.tally.into_trace().map_or_else(Vec::new, |trace| trace.finish());
        seen.retain(|traced| match traced.place {
            TracedPlace::System => true,
            TracedPlace::Message(_) => of_messages,
            TracedPlace::Input(_) => !of_messages,
        });
        // The system comes first, wherever it stands in the body.
        seen.sort_by_key(|traced| traced.place != TracedPlace::System);
        let conversation = match self.messages {
            Shape::Missing => self.input,
            Shape::Unexpected | Shape::Found(_) => self.messages,
        };
        let elements = if self.wanted.elements { in_order(self.system, conversation) } else { None };
        let of_conversation = if of_messages { self.texts.messages } else { self.texts.input };
        let texts: Vec<ElementText> = self.texts.system.into_iter().chain(of_conversation).collect();
        (Reading { elements, texts, ..self.reading }, seen)
    }
}

/// The elements as the chain takes them, or `None` where they give no session.
fn in_order(system: Shape<Option<Element>>, conversation: Shape<Vec<Element>>) -> Option<Vec<Element>> {
    let system = match system {
        Shape::Missing => None,
        Shape::Unexpected => return None,
        Shape::Found(element) => element,
    };
    match conversation {
        Shape::Found(items) if items.is_empty() => None,
        Shape::Found(mut items) => {
            if let Some(element) = system {
                items.insert(0, element);
            }
            Some(items)
        }
        Shape::Missing | Shape::Unexpected => None,
    }
}
