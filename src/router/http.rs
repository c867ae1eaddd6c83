//! Health and metrics over HTTP.

use std::sync::Arc;

use axum::Router as Routes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use super::state::Router;

/// Serves for ever.
pub async fn serve(router: Arc<Router>, listener: TcpListener) {
    let routes = Routes::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(router);
    if let Err(error) = axum::serve(listener, routes).await {
        tracing::warn!(%error, "the HTTP server has ended");
    }
}

async fn ready(State(router): State<Arc<Router>>) -> impl IntoResponse {
    if router.is_ready().await { (StatusCode::OK, "ready\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready\n") }
}

async fn metrics(State(router): State<Arc<Router>>) -> impl IntoResponse {
    router.read_gauges();
    let kind = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    (kind, router.metrics.encode())
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
        gauges.pins.set(count(state.mirror.len()));
        gauges.derived_pins.set(count(state.mirror.derived()));
        gauges.cached_prefixes.set(count(state.fleet.index().len()));
        drop(state);
        let jobs = self.jobs.as_ref();
        self.metrics.jobs.enabled.set(i64::from(jobs.is_some_and(|jobs| jobs.is_on())));
        self.metrics.jobs.held.set(count(jobs.map_or(0, |jobs| jobs.held())));
        gauges.bucket_unreachable.set(i64::from(self.pins.is_unreachable()));
        gauges.pins_owed.set(count(self.pins.owed()));
        let (mut lanes, store) = (vec![&self.intake, &self.dispatch], self.pins.bucket.link());
        lanes.extend(jobs.map(|jobs| jobs.lane()));
        let slow: u64 =
            lanes.iter().map(|lane| lane.slow_consumer_events()).sum::<u64>() + store.slow_consumer_events();
        gauges.slow_consumers.set(i64::try_from(slow).unwrap_or(i64::MAX));
        let connects = lanes.iter().map(|lane| lane.connects()).sum::<u64>() + store.state().borrow().connects;
        gauges.reconnects.set(connects);
    }
}
