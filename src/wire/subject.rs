//! The subjects of the protocol (section 2) and the model token in them.

use std::fmt::Write as _;

use crate::core::id::{DpRank, MAX_MODEL_BYTES, Model, NameError, Namespace, RequestId, WorkerId};
use crate::core::partition::Partition;

/// Builds every subject of one namespace.
#[derive(Debug, Clone)]
pub struct Subjects {
    ns: Namespace,
}

/// A request's subject, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestSubject<'s> {
    /// The model token, still encoded; `None` where the body names the model.
    pub model: Option<&'s str>,
    /// Whether it came on `{ns}.trusted.…`, or `{ns}.decide.…`.
    pub trusted: bool,
    /// Whether it came on `{ns}.decide.…`: its frontend sends the body itself.
    pub decide: bool,
    /// Whether it came on `{ns}.part.{k}.…`: another router has handed it over.
    pub handed_over: bool,
}

impl Subjects {
    /// Subjects of a namespace.
    pub fn new(ns: Namespace) -> Self {
        Self { ns }
    }

    /// The namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.ns
    }

    /// What routers subscribe to for requests, all in queue group [`QUEUE`].
    pub fn intake(&self) -> [String; 3] {
        [format!("{}.request.>", self.ns), format!("{}.request", self.ns), format!("{}.trusted.>", self.ns)]
    }

    /// `{ns}.decide.>`, which routers in decide mode subscribe to besides.
    pub fn decides(&self) -> String {
        format!("{}.decide.>", self.ns)
    }

    /// `{ns}.decide.{model}`, where frontends ask that send the body themselves.
    pub fn decide(&self, model: &Model) -> String {
        format!("{}.decide.{}", self.ns, encode_model(model.as_str()))
    }

    /// `{ns}.trusted.{model}`, where gateways publish.
    pub fn trusted(&self, model: &Model) -> String {
        format!("{}.trusted.{}", self.ns, encode_model(model.as_str()))
    }

    /// `{ns}.request` or `{ns}.trusted`: where requests for a model go, with a dot and the model's token behind it.
    pub fn requests(&self, trusted: bool) -> String {
        format!("{}.{}", self.ns, if trusted { "trusted" } else { "request" })
    }

    /// `{ns}.request.{model}`.
    pub fn request(&self, model: &Model) -> String {
        format!("{}.request.{}", self.ns, encode_model(model.as_str()))
    }

    /// `{ns}.request`, for requests whose body names the model.
    pub fn request_of_body(&self) -> String {
        format!("{}.request", self.ns)
    }

    /// Takes the subject of a request apart; `None` where it is not one.
    pub fn parse_request<'s>(&self, subject: &'s str) -> Option<RequestSubject<'s>> {
        let rest = subject.strip_prefix(self.ns.as_str())?.strip_prefix('.')?;
        Self::parse_kind(rest, false)
    }

    fn parse_kind(rest: &str, handed_over: bool) -> Option<RequestSubject<'_>> {
        if rest == "request" {
            return Some(RequestSubject { model: None, trusted: false, decide: false, handed_over });
        }
        let (kind, model) = rest.split_once('.')?;
        let (trusted, decide) = match kind {
            "request" => (false, false),
            "trusted" => (true, false),
            "decide" => (true, true),
            PART if !handed_over => return Self::parse_kind(model.split_once('.')?.1, true),
            _ => return None,
        };
        Some(RequestSubject { model: Some(model), trusted, decide, handed_over })
    }

    /// `{ns}.part.{k}.>`, what is handed over to the routers of a partition.
    pub fn part(&self, partition: Partition) -> String {
        format!("{}.{PART}.{partition}.>", self.ns)
    }

    /// `{ns}.part.>`: the same of all partitions.
    pub fn parts(&self) -> String {
        format!("{}.{PART}.>", self.ns)
    }

    /// Where a request that came on this subject goes on to the routers of a partition.
    pub fn hand_over(&self, partition: Partition, subject: &str) -> Option<String> {
        let rest = subject.strip_prefix(self.ns.as_str())?;
        Some(format!("{}.{PART}.{partition}{rest}", self.ns))
    }

    /// `{ns}.part.{k}.probe`: whether anybody serves a partition. The message itself says nothing.
    pub fn probe_part(&self, partition: Partition) -> String {
        format!("{}.{PART}.{partition}.{PROBE}", self.ns)
    }

    /// Whether this is such a probe.
    pub fn is_part_probe(&self, subject: &str) -> bool {
        let mut rest = subject.strip_prefix(self.ns.as_str()).unwrap_or_default().split('.');
        rest.next() == Some("") && rest.next() == Some(PART) && rest.nth(1) == Some(PROBE) && rest.next().is_none()
    }

    /// `{ns}.worker.{worker}.rank.{r}`.
    pub fn rank(&self, worker: &WorkerId, rank: DpRank) -> String {
        self.of_worker(worker, ".rank.", itoa::Buffer::new().format(rank.0))
    }

    /// `{ns}.worker.{worker}.any`, for requests without a rank.
    pub fn any(&self, worker: &WorkerId) -> String {
        self.of_worker(worker, ".any", "")
    }

    /// Every request has one, so it is written without growing.
    fn of_worker(&self, worker: &WorkerId, what: &str, which: &str) -> String {
        let parts = [self.ns.as_str(), ".worker.", worker.as_str(), what, which];
        let mut subject = String::with_capacity(parts.iter().map(|part| part.len()).sum());
        // `concat` takes twice as long.
        parts.iter().for_each(|part| subject.push_str(part));
        subject
    }

    /// `{ns}.worker.{worker}.cancel`, for cancels and probes.
    pub fn worker_cancel(&self, worker: &WorkerId) -> String {
        format!("{}.worker.{worker}.cancel", self.ns)
    }

    /// `{ns}.worker.{worker}.drain`, where operators ask a worker to drain.
    pub fn worker_drain(&self, worker: &WorkerId) -> String {
        format!("{}.worker.{worker}.drain", self.ns)
    }

    /// `{ns}.cancel.{request_id}`.
    pub fn cancel(&self, request: &RequestId) -> String {
        format!("{}.cancel.{request}", self.ns)
    }

    /// Whether a subject is an inbox of some namespace's routers, such as `_INBOX_rankpin_router.…`.
    pub fn is_router_inbox(subject: &str) -> bool {
        let Some((first, rest)) = subject.split_once('.') else { return false };
        let namespace = first.strip_prefix("_INBOX_").and_then(|rest| rest.strip_suffix("_router"));
        namespace.is_some_and(|namespace| Namespace::new(namespace).is_ok())
            && rest.split('.').all(|token| !token.is_empty() && !token.contains(['*', '>', ' ', '\t', '\r', '\n']))
    }

    /// `{ns}.cancel.*`.
    pub fn cancels(&self) -> String {
        format!("{}.cancel.*", self.ns)
    }

    /// `{ns}.job.{model}`.
    pub fn job(&self, model: &Model) -> String {
        format!("{}.job.{}", self.ns, encode_model(model.as_str()))
    }

    /// `{ns}.job.>`, of the stream of jobs.
    pub fn jobs(&self) -> String {
        format!("{}.job.>", self.ns)
    }

    /// The model token of a job's subject, still encoded; `None` where it is no job's.
    pub fn parse_job<'s>(&self, subject: &'s str) -> Option<&'s str> {
        subject.strip_prefix(self.ns.as_str())?.strip_prefix(".job.")
    }

    /// `{ns}.result.{request_id}`, where a job's final message stands.
    pub fn result(&self, request: &RequestId) -> String {
        format!("{}.result.{request}", self.ns)
    }

    /// `{ns}.result.{request_id}.{attempt}`, where an attempt's parts stand.
    pub fn result_part(&self, request: &RequestId, attempt: u32) -> String {
        format!("{}.result.{request}.{attempt}", self.ns)
    }

    /// `{ns}.result.>`, of the stream of results.
    pub fn results(&self) -> String {
        format!("{}.result.>", self.ns)
    }

    /// `{ns}.result.*`: all final messages.
    pub fn final_results(&self) -> String {
        format!("{}.result.*", self.ns)
    }

    /// `{ns}.result.{request_id}.*`: the parts of all attempts.
    pub fn result_parts(&self, request: &RequestId) -> String {
        format!("{}.result.{request}.*", self.ns)
    }

    /// `{ns}.dead.{model}`, with the model token of the job's own subject.
    pub fn dead(&self, token: &str) -> String {
        format!("{}.dead.{token}", self.ns)
    }

    /// `{ns}.dead.>`, of the stream of dead letters.
    pub fn all_dead(&self) -> String {
        format!("{}.dead.>", self.ns)
    }

    /// The subject under which a dead letter was a job; `None` where it is no dead letter's.
    pub fn job_of_dead(&self, subject: &str) -> Option<String> {
        let token = subject.strip_prefix(self.ns.as_str())?.strip_prefix(".dead.")?;
        Some(format!("{}.job.{token}", self.ns))
    }

    /// The stream of jobs.
    pub fn jobs_stream(&self) -> String {
        format!("{}_jobs", self.ns)
    }

    /// The stream of results.
    pub fn results_stream(&self) -> String {
        format!("{}_results", self.ns)
    }

    /// The stream of dead letters.
    pub fn dead_stream(&self) -> String {
        format!("{}_dead", self.ns)
    }

    /// `{ns}.load.{worker}`.
    pub fn load(&self, worker: &WorkerId) -> String {
        format!("{}.load.{worker}", self.ns)
    }

    /// `{ns}.load.*`.
    pub fn loads(&self) -> String {
        format!("{}.load.*", self.ns)
    }

    /// `{ns}.kv.*.*`, what workers say of their ranks' caches.
    pub fn caches(&self) -> String {
        format!("{}.kv.*.*", self.ns)
    }

    /// `{ns}.kv.{worker}.{r}`, what a worker says of one rank's cache.
    pub fn worker_kv(&self, worker: &WorkerId, rank: DpRank) -> String {
        format!("{}.kv.{worker}.{rank}", self.ns)
    }

    /// `{ns}.router.kv`, what routers tell each other of their dispatches.
    pub fn router_kv(&self) -> String {
        format!("{}.router.kv", self.ns)
    }

    /// The bucket of registrations.
    pub fn workers_bucket(&self) -> String {
        format!("{}_workers", self.ns)
    }

    /// The bucket of pins; where there are partitions, what says how many there are, and holds nothing.
    pub fn pins_bucket(&self) -> String {
        format!("{}_pins", self.ns)
    }

    /// The bucket of the pins of a partition, where there are several.
    pub fn pins_bucket_of(&self, partition: Partition) -> String {
        format!("{}_pins_{partition}", self.ns)
    }

    /// The object store of bodies that messages can't hold.
    pub fn bodies_bucket(&self) -> String {
        format!("{}_bodies", self.ns)
    }

    /// The object store of files, of which batches are made.
    pub fn files_bucket(&self) -> String {
        format!("{}_files", self.ns)
    }

    /// The key-value bucket of batches.
    pub fn batches_bucket(&self) -> String {
        format!("{}_batches", self.ns)
    }

    /// Prefix of the inboxes on which routers hear of their dispatches. It lies under a prefix of its own, so that
    /// permissions can tell it from the inboxes of frontends.
    pub fn router_inbox_prefix(&self) -> String {
        format!("_INBOX_{}_router", self.ns)
    }
}

