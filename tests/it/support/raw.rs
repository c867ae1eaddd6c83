//! A NATS client that sends any bytes it is told to: header blocks that no client library would write.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::{NatsServer, PATIENCE};

/// A raw connection to a server.
#[derive(Debug)]
pub struct RawClient {
    stream: BufReader<TcpStream>,
}

/// A message as it came in.
#[derive(Debug, PartialEq, Eq)]
pub struct RawMessage {
    /// Its subject.
    pub subject: String,
    /// Its reply subject.
    pub reply: Option<String>,
    /// Its header block, from `NATS/1.0` to the empty line; empty where there is none.
    pub headers: Vec<u8>,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl RawClient {
    /// Connects and waits until the server has taken the connection.
    pub async fn connect(server: &NatsServer) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).await.expect("the server takes connections");
        let mut client = Self { stream: BufReader::new(stream) };
        assert!(client.line().await.starts_with("INFO "));
        client.send(b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\n").await;
        client.settle().await;
        client
    }

    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the connection stands");
    }

    /// Publishes with a header block as it is. A proper one is `NATS/1.0\r\nName: value\r\n\r\n`.
    pub async fn publish(&mut self, subject: &str, reply: Option<&str>, headers: &[u8], payload: &[u8]) {
        let reply = reply.map(|reply| format!(" {reply}")).unwrap_or_default();
        let (head, all) = (headers.len(), headers.len() + payload.len());
        let command = format!("HPUB {subject}{reply} {head} {all}\r\n");
        self.send(&[command.as_bytes(), headers, payload, b"\r\n"].concat()).await;
    }

    /// Subscribes.
    pub async fn subscribe(&mut self, subject: &str) {
        self.send(format!("SUB {subject} 1\r\n").as_bytes()).await;
        self.settle().await;
    }

    /// A round trip; the server has taken all that was sent before. No message may be under way to this client.
    pub async fn settle(&mut self) {
        self.send(b"PING\r\n").await;
        let answer = self.line().await;
        assert_eq!(answer, "PONG", "the server answers a PING");
    }

    /// The next message of the subscriptions.
    pub async fn next(&mut self) -> RawMessage {
        let line = self.line().await;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (subject, reply, head, all) = match words[..] {
            ["MSG", subject, _, all] => (subject, None, "0", all),
            ["MSG", subject, _, reply, all] => (subject, Some(reply), "0", all),
            ["HMSG", subject, _, head, all] => (subject, None, head, all),
            ["HMSG", subject, _, reply, head, all] => (subject, Some(reply), head, all),
            _ => panic!("the server sent {line:?}, a message was awaited"),
        };
        let size = |word: &str| word.parse::<usize>().expect("sizes are numbers");
        let mut headers = vec![0; size(all)];
        self.stream.read_exact(&mut headers).await.expect("the message comes whole");
        let payload = headers.split_off(size(head));
        let mut end = [0; 2];
        self.stream.read_exact(&mut end).await.expect("the message ends");
        RawMessage { subject: subject.into(), reply: reply.map(Into::into), headers, payload }
    }

    /// The next line that is no PING; those are answered.
    async fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.stream.read_line(&mut line);
            let count = tokio::time::timeout(PATIENCE, read).await.expect("the server sends something");
            assert_ne!(count.expect("lines are UTF-8"), 0, "the server closed the connection");
            match line.trim_end() {
                "PING" => self.send(b"PONG\r\n").await,
                other => return other.to_owned(),
            }
        }
    }
}
