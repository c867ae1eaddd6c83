//! A worker that the test scripts: registered, with real subscriptions, and speaking the protocol by hand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::{Client, HeaderMap, Message, Subscriber};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::cluster::Cluster;
use super::frontend::find;
use super::{PATIENCE, eventually, settle};

/// How often a registration is put again.
const HEARTBEAT: Duration = Duration::from_millis(1500);

/// What a worker does with a request.
#[derive(Clone)]
pub enum Behaviour {
    /// Accepts it, answers with one message, finishes.
    Answer,
    /// Answers and finishes; `accepted` is left out.
    AnswerAtOnce,
    /// Accepts it; the test goes on by hand.
    Hold,
    /// Nothing.
    Silent,
    /// Rejects it with this status and code word.
    Reject(u16, &'static str),
    /// Accepts it, then rejects it.
    RejectLate(u16, &'static str),
    /// What the test wants.
    Script(Arc<dyn Fn(Dispatch) -> BoxFuture<'static, ()> + Send + Sync>),
}

impl Behaviour {
    /// A script.
    pub fn script<F>(script: impl Fn(Dispatch) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::Script(Arc::new(move |dispatch| Box::pin(script(dispatch))))
    }

    async fn act(self, dispatch: Dispatch) {
        match self {
            Self::Answer => {
                dispatch.accept().await;
                dispatch.answer().await;
            }
            Self::AnswerAtOnce => dispatch.answer().await,
            Self::Hold => dispatch.accept().await,
            Self::Silent => {}
            Self::Reject(status, code) => dispatch.reject(status, code).await,
            Self::RejectLate(status, code) => {
                dispatch.accept().await;
                dispatch.reject(status, code).await;
            }
            Self::Script(script) => script(dispatch).await,
        }
    }
}

/// One request as it reached a worker.
#[derive(Debug, Clone)]
pub struct Dispatch {
    client: Client,
    pub message: Message,
}

impl Dispatch {
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.message, name)
    }

    pub fn session(&self) -> &str {
        self.header("Rankpin-Session").expect("the request has a session")
    }

    pub fn attempt(&self) -> &str {
        self.header("Rankpin-Attempt").expect("every dispatch has an attempt")
    }

    /// Publishes on the router's inbox.
    pub async fn event(&self, headers: &[(&str, &str)], payload: &str) {
        let inbox = self.message.reply.clone().expect("a dispatch has the router's inbox");
        self.publish(&inbox, headers, payload).await;
    }

    async fn publish(&self, subject: &str, headers: &[(&str, &str)], payload: &str) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, *value);
        }
        let payload = payload.to_owned().into();
        self.client.publish_with_headers(subject.to_owned(), map, payload).await.expect("is published");
    }

    pub async fn accept(&self) {
        self.event(&[("Rankpin-Event", "accepted")], "").await;
    }

    pub async fn progress(&self) {
        self.event(&[("Rankpin-Event", "progress")], "").await;
    }

    pub async fn finish(&self, outcome: &str) {
        self.event(&[("Rankpin-Event", "finished")], &json!({ "outcome": outcome }).to_string()).await;
    }

    pub async fn reject(&self, status: u16, code: &str) {
        let status = status.to_string();
        let error = [("Nats-Service-Error-Code", status.as_str()), ("Nats-Service-Error", code)];
        self.event(&[&[("Rankpin-Event", "rejected")], &error[..]].concat(), "").await;
    }

    /// The one message of an answer, and `finished`.
    pub async fn answer(&self) {
        self.reply(&[("Rankpin-Final", "true")], "done").await;
        self.finish("ok").await;
    }

    /// The whole answer to a durable job, stored as its result, and `finished`.
    pub async fn job_answer(&self, payload: &str) {
        let reply_to = self.header("Rankpin-Reply-To").expect("a job has a subject for its results");
        let (subject, attempt) = reply_to.rsplit_once('.').expect("the subject ends with the attempt");
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("Rankpin-Final", "true"), ("Rankpin-Seq", "0"), ("Nats-Expected-Last-Subject-Sequence", "0")]
        {
            headers.insert(name, value);
        }
        headers.insert("Rankpin-Attempt", attempt);
        let context = async_nats::jetstream::new(self.client.clone());
        let sent = context.publish_with_headers(subject.to_owned(), headers, payload.to_owned().into()).await;
        sent.expect("is published").await.expect("is stored");
        self.finish("ok").await;
    }

    /// Ends the reply stream with an error, and `finished`.
    pub async fn fail(&self, status: u16, code: &str) {
        let body = json!({"error": {"message": "as the test wants it", "type": "rankpin_error", "code": code}});
        let status = status.to_string();
        let mut headers =
            vec![("Rankpin-Final", "true"), ("Nats-Service-Error-Code", &status), ("Nats-Service-Error", code)];
        if ["429", "503"].contains(&status.as_str()) {
            headers.push(("Retry-After", "1"));
        }
        self.reply(&headers, &body.to_string()).await;
        self.finish(if status == "499" { "cancelled" } else { "error" }).await;
    }

    /// The first message of the reply stream, with what that carries.
    pub async fn reply(&self, more: &[(&str, &str)], payload: &str) {
        let Some(reply_to) = self.header("Rankpin-Reply-To") else { return };
        let carried =
            ["Rankpin-Request-Id", "Rankpin-Attempt", "Rankpin-Worker", "Rankpin-Dp-Rank", "Rankpin-Decision"];
        let mut headers: Vec<_> = carried.iter().filter_map(|name| Some((*name, self.header(name)?))).collect();
        headers.push(("Rankpin-Seq", "0"));
        headers.extend_from_slice(more);
        self.publish(reply_to, &headers, payload).await;
    }
}