/// The token before the number of a partition.
const PART: &str = "part";
/// The last token of a probe of a partition.
const PROBE: &str = "probe";
/// Queue group of the routers on requests.
pub const QUEUE: &str = "router";
/// The routers' durable consumer of the stream of jobs.
pub const JOBS_CONSUMER: &str = "router";
/// Queue group of a worker's ranks on `{ns}.worker.{worker}.any`.
pub const ANY_QUEUE: &str = "any";

/// Whether a byte of a model's name stands for itself in a subject.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'/' | b':' | b'+' | b'@' | b'=')
}

/// Writes a model's name as one subject token: `meta-llama/Llama-3.1-8B` gives `meta-llama/Llama-3%2E1-8B`.
pub fn encode_model(name: &str) -> String {
    let mut token = String::with_capacity(name.len() + 8);
    for byte in name.bytes() {
        if is_plain(byte) {
            token.push(char::from(byte));
        } else {
            write!(token, "%{byte:02X}").expect("writing to a string cannot fail");
        }
    }
    token
}

/// What is wrong with a model token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelTokenError {
    /// A byte that has to be written `%XX` stands there as it is.
    #[error("the subject's model token holds {0:?}, which is written %{byte:02X}", byte = u32::from(*.0))]
    Unencoded(char),
    /// A `%` is not followed by two hex digits.
    #[error("the subject's model token has a % without two hex digits after it")]
    Percent,
    /// The decoded bytes are not UTF-8.
    #[error("the subject's model token is not UTF-8 when decoded")]
    NotUtf8,
    /// The decoded name breaks the rules of model names.
    #[error("the subject's model name {0}")]
    Name(#[from] NameError),
}

