//! The lines of a batch's file: one request each.

use std::collections::HashSet;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::body;
use super::record::{LineError, MAX_ERRORS};
use crate::core::id::{Model, RequestId};
use crate::nats::objects::{ObjectReader, ObjectsError};

/// Most requests of one batch.
pub const MAX_REQUESTS: usize = 50_000;
/// Longest line, in bytes.
const MAX_LINE: usize = 64 << 20;
/// Longest `custom_id`, in bytes.
const MAX_CUSTOM_ID: usize = 512;

/// One request of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What the client calls it.
    pub custom_id: String,
    /// The model.
    pub model: Model,
    /// The job that it becomes: the same whenever and wherever the file is read.
    pub job: RequestId,
    /// The body.
    pub body: Bytes,
}

/// Reads lines off a file.
pub struct Lines {
    file: ObjectReader,
    held: BytesMut,
    /// How far `held` was searched for the end of a line.
    searched: usize,
    number: u64,
    ended: bool,
}

impl Lines {
    /// Those of a file.
    pub fn of(file: ObjectReader) -> Self {
        Self { file, held: BytesMut::new(), searched: 0, number: 0, ended: false }
    }

    /// The next line that is not blank, with its number from 1. A line that is too long ends the file; it comes cut off,
    /// and is no request.
    pub async fn next(&mut self) -> Result<Option<(u64, Bytes)>, ObjectsError> {
        loop {
            let end = memchr::memchr(b'\n', &self.held[self.searched..]).map(|at| self.searched + at);
            let line = match end {
                Some(end) => self.held.split_to(end + 1).freeze(),
                None if self.ended || self.held.len() > MAX_LINE => {
                    self.ended = true;
                    self.held.split().freeze()
                }
                None => {
                    self.searched = self.held.len();
                    let piece = self.file.next().await?;
                    self.ended = piece.is_empty();
                    self.held.extend_from_slice(&piece);
                    continue;
                }
            };
            self.searched = 0;
            if line.is_empty() && self.held.is_empty() && self.ended {
                return Ok(None);
            }
            self.number += 1;
            if !line.trim_ascii().is_empty() {
                return Ok(Some((self.number, line)));
            }
        }
    }
}

/// Takes lines one after the other for requests of one batch, and notes what is wrong with them.
#[derive(Debug)]
pub struct Checker {
    batch: String,
    endpoint: String,
    custom_ids: HashSet<String>,
    /// What is wrong, up to [`MAX_ERRORS`].
    pub errors: Vec<LineError>,
}

#[derive(Deserialize)]
struct Written<'l> {
    custom_id: String,
    method: Option<String>,
    url: Option<String>,
    #[serde(borrow)]
    body: &'l RawValue,
}

impl Checker {
    /// Of a batch whose requests are for this path.
    pub fn new(batch: &str, endpoint: &str) -> Self {
        Self { batch: batch.to_owned(), endpoint: endpoint.to_owned(), custom_ids: HashSet::new(), errors: Vec::new() }
    }

    /// The request of a line, where it is one.
    pub fn check(&mut self, number: u64, line: &Bytes) -> Option<Line> {
        match self.read(number, line) {
            Ok(line) => Some(line),
            Err((code, message)) => {
                self.note(code, message, Some(number));
                None
            }
        }
    }

    /// Notes an error.
    pub fn note(&mut self, code: &str, message: String, line: Option<u64>) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(LineError { code: code.to_owned(), message, line });
        }
    }

    fn read(&mut self, number: u64, line: &Bytes) -> Result<Line, (&'static str, String)> {
        if self.custom_ids.len() == MAX_REQUESTS {
            return Err(("too_many_requests", format!("a batch has at most {MAX_REQUESTS} requests")));
        }
        // An array would be read as the fields in their order.
        if line.trim_ascii_start().first() != Some(&b'{') {
            return Err(("invalid_json_line", "the line is no JSON object".into()));
        }
        let written: Written<'_> = serde_json::from_slice(line)
            .map_err(|error| ("invalid_json_line", format!("the line is no request of a batch: {error}")))?;
        if written.method.as_deref().is_some_and(|method| method != "POST") {
            return Err(("invalid_method", "the method is not POST".into()));
        }
        if written.url.as_deref().is_some_and(|url| url != self.endpoint) {
            return Err(("mismatched_url", format!("the url is not the batch's endpoint, {}", self.endpoint)));
        }
        if written.custom_id.is_empty() || written.custom_id.len() > MAX_CUSTOM_ID {
            return Err(("invalid_custom_id", format!("custom_id is empty, or longer than {MAX_CUSTOM_ID} bytes")));
        }
        let body = written.body.get().as_bytes();
        let peek = body::peek(body).map_err(|problem| ("invalid_request", problem.message))?;
        if peek.stream {
            return Err(("invalid_request", "the requests of a batch are not streamed; leave stream out".into()));
        }
        if !self.custom_ids.insert(written.custom_id.clone()) {
            return Err((
                "duplicate_custom_id",
                format!("custom_id {:?} stands on an earlier line", written.custom_id),
            ));
        }
        let job = RequestId::new(&format!("{}-{number}", self.batch)).expect("a batch's id leaves room for a number");
        Ok(Line { custom_id: written.custom_id, model: peek.model, job, body: line.slice_ref(body) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(custom_id: &str, rest: &str) -> Bytes {
        format!(r#"{{"custom_id":"{custom_id}","method":"POST","url":"/v1/chat/completions",{rest}}}"#).into()
    }

    #[test]
    fn a_line_is_a_job_that_is_the_same_each_time() {
        let text = line("a", r#""body": {"model": "m", "n": 1e999}"#);
        let read = || Checker::new("batch_1", "/v1/chat/completions").check(7, &text).expect("valid");
        assert_eq!((read().job.as_str(), read().custom_id.as_str(), read().model.as_str()), ("batch_1-7", "a", "m"));
        assert_eq!(&read().body[..], br#"{"model": "m", "n": 1e999}"#);
    }

    #[test]
    fn what_is_no_request_is_told_with_its_line() {
        let body = r#""body":{"model":"m"}"#;
        let mut checker = Checker::new("batch_1", "/v1/chat/completions");
        assert!(checker.check(1, &line("a", body)).is_some());
        for (number, (text, code)) in (2..).zip([
            (Bytes::from_static(b"x"), "invalid_json_line"),
            (Bytes::from_static(br#"["b","POST","/v1/chat/completions",{"model":"m"}]"#), "invalid_json_line"),
            (line("a", body), "duplicate_custom_id"),
            (line("", body), "invalid_custom_id"),
            (line("b", r#""body":{}"#), "invalid_request"),
            (line("b", r#""body":{"model":"m","stream":true}"#), "invalid_request"),
            (Bytes::from(format!(r#"{{"custom_id":"b","url":"/v1/embeddings",{body}}}"#)), "mismatched_url"),
            (Bytes::from(format!(r#"{{"custom_id":"b","method":"GET",{body}}}"#)), "invalid_method"),
        ]) {
            assert_eq!(checker.check(number, &text), None);
            let error = checker.errors.last().expect("noted");
            assert_eq!((error.code.as_str(), error.line), (code, Some(number)));
        }
        for number in 0..100 {
            checker.check(number, &Bytes::from_static(b"x"));
        }
        assert_eq!(checker.errors.len(), MAX_ERRORS);
    }
}
