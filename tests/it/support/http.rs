//! An HTTP client as plain as can be, so that a test sees every byte of an answer.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::PATIENCE;

/// Headers of a request.
pub type Headers<'h> = &'h [(&'h str, &'h str)];

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("no JSON ({e}): {}", self.text()))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    /// The events of a stream: name and data of each.
    pub fn events(&self) -> Vec<(Option<String>, String)> {
        let text = self.text();
        let event = |block: &str| {
            let field = |name: &str| block.lines().filter_map(|line| line.strip_prefix(name)).collect::<Vec<_>>();
            (field("event: ").first().map(|name| (*name).to_owned()), field("data: ").join("\n"))
        };
        text.split("\n\n").filter(|block| !block.is_empty()).map(event).collect()
    }
}

/// An answer of which the head and perhaps more has come.
pub struct Open {
    pub status: u16,
    stream: BufReader<TcpStream>,
}

impl Open {
    /// Reads until a line begins so.
    pub async fn line(&mut self, beginning: &str) -> String {
        let read = async {
            loop {
                let mut line = String::new();
                let read = self.stream.read_line(&mut line).await.expect("the connection stands");
                assert!(read > 0, "the answer ends before a line begins with {beginning:?}");
                if line.starts_with(beginning) {
                    return line.trim_end().to_owned();
                }
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("the line comes in time")
    }

    /// The rest of the answer.
    pub async fn rest(mut self) -> String {
        let mut rest = String::new();
        let read = tokio::time::timeout(PATIENCE, self.stream.read_to_string(&mut rest)).await;
        read.expect("the answer ends in time").expect("the connection stands");
        rest
    }
}

fn head(method: &str, path: &str, address: SocketAddr, headers: Headers<'_>, length: usize) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    if method != "GET" || length > 0 {
        head.push_str(&format!("Content-Length: {length}\r\n"));
    }
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    head + "\r\n"
}

/// Sends a request over a new connection, and reads the whole answer.
pub async fn send(address: SocketAddr, method: &str, path: &str, headers: Headers<'_>, body: &[u8]) -> Answer {
    let stream = TcpStream::connect(address).await.expect("somebody listens");
    send_over(stream, address, method, path, headers, body).await
}

/// The same over a stream that stands.
pub async fn send_over(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: Headers<'_>,
    body: &[u8],
) -> Answer {
    let exchange = async {
        let head = head(method, path, address, headers, body.len());
        stream.write_all(head.as_bytes()).await.expect("the connection stands");
        // A server may answer and close before it has read all of a body that it refuses.
        let _ = stream.write_all(body).await;
        let _ = stream.flush().await;
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer).await;
        assert!(read.is_ok() || !answer.is_empty(), "no answer: {read:?}");
        answer
    };
    parse(&tokio::time::timeout(PATIENCE * 2, exchange).await.expect("the answer comes in time"))
}

/// Sends a request, and reads no more than the head of its answer.
pub async fn open(address: SocketAddr, path: &str, headers: Headers<'_>, body: &str) -> Open {
    let mut stream = TcpStream::connect(address).await.expect("somebody listens");
    let head = head("POST", path, address, headers, body.len()) + body;
    stream.write_all(head.as_bytes()).await.expect("the connection stands");
    let mut open = Open { status: 0, stream: BufReader::new(stream) };
    let line = open.line("HTTP/1.1 ").await;
    open.status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    open
}

fn parse(answer: &[u8]) -> Answer {
    const END: &[u8] = b"\r\n\r\n";
    let end = answer.windows(END.len()).position(|window| window == END).expect("a head");
    let head = std::str::from_utf8(&answer[..end]).expect("a head is ASCII");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status line");
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let body = &answer[end + END.len()..];
    let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    Answer { status, headers, body: if is_chunked { joined(body) } else { body.to_vec() } }
}

/// A chunked body as one. One that is cut off is a fault of the server.
fn joined(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let line = body.windows(2).position(|window| window == b"\r\n").expect("the body ends with its last chunk");
        let size = std::str::from_utf8(&body[..line]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.expect("a chunk begins with its size");
        if size == 0 {
            return whole;
        }
        whole.extend_from_slice(&body[line + 2..line + 2 + size]);
        body = &body[line + 2 + size + 2..];
    }
}
