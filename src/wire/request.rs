//! The head of a request: what a router takes from its headers (protocol section 3).

use super::Encoding;
use super::header::{self, Known};
use crate::core::ask::RankHint;
use crate::core::error::RouteError;
use crate::core::id::{DpRank, Origin, RequestId, SessionId, Tenant};
use crate::core::session::{Session, named};

/// What the headers of a request say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    /// The tenant, or none.
    pub tenant: Tenant,
    /// The session, where a header names one and affinity is on.
    pub session: Option<Session>,
    /// How long to wait for acceptance, in ms.
    pub timeout_ms: Option<u32>,
    /// How long the whole request may take, in ms.
    pub deadline_ms: Option<u32>,
    /// Higher first while requests queue.
    pub priority: i32,
    /// The worker wanted, as it came: an impossible one is simply unknown.
    pub worker_hint: Option<String>,
    /// The rank wanted.
    pub rank_hint: Option<RankHint>,
    /// The pool wanted, as it came.
    pub pool: Option<String>,
    /// Encoding of the body.
    pub encoding: Encoding,
}

/// Which headers count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Whether the headers marked * in section 3 are believed.
    pub trusted: bool,
    /// Whether a session is read: with affinity off none is.
    pub sessions: bool,
}

impl RequestHead {
    /// Reads the headers of a request, except its id ([`request_id`]).
    pub fn read(known: &Known<'_>, reading: Reading) -> Result<Self, RouteError> {
        let trusted = |name| if reading.trusted { known.get(name) } else { None };
        Ok(Self {
            tenant: tenant(trusted("rankpin-tenant"))?,
            session: if reading.sessions { session(known)? } else { None },
            timeout_ms: millis(known, "rankpin-timeout-ms", header::TIMEOUT_MS)?,
            deadline_ms: millis(known, "rankpin-deadline-ms", header::DEADLINE_MS)?,
            priority: priority(trusted("rankpin-priority"))?,
            worker_hint: known.first(&header::TARGET_WORKER_NAMES).map(str::to_owned),
            rank_hint: known.first(&header::TARGET_DP_RANK_NAMES).map(rank_hint),
            pool: known.get("rankpin-pool").map(str::to_owned),
            encoding: Encoding::of(known.get("content-type")),
        })
    }
}

/// The request's id where the frontend gave one.
pub fn request_id(known: &Known<'_>) -> Result<Option<RequestId>, RouteError> {
    known
        .get("rankpin-request-id")
        .map(|text| RequestId::new(text).map_err(|e| invalid(header::REQUEST_ID, &e)))
        .transpose()
}

fn invalid(name: &str, problem: &dyn std::fmt::Display) -> RouteError {
    RouteError::InvalidRequest(format!("header {name} {problem}"))
}

fn tenant(value: Option<&str>) -> Result<Tenant, RouteError> {
    match value {
        Some(text) => Tenant::new(text).map_err(|e| invalid(header::TENANT, &e)),
        None => Ok(Tenant::none()),
    }
}

fn session(known: &Known<'_>) -> Result<Option<Session>, RouteError> {
    let Some((name, value)) = named::resolve(|name| known.get(name)) else {
        return Ok(None);
    };
    match SessionId::named(value) {
        Ok(id) => Ok(Some(Session { id, origin: Origin::Named })),
        Err(e) => Err(RouteError::InvalidSessionId(format!("header {name}: the session id {e}"))),
    }
}

fn millis(known: &Known<'_>, lower: &str, name: &str) -> Result<Option<u32>, RouteError> {
    let Some(text) = known.get(lower) else {
        return Ok(None);
    };
    let number = if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None };
    match number {
        Some(ms) => Ok(Some(ms)),
        None => Err(invalid(name, &format_args!("is {text:?}, allowed are digits, 0 to 4294967295"))),
    }
}

fn priority(value: Option<&str>) -> Result<i32, RouteError> {
    match value {
        Some(text) => text
            .parse()
            .map_err(|_| invalid(header::PRIORITY, &format_args!("is {text:?}, allowed is an integer of 32 bits"))),
        None => Ok(0),
    }
}

fn rank_hint(text: &str) -> RankHint {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(rank) if digits => RankHint::Rank(DpRank(rank)),
        _ => RankHint::Invalid(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Reading = Reading { trusted: true, sessions: true };

    fn read(headers: &[(&str, &str)], reading: Reading) -> Result<RequestHead, RouteError> {
        RequestHead::read(&Known::read(headers.iter().copied()), reading)
    }

    #[test]
    fn values_that_break_the_rules_are_named() {
        for (name, value) in [
            ("Rankpin-Timeout-Ms", "4294967296"),
            ("Rankpin-Timeout-Ms", "+5"),
            ("Rankpin-Deadline-Ms", "1s"),
            ("Rankpin-Priority", "2147483648"),
        ] {
            let error = read(&[(name, value)], ALL).expect_err(name);
            assert_eq!(error.code(), "invalid_request");
            assert!(error.to_string().contains(name), "{error}");
        }
        let long = "x".repeat(257);
        assert_eq!(read(&[("thread-id", &long)], ALL).expect_err("too long").code(), "invalid_session_id");
        assert_eq!(read(&[("Rankpin-Tenant", "a\u{7f}")], ALL).expect_err("control").code(), "invalid_request");
    }

    #[test]
    fn untrusted_frontends_and_affinity_off_hide_headers() {
        let headers = [("Rankpin-Tenant", "t"), ("Rankpin-Priority", "x"), ("thread-id", "s")];
        let reading = Reading { trusted: false, sessions: false };
        let head = read(&headers, reading).expect("nothing of it counts");
        assert_eq!((head.tenant, head.priority, head.session), (Tenant::none(), 0, None));
    }

    #[test]
    fn hints() {
        let head = read(&[("x-dp-rank", "7"), ("X-Dynamo-Dp-Rank", " 5 ")], ALL).expect("valid");
        assert_eq!(head.rank_hint, Some(RankHint::Rank(DpRank(5))));
        for bad in ["-1", "1.0", "70000", "+1", "one"] {
            let head = read(&[("x-dp-rank", bad)], ALL).expect("judged later");
            assert_eq!(head.rank_hint, Some(RankHint::Invalid(bad.into())));
        }
    }
}
