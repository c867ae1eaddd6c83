//! Which texts of a body count, and for which element: the rules of protocol section 4 as one state machine. Both
//! readers drive it with the same events: [`Counter::open`], [`Counter::close`], [`Counter::key`],
//! [`Counter::text`] and [`Counter::scalar`].
//!
//! An object's texts are summed up in a frame of its own and reach the object around it when it ends, because a
//! `type` that excludes the whole object may come last.

use super::{Reading, Wanted, json};
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
    /// In the array of `messages` or `input`: objects are items.
    Items,
    /// In an element: names and texts are judged by section 4.
    Element,
}

/// Fields at the top of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Model,
    PreviousResponseId,
    System,
    Messages,
    Input,
    Other,
}

/// What the name before a value in an element says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    /// Nothing; also what stands in arrays.
    Plain,
    /// The whole value doesn't count.
    Ignored,
    /// Doesn't count, but may exclude the object or make an item a call.
    Type,
    /// An item's own role.
    Role,
    /// A text that may be an object itself.
    Arguments,
}

/// Sum over what counts in one object so far.
#[derive(Debug, Clone, Copy, Default)]
struct Frame {
    sum: u64,
    counted: bool,
    /// Its `type` excludes it.
    excluded: bool,
}

/// Whether a field of an item says that the model wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    Nothing,
    Yes,
    No,
}

/// A field that holds elements.
#[derive(Debug)]
enum Shape<T> {
    Missing,
    Unexpected,
    Found(T),
}

/// See the module.
pub(super) struct Counter {
    wanted: Wanted,
    reading: Reading,
    place: Place,
    /// Containers open, those that are passed over and those inside argument texts included.
    depth: usize,
    /// The depth of the container that is being passed over as a whole.
    passing_over: Option<usize>,
    field: Field,
    /// Which of the fields that must not stand twice were seen, one bit each.
    seen: u8,
    key: Key,
    /// The open objects of the element, outermost first. A `system` array starts with a frame of its own.
    frames: Vec<Frame>,
    role: Says,
    kind: Says,
    arguments_levels: usize,
    system: Shape<Option<Element>>,
    messages: Shape<Vec<Element>>,
    input: Shape<Vec<Element>>,
}

