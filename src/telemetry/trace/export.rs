//! How spans leave: OTLP over the HTTP client that the rest of the program has, so that no second one is built in.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Handle;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

/// How long one export may take, where the environment says nothing.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer of a receiver that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;

type Sending<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

/// The client. Exports come from a thread of the SDK's own, and are sent in the runtime.
#[derive(Debug)]
pub struct Client {
    hyper: Hyper<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
    timeout: Duration,
    /// Whether the last export failed: the log says so once.
    failing: Arc<AtomicBool>,
}

impl Client {
    /// One that sends in the runtime in which this is called.
    pub fn new(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        // A machine without certificates can still speak to a receiver without TLS.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|problem| problem.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        let named = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        let timeout = named.into_iter().find_map(|name| variable(name)?.trim().parse().ok());
        Ok(Self {
            hyper: Hyper::builder(TokioExecutor::new()).build(connector),
            runtime: Handle::current(),
            timeout: timeout.map_or(TIMEOUT, Duration::from_millis),
            failing: Arc::default(),
        })
    }

    fn tell(&self, sent: &Result<Response<Bytes>, HttpError>) {
        let problem = match sent {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("the receiver answered with {}", response.status())),
            Err(problem) => Some(problem.to_string()),
        };
        match (problem, self.failing.load(Ordering::Relaxed)) {
            (Some(problem), false) => {
                self.failing.store(true, Ordering::Relaxed);
                tracing::warn!(%problem, "spans cannot be exported, and are dropped until they can");
            }
            (None, true) => {
                self.failing.store(false, Ordering::Relaxed);
                tracing::info!("spans are exported again");
            }
            (Some(_), true) | (None, false) => {}
        }
    }
}

impl HttpClient for Client {
    fn send_bytes<'a, 'r>(&'a self, request: Request<Bytes>) -> Sending<'r>
    where
        'a: 'r,
        Self: 'r,
    {
        let sending = self.hyper.request(request.map(Full::new));
        let whole = async move {
            let (head, body) = sending.await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        // Its times are those of the runtime, which the SDK's thread is none of.
        let timeout = self.timeout;
        let task = self.runtime.spawn(async move {
            match tokio::time::timeout(timeout, whole).await {
                Ok(sent) => sent,
                Err(_) => Err(format!("nothing came within {timeout:?}").into()),
            }
        });
        Box::pin(async move {
            let sent = task.await.unwrap_or_else(|problem| Err(problem.into()));
            self.tell(&sent);
            sent
        })
    }
}
