//! Header names, and how their values are found (protocol section 1): names without regard to case, values without
//! the white space around them, blanks skipped, and a fixed choice where one name stands in several spellings.

/// `Rankpin-Session-Id`: the session.
pub const SESSION_ID: &str = "Rankpin-Session-Id";
/// `Rankpin-Request-Id`: the request's id.
pub const REQUEST_ID: &str = "Rankpin-Request-Id";
/// `Rankpin-Tenant`: scope of the session.
pub const TENANT: &str = "Rankpin-Tenant";
/// `Rankpin-Timeout-Ms`: how long to wait for acceptance.
pub const TIMEOUT_MS: &str = "Rankpin-Timeout-Ms";
/// `Rankpin-Deadline-Ms`: how long the whole request may take.
pub const DEADLINE_MS: &str = "Rankpin-Deadline-Ms";
/// `Rankpin-Priority`: higher first while requests queue.
pub const PRIORITY: &str = "Rankpin-Priority";
/// `Rankpin-Target-Worker`: the worker wanted.
pub const TARGET_WORKER: &str = "Rankpin-Target-Worker";
/// `Rankpin-Target-Dp-Rank`: the rank wanted.
pub const TARGET_DP_RANK: &str = "Rankpin-Target-Dp-Rank";
/// `Rankpin-Pool`: the pool wanted.
pub const POOL: &str = "Rankpin-Pool";
/// `Rankpin-Reply-To`: where the worker sends the reply stream.
pub const REPLY_TO: &str = "Rankpin-Reply-To";
/// `Rankpin-Worker`: the placement's worker.
pub const WORKER: &str = "Rankpin-Worker";
/// `Rankpin-Dp-Rank`: the placement's rank; absent where there is none.
pub const DP_RANK: &str = "Rankpin-Dp-Rank";
/// `Rankpin-Session`: the session, for the worker.
pub const SESSION: &str = "Rankpin-Session";
/// `Rankpin-Accept-By`: unix ms after which a worker drops the request unaccepted.
pub const ACCEPT_BY: &str = "Rankpin-Accept-By";
/// `Rankpin-Attempt`: 1, 2, …
pub const ATTEMPT: &str = "Rankpin-Attempt";
/// `Rankpin-Failures`: how often a job has failed.
pub const FAILURES: &str = "Rankpin-Failures";
/// `Rankpin-Dead-Reason`: in words, why a job was given up; on its dead letter.
pub const DEAD_REASON: &str = "Rankpin-Dead-Reason";
/// `Rankpin-Decision`: why the request went where it went.
pub const DECISION: &str = "Rankpin-Decision";
/// `Rankpin-Model`: the model that the worker is to run, where the frontend has asked for an alias.
pub const MODEL: &str = "Rankpin-Model";
/// `Rankpin-Alias`: that alias.
pub const ALIAS: &str = "Rankpin-Alias";
/// `Rankpin-Hops`: how many routers at the global level a request has passed.
pub const HOPS: &str = "Rankpin-Hops";
/// `Rankpin-Prefix-Keys`: keys of a body that travels elsewhere.
pub const PREFIX_KEYS: &str = "Rankpin-Prefix-Keys";
/// `Rankpin-Path`: the HTTP path of the request, as a gateway got it.
pub const PATH: &str = "Rankpin-Path";
/// `Rankpin-Sse-Event`: the name of the server-sent event whose data a reply message is.
pub const SSE_EVENT: &str = "Rankpin-Sse-Event";
/// `Rankpin-Body`: the object that the body lies in, where a message can't hold it.
pub const BODY: &str = "Rankpin-Body";
/// `Rankpin-Body-Size`: its size in bytes.
pub const BODY_SIZE: &str = "Rankpin-Body-Size";
/// `Rankpin-Body-Digest`: its hash, `xxh3-128=` and 32 hex digits.
pub const BODY_DIGEST: &str = "Rankpin-Body-Digest";
/// `Rankpin-Send-To`: where a frontend that sends the body itself publishes it.
pub const SEND_TO: &str = "Rankpin-Send-To";
/// `Rankpin-Event`: kind of a message on the router's inbox, or of one about an attempt to a frontend that sends the body.
pub const EVENT: &str = "Rankpin-Event";
/// `Rankpin-Seq`: number of a reply message, from 0.
pub const SEQ: &str = "Rankpin-Seq";
/// `Rankpin-Final`: `true` on the last reply message.
pub const FINAL: &str = "Rankpin-Final";
/// `Rankpin-Continues`: `true` on a reply message whose payload goes on in the next one.
pub const CONTINUES: &str = "Rankpin-Continues";
/// `Rankpin-Given-Up`: `1` on a cancel of an attempt whose end the router tells, or another attempt.
pub const GIVEN_UP: &str = "Rankpin-Given-Up";
/// `Rankpin-Probe`: `1` on a probe of a worker's cancel subject.
pub const PROBE: &str = "Rankpin-Probe";
/// `Nats-Service-Error`: code word of an error.
pub const SERVICE_ERROR: &str = "Nats-Service-Error";
/// `Nats-Service-Error-Code`: status of an error.
pub const SERVICE_ERROR_CODE: &str = "Nats-Service-Error-Code";
/// `Nats-Msg-Id`: a stream takes one message of an id within its duplicate window.
pub const MSG_ID: &str = "Nats-Msg-Id";
/// `Nats-Expected-Last-Subject-Sequence`: the compare-and-set of a stream.
pub const EXPECTED_LAST_SUBJECT_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
/// `Retry-After`: seconds, with 429 and 503.
pub const RETRY_AFTER: &str = "Retry-After";
/// `Rankpin-Handed-Over`: another router has handed the request over, because it is of this one's partition.
pub const HANDED_OVER: &str = "Rankpin-Handed-Over";
/// `Content-Type`.
pub const CONTENT_TYPE: &str = "Content-Type";

