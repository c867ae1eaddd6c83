//! One request, as a frontend writes it.

use std::time::Duration;

use bytes::Bytes;

use crate::core::id::{DpRank, Model, Pool, RequestId, SessionId, Tenant, WorkerId};
use crate::nats::Headers;
use crate::wire::header;
use crate::wire::subject::Subjects;

/// A request: a body of the engine's API, and what its headers say (protocol section 3).
#[derive(Debug, Clone)]
pub struct Request {
    pub(super) id: RequestId,
    pub(super) model: Option<Model>,
    pub(super) body: Bytes,
    pub(super) headers: Headers,
    pub(super) timeout: Option<Duration>,
    pub(super) deadline: Option<Duration>,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) answer_timeout: Option<Duration>,
    pub(super) trusted: bool,
}

impl Request {
    /// A request for a model, with a fresh UUIDv7 for its id.
    pub fn new(model: Model, body: impl Into<Bytes>) -> Self {
        Self::with(Some(model), body.into())
    }

    /// A request whose body names the model.
    pub fn without_model(body: impl Into<Bytes>) -> Self {
        Self::with(None, body.into())
    }

    fn with(model: Option<Model>, body: Bytes) -> Self {
        let id = RequestId::new(&uuid::Uuid::now_v7().to_string()).expect("a UUID is 36 of [0-9a-f-]");
        Self {
            id,
            model,
            body,
            headers: Headers::new(),
            timeout: None,
            deadline: None,
            idle_timeout: None,
            answer_timeout: None,
            trusted: false,
        }
    }

    /// The request's id.
    pub fn id(&self) -> &RequestId {
        &self.id
    }

    /// Its headers so far.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Gives it an id of one's own in place of the made one; ids of requests under way must differ.
    pub fn request_id(mut self, id: RequestId) -> Self {
        self.id = id;
        self
    }

    /// Encoding of the body, as a media type; JSON where it is left out.
    pub fn content_type(mut self, media_type: &str) -> Self {
        self.headers.set(header::CONTENT_TYPE, media_type);
        self
    }

    /// The conversation that the request belongs to.
    pub fn session(mut self, session: &SessionId) -> Self {
        self.headers.set(header::SESSION_ID, session.as_str());
        self
    }

    /// Scope of the session.
    pub fn tenant(mut self, tenant: &Tenant) -> Self {
        self.headers.set(header::TENANT, tenant.as_str());
        self
    }

    /// How long it may wait for a worker to accept it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.headers.set(header::TIMEOUT_MS, &millis(timeout).to_string());
        self.timeout = Some(timeout);
        self
    }

    /// How long the whole request may take.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.headers.set(header::DEADLINE_MS, &millis(deadline).to_string());
        self.deadline = Some(deadline);
        self
    }

    /// How long its reply stream may be silent, in place of [`super::ClientOptions::idle_timeout`].
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = Some(timeout);
        self
    }

    /// How long its first message may take once a worker was found, in place of the idle timeout: the whole of an answer
    /// that is not streamed is one message.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = Some(timeout);
        self
    }

    /// Publishes it where gateways do, so that its tenant and priority are believed by routers with untrusted frontends.
    /// Counts only with a model: that subject names one.
    pub fn trusted(mut self) -> Self {
        self.trusted = true;
        self
    }

    /// Higher first while requests queue; 0 where it is left out.
    pub fn priority(mut self, priority: i32) -> Self {
        self.headers.set(header::PRIORITY, &priority.to_string());
        self
    }

    /// Exactly this worker.
    pub fn target_worker(mut self, worker: &WorkerId) -> Self {
        self.headers.set(header::TARGET_WORKER, worker.as_str());
        self
    }

    /// Exactly this rank.
    pub fn target_rank(mut self, rank: DpRank) -> Self {
        self.headers.set(header::TARGET_DP_RANK, &rank.to_string());
        self
    }

    /// A worker of this pool.
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.headers.set(header::POOL, pool.as_str());
        self
    }

    /// Any other header; it is carried to the worker. One whose name NATS can't carry is left out.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.add(name, value);
        self
    }

    /// The same in place of all headers of that name, however they are spelled.
    pub fn replacing(mut self, name: &'static str, value: &str) -> Self {
        self.headers.replace(name, value);
        self
    }

    pub(super) fn subject(&self, subjects: &Subjects) -> String {
        match &self.model {
            Some(model) if self.trusted => subjects.trusted(model),
            Some(model) => subjects.request(model),
            None => subjects.request_of_body(),
        }
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ask::RankHint;
    use crate::core::id::{Namespace, Origin};
    use crate::wire::header::Known;
    use crate::wire::request::{Reading, RequestHead};

    #[test]
    fn a_router_reads_what_was_written() {
        let request = Request::new(Model::new("a/b.c").expect("valid"), "{}")
            .session(&SessionId::named("s").expect("valid"))
            .tenant(&Tenant::new("t").expect("valid"))
            .timeout(Duration::from_secs(3))
            .deadline(Duration::from_secs(u64::MAX))
            .priority(-2)
            .target_worker(&WorkerId::new("w").expect("valid"))
            .target_rank(DpRank(7))
            .pool(&Pool::new("east").expect("valid"))
            .content_type("application/msgpack")
            .header("traceparent", "00-1");
        let known = Known::read(request.headers.iter());
        let head = RequestHead::read(&known, Reading { trusted: true, sessions: true }).expect("valid");
        assert_eq!(head.session.map(|s| (s.id.to_string(), s.origin)), Some(("s".to_owned(), Origin::Named)));
        assert_eq!((head.tenant.as_str(), head.timeout_ms, head.deadline_ms), ("t", Some(3000), Some(u32::MAX)));
        assert_eq!((head.priority, head.pool.as_deref()), (-2, Some("east")));
        assert_eq!((head.worker_hint.as_deref(), head.rank_hint), (Some("w"), Some(RankHint::Rank(DpRank(7)))));
        assert_eq!(head.encoding, crate::wire::Encoding::MessagePack);
        assert_eq!(request.headers.find("Traceparent"), Some("00-1"));
        let subjects = Subjects::new(Namespace::new("ns").expect("valid"));
        assert_eq!(request.subject(&subjects), "ns.request.a/b%2Ec");
        assert_eq!(request.trusted().subject(&subjects), "ns.trusted.a/b%2Ec");
        assert_eq!(Request::without_model("{}").subject(&subjects), "ns.request");
    }

    #[test]
    fn ids_differ() {
        assert_ne!(Request::without_model("").id(), Request::without_model("").id());
    }
}
