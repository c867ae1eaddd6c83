//! What the one pass saw in each element, for whoever wants to understand it. Routers don't keep this: with it a pass
//! copies every text, counted or not.

use crate::core::session::derived::{Element, text_hash};

/// One element that was seen, whether it gives a key or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    /// Where it stands.
    pub place: TracedPlace,
    /// As it enters the chain of keys; `None` where nothing in it counts.
    pub element: Option<Element>,
    /// Its texts in their order.
    pub texts: Vec<TracedText>,
}

/// Where an element stands in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedPlace {
    /// The `system`.
    System,
    /// In `messages`, at this index.
    Message(usize),
    /// In `input`, at this index; a string `input` is the one item 0.
    Input(usize),
}

/// One text of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedText {
    /// The nearest name before it.
    pub name: String,
    /// What it says.
    pub text: String,
    /// Whether it counts.
    pub verdict: Verdict,
}

/// Whether a text counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It counts.
    Counts,
    /// It doesn't.
    LeftOut(Why),
}

/// Why a text doesn't count (protocol section 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Nothing under this name counts.
    Under(String),
    /// It stands in an object of this type.
    Reasoning(String),
    /// It is a header that changes with every request.
    Billing,
}

/// Keeps what the tally is told, in step with its frames.
#[derive(Debug, Default)]
pub(super) struct Trace {
    done: Vec<Traced>,
    texts: Vec<TracedText>,
    /// For each open frame: its first text, and the type that excludes it.
    frames: Vec<(usize, Option<String>)>,
    name: String,
    /// Why the container that is being passed over is.
    passing_over: Option<Why>,
}

impl Trace {
    /// An element begins.
    pub(super) fn begin(&mut self) {
        self.texts.clear();
        self.name.clear();
        self.frames.clear();
        self.frames.push((0, None));
    }

    /// An object in it begins.
    pub(super) fn open(&mut self) {
        self.frames.push((self.texts.len(), None));
    }

    /// A container in it begins, and nothing in that counts.
    pub(super) fn pass_over(&mut self) {
        self.passing_over = Some(self.why());
    }

    /// A name.
    pub(super) fn key(&mut self, name: &[u8]) {
        self.name = lossy(name);
    }

    /// A text that is counted, where it may be.
    pub(super) fn count(&mut self, text: &[u8]) {
        let counts = text_hash(text).is_some();
        self.push(text, if counts { Verdict::Counts } else { Verdict::LeftOut(Why::Billing) });
    }

    /// A text that does not count.
    pub(super) fn leave_out(&mut self, text: &[u8]) {
        let why = self.why();
        self.push(text, Verdict::LeftOut(why));
    }

    /// A text in a container that is passed over.
    pub(super) fn pass_over_text(&mut self, text: &[u8]) {
        let why = self.passing_over.clone().unwrap_or_else(|| self.why());
        self.push(text, Verdict::LeftOut(why));
    }

    /// The innermost object is of a type that does not count.
    pub(super) fn exclude(&mut self, kind: &[u8]) {
        if let Some((_, excluded)) = self.frames.last_mut() {
            *excluded = Some(lossy(kind));
        }
    }

    /// The innermost object ends.
    pub(super) fn close(&mut self) {
        if let Some((first, Some(kind))) = self.frames.pop() {
            for text in &mut self.texts[first..] {
                if text.verdict == Verdict::Counts {
                    text.verdict = Verdict::LeftOut(Why::Reasoning(kind.clone()));
                }
            }
        }
    }

    /// The element ends.
    pub(super) fn end(&mut self, place: TracedPlace, element: Option<Element>) {
        self.done.push(Traced { place, element, texts: std::mem::take(&mut self.texts) });
    }

    /// Texts so far, for [`Trace::back_to`].
    pub(super) fn mark(&self) -> usize {
        self.texts.len()
    }

    /// Forgets what came after a mark.
    pub(super) fn back_to(&mut self, texts: usize, frames: usize) {
        self.texts.truncate(texts);
        self.frames.truncate(frames);
    }

    /// All elements, in the order of the body.
    pub(super) fn finish(self) -> Vec<Traced> {
        self.done
    }

    fn why(&self) -> Why {
        match self.frames.last() {
            Some((_, Some(kind))) => Why::Reasoning(kind.clone()),
            Some((_, None)) | None => Why::Under(self.name.clone()),
        }
    }

    fn push(&mut self, text: &[u8], verdict: Verdict) {
        self.texts.push(TracedText { name: self.name.clone(), text: lossy(text), verdict });
    }
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}
