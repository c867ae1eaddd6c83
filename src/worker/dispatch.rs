//! A dispatched request as the worker reads it, and when it is too late for it (protocol section 6).

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use crate::core::id::{DpRank, RequestId};
use crate::nats::{Headers, Message, Subject, Unsound};
use crate::wire::header;

/// Clock skew between router and worker that is allowed for.
const SKEW: Duration = Duration::from_secs(2);
/// How long a request that is late within the skew waits for its cancel. A worker that was frozen reads the dispatch
/// when it thaws and the router's cancel right behind it; nothing of a given-up attempt may reach the caller.
pub(super) const LATE_HOLD: Duration = Duration::from_millis(100);

/// One dispatched request.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub id: RequestId,
    pub attempt: u32,
    /// The rank it came in on; none where it came on the worker's `any` subject.
    pub rank: Option<DpRank>,
    /// The router's inbox.
    pub events_to: Option<Subject>,
    /// The frontend's inbox.
    pub reply_to: Option<Subject>,
    pub session: Option<Box<str>>,
    pub decision: Option<Box<str>>,
    /// The model to run, where the frontend has asked for an alias.
    pub model: Option<Box<str>>,
    pub accept_by_ms: Option<u64>,
    pub headers: Headers,
    pub payload: Bytes,
}

/// Why a message on a rank's subject is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DispatchError {
    /// `Rankpin-Request-Id` breaks the rules of ids.
    #[error("header Rankpin-Request-Id {0}")]
    Id(#[from] crate::core::id::NameError),
    /// Its header block breaks other clients.
    #[error("its headers can't be read: {0}")]
    Headers(#[from] Unsound),
    /// A subject to be published to is none that a request may name.
    #[error("the reply subject {0:?} is no inbox")]
    Subject(String),
}

impl Dispatch {
    /// Reads a message that came in for a rank, or for any.
    pub(super) fn read(message: &Message, rank: Option<DpRank>) -> Result<Self, DispatchError> {
        let events_to = message.reply().map(inbox).transpose()?;
        let headers = message.headers()?;
        let [id, reply_to, session, decision, accept_by, attempt, model] = header::find_all(
            headers.iter(),
            [
                header::REQUEST_ID,
                header::REPLY_TO,
                header::SESSION,
                header::DECISION,
                header::ACCEPT_BY,
                header::ATTEMPT,
                header::MODEL,
            ],
        );
        let reply_to = reply_to.map(inbox).transpose()?;
        let id = match id {
            Some(id) => RequestId::new(id)?,
            None => RequestId::new(Uuid::now_v7().simple().encode_lower(&mut Uuid::encode_buffer()))?,
        };
        Ok(Self {
            id,
            attempt: attempt.and_then(|v| v.parse().ok()).unwrap_or(1),
            rank,
            events_to,
            reply_to,
            session: session.map(Into::into),
            decision: decision.map(Into::into),
            model: model.map(Into::into),
            accept_by_ms: accept_by.and_then(|v| v.parse().ok()),
            headers: headers.into(),
            payload: message.payload_bytes(),
        })
    }
}

/// A subject that a message names, where it may be published to.
fn inbox(subject: &str) -> Result<Subject, DispatchError> {
    if may_publish_to(subject) { Ok(Subject::from(subject)) } else { Err(DispatchError::Subject(subject.to_owned())) }
}

/// Whether a subject that a message names may be published to. Whoever may publish to a worker may name any subject
/// there, the server's own (`$JS.API…`, `$KV…`) included, to which they may not publish themselves.
fn may_publish_to(subject: &str) -> bool {
    let tokens_are_plain = subject.split('.').all(|token| !token.is_empty() && token != "*" && token != ">");
    tokens_are_plain
        && !subject.starts_with('$')
        && !subject.chars().any(|c| c.is_ascii_whitespace() || c.is_ascii_control())
}

/// What `Rankpin-Accept-By` says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lateness {
    /// It can be accepted.
    InTime,
    /// It is late by no more than the allowed skew: accepted unless its cancel comes within [`LATE_HOLD`].
    Late,
    /// It is dropped unaccepted.
    Expired,
}

/// Judges a request by the worker's clock; both times are unix times in ms.
pub(super) fn lateness(accept_by_ms: Option<u64>, now_ms: u64) -> Lateness {
    let Some(accept_by) = accept_by_ms else {
        return Lateness::InTime;
    };
    match u128::from(now_ms.saturating_sub(accept_by)) {
        0 => Lateness::InTime,
        late if late <= SKEW.as_millis() => Lateness::Late,
        _ => Lateness::Expired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(reply: Option<&str>, headers: &[(&str, &str)]) -> Message {
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        Message::of("rankpin.worker.w.any", reply, &format!("NATS/1.0\r\n{lines}\r\n"), b"{}")
    }

    #[test]
    fn the_skew_is_two_seconds() {
        assert_eq!(lateness(None, 9_000), Lateness::InTime);
        assert_eq!(lateness(Some(9_000), 9_000), Lateness::InTime);
        assert_eq!(lateness(Some(9_000), 9_001), Lateness::Late);
        assert_eq!(lateness(Some(9_000), 11_000), Lateness::Late);
        assert_eq!(lateness(Some(9_000), 11_001), Lateness::Expired);
        assert_eq!(lateness(Some(u64::MAX), 0), Lateness::InTime);
    }

    #[test]
    fn what_is_missing_has_a_meaning() {
        let read = Dispatch::read(&message(None, &[]), None).expect("valid");
        assert_eq!((read.attempt, read.rank, read.accept_by_ms), (1, None, None));
        assert_eq!(read.id.as_str().len(), 32);
        assert!(read.events_to.is_none() && read.reply_to.is_none());
    }

    #[test]
    fn nobody_makes_a_worker_publish_where_they_may_not() {
        for bad in ["$KV.b.k", "$JS.API.STREAM.DELETE.x", "a b", "a..b", "", "a.*", "a.>", "a\u{7f}"] {
            let by_header = Dispatch::read(&message(None, &[("Rankpin-Reply-To", bad)]), None);
            let by_reply = Dispatch::read(&message(Some(bad), &[]), None);
            assert!(by_reply.is_err(), "{bad:?}");
            // A blank header is as if missing.
            assert_eq!(by_header.is_err(), !bad.is_empty(), "{bad:?}");
        }
        assert!(Dispatch::read(&message(Some("_INBOX.a.1"), &[("Rankpin-Reply-To", "_INBOX.b")]), None).is_ok());
        assert!(Dispatch::read(&message(None, &[("Rankpin-Request-Id", "a b")]), None).is_err());
    }

    #[test]
    fn whoever_is_told_of_a_bad_request_is_looked_at_first() {
        let bad_id = [("Rankpin-Request-Id", "a b")];
        let told = |reply| Dispatch::read(&message(Some(reply), &bad_id), None).expect_err("a bad id");
        assert!(matches!(told("_INBOX.a.1"), DispatchError::Id(_)));
        assert!(matches!(told("$KV.b.k"), DispatchError::Subject(_)));
        let unsound = |reply| Message::of("rankpin.worker.w.any", Some(reply), "NATS/1.0\r\nno colon\r\n\r\n", b"{}");
        let told = |reply| Dispatch::read(&unsound(reply), None).expect_err("bad headers");
        assert!(matches!(told("_INBOX.a.1"), DispatchError::Headers(_)));
        assert!(matches!(told("$KV.b.k"), DispatchError::Subject(_)));
    }
}