impl Counter {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            reading: Reading::default(),
            place: Place::Outside,
            depth: 0,
            passing_over: None,
            field: Field::Other,
            seen: 0,
            key: Key::Plain,
            frames: Vec::new(),
            role: Says::Nothing,
            kind: Says::Nothing,
            arguments_levels: 0,
            system: Shape::Missing,
            messages: Shape::Missing,
            input: Shape::Missing,
        }
    }

    /// A container begins.
    pub(super) fn open(&mut self, container: Container) {
        self.depth += 1;
        if self.passing_over.is_some() {
            return;
        }
        let entered = match self.place {
            Place::Outside => self.open_body(container),
            Place::Top => self.open_field(container),
            Place::Items => self.open_item(container),
            Place::Element => self.open_inside(container),
        };
        if !entered {
            self.passing_over = Some(self.depth);
        }
    }

    fn open_body(&mut self, container: Container) -> bool {
        match container {
            Container::Object => self.place = Place::Top,
            Container::Array => return false,
        }
        true
    }

    fn open_field(&mut self, container: Container) -> bool {
        match (self.field, container) {
            (Field::Messages, Container::Array) => self.messages = Shape::Found(Vec::new()),
            (Field::Input, Container::Array) => self.input = Shape::Found(Vec::new()),
            (Field::System, Container::Array) => {
                self.frames.push(Frame::default());
                self.key = Key::Plain;
                self.place = Place::Element;
                return true;
            }
            (Field::Messages | Field::Input | Field::System, Container::Object) => {
                self.unexpected();
                return false;
            }
            (Field::Model | Field::PreviousResponseId | Field::Other, Container::Object | Container::Array) => {
                return false;
            }
        }
        self.place = Place::Items;
        true
    }

    fn open_item(&mut self, container: Container) -> bool {
        match container {
            Container::Object => {
                self.frames.push(Frame::default());
                self.place = Place::Element;
                (self.role, self.kind) = (Says::Nothing, Says::Nothing);
                true
            }
            Container::Array => false,
        }
    }

    fn open_inside(&mut self, container: Container) -> bool {
        self.note_other_value();
        if matches!(self.key, Key::Ignored | Key::Type) || self.frame().excluded {
            return false;
        }
        match container {
            Container::Object => self.frames.push(Frame::default()),
            Container::Array => self.key = Key::Plain,
        }
        true
    }

    /// The innermost container ends.
    pub(super) fn close(&mut self, container: Container) {
        let closed = self.depth;
        self.depth -= 1;
        // What follows has a name of its own or stands in an array.
        self.key = Key::Plain;
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
            (Place::Items, _) => self.place = Place::Top,
            // Only the array of a `system` has a frame of its own.
            (Place::Element, Container::Array) if self.depth > 1 => {}
            (Place::Element, Container::Array | Container::Object) => {
                let frame = self.frames.pop().expect("an element's container has a frame");
                let frame = if frame.excluded { Frame::default() } else { frame };
                match self.frames.last_mut() {
                    Some(around) => {
                        around.sum = around.sum.wrapping_add(frame.sum);
                        around.counted |= frame.counted;
                    }
                    None => self.end_element(frame),
                }
            }
        }
    }

    fn end_element(&mut self, frame: Frame) {
        let element = |part| frame.counted.then_some(Element { part, hash: frame.sum });
        if self.depth == 1 {
            self.place = Place::Top;
            self.system = Shape::Found(element(Part::System));
            return;
        }
        self.place = Place::Items;
        let part = match (self.role, self.kind) {
            (Says::Yes, _) | (Says::Nothing, Says::Yes) => Part::AssistantItem,
            (Says::No, _) | (Says::Nothing, Says::Nothing | Says::No) => Part::Item,
        };
        let list = if self.field == Field::Messages { &mut self.messages } else { &mut self.input };
        if let Shape::Found(items) = list {
            items.extend(element(part));
        }
    }

    /// Whether the next name matters; if so it is given to [`Counter::key`].
    pub(super) fn wants_key(&self) -> bool {
        match self.place {
            Place::Outside | Place::Items => false,
            Place::Top => self.passing_over.is_none(),
            Place::Element => self.passing_over.is_none() && !self.frame().excluded,
        }
    }

    /// A name, decoded. Gives the field that stands twice, where that is an error.
    pub(super) fn key(&mut self, name: &[u8]) -> Result<(), &'static str> {
        match self.place {
            Place::Outside | Place::Items => Ok(()),
            Place::Top => self.field_name(name),
            Place::Element => {
                self.key = match name {
                    b"type" => Key::Type,
                    b"role" if self.at_item() => Key::Role,
                    b"arguments" => Key::Arguments,
                    b"cache_control" | b"id" | b"status" | b"call_id" | b"tool_call_id" | b"tool_use_id"
                    | b"reasoning" | b"reasoning_content" | b"reasoning_details" | b"thinking" | b"signature"
                    | b"encrypted_content" | b"annotations" | b"logprobs" => Key::Ignored,
                    [b'_', b'_', ..] => Key::Ignored,
                    _ => Key::Plain,
                };
                Ok(())
            }
        }
    }

    fn field_name(&mut self, name: &[u8]) -> Result<(), &'static str> {
        let (field, only_once) = match name {
            b"model" => (Field::Model, Some(("model", 1))),
            b"messages" => (Field::Messages, Some(("messages", 2))),
            b"input" => (Field::Input, Some(("input", 4))),
            b"system" => (Field::System, Some(("system", 8))),
            b"previous_response_id" => (Field::PreviousResponseId, None),
            _ => (Field::Other, None),
        };
        if let Some((name, bit)) = only_once {
            if self.seen & bit != 0 {
                return Err(name);
            }
            self.seen |= bit;
        }
        self.field = match field {
            Field::Model if self.wanted.model => field,
            Field::System | Field::Messages | Field::Input if self.wanted.elements => field,
            Field::PreviousResponseId => field,
            Field::Model | Field::System | Field::Messages | Field::Input | Field::Other => Field::Other,
        };
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
            Place::Element => {
                self.key = match counts {
                    Counts::Value => Key::Plain,
                    Counts::Nothing => Key::Ignored,
                }
            }
        }
    }

    /// Whether the next value, a text, matters; if so it is given to [`Counter::text`], else to [`Counter::scalar`].
    pub(super) fn wants_text(&self) -> bool {
        match self.place {
            Place::Outside | Place::Items => false,
            Place::Top => self.passing_over.is_none() && self.field != Field::Other,
            Place::Element => self.passing_over.is_none() && self.key != Key::Ignored && !self.frame().excluded,
        }
    }

    /// A text, decoded; it is UTF-8.
    pub(super) fn text(&mut self, text: &[u8]) {
        match self.place {
            Place::Outside | Place::Items => {}
            Place::Top => self.field_text(text),
            Place::Element => match self.key {
                Key::Ignored => {}
                Key::Plain => self.count(text),
                Key::Role => {
                    self.role = if text == b"assistant" { Says::Yes } else { Says::No };
                    self.count(text);
                }
                Key::Type => {
                    if self.at_item() {
                        self.kind = if text.ends_with(b"_call") { Says::Yes } else { Says::No };
                    }
                    let excludes = matches!(text, b"reasoning" | b"thinking" | b"redacted_thinking");
                    self.frame_mut().excluded |= excludes;
                }
                Key::Arguments => self.arguments(text),
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
                self.system = Shape::Found(element);
            }
            Field::Input => {
                // It is the one item {"role":"user","content":input}.
                let hashes = [b"user".as_slice(), text].into_iter().filter_map(text_hash);
                let element = Element { part: Part::Item, hash: hashes.fold(0, u64::wrapping_add) };
                self.input = Shape::Found(vec![element]);
            }
            Field::Messages => self.unexpected(),
            Field::Other => {}
        }
    }

    /// Counts the texts inside, where the text is an object itself, else the text.
    fn arguments(&mut self, text: &[u8]) {
        let (frames, before, depth) = (self.frames.len(), *self.frame(), self.depth);
        if self.arguments_levels < MAX_ARGUMENTS_LEVELS {
            self.arguments_levels += 1;
            let is_object = json::read_object(text, self);
            self.arguments_levels -= 1;
            if is_object {
                return;
            }
        }
        // As if it had never been looked into.
        self.frames.truncate(frames);
        *self.frame_mut() = before;
        (self.depth, self.passing_over) = (depth, None);
        self.count(text);
    }

    /// Any other value that is no container, or a text that was not wanted.
    pub(super) fn scalar(&mut self, scalar: Scalar) {
        if self.passing_over.is_some() || scalar == Scalar::Null {
            return;
        }
        match self.place {
            Place::Outside | Place::Items => {}
            Place::Top => self.unexpected(),
            Place::Element => self.note_other_value(),
        }
    }

    /// The body is nested deeper than a derived session may be: nothing of it counts any more.
    pub(super) fn too_deep(&mut self) {
        self.wanted.elements = false;
        self.frames.clear();
        if self.place != Place::Outside {
            // Whatever field this is in, the reader goes on at the top behind it.
            self.place = Place::Top;
            self.passing_over = Some(2);
        }
    }

    /// What was found.
    pub(super) fn finish(self) -> Reading {
        let conversation = match self.messages {
            Shape::Missing => self.input,
            Shape::Unexpected | Shape::Found(_) => self.messages,
        };
        let elements = if self.wanted.elements { in_order(self.system, conversation) } else { None };
        Reading { elements, ..self.reading }
    }

    fn count(&mut self, text: &[u8]) {
        if let Some(hash) = text_hash(text) {
            let frame = self.frame_mut();
            frame.sum = frame.sum.wrapping_add(hash);
            frame.counted = true;
        }
    }

    /// The field holds what no conversation is.
    fn unexpected(&mut self) {
        match self.field {
            Field::System => self.system = Shape::Unexpected,
            Field::Messages => self.messages = Shape::Unexpected,
            Field::Input => self.input = Shape::Unexpected,
            Field::Model | Field::PreviousResponseId | Field::Other => {}
        }
    }

    /// A role or type that is no text is still one: it isn't the assistant's.
    fn note_other_value(&mut self) {
        match self.key {
            Key::Role => self.role = Says::No,
            Key::Type if self.at_item() => self.kind = Says::No,
            Key::Type | Key::Plain | Key::Ignored | Key::Arguments => {}
        }
    }

    /// Whether names are those of an item itself, not of something in it.
    fn at_item(&self) -> bool {
        self.frames.len() == 1 && self.field != Field::System
    }

    fn frame(&self) -> &Frame {
        self.frames.last().expect("an element has a frame")
    }

    fn frame_mut(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("an element has a frame")
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
