//! Answers to web pages of other origins, where the configuration allows them.

use std::sync::Arc;

use axum::Router as Routes;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::{self, Next};

use crate::config::gateway::Cors;

/// How long a browser may keep what a preflight said.
const MAX_AGE_S: u64 = 3600;

/// The routes with what is allowed. Where nothing is, they stay as they are.
pub fn layer(routes: Routes, cors: &Cors) -> Routes {
    let origins = match cors {
        Cors::Off => return routes,
        Cors::Any => None,
        Cors::Origins(origins) => Some(Arc::new(origins.clone())),
    };
    routes.layer(middleware::from_fn(move |request: Request, next: Next| {
        let origins = origins.clone();
        async move {
            let Some(origin) = allowed(request.headers(), origins.as_ref().map(|origins| origins.as_slice())) else {
                return next.run(request).await;
            };
            let asks = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
            let is_preflight = request.method() == Method::OPTIONS
                && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
            let mut response = if is_preflight { preflight(asks) } else { next.run(request).await };
            let headers = response.headers_mut();
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
            headers.append(header::VARY, HeaderValue::from_static("Origin"));
            response
        }
    }))
}

/// The origin that a request comes from, where it may read the answer.
fn allowed(headers: &HeaderMap, origins: Option<&[String]>) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let known = |origins: &[String]| origins.iter().any(|known| known.as_bytes() == origin.as_bytes());
    origins.is_none_or(known).then(|| origin.clone())
}

fn preflight(asks: Option<HeaderValue>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    // `*` stands for all but the one that keys are in.
    let all = HeaderValue::from_static("*, Authorization");
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asks.unwrap_or(all));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_S.into());
    response
}
