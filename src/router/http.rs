//! Health, metrics and the page over HTTP.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Router as Routes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::state::Router;
use crate::telemetry::exposition;
use crate::wire::Encoding;

/// Most connections at a time. For one more the oldest is closed, so that probes are answered whoever holds connections
/// open, and NATS never lacks a file handle.
const MAX_CONNECTIONS: usize = 256;
/// How long a connection may be idle, or take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Pause after the system would give no connection: it has no file handles left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves for ever.
pub async fn serve(router: Arc<Router>, listener: TcpListener) {
    let routes = Routes::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/", get(page))
        .route("/api/state", get(state))
        .with_state(router);
    let (mut connections, mut by_age) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                while connections.try_join_next().is_some() {}
                by_age.retain(|connection| !connection.is_finished());
                if by_age.len() >= MAX_CONNECTIONS
                    && let Some(oldest) = by_age.pop_front()
                {
                    oldest.abort();
                }
                by_age.push_back(connections.spawn(converse(stream, routes.clone())));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot take an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, routes: Routes) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    if let Err(error) = served.await {
        tracing::debug!(%error, "an HTTP connection ended");
    }
}

async fn ready(State(router): State<Arc<Router>>) -> impl IntoResponse {
    if router.is_ready().await { (StatusCode::OK, "ready\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready\n") }
}

async fn metrics(State(router): State<Arc<Router>>, headers: HeaderMap) -> impl IntoResponse {
    router.read_gauges();
    exposition::page(&router.metrics.registry, &headers)
}

/// What the page may do: nothing that comes from elsewhere, and nothing that goes elsewhere.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                           img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

async fn page() -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, include_str!("page.html"))
}

async fn state(State(router): State<Arc<Router>>) -> impl IntoResponse {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, Encoding::Json.encode(&router.view(router.is_ready().await)))
}

impl Router {
    fn read_gauges(&self) {
        let gauges = &self.metrics.gauges;
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let state = self.state();
        gauges.live.set(count(state.live.len()));
        gauges.waiting.set(count(state.live.waiting()));
        gauges.queued.set(count(state.queued()));
        gauges.models_queued.set(count(state.models_queued()));
        gauges.workers.set(count(state.fleet.iter().count()));
        gauges.pins.set(i64::try_from(state.mirrors.pins()).unwrap_or(i64::MAX));
        gauges.pin_keys.set(count(state.mirrors.keys()));
        gauges.derived_pins.set(count(state.mirrors.derived()));
        gauges.cached_prefixes.set(count(state.fleet.index().len()));
        drop(state);
        let jobs = self.jobs.as_ref();
        self.metrics.jobs.enabled.set(i64::from(jobs.is_some_and(|jobs| jobs.is_on())));
        self.metrics.jobs.held.set(count(jobs.map_or(0, |jobs| jobs.held())));
        gauges.bucket_unreachable.set(i64::from(self.pins.is_any_unreachable()));
        gauges.pins_owed.set(count(self.pins.owed()));
        self.metrics.partitions.set(&self.config.partitions);
        self.metrics.fleet.set(self.sample());
    }
}
