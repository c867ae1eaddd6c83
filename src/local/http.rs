//! One GET of a page on this machine: a server's figures, a router's readiness.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long a page may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: u64 = 4 * 1024 * 1024;

/// A page.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
}

/// Gets a page. HTTP/1.0 keeps the answer plain: no chunks, and its end is the end of the connection.
pub async fn get(address: SocketAddr, path: &str) -> io::Result<Answer> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await?;
        parse(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP"))
    };
    tokio::time::timeout(TIMEOUT, exchange).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

fn parse(answer: &[u8]) -> Option<Answer> {
    const END_OF_HEAD: &[u8] = b"\r\n\r\n";
    let head = answer.windows(END_OF_HEAD.len()).position(|window| window == END_OF_HEAD)?;
    let line = std::str::from_utf8(&answer[..head]).ok()?.lines().next()?;
    let status = line.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: answer[head + END_OF_HEAD.len()..].to_vec() })
}

/// A port of 127.0.0.1 that was free a moment ago, for a process that can't choose one and say which.
pub fn free_port() -> io::Result<SocketAddr> {
    std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart() {
        let answer = parse(b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\nnot ready").expect("HTTP");
        assert_eq!((answer.status, answer.body.as_slice()), (503, b"not ready".as_slice()));
        assert!(parse(b"HTTP/1.1 200 OK\r\n").is_none());
        assert!(parse(b"SSH-2.0\r\n\r\n").is_none());
    }
}