/// Every header that a router reads, in lower case.
pub const NAMES: [&str; 30] = [
    "rankpin-session-id",
    "rankpin-request-id",
    "rankpin-tenant",
    "rankpin-timeout-ms",
    "rankpin-deadline-ms",
    "rankpin-priority",
    "rankpin-target-worker",
    "rankpin-target-dp-rank",
    "rankpin-pool",
    "rankpin-hops",
    "rankpin-body",
    "rankpin-body-size",
    "rankpin-prefix-keys",
    "rankpin-path",
    "content-type",
    "x-dynamo-worker-instance-id",
    "x-dynamo-dp-rank",
    "x-dp-rank",
    "x-data-parallel-rank",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "x-claude-code-agent-id",
    "thread-id",
    "x-session-id",
    "session_id",
    "x-session-affinity",
    "x-smg-routing-key",
    "x-litellm-session-id",
    "agent-session-id",
    "x-roo-task-id",
];

/// Our name of the wanted worker first, then its alias.
pub const TARGET_WORKER_NAMES: [&str; 2] = ["rankpin-target-worker", "x-dynamo-worker-instance-id"];
/// Our name of the wanted rank first, then its aliases as they count.
pub const TARGET_DP_RANK_NAMES: [&str; 4] =
    ["rankpin-target-dp-rank", "x-dynamo-dp-rank", "x-dp-rank", "x-data-parallel-rank"];

/// Headers that name a session's parent, as they count; they are read only where subagents are grouped.
pub const PARENT_NAMES: [&str; 5] = [
    "rankpin-parent-session-id",
    "x-dynamo-parent-session-id",
    "x-claude-code-parent-agent-id",
    "x-codex-parent-thread-id",
    "x-parent-session-id",
];

/// Values of the known headers of one message.
#[derive(Debug)]
pub struct Known<'h> {
    found: [Option<Found<'h>>; NAMES.len()],
    /// Which of them there are: a bit each. Most of what is asked for is not there.
    there: u32,
}

