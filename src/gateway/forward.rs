//! One request, from HTTP to the bus and back.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request as HttpRequest, Response, StatusCode, header};
use bytes::BytesMut;
use futures_util::StreamExt as _;
use tokio::sync::SemaphorePermit;

use super::Gateway;
use super::api::{Api, Family};
use super::body::{self, Peek};
use super::events::Events;
use super::headers::millis;
use super::metrics::{Measured, Outcome};
use super::problem::Problem;
use crate::client::{Chunk, ReplyStream, Request, Served};
use crate::config::gateway::{ClientHints, PlacementHeaders};
use crate::core::id::Tenant;
use crate::telemetry::trace::TRACEPARENT;
use crate::wire::header as wire;

/// A body up to this size in bytes needs no room of its own.
const SMALL_BODY: usize = 256 << 10;
/// Largest answer that is put together of several messages, in bytes.
const MAX_ANSWER: usize = 256 << 20;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's client libraries look for it.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const WORKER: HeaderName = HeaderName::from_static("x-rankpin-worker");
const DP_RANK: HeaderName = HeaderName::from_static("x-rankpin-dp-rank");
const DECISION: HeaderName = HeaderName::from_static("x-rankpin-decision");

/// Answers a request of one of the APIs.
pub async fn forward(gateway: Arc<Gateway>, api: Api, request: HttpRequest<Body>) -> Response<Body> {
    let mut measured = Measured::begin(&gateway.metrics, api, request.headers());
    let mut id = None;
    let answered = answer(&gateway, api, request, &mut id, &mut measured).await;
    let mut response = match answered {
        Ok(Answered::Whole(response)) => {
            measured.replied();
            measured.ends(Outcome::Ok);
            measured.span.note_number("http.response.status_code", StatusCode::OK.as_u16().into());
            response
        }
        Ok(Answered::Streamed(first, replies)) => {
            measured.replied();
            let mut response = Response::new(Body::empty());
            measured.span.note_number("http.response.status_code", StatusCode::OK.as_u16().into());
            gateway.show_placement(response.headers_mut(), replies.served());
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            // Proxies that hold answers back would hold back tokens.
            headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
            response.map(|_| Body::new(Events::new(api, first, *replies, measured)))
        }
        Err(problem) => {
            measured.ends(Outcome::of(problem.status));
            measured.span.note_number("http.response.status_code", problem.status.as_u16().into());
            if problem.status.is_server_error() {
                measured.span.fail(&problem.code);
            } else {
                measured.span.note("error.type", &problem.code);
            }
            problem.response(api.family())
        }
    };
    if let Some(id) = id {
        let headers = response.headers_mut();
        if api.family() == Family::Anthropic {
            headers.insert(ANTHROPIC_REQUEST_ID, id.clone());
        }
        headers.insert(REQUEST_ID, id);
    }
    response
}

enum Answered {
    Whole(Response<Body>),
    Streamed(Chunk, Box<ReplyStream>),
}

async fn answer(
    gateway: &Gateway,
    api: Api,
    request: HttpRequest<Body>,
    id: &mut Option<HeaderValue>,
    measured: &mut Measured,
) -> Result<Answered, Problem> {
    let (parts, body) = request.into_parts();
    let tenant = gateway.tenant(&parts.headers)?;
    let room = gateway.room_for(&parts.headers).await;
    let body = body::read(&parts.headers, body, gateway.config.max_body).await?;
    let Peek { model, stream } = body::peek(&body)?;
    measured.span.note("gen_ai.request.model", model.as_str());
    let mut request = gateway.request(&parts.headers, api, Request::new(model, body), tenant)?;
    measured.span.note("rankpin.request_id", request.id().as_str());
    if let Some(ours) = measured.span.carried() {
        request = request.replacing(TRACEPARENT, &ours);
    }
    *id = HeaderValue::from_str(request.id().as_str()).ok();
    let mut replies = gateway.client.send(request).await?;
    // A body that is sent to its rank from here stays in memory until it has arrived.
    let room = room.filter(|_| gateway.config.decide_from.is_some());
    if replies.has_stored_body() {
        gateway.metrics.large_bodies.inc();
    }
    let first = match replies.next().await {
        Some(first) => first?,
        None => return Err(Problem::new(StatusCode::BAD_GATEWAY, "broken_reply", "the reply stream is empty")),
    };
    drop(room);
    if stream {
        return Ok(Answered::Streamed(first, Box::new(replies)));
    }
    measured.replied();
    let media_type = first.content_type.as_deref().and_then(|text| HeaderValue::from_str(text).ok());
    let served = replies.served().cloned();
    let mut response = Response::new(Body::from(rest(first, replies).await?));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, media_type.unwrap_or(HeaderValue::from_static("application/json")));
    gateway.show_placement(headers, served.as_ref());
    Ok(Answered::Whole(response))
}

/// A whole answer. Nearly always it is one message, which is not copied.
async fn rest(first: Chunk, mut replies: ReplyStream) -> Result<Bytes, Problem> {
    if first.last {
        return Ok(first.payload);
    }
    let mut whole = BytesMut::from(&first.payload[..]);
    while let Some(chunk) = replies.next().await {
        whole.extend_from_slice(&chunk?.payload);
        if whole.len() > MAX_ANSWER {
            let message = format!("the answer is larger than {MAX_ANSWER} bytes");
            return Err(Problem::new(StatusCode::BAD_GATEWAY, "broken_reply", message));
        }
    }
    Ok(whole.freeze())
}

impl Gateway {
    /// Waits for room in memory for a body. One that does not say how large it is may be as large as any.
    async fn room_for(&self, headers: &HeaderMap) -> Option<SemaphorePermit<'_>> {
        let told = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        let size = told.unwrap_or(usize::MAX).min(self.config.max_body);
        if size <= SMALL_BODY {
            return None;
        }
        let kib = u32::try_from(size.div_ceil(1024)).unwrap_or(u32::MAX);
        self.room.acquire_many(kib).await.ok()
    }

    /// Whose request it is; nobody's where there are no keys.
    pub(super) fn tenant(&self, headers: &HeaderMap) -> Result<Option<Tenant>, Problem> {
        self.keys.as_ref().map(|keys| keys.tenant(headers)).transpose()
    }

    fn request(
        &self,
        headers: &HeaderMap,
        api: Api,
        request: Request,
        tenant: Option<Tenant>,
    ) -> Result<Request, Problem> {
        let mut request = self.carried.carry(headers, request)?;
        request = request
            .content_type("application/json")
            .header(wire::PATH, api.path())
            .answer_timeout(self.config.answer_timeout)
            .idle_timeout(self.config.idle_timeout);
        if let Some(timeout) = self.config.request_timeout {
            request = request.timeout(timeout);
        }
        if self.config.client_hints == ClientHints::Carried {
            if let Some(timeout) = millis(headers, wire::TIMEOUT_MS)? {
                request = request.timeout(timeout);
            }
            if let Some(deadline) = millis(headers, wire::DEADLINE_MS)? {
                request = request.deadline(deadline);
            }
        }
        Ok(match tenant {
            Some(tenant) => request.tenant(&tenant).trusted(),
            None => request,
        })
    }

    fn show_placement(&self, headers: &mut HeaderMap, served: Option<&Served>) {
        let (PlacementHeaders::Shown, Some(served)) = (self.config.placement_headers, served) else { return };
        let mut show = |name: HeaderName, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        show(WORKER, served.placement.worker.as_str());
        if let Some(rank) = served.placement.rank {
            show(DP_RANK, &rank.to_string());
        }
        if let Some(decision) = &served.decision {
            show(DECISION, decision);
        }
    }
}