/// A worker before it starts.
pub struct WorkerBuilder<'c> {
    cluster: &'c Cluster,
    registration: Value,
    deaf: Vec<u64>,
    deaf_to_any: bool,
    heartbeat: bool,
    behaviour: Behaviour,
}

impl<'c> WorkerBuilder<'c> {
    pub(super) fn new(cluster: &'c Cluster, id: &str) -> Self {
        let instance = uuid::Uuid::new_v4().to_string();
        let registration =
            json!({"v": 1, "worker": id, "instance": instance, "models": ["m"], "dp_start": 0, "dp_size": 1});
        Self {
            cluster,
            registration,
            deaf: Vec::new(),
            deaf_to_any: false,
            heartbeat: true,
            behaviour: Behaviour::Answer,
        }
    }

    /// The ranks that it declares.
    pub fn ranks(self, start: u32, size: u32) -> Self {
        self.with("dp_start", start).with("dp_size", size)
    }

    /// A field of its registration.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.registration[field] = value.into();
        self
    }

    pub fn behaves(mut self, behaviour: Behaviour) -> Self {
        self.behaviour = behaviour;
        self
    }

    /// Nobody listens for this rank.
    pub fn deaf_on(mut self, rank: u64) -> Self {
        self.deaf.push(rank);
        self
    }

    /// Nobody listens for requests without a rank.
    pub fn deaf_to_any(mut self) -> Self {
        self.deaf_to_any = true;
        self
    }

    /// Registers once and never again.
    pub fn without_heartbeat(mut self) -> Self {
        self.heartbeat = false;
        self
    }

    /// Starts it, and waits until every router knows it.
    pub async fn start(self) -> Worker {
        let mut before = Vec::new();
        for router in &self.cluster.routers {
            before.push(router.metric("workers").await);
        }
        let cluster = self.cluster;
        let worker = self.start_unnoticed().await;
        for (router, before) in cluster.routers.iter().zip(before) {
            router.reaches("workers", before + 1.0).await;
        }
        worker
    }

    /// Starts it, and waits for nobody.
    pub async fn start_unnoticed(self) -> Worker {
        let client = self.cluster.another_client().await;
        let id = self.registration["worker"].as_str().expect("a text").to_owned();
        let (start, size) = (&self.registration["dp_start"], &self.registration["dp_size"]);
        let (start, size) = (start.as_u64().expect("a number"), size.as_u64().expect("a number"));
        let heard = Arc::new(Heard { behaviour: Mutex::new(self.behaviour), ..Heard::default() });
        let base = format!("rankpin.worker.{id}");
        let mut worker = Worker {
            bucket: self.cluster.bucket("rankpin_workers").await,
            registration: Arc::new(Mutex::new(self.registration)),
            heartbeat: None,
            listening: Vec::new(),
            client,
            heard,
            id,
        };
        for rank in (start..start + size).filter(|rank| !self.deaf.contains(rank)) {
            worker.listen(&format!("{base}.rank.{rank}")).await;
        }
        if !self.deaf_to_any {
            worker.listen(&format!("{base}.any")).await;
        }
        worker.listen(&format!("{base}.cancel")).await;
        settle(&worker.client).await;
        worker.put().await;
        if self.heartbeat {
            worker.heartbeat = Some(tokio::spawn(beat(worker.bucket.clone(), Arc::clone(&worker.registration))));
        }
        worker
    }
}

async fn beat(bucket: kv::Store, registration: Arc<Mutex<Value>>) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        // A test may take the server or the bucket away; the next beat finds it again.
        let _ = put(&bucket, &registration).await;
    }
}

async fn put(bucket: &kv::Store, registration: &Mutex<Value>) -> Result<u64, kv::PutError> {
    let value = registration.lock().expect("no test panics while it holds this").clone();
    let key = value["worker"].as_str().expect("a text").to_owned();
    bucket.put(key, value.to_string().into()).await
}

/// What a worker was sent.
struct Heard {
    behaviour: Mutex<Behaviour>,
    dispatches: Mutex<Vec<Dispatch>>,
    cancels: Mutex<Vec<Message>>,
    probes: Mutex<u32>,
}

impl Default for Heard {
    fn default() -> Self {
        Self {
            behaviour: Mutex::new(Behaviour::Answer),
            dispatches: Mutex::default(),
            cancels: Mutex::default(),
            probes: Mutex::default(),
        }
    }
}

