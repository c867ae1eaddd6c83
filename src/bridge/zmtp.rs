//! A subscriber of ZeroMQ's wire protocol, ZMTP 3.0, without security: what engines publish their cache events with.
//!
//! Of the protocol this is all that a subscriber needs (<https://rfc.zeromq.org/spec/23/>), which is less than the
//! libraries bring. What is read has limits everywhere.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// How long connecting and greeting may take.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest frame that is read, in bytes.
const MAX_FRAME_BYTES: u64 = 32 * 1024 * 1024;
/// Most frames of one message.
const MAX_FRAMES: usize = 16;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A subscription to all that a publisher says.
#[derive(Debug)]
pub struct Subscriber {
    stream: BufReader<TcpStream>,
}

impl Subscriber {
    /// Connects to `host:port` and subscribes.
    pub async fn connect(address: &str) -> io::Result<Self> {
        let greeting = async {
            let mut stream = BufReader::new(TcpStream::connect(address).await?);
            stream.write_all(&greeting()).await?;
            let mut theirs = [0; 64];
            stream.read_exact(&mut theirs).await?;
            if theirs[0] != 0xff || theirs[9] & 1 != 1 || theirs[10] < 3 {
                return Err(bad("it does not speak ZMTP 3"));
            }
            if &theirs[12..17] != b"NULL\0" {
                return Err(bad("it wants a security mechanism; NULL is the only one that is spoken here"));
            }
            stream.write_all(&frame(COMMAND, b"\x05READY\x0bSocket-Type\0\0\0\x03SUB")).await?;
            let mut subscriber = Self { stream };
            let (flags, ready) = subscriber.frame().await?;
            if flags & COMMAND == 0 || !ready.starts_with(b"\x05READY") {
                return Err(bad("it refuses the connection"));
            }
            // Of everything: no topic.
            subscriber.stream.write_all(&frame(0, &[1])).await?;
            Ok(subscriber)
        };
        tokio::time::timeout(GREETING_TIMEOUT, greeting).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// The next message, in its frames. To be polled to its end: a message that was read in part is lost with the
    /// future.
    pub async fn next(&mut self) -> io::Result<Vec<Bytes>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.frame().await?;
            if flags & COMMAND != 0 {
                continue;
            }
            if frames.len() == MAX_FRAMES {
                return Err(bad("a message has too many frames"));
            }
            frames.push(body);
            if flags & MORE == 0 {
                return Ok(frames);
            }
        }
    }

    async fn frame(&mut self) -> io::Result<(u8, Bytes)> {
        let flags = self.stream.read_u8().await?;
        let size = match flags & LONG {
            0 => u64::from(self.stream.read_u8().await?),
            _ => self.stream.read_u64().await?,
        };
        if size > MAX_FRAME_BYTES {
            return Err(bad("a frame is too large"));
        }
        // It grows with what comes, not with what was announced.
        let mut body = Vec::new();
        let read = (&mut self.stream).take(size).read_to_end(&mut body).await?;
        if read as u64 != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((flags, body.into()))
    }
}

fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    // Version 3.0, in which a subscription is a message.
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let size = u8::try_from(body.len()).expect("our own frames are short");
    [&[flags, size], body].concat()
}

fn bad(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A publisher that greets and then says these bytes.
    async fn publisher(greeting: [u8; 64], says: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("bound").to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("somebody connects");
            stream.write_all(&greeting).await.expect("sent");
            stream.write_all(&frame(COMMAND, b"\x05READY\x0bSocket-Type\0\0\0\x03PUB")).await.expect("sent");
            let mut heard = vec![0; 64 + 2 + 25 + 3];
            stream.read_exact(&mut heard).await.expect("it greets, is ready and subscribes");
            assert_eq!(heard[heard.len() - 3..], [0, 1, 1]);
            stream.write_all(&says).await.expect("sent");
        });
        address
    }

    #[tokio::test]
    async fn messages_in_frames_short_and_long() {
        let long = vec![7; 300];
        let mut says = frame(MORE, b"topic");
        says.extend(frame(COMMAND, b"\x04PING\0\0"));
        says.push(LONG);
        says.extend(300u64.to_be_bytes());
        says.extend(&long);
        says.extend([LONG, 0xff, 0, 0, 0, 0, 0, 0, 0]);
        let mut subscriber = Subscriber::connect(&publisher(greeting(), says).await).await.expect("they greet");
        assert_eq!(subscriber.next().await.expect("a message"), [Bytes::from_static(b"topic"), long.into()]);
        let problem = subscriber.next().await.expect_err("too large");
        assert!(problem.to_string().contains("too large"), "{problem}");
    }

    #[tokio::test]
    async fn others_are_refused() {
        let mut secure = greeting();
        secure[12..17].copy_from_slice(b"CURVE");
        let mut http = [0; 64];
        http[..8].copy_from_slice(b"HTTP/1.1");
        for theirs in [secure, http] {
            let problem = Subscriber::connect(&publisher(theirs, Vec::new()).await).await.expect_err("refused");
            assert_eq!(problem.kind(), io::ErrorKind::InvalidData, "{problem}");
        }
    }
}
