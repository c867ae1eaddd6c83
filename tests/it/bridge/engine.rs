//! The engine's side: an HTTP server that does what a request's body says, and notes what it was sent.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router as Routes;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::support::{PATIENCE, eventually};

/// A running engine; gone when dropped, with all its connections.
pub struct Engine {
    address: SocketAddr,
    shared: Arc<Shared>,
    // A runtime of its own: its end is the end of every connection, as of a killed process.
    runtime: Option<tokio::runtime::Runtime>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    hung_up: Mutex<u32>,
    said: Mutex<Said>,
}

/// What the engine says of itself.
#[derive(Clone)]
pub struct Said {
    pub health: u16,
    pub models: Vec<&'static str>,
    pub metrics: String,
    pub kv_sources: Value,
}

impl Default for Said {
    fn default() -> Self {
        Self { health: 200, models: vec!["m"], metrics: metrics(&[(0, 0, 0.0), (0, 0, 0.0)]), kv_sources: json!({}) }
    }
}

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("ASCII"))
    }
}

/// A page of a vLLM whose ranks run, hold back and use so much.
pub fn metrics(ranks: &[(u32, u32, f64)]) -> String {
    let mut page = String::new();
    for (rank, (running, waiting, used)) in ranks.iter().enumerate() {
        let labels = format!("engine=\"{rank}\",model_name=\"m\"");
        page += &format!("vllm:num_requests_running{{{labels}}} {running}.0\n");
        page += &format!("vllm:num_requests_waiting{{{labels}}} {waiting}.0\n");
        page += &format!("vllm:kv_cache_usage_perc{{{labels}}} {used}\n");
        page += &format!("vllm:cache_config_info{{block_size=\"32\",engine=\"{rank}\",num_gpu_blocks=\"512\"}} 1.0\n");
    }
    page
}

impl Engine {
    /// A vLLM of two ranks with nothing to do.
    pub fn start() -> Self {
        let mut engine = Self {
            address: TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port is free"),
            shared: Arc::default(),
            runtime: None,
        };
        engine.restart();
        engine
    }

    /// A server without figures, as an engine that is not known has.
    pub fn plain() -> Self {
        let engine = Self::start();
        engine.say(|said| said.metrics.clear());
        engine
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Kills it: every connection ends at once.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Starts it on the port that it had.
    pub fn restart(&mut self) {
        self.kill();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let routes = Routes::new()
            .route("/health", get(health))
            .route("/metrics", get(async |State(shared): State<Arc<Shared>>| shared.said().metrics))
            .route("/v1/models", get(models))
            .route("/kv_event_sources", get(sources))
            .fallback(post(answer))
            .with_state(Arc::clone(&self.shared));
        let address = self.address;
        let (tell, told) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let listener = loop {
                // The port of a server that was killed is free a moment later.
                match tokio::net::TcpListener::bind(address).await {
                    Ok(listener) => break listener,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            };
            tell.send(()).expect("somebody waits");
            axum::serve(listener, routes).await.expect("it serves");
        });
        told.recv_timeout(PATIENCE).expect("it listens");
        self.runtime = Some(runtime);
    }

    /// Changes what it says of itself.
    pub fn say(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.shared.said.lock().expect("not poisoned"));
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().expect("not poisoned").clone()
    }

    /// The last request.
    pub fn last(&self) -> Seen {
        self.seen().pop().expect("there was one")
    }

    /// Waits until so many requests have come.
    pub async fn has_seen(&self, count: usize) {
        eventually("the engine has the request", PATIENCE, async || (self.seen().len() >= count).then_some(())).await;
    }

    /// Waits until the other side has hung up on an answer that was not whole.
    pub async fn hung_up(&self) {
        let hung_up = || *self.shared.hung_up.lock().expect("not poisoned");
        eventually("the request is aborted", PATIENCE, async || (hung_up() > 0).then_some(())).await;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Shared {
    fn said(&self) -> Said {
        self.said.lock().expect("not poisoned").clone()
    }
}

async fn health(State(shared): State<Arc<Shared>>) -> StatusCode {
    StatusCode::from_u16(shared.said().health).expect("a status")
}

async fn models(State(shared): State<Arc<Shared>>) -> Response {
    let data: Vec<Value> = shared.said().models.iter().map(|id| json!({"id": id, "object": "model"})).collect();
    axum::http::Response::new(Body::from(json!({"object": "list", "data": data}).to_string()))
}

async fn sources(State(shared): State<Arc<Shared>>) -> String {
    shared.said().kv_sources.to_string()
}

/// Counts an answer that its reader did not take to its end.
struct HangUp {
    shared: Arc<Shared>,
    whole: bool,
}

impl Drop for HangUp {
    fn drop(&mut self) {
        if !self.whole {
            *self.shared.hung_up.lock().expect("not poisoned") += 1;
        }
    }
}

/// The step of a stream's script.
enum Step {
    Say(String),
    Hang,
    Break,
}

fn data(value: Value) -> Step {
    Step::Say(format!("data: {value}\n\n"))
}

fn event(name: &str, mut value: Value) -> Step {
    value["type"] = name.into();
    Step::Say(format!("event: {name}\ndata: {value}\n\n"))
}

fn chunk(text: &str) -> Step {
    data(json!({"choices": [{"index": 0, "delta": {"content": text}}]}))
}

fn usage() -> Value {
    json!({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}})
}