/// A running worker; it falls silent with this value.
pub struct Worker {
    pub id: String,
    pub client: Client,
    bucket: kv::Store,
    registration: Arc<Mutex<Value>>,
    heartbeat: Option<JoinHandle<()>>,
    listening: Vec<JoinHandle<()>>,
    heard: Arc<Heard>,
}

impl Worker {
    /// Listens on one of its subjects.
    pub async fn listen(&mut self, subject: &str) {
        let subscriber = if subject.ends_with(".any") {
            self.client.queue_subscribe(subject.to_owned(), "any".into()).await
        } else {
            self.client.subscribe(subject.to_owned()).await
        };
        let subscriber = subscriber.expect("subscribes");
        settle(&self.client).await;
        let task = hear(Arc::clone(&self.heard), self.client.clone(), subscriber);
        self.listening.push(tokio::spawn(task));
    }

    pub fn behave(&self, behaviour: Behaviour) {
        *self.heard.behaviour.lock().expect("no test panics while it holds this") = behaviour;
    }

    /// Changes its registration, and puts it.
    pub async fn declare(&self, field: &str, value: impl Into<Value>) {
        self.registration.lock().expect("no test panics while it holds this")[field] = value.into();
        self.put().await;
    }

    /// Puts its registration.
    pub async fn put(&self) {
        put(&self.bucket, &self.registration).await.expect("is stored");
    }

    pub fn instance(&self) -> String {
        let registration = self.registration.lock().expect("no test panics while it holds this");
        registration["instance"].as_str().expect("a text").to_owned()
    }

    /// Publishes a load report: requests in flight by rank.
    pub async fn report(&self, seq: u64, inflight: &[(u16, u32)]) {
        let ranks: Vec<_> = inflight.iter().map(|(rank, n)| json!({"dp_rank": rank, "inflight": n})).collect();
        let report = json!({"v": 1, "worker": self.id, "instance": self.instance(), "seq": seq, "ranks": ranks});
        let subject = format!("rankpin.load.{}", self.id);
        self.client.publish(subject, report.to_string().into()).await.expect("is published");
        settle(&self.client).await;
    }

    /// The requests that have reached it.
    pub fn dispatches(&self) -> Vec<Dispatch> {
        self.heard.dispatches.lock().expect("no test panics while it holds this").clone()
    }

    /// How many requests have reached it.
    pub fn count(&self) -> usize {
        self.heard.dispatches.lock().expect("no test panics while it holds this").len()
    }

    /// The request that reached it as number `n`, from 0; waits for it.
    pub async fn dispatch(&self, n: usize) -> Dispatch {
        let what = format!("request {n} reaches worker {}", self.id);
        eventually(&what, PATIENCE, async || self.dispatches().get(n).cloned()).await
    }

    /// (request, attempt) of cancel number `n`, from 0; waits for it.
    pub async fn cancel(&self, n: usize) -> (String, String) {
        let what = format!("cancel {n} reaches worker {}", self.id);
        let message = eventually(&what, PATIENCE, async || self.cancels().get(n).cloned()).await;
        let header = |name| find(&message, name).expect("a cancel names request and attempt").to_owned();
        (header("Rankpin-Request-Id"), header("Rankpin-Attempt"))
    }

    pub fn cancels(&self) -> Vec<Message> {
        self.heard.cancels.lock().expect("no test panics while it holds this").clone()
    }

    pub fn probes(&self) -> u32 {
        *self.heard.probes.lock().expect("no test panics while it holds this")
    }

    /// Puts its registration no more.
    pub fn stop_heartbeat(&mut self) {
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.abort();
        }
    }

    /// Dies: nobody listens any more, and its registration stays.
    pub async fn die(&mut self) {
        self.stop_heartbeat();
        for task in self.listening.drain(..) {
            task.abort();
            // The subscription goes with the task.
            let _ = task.await;
        }
        settle(&self.client).await;
    }

    /// Deletes its registration, and does no more.
    pub async fn deregister(&mut self) {
        self.stop_heartbeat();
        self.bucket.delete(&self.id).await.expect("is deleted");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop_heartbeat();
        for task in &self.listening {
            task.abort();
        }
    }
}

async fn hear(heard: Arc<Heard>, client: Client, mut subscriber: Subscriber) {
    while let Some(message) = subscriber.next().await {
        if !message.subject.ends_with(".cancel") && find(&message, "Rankpin-Accept-By") == Some("1") {
            // A probe of the rank, dropped as everything that comes too late (protocol section 6.4).
        } else if !message.subject.ends_with(".cancel") {
            let dispatch = Dispatch { client: client.clone(), message };
            heard.dispatches.lock().expect("no test panics while it holds this").push(dispatch.clone());
            let behaviour = heard.behaviour.lock().expect("no test panics while it holds this").clone();
            tokio::spawn(behaviour.act(dispatch));
        } else if find(&message, "Rankpin-Probe").is_some() {
            *heard.probes.lock().expect("no test panics while it holds this") += 1;
        } else {
            heard.cancels.lock().expect("no test panics while it holds this").push(message);
        }
    }
}
