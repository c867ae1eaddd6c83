//! What counts in one element, and whether the model wrote it: the rules of protocol section 4 inside an item or the
//! `system`.
//!
//! An object's texts are summed up in a frame of its own and reach the object around it when it ends, because a `type`
//! that excludes the whole object may come last.

use super::counter::{Container, Counts};
use super::trace::{Trace, TracedPlace};
use crate::core::kv::{ElementText, TextPlace};
use crate::core::session::derived::{Element, Part, text_hash};

/// What the name before a value says about it.
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

impl Key {
    fn of(name: &[u8]) -> Self {
        match name {
            b"type" => Self::Type,
            b"arguments" => Self::Arguments,
            b"cache_control" | b"id" | b"status" | b"call_id" | b"tool_call_id" | b"tool_use_id" | b"reasoning"
            | b"reasoning_content" | b"reasoning_details" | b"thinking" | b"signature" | b"encrypted_content"
            | b"annotations" | b"logprobs" => Self::Ignored,
            [b'_', b'_', ..] => Self::Ignored,
            _ => Self::Plain,
        }
    }
}

/// Sum over what counts in one object so far.
#[derive(Debug, Clone, Copy, Default)]
struct Frame {
    sum: u64,
    counted: bool,
    /// Its `type` excludes it.
    excluded: bool,
    /// Where the element's texts ended when it began.
    began: TextPlace,
}

/// Whether a field of an item says that the model wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    Nothing,
    Yes,
    No,
}

impl Says {
    fn that(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

/// What an element is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An item of `messages` or `input`: an object.
    Item,
    /// The `system`: an array.
    System,
}

/// The element that is being read. It is begun, then told of what is in it, and ends when its last frame does.
#[derive(Debug)]
pub(super) struct Tally {
    kind: Kind,
    key: Key,
    /// The open objects of the element, outermost first. The array of a `system` has a frame too.
    frames: Vec<Frame>,
    role: Says,
    call: Says,
    /// Where somebody wants to see what it saw.
    trace: Option<Box<Trace>>,
    /// The element's texts, where they are wanted.
    text: Option<ElementText>,
}

/// What a text asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// It is dealt with.
    Done,
    /// It may be an object itself, and then its texts count instead.
    Arguments,
}

/// Where a tally may be brought back to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    frames: usize,
    innermost: Frame,
    traced: usize,
    text: TextPlace,
}

impl Tally {
    pub(super) fn new(trace: Option<Box<Trace>>) -> Self {
        let (role, call) = (Says::Nothing, Says::Nothing);
        Self { kind: Kind::Item, key: Key::Plain, frames: Vec::new(), role, call, trace, text: None }
    }

    /// Texts are wanted from now on.
    pub(super) fn keep_texts(&mut self) {
        self.text = Some(ElementText::default());
    }

    /// The texts of the element that has ended, where they are wanted.
    pub(super) fn take_text(&mut self) -> Option<ElementText> {
        self.text.as_mut().map(std::mem::take)
    }

    /// The texts of an element that is no container.
    pub(super) fn text_of(&self, texts: &[&[u8]]) -> Option<ElementText> {
        self.text.as_ref()?;
        let mut all = ElementText::default();
        texts.iter().filter(|text| text_hash(text).is_some()).for_each(|text| all.push(text));
        Some(all)
    }

    fn text_place(&self) -> TextPlace {
        self.text.as_ref().map_or(TextPlace::default(), ElementText::place)
    }

    /// Whether it keeps what it sees: then it wants every name and text.
    pub(super) fn traces(&self) -> bool {
        self.trace.is_some()
    }

    /// What it has seen.
    pub(super) fn into_trace(self) -> Option<Box<Trace>> {
        self.trace
    }

    /// A text in a container that is passed over.
    pub(super) fn pass_over_text(&mut self, text: &[u8]) {
        if let Some(trace) = &mut self.trace {
            trace.pass_over_text(text);
        }
    }

    /// The element has ended; where it stands, for whoever wants to see it.
    pub(super) fn trace_end(&mut self, place: TracedPlace, element: Option<Element>) {
        if let Some(trace) = &mut self.trace {
            trace.end(place, element);
        }
    }

    /// An element that is no container but these texts, for whoever wants to see it.
    pub(super) fn trace_texts(&mut self, place: TracedPlace, element: Option<Element>, texts: &[(&str, &[u8])]) {
        if let Some(trace) = &mut self.trace {
            trace.begin();
            for (name, text) in texts {
                trace.key(name.as_bytes());
                trace.count(text);
            }
            trace.end(place, element);
        }
    }

    /// An element begins.
    pub(super) fn begin(&mut self, kind: Kind) {
        self.frames.clear();
        self.frames.push(Frame::default());
        if let Some(text) = &mut self.text {
            text.back_to(TextPlace::default());
        }
        (self.kind, self.key) = (kind, Key::Plain);
        (self.role, self.call) = (Says::Nothing, Says::Nothing);
        if let Some(trace) = &mut self.trace {
            trace.begin();
        }
    }

