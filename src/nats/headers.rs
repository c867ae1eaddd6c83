//! The headers of a message.

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue};

/// Headers of one message. Names keep their spelling; several values of one spelling keep their order.
#[derive(Debug, Clone, Default)]
pub struct Headers(pub(super) HeaderMap);

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// All (name, value) pairs; names in no order, the values of one spelling in theirs.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.0.iter().flat_map(|(name, values)| {
            let name: &str = name.as_ref();
            values.iter().map(move |value| (name, value.as_str()))
        })
    }

    /// The first non-blank value of a header, whatever the case of its name.
    pub fn find(&self, name: &str) -> Option<&str> {
        crate::wire::header::find(self.iter(), name)
    }

    /// The first non-blank values of several headers, in one pass.
    pub fn find_all<const N: usize>(&self, names: [&str; N]) -> [Option<&str>; N] {
        crate::wire::header::find_all(self.iter(), names)
    }

    /// Sets one of our own headers. Line ends in the value become spaces: it can never forge another header.
    pub fn set(&mut self, name: &'static str, value: &str) {
        self.put(HeaderName::from_static(name), value);
    }

    /// Adds a header that came from elsewhere; one whose name the wire can't carry is left out.
    pub fn add(&mut self, name: &str, value: &str) {
        if let Ok(name) = name.parse::<HeaderName>() {
            self.0.append(name, clean(value));
        }
    }

    /// Sets one of our own headers in place of all of that name, however they are spelled.
    pub fn replace(&mut self, name: &'static str, value: &str) {
        let others: Vec<String> = self
            .iter()
            .filter(|(spelling, _)| spelling.eq_ignore_ascii_case(name) && *spelling != name)
            .map(|(spelling, _)| spelling.to_owned())
            .collect();
        let kept = |other: &str| !others.iter().any(|spelling| spelling == other);
        if !others.is_empty() {
            let rest: Self = self.iter().filter(|(spelling, _)| kept(spelling)).collect();
            *self = rest;
        }
        self.set(name, value);
    }

    fn put(&mut self, name: HeaderName, value: &str) {
        self.0.insert(name, clean(value));
    }

    /// Bytes that they take on the wire.
    pub fn wire_len(&self) -> usize {
        const VERSION: usize = "NATS/1.0\r\n".len();
        const END: usize = "\r\n".len();
        let pairs: usize = self.iter().map(|(name, value)| name.len() + value.len() + ": \r\n".len()).sum();
        VERSION + pairs + END
    }
}

fn clean(value: &str) -> HeaderValue {
    if value.contains(['\r', '\n']) {
        HeaderValue::from(value.replace(['\r', '\n'], " ").as_str())
    } else {
        HeaderValue::from(value)
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
        let mut all: Vec<_> = headers.iter().collect();
        all.sort_unstable();
        assert_eq!(all, [("Other", "c"), ("traceparent", "d")]);
    }

    #[test]
    fn a_value_cannot_forge_a_header() {
        let mut headers = Headers::new();
        headers.set("Rankpin-Decision", "a\r\nRankpin-Final: true");
        assert_eq!(headers.find("rankpin-decision"), Some("a  Rankpin-Final: true"));
        assert_eq!(headers.find("rankpin-final"), None);
    }
}
