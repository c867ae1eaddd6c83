//! One request at an HTTP engine, from its body to the end of the answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use tracing::warn;

use super::answer::{self, Tally};
use super::engines::Dialect;
use super::http::{self, Http, HttpError};
use super::sse::{Event, Reader};
use super::targets::{Target, Targets};
use super::{body, carry};
use crate::wire::Encoding;
use crate::wire::event::{Finished, Outcome};
use crate::wire::header;
use crate::wire::load::RankReport;
use crate::wire::reply;
use crate::worker::{Engine, EngineRequest, Failure, Refusal, ReplyStream};

/// Largest answer that is no stream, in bytes: what a NATS server takes at most in one message.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Largest body of an engine's error that is passed on, in bytes.
const MAX_ERROR_BYTES: usize = 256 * 1024;
/// How long the rest of an answer whose end was read is waited for, so that its connection can be used again.
const REST_TIMEOUT: Duration = Duration::from_millis(100);
/// The event that ends a stream of the OpenAI APIs.
const DONE: &[u8] = b"[DONE]";

/// An engine behind HTTP.
#[derive(Debug)]
pub struct HttpEngine {
    pub(super) dialect: &'static Dialect,
    pub(super) targets: Arc<Targets>,
    pub(super) http: Http,
    pub(super) kv_blocks: Option<u64>,
    pub(super) patience: Patience,
}

/// How long an engine is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For a whole answer, or the first event of a stream: the request may wait for its turn.
    pub answer: Duration,
    /// For the next event of a stream.
    pub idle: Duration,
}

impl Patience {
    /// What suits most engines.
    pub const DEFAULT: Self = Self { answer: Duration::from_secs(600), idle: Duration::from_secs(60) };
}

impl Engine for HttpEngine {
    async fn serve(&self, request: EngineRequest, replies: &mut ReplyStream) -> Result<Finished, Failure> {
        let mut tally = Tally::default();
        let cancel = request.cancel.clone();
        // Dropping the exchange ends its connection, by which the engine learns of the cancel.
        let outcome = tokio::select! {
            biased;
            exchanged = self.exchange(request, replies, &mut tally) => {
                exchanged?;
                Outcome::Ok
            }
            _ = cancel.cancelled() => Outcome::Cancelled,
        };
        Ok(tally.finished(outcome))
    }

    fn load(&self, ranks: &mut [RankReport]) {
        for (index, report) in ranks.iter_mut().enumerate() {
            let Some((figures, others)) = self.targets.figures(index) else { continue };
            // The worker counts its own requests at once; those of others are as old as the figures.
            report.inflight = report.inflight.saturating_add(others);
            report.queued = figures.waiting;
            report.kv_used_blocks = self.kv_blocks.map_or(0, |blocks| share(blocks, figures.kv_used));
        }
    }
}

impl HttpEngine {
    async fn exchange(
        &self,
        request: EngineRequest,
        replies: &mut ReplyStream,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let encoding = Encoding::of(request.headers.find(header::CONTENT_TYPE));
        let mut body = body::to_json(request.payload.clone(), encoding).map_err(Refusal::invalid)?;
        let path = carry::path_of(&request.headers, &body, self.dialect)?;
        if let Some(model) = &request.model {
            body = body::with_model(&body, model).map_err(Refusal::invalid)?;
        }
        let target = self.targets.pick(request.rank)?;
        let rank = self.rank_header(path, &target);
        let headers = carry::headers(&request, self.dialect, self.http.key(), rank);
        let death = target.endpoint.death();
        // Both arms may be dropped: the server is gone, and with it what it was to say.
        tokio::select! {
            biased;
            talked = self.talk(&target, path, headers, body, replies, tally) => talked,
            () = death => Err(lost(&target, "it is gone").into()),
        }
    }

    fn rank_header(&self, path: &str, target: &Target<'_>) -> Option<(&'static str, u32)> {
        let local = target.local?;
        let name = self.dialect.rank_header(path);
        if name.is_none() && self.targets.warns_first() {
            let (engine, url) = (self.dialect.name, &target.endpoint.base);
            warn!(%url, path, "{engine} ignores the rank on this path; only with one --engine-url for each rank do these requests stay on theirs");
        }
        name.map(|name| (name, local))
    }

    async fn talk(
        &self,
        target: &Target<'_>,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
        replies: &mut ReplyStream,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let posting = self.http.post(&target.endpoint.base, path, headers, body);
        let answer = match tokio::time::timeout(self.patience.answer, posting).await {
            Ok(posted) => posted.map_err(|problem| broken(target, &problem))?,
            Err(_) => return Err(self.silent(target, self.patience.answer, "--answer-timeout")),
        };
        let status = answer.status();
        let kind =
            answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
        if status.is_success() && kind.starts_with("text/event-stream") {
            return self.stream(target, answer, replies, tally).await;
        }
        let reading = http::read(answer.into_body(), MAX_ANSWER_BYTES);
        let whole = match tokio::time::timeout(self.patience.answer, reading).await {
            Ok(read) => read.map_err(|problem| broken(target, &problem))?,
            Err(_) => return Err(self.silent(target, self.patience.answer, "--answer-timeout")),
        };
        if !status.is_success() {
            return Err(self.error(target, status.as_u16(), &kind, whole));
        }
        tally.read(&whole);
        replies.set_content_type(kind);
        Ok(replies.finish(whole).await?)
    }

