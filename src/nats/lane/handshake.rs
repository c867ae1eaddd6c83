//! From a URL to a connection that stands: TCP, INFO, TLS, CONNECT, PING, PONG.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_nats::ServerAddr;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::codec::{Decoder, Op};
use crate::nats::link::{ConnectError, LinkOptions};
use crate::nats::login::{self, Login};
use crate::nats::tls::Tls;

/// How long connecting to one server may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a server says of itself, as far as it matters here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ServerInfo {
    /// The most that headers and payload may take together, in bytes.
    #[serde(default)]
    pub max_payload: usize,
    /// Whether it knows headers.
    #[serde(default)]
    pub headers: bool,
    /// Other servers of its cluster.
    #[serde(default)]
    pub connect_urls: Vec<String>,
    /// It is about to stop.
    #[serde(default, rename = "ldm")]
    pub lame_duck: bool,
    #[serde(default)]
    nonce: Option<String>,
    #[serde(default)]
    tls_required: bool,
    #[serde(default)]
    tls_available: bool,
}

/// A connection that stands.
#[derive(Debug)]
pub struct Connection {
    /// Where it goes.
    pub address: ServerAddr,
    /// The bytes.
    pub stream: Stream,
    /// Their reader, which may have read ahead.
    pub decoder: Decoder,
    /// What the server says of itself.
    pub info: ServerInfo,
}

#[derive(Serialize)]
struct Connect<'c> {
    verbose: bool,
    pedantic: bool,
    tls_required: bool,
    name: &'c str,
    lang: &'static str,
    version: &'static str,
    protocol: u8,
    headers: bool,
    no_responders: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pass: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    auth_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sig: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nkey: Option<String>,
}

/// Connects to one server, as whom the options and all their addresses say.
pub async fn connect(options: &LinkOptions, address: &ServerAddr, login: &Login) -> Result<Connection, ConnectError> {
    let attempt = tokio::time::timeout(CONNECT_TIMEOUT, shake(options, address, login)).await;
    let failed = |problem| ConnectError::Connect { urls: login::without_login(address.as_url_str()), problem };
    attempt.map_err(|_| failed("no answer within 5 s".into()))?.map_err(|error| match error {
        Failed::Told(error) => error,
        Failed::Io(error) => failed(error.to_string()),
    })
}

enum Failed {
    Told(ConnectError),
    Io(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn other(problem: impl Into<String>) -> Failed {
    Failed::Io(io::Error::other(problem.into()))
}

async fn shake(options: &LinkOptions, address: &ServerAddr, login: &Login) -> Result<Connection, Failed> {
    if address.is_websocket() {
        return Err(other("WebSocket URLs are not supported; write nats:// or tls://"));
    }
    let tcp = TcpStream::connect((address.host(), address.port())).await?;
    tcp.set_nodelay(true)?;
    let mut stream = Stream::Plain(tcp);
    if options.tls.first {
        stream = stream.encrypted(address.host(), &options.tls).await?;
    }
    let mut decoder = Decoder::default();
    let Op::Info(json) = next(&mut stream, &mut decoder).await? else {
        return Err(other("the server does not begin with INFO"));
    };
    let info: ServerInfo = serde_json::from_slice(&json).map_err(|e| other(format!("the server's INFO: {e}")))?;
    if !info.headers {
        return Err(other("the server knows no headers; NATS 2.10 or newer is needed"));
    }
    let wanted = address.tls_required() || options.tls.is_wanted();
    let tls = info.tls_required || wanted;
    if wanted && !options.tls.first && !(info.tls_required || info.tls_available) {
        return Err(other("TLS is wanted, and the server has none"));
    }
    if tls {
        stream = stream.encrypted(address.host(), &options.tls).await?;
    }
    let connect = greeting(options, login, &info, tls).await?;
    let text = serde_json::to_string(&connect).map_err(io::Error::from)?;
    stream.write_all(format!("CONNECT {text}\r\nPING\r\n").as_bytes()).await?;
    stream.flush().await?;
    loop {
        match next(&mut stream, &mut decoder).await? {
            Op::Pong => return Ok(Connection { address: address.clone(), stream, decoder, info }),
            // In the middle of a sentence for people.
            Op::Error(words) => return Err(other(words.to_lowercase())),
            Op::Info(_) | Op::Nothing | Op::Ping | Op::Message(_) => {}
        }
    }
}

async fn next(stream: &mut Stream, decoder: &mut Decoder) -> Result<Op, Failed> {
    loop {
        if let Some(op) = decoder.decode().map_err(|e| other(e.to_string()))? {
            return Ok(op);
        }
        if decoder.read(stream).await? == 0 {
            return Err(other("the server has closed the connection"));
        }
    }
}

async fn greeting<'o>(
    options: &'o LinkOptions,
    login: &Login,
    info: &ServerInfo,
    tls: bool,
) -> Result<Connect<'o>, Failed> {
    let mut connect = Connect {
        verbose: false,
        pedantic: false,
        tls_required: tls,
        name: &options.name,
        lang: "rust",
        version: env!("CARGO_PKG_VERSION"),
        protocol: 1,
        headers: true,
        no_responders: true,
        user: None,
        pass: None,
        auth_token: None,
        jwt: None,
        sig: None,
        nkey: None,
    };
    if let Some(path) = &options.creds {
        let nonce = info.nonce.as_deref().unwrap_or_default();
        let (jwt, sig) = sign(path, nonce)
            .await
            .map_err(|problem| Failed::Told(ConnectError::Credentials { path: path.display().to_string(), problem }))?;
        (connect.jwt, connect.sig) = (Some(jwt), Some(sig));
        return Ok(connect);
    }
    match login.clone() {
        Login::Nobody => {}
        Login::User(user, pass) => (connect.user, connect.pass) = (Some(user), Some(pass.reveal().to_owned())),
        Login::Token(token) => connect.auth_token = Some(token.reveal().to_owned()),
        Login::Nkey(seed) => {
            let key = nkeys::KeyPair::from_seed(seed.reveal()).map_err(|e| other(format!("the nkey's seed: {e}")))?;
            let nonce = info.nonce.as_deref().unwrap_or_default();
            let signature = key.sign(nonce.as_bytes()).map_err(|e| other(format!("the nkey can't sign: {e}")))?;
            (connect.nkey, connect.sig) = (Some(key.public_key()), Some(BASE64_URL_SAFE_NO_PAD.encode(signature)));
        }
    }
    Ok(connect)
}

