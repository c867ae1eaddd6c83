//! The headers of a message, where it is kept or made outside the hot path.

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue};

use super::lane::Block;

/// Headers of one message, in their order. Names keep their spelling.
#[derive(Debug, Clone, Default)]
pub struct Headers {
    /// Lines as they stand on the wire. Each was checked when it came in, or cleaned when it was added: a name is one
    /// word, a value one line.
    lines: String,
}

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// As they stand on the wire.
    pub fn block(&self) -> Block<'_> {
        Block::checked(&self.lines)
    }

    /// All (name, value) pairs.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.block().iter()
    }

    /// The first non-blank value of a header, whatever the case of its name.
    pub fn find(&self, name: &str) -> Option<&str> {
        crate::wire::header::find(self.iter(), name)
    }

    /// The first non-blank values of several headers, in one pass.
    pub fn find_all<const N: usize>(&self, names: [&str; N]) -> [Option<&str>; N] {
        crate::wire::header::find_all(self.iter(), names)
    }

    /// Sets one of our own headers, in place of what stands there in the same spelling. Line ends in the value become
    /// spaces: it can never forge another header.
    pub fn set(&mut self, name: &'static str, value: &str) {
        self.remove(|spelling| spelling == name);
        self.push(name, value);
    }

    /// Adds a header that came from elsewhere; one whose name the wire can't carry is left out.
    pub fn add(&mut self, name: &str, value: &str) {
        if name.parse::<HeaderName>().is_ok() {
            self.push(name, value);
        }
    }

    /// Sets one of our own headers in place of all of that name, however they are spelled.
    pub fn replace(&mut self, name: &'static str, value: &str) {
        self.remove(|spelling| spelling.eq_ignore_ascii_case(name));
        self.push(name, value);
    }

    fn remove(&mut self, unwanted: impl Fn(&str) -> bool) {
        if self.iter().any(|(name, _)| unwanted(name)) {
            let rest: Self = self.iter().filter(|(name, _)| !unwanted(name)).collect();
            *self = rest;
        }
    }

    fn push(&mut self, name: &str, value: &str) {
        self.lines.push_str(name);
        self.lines.push_str(": ");
        self.lines.extend(value.chars().map(|c| if matches!(c, '\r' | '\n') { ' ' } else { c }));
        self.lines.push_str("\r\n");
    }

    /// Bytes that they take on the wire.
    pub fn wire_len(&self) -> usize {
        const VERSION: usize = "NATS/1.0\r\n".len();
        const END: usize = "\r\n".len();
        VERSION + self.lines.len() + END
    }

    /// For the client library.
    pub(super) fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in self.iter() {
            if let Ok(name) = name.parse::<HeaderName>() {
                map.append(name, HeaderValue::from(value));
            }
        }
        map
    }

    /// From the client library, which keeps the order of one spelling's values alone.
    pub(super) fn of_map(map: &HeaderMap) -> Self {
        let mut headers = Self::new();
        for (name, values) in map.iter() {
            values.iter().for_each(|value| headers.push(name.as_ref(), value.as_str()));
        }
        headers
    }
}

impl From<Block<'_>> for Headers {
    fn from(block: Block<'_>) -> Self {
        Self { lines: block.lines().to_owned() }
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Headers {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        let mut headers = Self::new();
        for (name, value) in pairs {
            headers.add(name, value);
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_ours_takes_the_place_of_every_spelling() {
        let mut headers: Headers = [("TraceParent", "a"), ("traceparent", "b"), ("Other", "c")].into_iter().collect();
        headers.replace("traceparent", "d");
        let all: Vec<_> = headers.iter().collect();
        assert_eq!(all, [("Other", "c"), ("traceparent", "d")]);
    }

    #[test]
    fn a_value_cannot_forge_a_header() {
        let mut headers = Headers::new();
        headers.set("Rankpin-Decision", "a\r\nRankpin-Final: true");
        assert_eq!(headers.find("rankpin-decision"), Some("a  Rankpin-Final: true"));
        assert_eq!(headers.find("rankpin-final"), None);
    }

    #[test]
    fn the_client_library_has_the_same() {
        let headers: Headers = [("A", "1"), ("a", "2"), ("A", "3"), ("bad name", "4"), ("B", "")].into_iter().collect();
        let there_and_back = Headers::of_map(&headers.to_map());
        let sorted = |headers: &Headers| {
            let mut all: Vec<_> = headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(sorted(&headers), ["A=1", "A=3", "B=", "a=2"]);
        assert_eq!(sorted(&there_and_back), sorted(&headers));
        assert_eq!(headers.wire_len(), "NATS/1.0\r\nA: 1\r\na: 2\r\nA: 3\r\nB: \r\n\r\n".len());
    }
}
