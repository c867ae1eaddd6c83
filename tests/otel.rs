//! Traces (feature `otel`): what a receiver of OTLP over HTTP gets of requests that go from a gateway over a router to a
//! worker, each a process of its own. The receiver reads the protocol by hand, and so knows nothing of who wrote it.

#![cfg(feature = "otel")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rankpin::local::{self, NatsServer, Process, http};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// How long spans may take to come; it only counts when a test fails.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The client's trace and span.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

/// One span, as it was received.
#[derive(Debug, Clone, Default)]
struct Received {
    service: String,
    trace: String,
    id: String,
    parent: String,
    name: String,
    failed: bool,
    attributes: BTreeMap<String, String>,
}

impl Received {
    fn of(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }
}

/// A field of a protobuf message.
enum Field<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

/// The fields of a protobuf message, by number.
fn fields(mut message: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = message.split_first().expect("a whole number");
            *message = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return value;
            }
        }
        panic!("a number of more than 64 bits")
    }
    fn take<'m>(message: &mut &'m [u8], length: usize) -> &'m [u8] {
        let (taken, rest) = message.split_at(length);
        *message = rest;
        taken
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut message)),
            1 => Field::Bytes(take(&mut message, 8)),
            2 => {
                let length = usize::try_from(varint(&mut message)).expect("a length");
                Field::Bytes(take(&mut message, length))
            }
            5 => Field::Bytes(take(&mut message, 4)),
            other => panic!("there is no wire type {other}"),
        };
        found.push((key >> 3, field));
    }
    found
}

fn parts(message: &[u8], wanted: u64) -> Vec<&[u8]> {
    let all = fields(message).into_iter();
    all.filter_map(|(number, field)| match field {
        Field::Bytes(bytes) if number == wanted => Some(bytes),
        Field::Bytes(_) | Field::Number(_) => None,
    })
    .collect()
}

fn text(message: &[u8], wanted: u64) -> String {
    String::from_utf8(parts(message, wanted).concat()).expect("UTF-8")
}

