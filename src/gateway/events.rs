//! A streamed answer as server-sent events: each reply message becomes one as it comes.

use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Bytes, HttpBody};
use bytes::BytesMut;
use futures_util::StreamExt as _;
use hyper::body::Frame;
use serde::Deserialize;

use super::api::{Api, Closing, Family, Naming};
use super::metrics::{Measured, Outcome};
use super::problem::Problem;
use crate::client::{Chunk, ReplyStream};
use crate::wire::header;

/// What the OpenAI API ends a stream with. An engine's own is taken for the end that it is.
const DONE: &[u8] = b"[DONE]";

/// The body of a streamed answer. Dropped before its end, it cancels the request.
pub struct Events {
    api: Api,
    first: Option<Chunk>,
    replies: ReplyStream,
    measured: Measured,
    /// Events written.
    count: u64,
    ended: bool,
}

impl Events {
    /// The rest of a reply stream whose first chunk is there.
    pub fn new(api: Api, first: Chunk, replies: ReplyStream, measured: Measured) -> Self {
        Self { api, first: Some(first), replies, measured, count: 0, ended: false }
    }

    fn chunk(&mut self, out: &mut BytesMut, chunk: &Chunk) {
        if !chunk.payload.is_empty() && chunk.payload[..] != *DONE {
            let name = match chunk.headers.find(header::SSE_EVENT) {
                Some(name) => Some(Cow::Borrowed(name)),
                None => match self.api.naming() {
                    Naming::ByType => type_of(&chunk.payload),
                    Naming::Unnamed => None,
                },
            };
            write(out, name.as_deref(), &chunk.payload);
            self.count += 1;
        }
        if chunk.last {
            self.end(out, Outcome::Ok);
        }
    }

    fn error(&mut self, out: &mut BytesMut, problem: &Problem) {
        self.measured.span.fail(&problem.code);
        match (self.api, self.api.family()) {
            (Api::Responses, _) => write(out, Some("error"), &problem.responses_event(self.count)),
            (_, Family::OpenAi) => write(out, None, &problem.body(Family::OpenAi)),
            (_, Family::Anthropic) => write(out, Some("error"), &problem.body(Family::Anthropic)),
        }
        self.end(out, Outcome::Failed);
    }

    fn end(&mut self, out: &mut BytesMut, outcome: Outcome) {
        match self.api.closing() {
            Closing::Done => write(out, None, DONE),
            Closing::Nothing => {}
        }
        self.measured.ends(outcome);
        self.ended = true;
    }
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        while !this.ended {
            let next = match this.first.take() {
                Some(chunk) => Some(Ok(chunk)),
                None => ready!(this.replies.poll_next_unpin(cx)),
            };
            let mut out = BytesMut::new();
            match next {
                Some(Ok(chunk)) => this.chunk(&mut out, &chunk),
                Some(Err(error)) => this.error(&mut out, &error.into()),
                None => this.end(&mut out, Outcome::Ok),
            }
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(out.freeze()))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// Writes one event. Data of several lines stands on as many `data:` lines.
fn write(out: &mut BytesMut, name: Option<&str>, data: &[u8]) {
    const ROOM: usize = 32;
    out.reserve(data.len() + name.map_or(0, str::len) + ROOM);
    if let Some(name) = name.filter(|name| !name.contains(['\r', '\n'])) {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\n");
    }
    if memchr::memchr2(b'\n', b'\r', data).is_none() {
        line(out, data);
    } else {
        let data = String::from_utf8_lossy(data).replace("\r\n", "\n").replace('\r', "\n");
        data.split('\n').for_each(|text| line(out, text.as_bytes()));
    }
    out.extend_from_slice(b"\n");
}

fn line(out: &mut BytesMut, text: &[u8]) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\n");
}

/// The `type` at the top of an event's data.
fn type_of(data: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Typed<'d> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'d, str>,
    }
    serde_json::from_slice::<Typed<'_>>(data).ok().map(|typed| typed.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: Option<&str>, data: &str) -> String {
        let mut out = BytesMut::new();
        write(&mut out, name, data.as_bytes());
        String::from_utf8(out.to_vec()).expect("UTF-8")
    }

    #[test]
    fn one_message_is_one_event() {
        assert_eq!(written(None, "{}"), "data: {}\n\n");
        assert_eq!(written(Some("message_start"), "{}"), "event: message_start\ndata: {}\n\n");
        assert_eq!(written(None, "{\r\n\"a\":1\n}"), "data: {\ndata: \"a\":1\ndata: }\n\n");
        assert_eq!(written(Some("a\ndata: forged"), "{}"), "data: {}\n\n");
    }

    #[test]
    fn events_are_named_by_their_type() {
        assert_eq!(type_of(br#"{"delta":{"type":"x"},"type":"message_stop"}"#).as_deref(), Some("message_stop"));
        for none in [&b"{}"[..], b"[DONE]", b"", br#"{"type":7}"#] {
            assert_eq!(type_of(none), None);
        }
    }
}