/// The user's JWT, and the signature of the server's nonce.
async fn sign(path: &Path, nonce: &str) -> Result<(String, String), String> {
    let text = tokio::fs::read_to_string(path).await.map_err(|e| e.to_string())?;
    let jwt = section(&text, "USER JWT").ok_or("there is no NATS USER JWT in it")?;
    let seed = section(&text, "USER NKEY SEED").ok_or("there is no USER NKEY SEED in it")?;
    let key = nkeys::KeyPair::from_seed(seed).map_err(|e| format!("the seed is not valid: {e}"))?;
    let signature = key.sign(nonce.as_bytes()).map_err(|e| e.to_string())?;
    Ok((jwt.to_owned(), BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

/// What stands between the line that begins a section of a credentials file and the one that ends it.
fn section<'t>(text: &'t str, title: &str) -> Option<&'t str> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.starts_with("-----BEGIN") && line.contains(title))?;
    lines.find(|line| !line.is_empty()).filter(|line| !line.starts_with('-'))
}

/// The connection's bytes, encrypted or not.
#[derive(Debug)]
pub enum Stream {
    /// As they are.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    async fn encrypted(self, host: &str, tls: &Tls) -> Result<Self, Failed> {
        // With TLS first it is encrypted already.
        let Self::Plain(tcp) = self else { return Ok(self) };
        let name = ServerName::try_from(host.to_owned()).map_err(|e| other(e.to_string()))?;
        let connector = TlsConnector::from(tls.config()?);
        Ok(Self::Tls(Box::new(connector.connect(name, tcp).await?)))
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(context, buffer),
            Self::Tls(tls) => Pin::new(tls.as_mut()).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(context, bytes),
            Self::Tls(tls) => Pin::new(tls.as_mut()).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(context, slices),
            Self::Tls(tls) => Pin::new(tls.as_mut()).poll_write_vectored(context, slices),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(context),
            Self::Tls(tls) => Pin::new(tls.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(context),
            Self::Tls(tls) => Pin::new(tls.as_mut()).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_files_have_two_sections() {
        let text = "-----BEGIN NATS USER JWT-----\neyJ0\n------END NATS USER JWT------\n\nnote\n-----BEGIN USER NKEY SEED-----\n  SUAB \n------END USER NKEY SEED------\n";
        assert_eq!(section(text, "USER JWT"), Some("eyJ0"));
        assert_eq!(section(text, "USER NKEY SEED"), Some("SUAB"));
        assert_eq!(section("-----BEGIN NATS USER JWT-----\n------END", "USER JWT"), None);
        assert_eq!(section("", "USER JWT"), None);
    }
}