    /// A container in the element begins; false where nothing in it counts.
    pub(super) fn open(&mut self, container: Container) -> bool {
        self.other_value();
        let counts = !matches!(self.key, Key::Ignored | Key::Type) && !self.innermost().excluded;
        if let Some(trace) = &mut self.trace {
            if !counts {
                trace.pass_over();
            } else if container == Container::Object {
                trace.open();
            }
        }
        if !counts {
            return false;
        }
        match container {
            Container::Object => self.frames.push(Frame { began: self.text_place(), ..Frame::default() }),
            Container::Array => self.key = Key::Plain,
        }
        true
    }

    /// What follows the end of a container has a name of its own, or stands in an array.
    pub(super) fn forget_key(&mut self) {
        self.key = Key::Plain;
    }

    /// An object with a frame ends; if it is the element itself, gives the element, where anything in it counts.
    pub(super) fn close(&mut self) -> Option<Option<Element>> {
        let closed = self.frames.pop().expect("an element's object has a frame");
        if let (true, Some(text)) = (closed.excluded, &mut self.text) {
            text.back_to(closed.began);
        }
        let closed = if closed.excluded { Frame::default() } else { closed };
        if let Some(trace) = &mut self.trace {
            trace.close();
        }
        if let Some(around) = self.frames.last_mut() {
            around.sum = around.sum.wrapping_add(closed.sum);
            around.counted |= closed.counted;
            return None;
        }
        let part = match (self.kind, self.role, self.call) {
            (Kind::System, _, _) => Part::System,
            (Kind::Item, Says::Yes, _) | (Kind::Item, Says::Nothing, Says::Yes) => Part::AssistantItem,
            (Kind::Item, Says::No, _) | (Kind::Item, Says::Nothing, Says::Nothing | Says::No) => Part::Item,
        };
        Some(closed.counted.then_some(Element { part, hash: closed.sum }))
    }

    /// Whether the next name matters.
    pub(super) fn wants_key(&self) -> bool {
        !self.innermost().excluded || self.traces()
    }

    /// A name.
    pub(super) fn key(&mut self, name: &[u8]) {
        if let Some(trace) = &mut self.trace {
            trace.key(name);
        }
        self.key = if name == b"role" && self.at_item() { Key::Role } else { Key::of(name) };
    }

    /// A name that is no text.
    pub(super) fn nameless_key(&mut self, counts: Counts) {
        self.key = match counts {
            Counts::Value => Key::Plain,
            Counts::Nothing => Key::Ignored,
        };
    }

    /// Whether the next value, a text, matters.
    pub(super) fn wants_text(&self) -> bool {
        (self.key != Key::Ignored && !self.innermost().excluded) || self.traces()
    }

    /// A text that is a value.
    pub(super) fn text(&mut self, text: &[u8]) -> Told {
        if let Some(trace) = &mut self.trace {
            let excluded = self.frames.last().is_some_and(|frame| frame.excluded);
            if excluded || matches!(self.key, Key::Ignored | Key::Type) {
                trace.leave_out(text);
            }
            if excluded {
                return Told::Done;
            }
        }
        match self.key {
            Key::Ignored => {}
            Key::Plain => self.count(text),
            Key::Role => {
                self.role = Says::that(text == b"assistant");
                self.count(text);
            }
            Key::Type => {
                if self.at_item() {
                    self.call = Says::that(text.ends_with(b"_call"));
                }
                let excludes = matches!(text, b"reasoning" | b"thinking" | b"redacted_thinking");
                self.innermost_mut().excluded |= excludes;
                if let (Some(trace), true) = (&mut self.trace, excludes) {
                    trace.exclude(text);
                }
            }
            Key::Arguments => return Told::Arguments,
        }
        Told::Done
    }

    /// A role or type that is no text and not null is still one, and not the assistant's.
    pub(super) fn other_value(&mut self) {
        match self.key {
            Key::Role => self.role = Says::No,
            Key::Type if self.at_item() => self.call = Says::No,
            Key::Type | Key::Plain | Key::Ignored | Key::Arguments => {}
        }
    }

    /// Counts a text.
    pub(super) fn count(&mut self, text: &[u8]) {
        if let Some(trace) = &mut self.trace {
            trace.count(text);
        }
        if let Some(hash) = text_hash(text) {
            let frame = self.innermost_mut();
            frame.sum = frame.sum.wrapping_add(hash);
            frame.counted = true;
            if let Some(kept) = &mut self.text {
                kept.push(text);
            }
        }
    }

    /// Where the tally is now, for [`Tally::back_to`].
    pub(super) fn mark(&self) -> Mark {
        let traced = self.trace.as_ref().map_or(0, |trace| trace.mark());
        Mark { frames: self.frames.len(), innermost: *self.innermost(), traced, text: self.text_place() }
    }

    /// Forgets all that came after the mark; the frame that was innermost then is still open.
    pub(super) fn back_to(&mut self, mark: Mark) {
        self.frames.truncate(mark.frames);
        *self.innermost_mut() = mark.innermost;
        if let Some(text) = &mut self.text {
            text.back_to(mark.text);
        }
        if let Some(trace) = &mut self.trace {
            trace.back_to(mark.traced, mark.frames);
        }
    }

    /// Whether names are those of an item itself, not of something in it.
    fn at_item(&self) -> bool {
        self.frames.len() == 1 && self.kind == Kind::Item
    }

    fn innermost(&self) -> &Frame {
        self.frames.last().expect("an element has a frame")
    }

    fn innermost_mut(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("an element has a frame")
    }
}
