//! Which path leads where.

use std::sync::Arc;

use axum::Router as Routes;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Response, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::{get, post};

use super::api::{Api, Family};
use super::problem::Problem;
use super::{Gateway, cors, forward::forward, store_routes};
use crate::telemetry::exposition;

/// All routes of a gateway.
pub fn routes(gateway: &Arc<Gateway>) -> Routes {
    let mut routes = Routes::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model));
    for api in Api::ALL {
        let answer = move |State(gateway): State<Arc<Gateway>>, request: Request| forward(gateway, api, request);
        routes = routes.route(api.path(), post(answer));
    }
    let routes = store_routes::add(routes)
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Arc::clone(gateway));
    cors::layer(routes, &gateway.config.cors)
}

async fn ready(State(gateway): State<Arc<Gateway>>) -> impl IntoResponse {
    match gateway.why_not_ready() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
    }
}

async fn metrics(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> impl IntoResponse {
    exposition::page(&gateway.metrics.registry, &headers)
}

async fn models(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Response<Body> {
    list(&gateway, &headers, None).await
}

async fn model(State(gateway): State<Arc<Gateway>>, Path(name): Path<String>, headers: HeaderMap) -> Response<Body> {
    list(&gateway, &headers, Some(&name)).await
}

async fn list(gateway: &Gateway, headers: &HeaderMap, name: Option<&str>) -> Response<Body> {
    let listed = match gateway.tenant(headers) {
        Ok(_) => gateway.models.answer(headers, name).await,
        Err(problem) => Err(problem),
    };
    let family = if headers.contains_key("anthropic-version") { Family::Anthropic } else { Family::OpenAi };
    listed.unwrap_or_else(|problem| problem.response(family))
}

async fn unknown(uri: Uri) -> Response<Body> {
    let paths: Vec<&str> = Api::ALL.iter().map(|api| api.path()).collect();
    let message =
        format!("there is no {}; there are {}, /v1/models, /v1/files, /v1/batches", uri.path(), paths.join(", "));
    Problem::not_found("unknown_path", message).response(Family::of_path(uri.path()))
}

async fn wrong_method(uri: Uri) -> Response<Body> {
    let message = format!("{} does not take this method", uri.path());
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
    problem.response(Family::of_path(uri.path()))
}