fn hex(message: &[u8], wanted: u64) -> String {
    parts(message, wanted).concat().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Attributes, words and numbers alike as text.
fn attributes(message: &[u8], wanted: u64) -> BTreeMap<String, String> {
    let value = |any: &[u8]| {
        fields(any).into_iter().next().map_or_else(String::new, |(_, field)| match field {
            Field::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Field::Number(number) => number.to_string(),
        })
    };
    parts(message, wanted).into_iter().map(|pair| (text(pair, 1), value(&parts(pair, 2).concat()))).collect()
}

/// The spans of one export (opentelemetry-proto, `ExportTraceServiceRequest`).
fn spans(export: &[u8]) -> Vec<Received> {
    let mut found = Vec::new();
    for of_resource in parts(export, 1) {
        let resource = attributes(&parts(of_resource, 1).concat(), 1);
        for span in parts(of_resource, 2).into_iter().flat_map(|scope| parts(scope, 2)) {
            let status = parts(span, 15).concat();
            found.push(Received {
                service: resource.get("service.name").cloned().unwrap_or_default(),
                trace: hex(span, 1),
                id: hex(span, 2),
                parent: hex(span, 4),
                name: text(span, 5),
                failed: fields(&status).iter().any(|(number, field)| matches!((number, field), (3, Field::Number(2)))),
                attributes: attributes(span, 9),
            });
        }
    }
    found
}

/// Takes exports, and keeps their spans.
struct Receiver {
    url: String,
    spans: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("it listens"));
        let spans = Arc::<Mutex<Vec<Received>>>::default();
        let kept = Arc::clone(&spans);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Self::converse(stream, Arc::clone(&kept)));
            }
        });
        Self { url, spans }
    }

    async fn converse(stream: TcpStream, kept: Arc<Mutex<Vec<Received>>>) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let (mut line, mut length) = (String::new(), 0);
            stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
            assert!(line.starts_with("POST /v1/traces HTTP/1.1"), "{line}");
            loop {
                line.clear();
                stream.read_line(&mut line).await.ok()?;
                let Some((name, value)) = line.trim_end().split_once(": ") else { break };
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => length = value.parse().expect("a length"),
                    "content-type" => assert_eq!(value, "application/x-protobuf"),
                    _ => {}
                }
            }
            let mut export = vec![0; length];
            stream.read_exact(&mut export).await.ok()?;
            kept.lock().expect("no holder panics").extend(spans(&export));
            let answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer).await.ok()?;
        }
    }

    /// The spans of a trace, once there are so many.
    async fn of(&self, trace: &str, count: usize) -> Vec<Received> {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let all = self.spans.lock().expect("no holder panics").clone();
            let found: Vec<_> = all.iter().filter(|span| span.trace == trace).cloned().collect();
            if found.len() >= count {
                return found;
            }
            assert!(tokio::time::Instant::now() < end, "not {count} spans of {trace}: {all:#?}");
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// A gateway and a router.
struct Cluster {
    dir: tempfile::TempDir,
    server: NatsServer,
    receiver: Receiver,
    gateway: std::net::SocketAddr,
    _processes: Vec<Process>,
}

impl Cluster {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let server = NatsServer::start(dir.path()).await.expect("a NATS server");
        let receiver = Receiver::start().await;
        let gateway = http::free_port().expect("a port is free");
        let listen = gateway.to_string();
        let router = process("router", &["router", "--listen", "off"], &server, &receiver, dir.path());
        let mut front = process("gateway", &["gateway", "--listen", &listen], &server, &receiver, dir.path());
        local::ready(&mut [&mut front], async || {
            http::get(gateway, "/healthz").await.ok().filter(|answer| answer.status == 200)
        })
        .await
        .expect("the gateway listens");
        Self { dir, server, receiver, gateway, _processes: vec![router, front] }
    }

    fn worker(&self, name: &str) -> Process {
        let args = ["sim", "--worker", name, "--model", "m", "--dp-size", "2", "--speed", "1000"];
        process(name, &args, &self.server, &self.receiver, self.dir.path())
    }

    /// Asks until a worker answers. Returns the headers of the answer.
    async fn ask(&self, session: &str, more: &str) -> String {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let answer = self.ask_once(session, more).await;
            if answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.0 200") {
                return answer.to_ascii_lowercase();
            }
            assert!(tokio::time::Instant::now() < end, "{answer}");
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn ask_once(&self, session: &str, more: &str) -> String {
        let body = r#"{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}"#;
        let head = format!(
            "POST /v1/chat/completions HTTP/1.0\r\nHost: test\r\nContent-Type: application/json\r\n\
             x-session-id: {session}\r\n{more}Content-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(self.gateway).await.expect("the gateway listens");
        stream.write_all(format!("{head}{body}").as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers in UTF-8");
        answer
    }
}

/// A process of this program, whose spans go to the receiver.
fn process(name: &str, args: &[&str], server: &NatsServer, receiver: &Receiver, dir: &Path) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankpin"));
    for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("RANKPIN_") || name.starts_with("OTEL_"))
    {
        command.env_remove(variable);
    }
    command.args(args).args(["--nats-url", server.url()]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.url).env("OTEL_BSP_SCHEDULE_DELAY", "100");
    Process::start(name, command, dir).expect("it starts")
}

fn only<'s>(spans: &'s [Received], service: &str) -> &'s Received {
    let found: Vec<_> = spans.iter().filter(|span| span.service == service).collect();
    assert_eq!(found.len(), 1, "one span of {service}: {spans:#?}");
    found[0]
}