async fn answer(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let script: Value = serde_json::from_slice(&body).unwrap_or_default();
    shared.seen.lock().expect("not poisoned").push(Seen { path: uri.path().to_owned(), headers, body });
    let error = |code: u16, words: &str| {
        let body = json!({"error": {"message": words, "type": "OddError", "code": code}, "extra": [1, 2]}).to_string();
        (StatusCode::from_u16(code).expect("a status"), [("content-type", "application/json; odd=1")], body)
    };
    match script["do"].as_str().unwrap_or("whole") {
        "whole" => {
            let body = json!({"id": "c", "object": "chat.completion", "choices": [], "usage": usage()}).to_string();
            ([("content-type", "application/json")], body).into_response()
        }
        "hang" => {
            let _held = HangUp { shared, whole: false };
            std::future::pending().await
        }
        "dead" => error(500, "EngineCore encountered an issue. See the stack trace.").into_response(),
        code if code.parse::<u16>().is_ok() => {
            error(code.parse().expect("checked"), "as the test wants it").into_response()
        }
        name => streamed(shared, stream(name)),
    }
}

/// The scripts of streams.
fn stream(name: &str) -> Vec<Step> {
    let done = || Step::Say("data: [DONE]\n\n".into());
    let bad = |code: u16| data(json!({"error": {"message": "as the test wants it", "type": "OddError", "code": code}}));
    match name {
        "stream" => vec![chunk("a"), chunk("b"), data(json!({"choices": [], "usage": usage()})), done()],
        "cut" => {
            let end = Step::Say("ta: 2\n\ndata: [DONE]\n\n".into());
            vec![Step::Say("data: {\"a\"".into()), Step::Say(":1}\r\n\r\nda".into()), end]
        }
        "messages" => vec![
            event("message_start", json!({"message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 4}}})),
            event("content_block_delta", json!({"delta": {"text": "a"}})),
            event("message_delta", json!({"usage": {"output_tokens": 2}})),
            event("message_stop", json!({})),
        ],
        "responses" => vec![
            event("response.created", json!({"response": {"id": "resp_1", "error": null}})),
            event("response.completed", json!({"response": {"id": "resp_1", "usage": {"input_tokens": 9}}})),
        ],
        // As servers that write no [DONE] end.
        "reason" => vec![chunk("a"), data(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))],
        "stopped" => vec![chunk("a"), data(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": null}]}))],
        "stopped message" => vec![
            event("message_start", json!({"message": {"usage": {"input_tokens": 5}}})),
            event("content_block_delta", json!({"delta": {"text": "message_stop, response.completed, finish_reason"}})),
        ],
        "stopped response" => vec![event("response.created", json!({"response": {"id": "resp_1", "error": null}}))],
        "nothing" => Vec::new(),
        "error first" => vec![bad(400), done()],
        "full first" => vec![bad(429), done()],
        "error late" => vec![chunk("a"), bad(500), done()],
        "stall" => vec![chunk("a"), Step::Hang],
        "break" => vec![chunk("a"), Step::Break],
        other => panic!("no script for {other:?}"),
    }
}

fn streamed(shared: Arc<Shared>, steps: Vec<Step>) -> Response {
    let hang_up = HangUp { shared, whole: false };
    let steps = futures_util::stream::iter(steps).then(async |step| match step {
        Step::Say(text) => Ok(text),
        Step::Hang => std::future::pending().await,
        Step::Break => {
            // What stands before it is sent while the stream has nothing to say.
            tokio::time::sleep(Duration::from_millis(20)).await;
            Err(std::io::Error::other("as the test wants it"))
        }
    });
    // The guard lives as long as the body, and counts unless its end was reached.
    let mut guard = Some(hang_up);
    let end = futures_util::stream::poll_fn(move |_| {
        if let Some(guard) = &mut guard {
            guard.whole = true;
        }
        std::task::Poll::Ready(None)
    });
    let body = Body::from_stream(steps.chain(end));
    ([("content-type", "text/event-stream; charset=utf-8")], body).into_response()
}
