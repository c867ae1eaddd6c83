//! The HTTP client that engines are spoken to with: HTTP/1.1, connections kept for a moment, nothing followed or tried
//! again by itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an idle connection is kept. Less than the 5 s after which Python's common servers close theirs: a request
/// that meets the closing is lost.
const KEEP_IDLE: Duration = Duration::from_secs(3);
/// Idle connections kept for each server.
const MAX_IDLE: usize = 64;
/// How long a page about an engine may take.
pub const PAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest page about an engine that is read, in bytes.
const MAX_PAGE_BYTES: usize = 8 * 1024 * 1024;

/// Where an engine's server is: scheme, host and port, and what stands before its paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl {
    text: String,
}

/// A URL that no engine can be reached at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{url:?} is not the URL of an engine ({problem}); write http://host:port")]
pub struct UrlError {
    url: String,
    problem: String,
}

impl BaseUrl {
    /// Reads one. A `/v1` at the end, with which clients are configured, is left out.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let error = |problem: &str| UrlError { url: url.to_owned(), problem: problem.to_owned() };
        let trimmed = url.trim().trim_end_matches('/');
        let trimmed = trimmed.strip_suffix("/v1").unwrap_or(trimmed);
        let uri: Uri = trimmed.parse().map_err(|e: hyper::http::uri::InvalidUri| error(&e.to_string()))?;
        match uri.scheme_str() {
            Some("http" | "https") => (),
            Some(other) => return Err(error(&format!("its scheme is {other}"))),
            None => return Err(error("it has no scheme")),
        }
        let Some(authority) = uri.authority() else { return Err(error("it has no host")) };
        if authority.as_str().contains('@') {
            return Err(UrlError {
                url: "http://…@…".into(), problem: "it holds a login; give a key instead".into()
            });
        }
        if uri.query().is_some() {
            return Err(error("it has a query"));
        }
        Ok(Self { text: trimmed.trim_end_matches('/').to_owned() })
    }

    /// The host, without a port.
    pub fn host(&self) -> String {
        self.at("/").host().unwrap_or_default().to_owned()
    }

    fn at(&self, path: &str) -> Uri {
        format!("{}{path}", self.text).parse().expect("a URL with one of our own paths is one")
    }
}

impl std::fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No connection came to stand.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The connection ended.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// It took too long.
    #[error("nothing came within {0:?}")]
    Silent(Duration),
    /// The answer is larger than what is read.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// A page has another status than 200.
    #[error("it answered with status {0}")]
    Status(StatusCode),
}

/// The client.
#[derive(Debug, Clone)]
pub struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    key: Option<HeaderValue>,
}

impl Http {
    /// A client that shows a key to the engine, where there is one.
    pub fn new(key: Option<&str>) -> Result<Self, String> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_keepalive(Some(Duration::from_secs(30)));
        let mut roots = RootCertStore::empty();
        // A machine without certificates can still speak to an engine without TLS.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| format!("TLS can't be set up: {e}"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(KEEP_IDLE)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(connector);
        let key = key.map(|key| format!("Bearer {key}").parse::<HeaderValue>()).transpose();
        let mut key = key.map_err(|_| "the engine's key holds a character that no header can carry".to_owned())?;
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        Ok(Self { client, key })
    }

    /// The header that shows the key, if there is one.
    pub fn key(&self) -> Option<&HeaderValue> {
        self.key.as_ref()
    }

    /// Posts a body. Dropping the answer or this future ends the connection, and with it the work at the engine.
    pub async fn post(
        &self,
        base: &BaseUrl,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, HttpError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = base.at(path);
        *request.headers_mut() = headers;
        self.client.request(request).await.map_err(|e| problem(&e))
    }

    /// Gets a page about the engine: the body of a 200.
    pub async fn page(&self, base: &BaseUrl, path: &str) -> Result<Bytes, HttpError> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = base.at(path);
        if let Some(key) = &self.key {
            request.headers_mut().insert(hyper::header::AUTHORIZATION, key.clone());
        }
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|e| problem(&e))?;
            let status = answer.status();
            let body = read(answer.into_body(), MAX_PAGE_BYTES).await?;
            if status == StatusCode::OK { Ok(body) } else { Err(HttpError::Status(status)) }
        };
        tokio::time::timeout(PAGE_TIMEOUT, exchange).await.unwrap_or(Err(HttpError::Silent(PAGE_TIMEOUT)))
    }
}

/// Reads a body of at most so many bytes.
pub async fn read(mut body: Incoming, max: usize) -> Result<Bytes, HttpError> {
    let mut whole = BytesMut::new();
    while let Some(part) = body.frame().await {
        let part = part.map_err(|e| HttpError::Broken(chain(&e)))?;
        if let Ok(data) = part.into_data() {
            if whole.len() + data.len() > max {
                return Err(HttpError::TooLarge(max));
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}

fn problem(error: &hyper_util::client::legacy::Error) -> HttpError {
    if error.is_connect() { HttpError::Connect(chain(error)) } else { HttpError::Broken(chain(error)) }
}

/// An error with its causes: the outermost one says little.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_people_write_them() {
        let base = |url: &str| BaseUrl::parse(url).map(|base| base.at("/v1/models").to_string());
        assert_eq!(base("http://a:8000").as_deref(), Ok("http://a:8000/v1/models"));
        assert_eq!(base(" http://a:8000/v1/ ").as_deref(), Ok("http://a:8000/v1/models"));
        assert_eq!(base("https://a/engine/").as_deref(), Ok("https://a/engine/v1/models"));
        for bad in ["", "a:8000", "ftp://a", "http://", "http://a/?x=1", "/v1"] {
            assert!(base(bad).is_err(), "{bad:?}");
        }
        let error = BaseUrl::parse("http://me:secret@a").unwrap_err().to_string();
        assert!(error.contains("login") && !error.contains("secret"), "{error}");
    }
}
