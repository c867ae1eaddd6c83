//! What a router answers by the NATS service protocol (`$SRV.PING|INFO|STATS`, ADR-32), and what it says of itself there
//! and on its page. `nats micro ls` shows it; `rankpin top` and `rankpin doctor` read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The service's name.
pub const NAME: &str = "rankpin-router";
/// Where all services are asked.
pub const PREFIX: &str = "$SRV";
/// Key of an INFO answer's metadata: the aliases of a router, a JSON object of lists of models by their names.
pub const ALIASES: &str = "aliases";
/// Key of every answer's metadata: the router's namespace.
pub const NAMESPACE: &str = "namespace";
/// Largest answer that is read, in bytes.
pub const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Who is there.
    Ping,
    /// What it does.
    Info,
    /// What it has done.
    Stats,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ping, Self::Info, Self::Stats];

    /// As it stands in the subject.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ping => "PING",
            Self::Info => "INFO",
            Self::Stats => "STATS",
        }
    }

    /// What the subject of a question asks of this service; `None` where it asks others.
    pub fn asked(subject: &str, id: &str) -> Option<Self> {
        let mut tokens = subject.strip_prefix(PREFIX)?.strip_prefix('.')?.split('.');
        let verb = tokens.next()?;
        let verb = Self::ALL.into_iter().find(|known| known.word() == verb)?;
        let to_us = tokens.next().is_none_or(|name| name == NAME) && tokens.next().is_none_or(|wanted| wanted == id);
        (to_us && tokens.next().is_none()).then_some(verb)
    }
}

/// What every answer begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The kind of answer.
    #[serde(rename = "type")]
    pub kind: String,
    /// The service's name.
    pub name: String,
    /// This router.
    pub id: String,
    /// Its version.
    pub version: String,
    /// Its namespace; in the answer to INFO also its aliases ([`ALIASES`]), where it has any.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// Answer to INFO.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// Who answers.
    #[serde(flatten)]
    pub head: Head,
    /// What it does, in words.
    pub description: String,
    /// Where it takes requests.
    pub endpoints: Vec<Endpoint>,
}

impl Info {
    /// Its aliases, each with the models that it leads to; none where it tells none, or nothing that can be read.
    pub fn aliases(&self) -> BTreeMap<String, Vec<String>> {
        let told = self.head.metadata.get(ALIASES);
        told.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

/// A subject on which requests are taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its name.
    pub name: String,
    /// The subject.
    pub subject: String,
    /// The queue group.
    pub queue_group: String,
    /// Nothing yet.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// Answer to STATS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Who answers.
    #[serde(flatten)]
    pub head: Head,
    /// When it started, RFC 3339.
    pub started: String,
    /// Figures, all under the first endpoint: the router counts requests, not subjects.
    pub endpoints: Vec<EndpointStats>,
}

/// Figures of an endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndpointStats {
    /// Its name.
    pub name: String,
    /// The subject.
    pub subject: String,
    /// The queue group.
    pub queue_group: String,
    /// Requests taken in.
    pub num_requests: u64,
    /// Requests that ended in an error.
    pub num_errors: u64,
    /// The last error, which routers don't keep.
    pub last_error: String,
    /// Time from dispatch to acceptance, of all attempts together, in nanoseconds.
    pub processing_time: u64,
    /// The same for one attempt.
    pub average_processing_time: u64,
    /// Everything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<RouterState>,
}

/// A router at a moment. Counts go up from its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RouterState {
    /// Version of this shape: 1.
    pub v: u32,
    /// This router.
    pub router: String,
    /// Its version.
    pub version: String,
    /// Its namespace.
    pub namespace: String,
    /// `worker` or `global`.
    pub level: String,
    /// Its affinity.
    pub affinity: String,
    /// Its policy.
    pub policy: String,
    /// Whether it takes requests.
    pub ready: bool,
    /// Milliseconds since 1970 by its clock.
    pub now_ms: u64,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// Requests.
    pub requests: RequestCounts,
    /// Decisions by reason and cause, as in `Rankpin-Decision`.
    pub decisions: BTreeMap<String, u64>,
    /// Requests by what named their session.
    pub sessions: BTreeMap<String, u64>,
    /// Prompt tokens that workers reported.
    pub prompt_tokens: u64,
    /// Of these, tokens that were cached.
    pub cached_tokens: u64,
    /// Pins.
    pub pins: PinCounts,
    /// Requests that wait for room, by model.
    pub queue: Vec<QueueState>,
    /// The workers that it knows, by name.
    pub workers: Vec<WorkerState>,
    /// Ranks that are left out, so that this stays of a size that can be sent.
    pub ranks_left_out: u64,
    /// What has happened lately, the newest last.
    pub events: Vec<Happening>,
}