    /// Passes a stream on, event by event.
    async fn stream(
        &self,
        target: &Target<'_>,
        answer: Response<Incoming>,
        replies: &mut ReplyStream,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let mut body = answer.into_body();
        let (mut reader, mut events) = (Reader::default(), Vec::new());
        let (mut patience, mut setting) = (self.patience.answer, "--answer-timeout");
        let mut is_whole = false;
        replies.set_content_type(Encoding::Json.media_type());
        loop {
            let frame = match tokio::time::timeout(patience, body.frame()).await {
                Ok(Some(frame)) => frame.map_err(|e| broken(target, &HttpError::Broken(http::chain(&e))))?,
                Ok(None) if is_whole => return Ok(()),
                Ok(None) => return Err(unfinished(target)),
                Err(_) => return Err(self.silent(target, patience, setting)),
            };
            let Ok(data) = frame.into_data() else { continue };
            let read = reader.push(&data, &mut events);
            for event in events.drain(..) {
                if &event.data[..] == DONE {
                    replies.finish(Bytes::new()).await?;
                    let _ = tokio::time::timeout(REST_TIMEOUT, http::read(body, MAX_ERROR_BYTES)).await;
                    return Ok(());
                }
                is_whole |= answer::is_end(event.name.as_deref(), &event.data);
                self.pass_on(target, event, replies, tally).await?;
                (patience, setting) = (self.patience.idle, "--idle-timeout");
            }
            read.map_err(|problem| failed(502, "engine_stream", format!("{problem} ({})", target.endpoint.base)))?;
        }
    }

    async fn pass_on(
        &self,
        target: &Target<'_>,
        event: Event,
        replies: &mut ReplyStream,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        if let Some(error) = answer::error_in(event.name.as_deref(), &event.data) {
            return Err(self.error(target, error.status, Encoding::Json.media_type(), event.data));
        }
        tally.read(&event.data);
        match &event.name {
            Some(name) => replies.send_event(name, event.data).await?,
            None => replies.send(event.data).await?,
        }
        Ok(())
    }

    /// What becomes of an engine's own error. Another engine may do what this one has no room for, as long as nothing
    /// was given out.
    fn error(&self, target: &Target<'_>, status: u16, kind: &str, body: Bytes) -> Failure {
        let text = String::from_utf8_lossy(&body[..body.len().min(MAX_ERROR_BYTES)]);
        if status >= 500 && self.dialect.dead_words.iter().any(|words| text.contains(words)) {
            target.endpoint.distrust();
            return lost(target, "its engine core has died").into();
        }
        let words = || {
            let said = reply::error_message(&body).unwrap_or_else(|| text.chars().take(500).collect());
            format!("the engine at {} answered {status}: {said}", target.endpoint.base)
        };
        match status {
            429 => Refusal::overloaded(words()).into(),
            503 => {
                target.endpoint.suspect();
                Refusal::unavailable("engine_unavailable", words()).into()
            }
            _ if body.len() > MAX_ERROR_BYTES => failed(status, "engine_error", words()),
            _ => {
                if status >= 500 {
                    target.endpoint.suspect();
                }
                Failure::Answered { status, content_type: kind.to_owned(), body }
            }
        }
    }

    fn silent(&self, target: &Target<'_>, patience: Duration, setting: &str) -> Failure {
        target.endpoint.suspect();
        let (url, patience) = (&target.endpoint.base, humantime::format_duration(patience));
        failed(504, "engine_stalled", format!("the engine at {url} sent nothing for {patience} ({setting})"))
    }
}

/// The server of a request is gone. As long as nothing was given out the request can be served elsewhere.
fn lost(target: &Target<'_>, why: &str) -> Refusal {
    let words = format!("the engine at {} was lost while it worked on the request: {why}", target.endpoint.base);
    Refusal::unavailable("worker_lost", words)
}

fn broken(target: &Target<'_>, problem: &HttpError) -> Failure {
    target.endpoint.suspect();
    match problem {
        HttpError::Connect(_) => {
            let words = format!("the engine at {}: {problem}", target.endpoint.base);
            Refusal::unavailable("engine_down", words).into()
        }
        HttpError::TooLarge(_) => failed(502, "engine_answer", format!("{}: {problem}", target.endpoint.base)),
        HttpError::Broken(_) | HttpError::Silent(_) | HttpError::Status(_) => lost(target, &problem.to_string()).into(),
    }
}

/// A stream that was closed in good order, as by a server that shuts down, in the middle of an answer.
fn unfinished(target: &Target<'_>) -> Failure {
    target.endpoint.suspect();
    let words = format!("the engine at {} ended its stream before the end of its answer", target.endpoint.base);
    failed(502, "engine_stream", words)
}

fn failed(status: u16, code: &str, message: String) -> Failure {
    Failure::Failed { status, code: code.into(), message }
}

/// A share of a number of blocks.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the share is 0 to 1, and a block more or less tells nothing"
)]
fn share(blocks: u64, used: f64) -> u64 {
    (blocks as f64 * used).round() as u64
}