#[tokio::test]
async fn a_request_is_one_trace_from_the_client_over_gateway_and_router_to_the_worker() {
    let cluster = Cluster::start().await;
    let _a = cluster.worker("a");
    cluster.ask("first", "").await;
    let traceparent = format!("Traceparent: 00-{TRACE}-{CLIENT}-01\r\n");
    let head = cluster.ask("s", &traceparent).await;
    let spans = cluster.receiver.of(TRACE, 3).await;
    assert_eq!(spans.len(), 3, "{spans:#?}");
    let (gateway, router, worker) =
        (only(&spans, "rankpin-gateway"), only(&spans, "rankpin-router"), only(&spans, "rankpin-sim"));
    assert_eq!([&gateway.parent, &router.parent, &worker.parent], [CLIENT, &gateway.id, &router.id]);
    let names = [gateway.name.as_str(), &router.name, &worker.name];
    assert_eq!(names, ["POST /v1/chat/completions", "route", "generate"]);
    assert!(spans.iter().all(|span| !span.failed), "{spans:#?}");
    assert_eq!((gateway.of("http.response.status_code"), gateway.of("rankpin.outcome")), ("200", "ok"));
    for (key, value) in [
        ("gen_ai.request.model", "m"),
        ("rankpin.session.source", "header"),
        ("rankpin.decision", "placed"),
        ("rankpin.worker", "a"),
        ("rankpin.attempt", "1"),
    ] {
        assert_eq!(router.of(key), value, "{key}");
    }
    let rank = router.of("rankpin.dp_rank");
    assert!(head.contains(&format!("x-rankpin-dp-rank: {rank}\r\n")), "{rank}: {head}");
    assert_eq!((worker.of("rankpin.dp_rank"), worker.of("gen_ai.usage.output_tokens")), (rank, "4"));
    let ids = spans.iter().map(|span| span.of("rankpin.request_id"));
    assert_eq!(ids.collect::<std::collections::BTreeSet<_>>().len(), 1, "{spans:#?}");
}

#[tokio::test]
async fn each_attempt_is_a_span_and_a_trace_that_is_not_sampled_is_not_exported() {
    let cluster = Cluster::start().await;
    let mut a = cluster.worker("a");
    cluster.ask("s", "").await;
    let _b = cluster.worker("b");
    let end = tokio::time::Instant::now() + PATIENCE;
    for number in 0.. {
        let head = cluster.ask(&format!("other-{number}"), "").await;
        if head.contains("x-rankpin-worker: b\r\n") {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "worker b gets no session");
    }
    a.kill();
    let [other, later] = ["5", "6"].map(|digit| TRACE.replace('4', digit));
    let traceparent = |trace: &str, flags: &str| format!("traceparent: 00-{trace}-{CLIENT}-{flags}\r\n");
    cluster.ask("s", &traceparent(TRACE, "01")).await;
    let spans = cluster.receiver.of(TRACE, 4).await;
    let (gateway, worker) = (only(&spans, "rankpin-gateway"), only(&spans, "rankpin-sim"));
    let mut attempts: Vec<_> = spans.iter().filter(|span| span.service == "rankpin-router").collect();
    attempts.sort_by_key(|span| span.of("rankpin.attempt").to_owned());
    let [first, second] = attempts[..] else { panic!("two attempts: {spans:#?}") };
    assert_eq!((&first.parent, &second.parent, &worker.parent), (&gateway.id, &gateway.id, &second.id));
    assert_eq!((first.failed, first.of("error.type"), first.of("rankpin.worker")), (true, "no_responders", "a"));
    assert_eq!((first.of("rankpin.attempt"), first.of("rankpin.decision")), ("1", "pinned"));
    assert_eq!((second.failed, second.of("rankpin.worker"), second.of("rankpin.attempt")), (false, "b", "2"));
    assert_eq!((second.of("rankpin.decision"), second.of("rankpin.decision.cause")), ("repinned", "worker-lost"));

    // What comes later has come, and this has not.
    cluster.ask("s", &traceparent(&other, "00")).await;
    cluster.ask("s", &traceparent(&later, "01")).await;
    cluster.receiver.of(&later, 3).await;
    let all = cluster.receiver.spans.lock().expect("no holder panics").clone();
    assert!(all.iter().all(|span| span.trace != other), "{all:#?}");
}