/// Requests of a router.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Taken in.
    pub admitted: u64,
    /// Sent to workers, again after a failure too.
    pub dispatched: u64,
    /// Under way now.
    pub in_flight: u64,
    /// Of these, not accepted yet.
    pub waiting: u64,
    /// Of these, waiting for room.
    pub queued: u64,
    /// Ended, by outcome.
    pub ended: BTreeMap<String, u64>,
    /// Attempts that were accepted.
    pub accepted: u64,
    /// Time from dispatch to acceptance, all together, in seconds.
    pub accept_s: u64,
    /// The same in nanoseconds, below a second.
    pub accept_ns: u64,
}

/// Pins as a router sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinCounts {
    /// Mirrored.
    pub mirrored: u64,
    /// Of these, of sessions that nothing names.
    pub derived: u64,
    /// Claims that another router won.
    pub races_lost: u64,
    /// Whether the mirror has everything.
    pub fresh: bool,
    /// Whether a bucket can't be reached.
    pub unreachable: bool,
    /// The partitions, where the namespace has several; `mirrored` is those of the ones that are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<PartitionsState>,
}

/// Partitions of a namespace, and which of them a router serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionsState {
    /// How many there are.
    pub count: u16,
    /// Those that are served, such as `0-15` or `0,3,7-9`.
    pub served: String,
}

/// Requests for one model that wait for room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueState {
    /// The model.
    pub model: String,
    /// How many.
    pub waiting: u64,
}

/// A worker as a router sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerState {
    /// Its name.
    pub worker: String,
    /// Its pool.
    pub pool: String,
    /// What it serves.
    pub models: Vec<String>,
    /// `ready`, `draining`, `leaving` (its registration is gone, requests run on) or `lost` (nobody listens there).
    pub state: String,
    /// Milliseconds since it was last heard of.
    pub silent_ms: u64,
    /// Most requests in flight per rank.
    pub max_inflight: Option<u32>,
    /// Its ranks, and last what has none (`rank` is null) where there is any.
    pub ranks: Vec<RankState>,
}

/// A rank as a router sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankState {
    /// Its number; null is what the engine places itself.
    pub rank: Option<u16>,
    /// This router's requests there.
    pub own: u64,
    /// Everybody's, as the worker reports.
    pub inflight: Option<u64>,
    /// Of these, accepted and not begun.
    pub queued: Option<u64>,
    /// Share of its cache in use, in thousandths.
    pub kv_used_permille: Option<u64>,
    /// Pins that point there.
    pub pins: u64,
    /// Attempts that this router has sent there.
    pub dispatched: u64,
    /// Prompt tokens of this router's requests there, as the worker reports.
    pub prompt_tokens: u64,
    /// Of these, cached.
    pub cached_tokens: u64,
}

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happening {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Whether somebody should look.
    pub warn: bool,
    /// What.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_for_all_for_the_name_or_for_one() {
        let asked = |subject| Verb::asked(subject, "a1");
        assert_eq!(asked("$SRV.PING"), Some(Verb::Ping));
        assert_eq!(asked("$SRV.INFO.rankpin-router"), Some(Verb::Info));
        assert_eq!(asked("$SRV.STATS.rankpin-router.a1"), Some(Verb::Stats));
        for other in
            ["$SRV.STATS.rankpin-router.b2", "$SRV.PING.other", "$SRV.SCHEMA", "$SRV", "$SRV.PING.rankpin-router.a1.x"]
        {
            assert_eq!(asked(other), None, "{other}");
        }
    }
}