/// Reads a model token. Needless and lower-case encoding is read too.
pub fn decode_model(token: &str) -> Result<Model, ModelTokenError> {
    if !token.contains('%') {
        return match token.chars().find(|c| !(c.is_ascii() && is_plain(*c as u8))) {
            Some(found) => Err(ModelTokenError::Unencoded(found)),
            None => Ok(Model::new(token)?),
        };
    }
    if token.len() > 3 * MAX_MODEL_BYTES {
        return Err(NameError::TooLong { len: token.len() / 3, max: MAX_MODEL_BYTES }.into());
    }
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token;
    while let Some(next) = rest.chars().next() {
        if next == '%' {
            let digits = rest.get(1..3).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
            let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
            bytes.push(byte.ok_or(ModelTokenError::Percent)?);
            rest = &rest[3..];
        } else if next.is_ascii() && is_plain(next as u8) {
            bytes.push(next as u8);
            rest = &rest[1..];
        } else {
            return Err(ModelTokenError::Unencoded(next));
        }
    }
    let name = String::from_utf8(bytes).map_err(|_| ModelTokenError::NotUtf8)?;
    Ok(Model::new(&name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects() -> Subjects {
        Subjects::new(Namespace::new("rankpin").expect("valid"))
    }

    #[test]
    fn request_subjects() {
        let s = subjects();
        let parse = |subject| s.parse_request(subject);
        let none = RequestSubject { model: None, trusted: false, decide: false, handed_over: false };
        assert_eq!(parse("rankpin.request"), Some(none));
        let of = |model, trusted, decide| Some(RequestSubject { model: Some(model), trusted, decide, ..none });
        assert_eq!(parse("rankpin.request.a.b"), of("a.b", false, false));
        assert_eq!(parse("rankpin.trusted.m"), of("m", true, false));
        assert_eq!(parse("rankpin.decide.m"), of("m", true, true));
        assert_eq!(parse("rankpin.decide"), None);
        assert_eq!(parse("rankpin.trusted"), None);
        assert_eq!(parse("other.request.m"), None);
        assert_eq!(parse("rankpin.load.m"), None);
    }

    #[test]
    fn subjects_of_partitions() {
        let s = subjects();
        let third = Partition::parse("3", 4).expect("valid");
        let over = |subject| s.hand_over(third, subject).expect("of this namespace");
        for (subject, there) in [
            ("rankpin.request", "rankpin.part.3.request"),
            ("rankpin.request.m", "rankpin.part.3.request.m"),
            ("rankpin.trusted.a.b", "rankpin.part.3.trusted.a.b"),
            ("rankpin.decide.m", "rankpin.part.3.decide.m"),
        ] {
            assert_eq!(over(subject), there);
            let came = s.parse_request(subject).expect("a request's");
            assert_eq!(s.parse_request(there), Some(RequestSubject { handed_over: true, ..came }));
            assert!(!s.is_part_probe(there));
        }
        assert_eq!(s.hand_over(third, "other.request.m"), None);
        assert!(s.is_part_probe(&s.probe_part(third)));
        assert!(!s.is_part_probe("rankpin.request.probe") && !s.is_part_probe("rankpin.part.3.request.probe"));
        for none in
            ["rankpin.part.3", "rankpin.part.3.part.3.request.m", "rankpin.part.request", "rankpin.part.3.probe"]
        {
            assert_eq!(s.parse_request(none), None, "{none}");
        }
    }

    #[test]
    fn subjects_of_jobs() {
        let s = subjects();
        let (id, model) = (RequestId::new("a-1").expect("valid"), Model::new("x.y").expect("valid"));
        assert_eq!(s.parse_job(&s.job(&model)), Some("x%2Ey"));
        assert_eq!(s.parse_job("rankpin.job"), None);
        assert_eq!(s.parse_job("rankpin.jobs.m"), None);
        assert_eq!(s.job_of_dead(&s.dead("x%2Ey")), Some(s.job(&model)));
        assert_eq!(s.result_part(&id, 3), format!("{}.3", s.result(&id)));
    }

    #[test]
    fn model_tokens() {
        for name in ["m", "meta-llama/Llama-3.1-8B", "100%", "x.y*z>", "😀", "a b"] {
            let token = encode_model(name);
            assert!(!token.contains(['.', ' ', '*', '>']), "{token}");
            assert_eq!(decode_model(&token).expect("decodes").as_str(), name);
        }
        assert_eq!(decode_model("%6d").expect("lower case").as_str(), "m");
        assert_eq!(decode_model("a.b"), Err(ModelTokenError::Unencoded('.')));
        assert_eq!(decode_model("é"), Err(ModelTokenError::Unencoded('é')));
        for bad in ["%", "%4", "%zz", "%+1", "m%é"] {
            assert_eq!(decode_model(bad), Err(ModelTokenError::Percent), "{bad}");
        }
        assert_eq!(decode_model("%FF"), Err(ModelTokenError::NotUtf8));
        assert!(decode_model("").is_err());
        assert!(decode_model(&"m".repeat(257)).is_err());
        assert!(decode_model(&"%6D".repeat(256)).is_ok());
        assert!(decode_model(&"%6D".repeat(257)).is_err());
        assert_eq!(
            decode_model("a.b").unwrap_err().to_string(),
            "the subject's model token holds '.', which is written %2E"
        );
    }
}