#[derive(Debug, Clone, Copy)]
struct Found<'h> {
    spelling: &'h str,
    value: &'h str,
}

impl<'h> Known<'h> {
    /// One pass over (name, value) pairs. Values of one spelling come in their order on the wire; spellings of one
    /// name may come in any order.
    pub fn read(headers: impl Iterator<Item = (&'h str, &'h str)>) -> Self {
        let (mut found, mut there) = ([None; NAMES.len()], 0);
        for (spelling, value) in headers {
            let Some(index) = index_of(spelling) else {
                continue;
            };
            let value = trimmed(value);
            if value.is_empty() {
                continue;
            }
            let slot: &mut Option<Found<'h>> = &mut found[index];
            if slot.is_none_or(|old| spelling < old.spelling) {
                *slot = Some(Found { spelling, value });
                there |= 1 << index;
            }
        }
        Self { found, there }
    }

    /// Value of a header, by its lower-case name: never blank.
    pub fn get(&self, name: &str) -> Option<&'h str> {
        let index = places(name.len(), self.there).find(|index| NAMES[*index] == name)?;
        self.found[index].map(|found| found.value)
    }

    /// Value of the first of these names that has one.
    pub fn first(&self, names: &[&str]) -> Option<&'h str> {
        names.iter().find_map(|name| self.get(name))
    }
}

fn index_of(name: &str) -> Option<usize> {
    places(name.len(), u32::MAX).find(|index| NAMES[*index].eq_ignore_ascii_case(name))
}

/// Places of the names of a length, among these: few names have the same.
fn places(length: usize, mut among: u32) -> impl Iterator<Item = usize> {
    among &= OF_LENGTH.get(length).copied().unwrap_or(0);
    std::iter::from_fn(move || {
        let place = (among != 0).then(|| among.trailing_zeros() as usize);
        among &= among.wrapping_sub(1);
        place
    })
}

/// Which of the [`NAMES`] have this length: a bit each.
const OF_LENGTH: [u32; 32] = {
    let mut of_length = [0; 32];
    let mut index = 0;
    while index < NAMES.len() {
        of_length[NAMES[index].len()] |= 1 << index;
        index += 1;
    }
    of_length
};

/// A value without the white space around it.
pub fn trimmed(value: &str) -> &str {
    let ends = (value.as_bytes().first(), value.as_bytes().last());
    match ends {
        // Most have a single space before them, and no other.
        (Some(b' '), Some(b'!'..=b'~')) if matches!(value.as_bytes().get(1), Some(b'!'..=b'~')) => &value[1..],
        (Some(b'!'..=b'~'), Some(b'!'..=b'~')) => value,
        _ => value.trim(),
    }
}

/// The first non-blank value of one header, by the same rules as [`Known`], where only one is wanted.
pub fn find<'h>(headers: impl Iterator<Item = (&'h str, &'h str)>, wanted: &str) -> Option<&'h str> {
    let [value] = find_all(headers, [wanted]);
    value
}

/// The same for several headers, in one pass.
pub fn find_all<'h, const N: usize>(
    headers: impl Iterator<Item = (&'h str, &'h str)>,
    wanted: [&str; N],
) -> [Option<&'h str>; N] {
    let mut best: [Option<Found<'h>>; N] = [None; N];
    for (spelling, value) in headers {
        let Some(index) = wanted.iter().position(|name| spelling.eq_ignore_ascii_case(name)) else {
            continue;
        };
        let value = trimmed(value);
        if !value.is_empty() && best[index].is_none_or(|old| spelling < old.spelling) {
            best[index] = Some(Found { spelling, value });
        }
    }
    best.map(|found| found.map(|found| found.value))
}

/// Whether a text can be the value of a header as it is: no control characters, nothing at its ends that is cut off.
pub fn is_value(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && !text.bytes().any(|byte| byte.is_ascii_control())
}

fn starts_with_ignore_case(name: &str, prefix: &str) -> bool {
    name.as_bytes().get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix.as_bytes()))
}

