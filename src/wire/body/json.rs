//! JSON, strictly by RFC 8259, told to the counter as it is read. Nesting costs a bit a level, never stack.

use super::counter::{Container, Counter, Scalar};
use super::marks::Marks;
use super::text::{self, Scratch, Text};
use super::{Flaw, MAX_LEVELS};

/// What to do with containers below [`MAX_LEVELS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deep {
    /// Tell the counter, and go on checking.
    PassOver,
    /// Stop: the text is not looked into.
    Refuse,
}

/// Reads a body: one value and nothing after it.
pub(super) fn read(body: &[u8], counter: &mut Counter) -> Result<(), Flaw> {
    let mut reader = Reader::new(body, Deep::PassOver);
    reader.not_utf8_at = text::first_not_utf8(body).unwrap_or(usize::MAX);
    reader.read(counter)
}

/// Reads a text of arguments, which is UTF-8, into the counter if it is a JSON object of at most [`MAX_LEVELS`]. Where it isn't, false,
/// and the counter was told of a part of it.
pub(super) fn read_object(text: &[u8], counter: &mut Counter) -> bool {
    let mut reader = Reader::new(text, Deep::Refuse);
    reader.skip_space();
    reader.peek() == Some(b'{') && reader.read(counter).is_ok()
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    /// The first byte that is not UTF-8. Outside strings nothing but ASCII is JSON anyway.
    not_utf8_at: usize,
    marks: Marks,
    /// The last string with escapes.
    scratch: Scratch,
    nesting: Nesting,
    deep: Deep,
}

/// Whether there is another value to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    Nothing,
}

impl<'b> Reader<'b> {
    fn new(bytes: &'b [u8], deep: Deep) -> Self {
        Self {
            bytes,
            at: 0,
            not_utf8_at: usize::MAX,
            marks: Marks::new(),
            scratch: Scratch::default(),
            nesting: Nesting::default(),
            deep,
        }
    }

    fn read(&mut self, counter: &mut Counter) -> Result<(), Flaw> {
        while self.value(counter)? == Next::Value || self.separator(counter)? == Next::Value {}
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.flaw("bytes after the value")),
        }
    }

    /// Reads a value, of a container only its beginning; says whether a value inside it follows.
    fn value(&mut self, counter: &mut Counter) -> Result<Next, Flaw> {
        self.skip_space();
        match self.peek() {
            Some(b'"') => self.string(counter)?,
            Some(b'{') => {
                self.open(counter, Container::Object)?;
                if self.peek() != Some(b'}') {
                    self.name(counter)?;
                    return Ok(Next::Value);
                }
            }
            Some(b'[') => {
                self.open(counter, Container::Array)?;
                if self.peek() != Some(b']') {
                    return Ok(Next::Value);
                }
            }
            Some(b'-' | b'0'..=b'9') => {
                self.number()?;
                counter.scalar(Scalar::Other);
            }
            Some(b'n') => self.literal(b"null", counter, Scalar::Null)?,
            Some(b't') => self.literal(b"true", counter, Scalar::Other)?,
            Some(b'f') => self.literal(b"false", counter, Scalar::Other)?,
            Some(_) => return Err(self.flaw("no value")),
            None => return Err(self.flaw("the end where a value should be")),
        }
        Ok(Next::Nothing)
    }

    /// Reads what stands behind a value: ends of containers, and a comma with the name that follows it.
    fn separator(&mut self, counter: &mut Counter) -> Result<Next, Flaw> {
        loop {
            self.skip_space();
            let Some(innermost) = self.nesting.innermost() else {
                return Ok(Next::Nothing);
            };
            match (innermost, self.peek()) {
                (Container::Array, Some(b',')) => {
                    self.at += 1;
                    return Ok(Next::Value);
                }
                (Container::Object, Some(b',')) => {
                    self.at += 1;
                    self.skip_space();
                    self.name(counter)?;
                    return Ok(Next::Value);
                }
                (Container::Array, Some(b']')) | (Container::Object, Some(b'}')) => {
                    self.at += 1;
                    self.nesting.pop();
                    counter.close(innermost);
                }
                (Container::Array, Some(_)) => return Err(self.flaw("neither comma nor ]")),
                (Container::Object, Some(_)) => return Err(self.flaw("neither comma nor }")),
                (_, None) => return Err(self.flaw("the end inside an array or object")),
            }
        }
    }

    fn open(&mut self, counter: &mut Counter, container: Container) -> Result<(), Flaw> {
        if self.nesting.depth == MAX_LEVELS {
            match self.deep {
                Deep::PassOver => counter.too_deep(),
                Deep::Refuse => return Err(self.flaw("too deep")),
            }
        }
        self.at += 1;
        self.nesting.push(container);
        counter.open(container);
        self.skip_space();
        Ok(())
    }

    fn name(&mut self, counter: &mut Counter) -> Result<(), Flaw> {
        if self.peek() != Some(b'"') {
            return Err(self.flaw("no name in quotes"));
        }
        let start = self.at;
        let wanted = counter.wants_key();
        let (name, behind) = text::read(self.bytes, start + 1, wanted, &mut self.marks, &mut self.scratch)?;
        if behind > self.not_utf8_at {
            return Err(text::not_utf8(self.not_utf8_at));
        }
        self.at = behind;
        if let Text::Said(name) = name {
            counter.key(name).map_err(|field| Flaw::twice(field, start))?;
        }
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.flaw("no colon after a name"));
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self, counter: &mut Counter) -> Result<(), Flaw> {
        let wanted = counter.wants_text();
        let (text, behind) = text::read(self.bytes, self.at + 1, wanted, &mut self.marks, &mut self.scratch)?;
        if behind > self.not_utf8_at {
            return Err(text::not_utf8(self.not_utf8_at));
        }
        self.at = behind;
        match text {
            Text::Said(text) => counter.text(text),
            Text::Unwanted => counter.scalar(Scalar::Other),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Flaw> {
        self.at += usize::from(self.peek() == Some(b'-'));
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        Ok(())
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<(), Flaw> {
        let count = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return Err(self.flaw("no digit in a number"));
        }
        self.at += count;
        Ok(())
    }

    fn literal(&mut self, word: &[u8], counter: &mut Counter, scalar: Scalar) -> Result<(), Flaw> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.flaw("no value"));
        }
        self.at += word.len();
        counter.scalar(scalar);
        Ok(())
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn flaw(&self, problem: &'static str) -> Flaw {
        Flaw::syntax(problem, self.at)
    }
}

/// The open containers, a bit each: set for an object.
#[derive(Debug, Default)]
struct Nesting {
    words: Vec<u64>,
    depth: usize,
}

impl Nesting {
    fn push(&mut self, container: Container) {
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.words.len() {
            self.words.push(0);
        }
        match container {
            Container::Object => self.words[word] |= 1 << bit,
            Container::Array => self.words[word] &= !(1 << bit),
        }
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth -= 1;
    }

    fn innermost(&self) -> Option<Container> {
        let top = self.depth.checked_sub(1)?;
        let is_object = self.words[top / 64] >> (top % 64) & 1 == 1;
        Some(if is_object { Container::Object } else { Container::Array })
    }
}
