//! Server-sent events, taken out of a body as it comes in.

use bytes::Bytes;

/// Largest event, in bytes: beyond any `max_payload` of a NATS server that is recommended, and what one stream may
/// make us hold.
pub const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its name, where it has one.
    pub name: Option<String>,
    /// Its data; several lines stand with line ends between.
    pub data: Bytes,
}

/// An event is longer than [`MAX_EVENT_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the engine's stream is longer than {MAX_EVENT_BYTES} bytes")]
pub struct TooLong;

/// Takes a stream apart. Lines end in LF, CR or both; comments, ids and retry times are passed over.
#[derive(Debug, Default)]
pub struct Reader {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    name: Option<String>,
    after_cr: bool,
    begun: bool,
}

impl Reader {
    /// Takes bytes in, and adds the events that they complete.
    pub fn push(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) -> Result<(), TooLong> {
        while let Some(at) = memchr::memchr2(b'\n', b'\r', bytes) {
            let (line, end) = (&bytes[..at], bytes[at]);
            bytes = &bytes[at + 1..];
            // The LF of a CR LF ends no line of its own.
            let same_end = std::mem::replace(&mut self.after_cr, end == b'\r') && end == b'\n' && line.is_empty();
            if same_end {
                continue;
            }
            self.hold(line)?;
            let line = std::mem::take(&mut self.line);
            self.end_line(&line, events);
            // Its room is used again.
            self.line = line;
            self.line.clear();
        }
        if !bytes.is_empty() {
            self.after_cr = false;
        }
        self.hold(bytes)
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.data.len() + self.line.len() + bytes.len() > MAX_EVENT_BYTES {
            return Err(TooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, line: &[u8], events: &mut Vec<Event>) {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        let begun = std::mem::replace(&mut self.begun, true);
        let line = if begun { line } else { line.strip_prefix(MARK).unwrap_or(line) };
        if line.is_empty() {
            let name = self.name.take();
            if std::mem::take(&mut self.has_data) {
                events.push(Event { name, data: std::mem::take(&mut self.data).into() });
            }
            return;
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(at) => (&line[..at], line[at + 1..].strip_prefix(b" ").unwrap_or(&line[at + 1..])),
            None => (line, &[][..]),
        };
        match field {
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"event" => self.name = Some(String::from_utf8_lossy(value).trim().to_owned()).filter(|n| !n.is_empty()),
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(chunks: &[&[u8]]) -> Vec<(Option<String>, String)> {
        let (mut reader, mut events) = (Reader::default(), Vec::new());
        for chunk in chunks {
            reader.push(chunk, &mut events).expect("short");
        }
        let text = |event: Event| (event.name, String::from_utf8_lossy(&event.data).into_owned());
        events.into_iter().map(text).collect()
    }

    fn event(name: Option<&str>, data: &str) -> (Option<String>, String) {
        (name.map(str::to_owned), data.to_owned())
    }

    #[test]
    fn events_as_the_standard_has_them() {
        let stream =
            b"\xef\xbb\xbfdata: a\n\n: comment\nid: 7\nevent: x\ndata:b\ndata:  c\n\nevent: lost\n\ndata\n\ndata: open";
        let expected = [event(None, "a"), event(Some("x"), "b\n c"), event(None, "")];
        assert_eq!(read(&[stream]), expected);
        for end in ["\n", "\r", "\r\n"] {
            let text = ["event: x", "data: 1", "", "data: 2", "", ""].join(end);
            assert_eq!(read(&[text.as_bytes()]), [event(Some("x"), "1"), event(None, "2")], "{end:?}");
        }
    }

    #[test]
    fn an_event_has_a_limit() {
        let (mut reader, mut events) = (Reader::default(), Vec::new());
        let line = [b"data: ".as_slice(), &vec![b'x'; MAX_EVENT_BYTES / 2], b"\n"].concat();
        assert_eq!(reader.push(&line, &mut events), Ok(()));
        assert_eq!(reader.push(&line, &mut events), Err(TooLong));
        let mut reader = Reader::default();
        assert_eq!(reader.push(&vec![b'x'; MAX_EVENT_BYTES + 1], &mut events), Err(TooLong));
        assert!(events.is_empty());
    }

    proptest! {
        /// It does not matter where the network cuts.
        #[test]
        fn cuts_change_nothing(lines in "(data: ?[a-c]{0,3}|event: [xy]|:|)(\r\n|\n|\r){1,12}", cuts in prop::collection::vec(0usize..64, 0..6)) {
            let stream = lines.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
            cuts.push(stream.len());
            cuts.sort_unstable();
            let mut from = 0;
            let chunks: Vec<&[u8]> = cuts.iter().map(|cut| &stream[std::mem::replace(&mut from, *cut)..*cut]).collect();
            prop_assert_eq!(read(&chunks), read(&[stream]));
        }
    }
}