/// Whether a frontend's header goes on to the worker: all but those that start with `Nats-`, and the router's own.
pub fn goes_to_worker(name: &str) -> bool {
    const ROUTERS: [&str; 14] = [
        REQUEST_ID,
        REPLY_TO,
        WORKER,
        DP_RANK,
        SESSION,
        ACCEPT_BY,
        ATTEMPT,
        DECISION,
        MODEL,
        ALIAS,
        FAILURES,
        DEAD_REASON,
        HOPS,
        HANDED_OVER,
    ];
    !starts_with_ignore_case(name, "nats-") && !ROUTERS.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Whether a header goes along where one router hands a request over to another: all but those that start with `Nats-`, and
/// the one that says so.
pub fn goes_to_router(name: &str) -> bool {
    !starts_with_ignore_case(name, "nats-") && !name.eq_ignore_ascii_case(HANDED_OVER)
}

/// Whether a job's header stays on it when it is published again, or as a dead letter: all but those that start with
/// `Nats-`, which are about one message in one stream, and those that say how often it has been tried.
pub fn stays_on_job(name: &str) -> bool {
    const TRIED: [&str; 4] = [REQUEST_ID, ATTEMPT, FAILURES, DEAD_REASON];
    !starts_with_ignore_case(name, "nats-") && !TRIED.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Whether a plain responder's header goes on to the frontend: none that start with `Rankpin-`, and of those that
/// start with `Nats-` only its service error.
pub fn goes_to_frontend(name: &str) -> bool {
    if starts_with_ignore_case(name, "nats-") {
        return name.eq_ignore_ascii_case(SERVICE_ERROR) || name.eq_ignore_ascii_case(SERVICE_ERROR_CODE);
    }
    !starts_with_ignore_case(name, "rankpin-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::session::named;

    #[test]
    fn every_session_source_is_read() {
        for row in named::PRECEDENCE {
            assert!(index_of(row.header).is_some(), "{} is missing in NAMES", row.header);
            assert!(row.refined_by.is_none_or(|name| index_of(name).is_some()));
        }
        for name in TARGET_WORKER_NAMES.iter().chain(&TARGET_DP_RANK_NAMES) {
            assert!(index_of(name).is_some());
        }
        assert!(NAMES.iter().all(|name| *name == name.to_ascii_lowercase()));
    }

    #[test]
    fn of_one_spelling_the_first_non_blank_of_several_the_first_by_bytes() {
        let headers =
            [("thread-id", "a"), ("Thread-Id", " "), ("Thread-Id", " b "), ("Thread-Id", "c"), ("THREAD-ID", "\t")];
        assert_eq!(Known::read(headers.into_iter()).get("thread-id"), Some("b"));
        assert_eq!(Known::read(headers.into_iter().rev().take(1)).get("thread-id"), None);
        assert_eq!(find(headers.into_iter(), "Thread-ID"), Some("b"));
    }

    #[test]
    fn what_is_carried() {
        assert!(goes_to_worker("traceparent"));
        assert!(goes_to_worker("Rankpin-Session-Id"));
        assert!(!goes_to_worker("rankpin-ACCEPT-by"));
        assert!(!goes_to_worker("nats-Msg-Id"));
        assert!(goes_to_worker("Nat"));
        assert!(!goes_to_worker("rankpin-failures"));
        assert!(stays_on_job("Rankpin-Priority") && stays_on_job("traceparent"));
        assert!(!stays_on_job("nats-msg-id") && !stays_on_job("Rankpin-attempt"));
        assert!(goes_to_frontend("X-Model-Version"));
        assert!(goes_to_frontend("nats-service-error-code"));
        assert!(!goes_to_frontend("Nats-Rollup"));
        assert!(!goes_to_frontend("rankpin-final"));
    }
}
