//! The HTTP server: connections, with TLS where that is wanted, and how they end.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router as Routes;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto::ring};
use tracing::{debug, warn};

use super::GatewayError;
use super::metrics::Metrics;
use super::pace::Paced;
use crate::config::gateway::TlsFiles;

/// Most connections at a time; more wait to be taken.
pub const MAX_CONNECTIONS: usize = 65_536;
/// Most headers of one request.
const MAX_HEADERS: usize = 128;
/// How long a connection may be idle, or take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// How long a client may take over its TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the system would give no connection: it has no file handles left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Reads certificate and key.
pub fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, GatewayError> {
    let wrong =
        |path: &std::path::Path, problem: String| GatewayError::Tls { path: path.display().to_string(), problem };
    let chain = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(&files.cert, error.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, error.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&files.cert, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| wrong(&files.cert, error.to_string()))?;
    let mut config = config;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Returns once it is told to stop.
async fn told(stopping: &mut watch::Receiver<bool>) {
    // Whoever would tell it is gone: it is over too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// What connections share.
#[derive(Clone)]
pub struct Server {
    /// What answers.
    pub routes: Routes,
    /// TLS, where it is wanted.
    pub tls: Option<TlsAcceptor>,
    /// True once connections are to end after the request that they serve.
    pub stopping: watch::Receiver<bool>,
    /// Where connections are counted.
    pub metrics: Arc<Metrics>,
}

impl Server {
    /// Takes connections until it is told to stop; returns those that are still open.
    pub async fn accept(mut self, listener: TcpListener) -> JoinSet<()> {
        let mut connections = JoinSet::new();
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let next = async {
                let place = Arc::clone(&places).acquire_owned().await.expect("it is never closed");
                listener.accept().await.map(|(stream, _)| (stream, place))
            };
            // Every arm may be dropped: a connection that was not taken stays with the system.
            tokio::select! {
                biased;
                () = told(&mut self.stopping) => return connections,
                Some(_) = connections.join_next() => {}
                accepted = next => match accepted {
                    Ok((stream, place)) => {
                        let server = self.clone();
                        connections.spawn(async move {
                            server.metrics.connections.inc();
                            server.serve(stream).await;
                            server.metrics.connections.dec();
                            drop(place);
                        });
                    }
                    Err(error) => {
                        warn!(%error, "cannot take a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    async fn serve(&self, stream: TcpStream) {
        // Tokens go out as they come.
        let served = match (stream.set_nodelay(true), &self.tls) {
            (Err(error), _) => Err(error),
            (Ok(()), None) => self.converse(stream).await,
            (Ok(()), Some(tls)) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.converse(stream).await,
                Ok(Err(error)) => Err(error),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            },
        };
        if let Err(error) = served {
            debug!(%error, "a connection ended");
        }
    }

    async fn converse(&self, stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        let routes = TowerToHyperService::new(self.routes.clone());
        let service = service_fn(move |request: Request<Incoming>| routes.call(request.map(Paced::new)));
        let mut stopping = self.stopping.clone();
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_headers(MAX_HEADERS)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        // Both arms may be dropped: the connection is pinned outside.
        let ended = tokio::select! {
            biased;
            ended = &mut connection => ended,
            () = told(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        ended.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::{FromRequest as _, Multipart, Request};
    use axum::http::Response;
    use axum::routing::post;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::api::Family;
    use super::super::body;
    use super::super::files::unreadable;
    use super::super::problem::Problem;
    use super::*;

    /// Longer than anything that is waited for, on a clock that is only set forward.
    const EVER: Duration = Duration::from_secs(24 * 3600);

    fn told(outcome: Result<(), Problem>) -> Response<Body> {
        outcome.map_or_else(|problem| problem.response(Family::OpenAi), |()| Response::new(Body::empty()))
    }

    async fn whole(request: Request) -> Response<Body> {
        let (parts, given) = request.into_parts();
        told(body::read(&parts.headers, given, 1 << 20).await.map(drop))
    }

    async fn form(request: Request) -> Response<Body> {
        let read = async {
            let mut form = Multipart::from_request(request, &()).await.expect("a form");
            while let Some(mut field) = form.next_field().await.map_err(|error| unreadable(&error))? {
                while field.chunk().await.map_err(|error| unreadable(&error))?.is_some() {}
            }
            Ok(())
        };
        told(read.await)
    }

    /// What a client gets that sends this, and then nothing.
    async fn answer(path: &str, length: usize, body: &str) -> String {
        let (_stop, stopping) = watch::channel(false);
        let routes = Routes::new().route("/whole", post(whole)).route("/form", post(form));
        let server = Server { routes, tls: None, stopping, metrics: Arc::new(Metrics::default()) };
        let (mut client, stream) = tokio::io::duplex(1 << 16);
        let served = tokio::spawn(async move { server.converse(stream).await });
        let kind = "multipart/form-data; boundary=b";
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
        client.write_all((head + body).as_bytes()).await.expect("it is read");
        let mut answer = String::new();
        let read = tokio::time::timeout(EVER, client.read_to_string(&mut answer)).await;
        read.expect("there is an answer at some time").expect("UTF-8");
        served.abort();
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_answered_wherever_it_does() {
        let field = "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbat";
        let file = format!("{field}ch\r\n{}", field.replace("purpose", "file\"; filename=\"f"));
        for (path, body) in
            [("/whole", ""), ("/whole", "{"), ("/form", ""), ("/form", "--b\r\n"), ("/form", field), ("/form", &file)]
        {
            let answer = answer(path, 100_000, body).await;
            assert!(answer.starts_with("HTTP/1.1 408 "), "{path} {body}: {answer}");
            assert!(answer.contains("\"request_timeout\""), "{answer}");
        }
        assert!(answer("/whole", 2, "{}").await.starts_with("HTTP/1.1 200 "));
        let end = format!("{file}\r\n--b--\r\n");
        assert!(answer("/form", end.len(), &end).await.starts_with("HTTP/1.1 200 "));
    }
}
