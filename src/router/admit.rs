//! From a message to a request: everything that can be wrong with it is found here, before anything is done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::alias::{self, Alias};
use super::jobs::JobPart;
use super::live::Kind;
use super::route::Request;
use super::state::{Basis, Keys, Router};
use crate::core::ask::Ask;
use crate::core::error::RouteError;
use crate::core::hash::PinKey;
use crate::core::id::{Origin, RequestId, SessionId, Tenant};
use crate::core::kv::Prompt;
use crate::core::mode::{AffinityMode, FrontendTrust, PolicyKind};
use crate::core::queue::Priority;
use crate::core::session::derived::Prefixes;
use crate::nats::lane::Unsound;
use crate::nats::{Block, Message};
use crate::wire::header::Known;
use crate::wire::identity::{self, Identity, Prompts, Sessions};
use crate::wire::request::{self, Reading, RequestHead};
use crate::wire::subject::{self, RequestSubject};

/// Longest hint that is repeated in an error, in characters.
const MAX_HINT_SHOWN: usize = 80;

/// Takes a message in. `Err` is the answer to a request that can't be taken, with the id it is answered under;
/// `Ok(None)` a message that must not be answered.
pub fn admit(router: &Arc<Router>, message: Message) -> Result<Option<Request>, Refused> {
    let now = Instant::now();
    if let Some(reply) = message.reply()
        && !router.may_reply_to(reply)
    {
        router.metrics.dropped_reply.inc();
        return Ok(None);
    }
    let headers = match message.headers() {
        Ok(headers) => headers,
        Err(unsound) => return Err(refuse(made_id(), &message, unreadable(unsound))),
    };
    let known = Known::read(headers.iter());
    let id = match request::request_id(&known) {
        Ok(Some(id)) => id,
        Ok(None) => made_id(),
        Err(error) => return Err(refuse(made_id(), &message, error)),
    };
    let subject = router.subjects.parse_request(message.subject());
    let checked = check(router, &message, headers, &known, subject);
    match checked {
        Ok(checked) => take(router, message, id, checked, None, now).map(Some),
        Err(error) => Err(refuse(id, &message, error)),
    }
}

impl Router {
    /// Whether a frontend may have replies there: under an allowed prefix, no wildcards, and not a router's own inbox,
    /// where replies would pass for events.
    fn may_reply_to(&self, reply: &str) -> bool {
        self.config.reply_prefixes.iter().any(|prefix| reply.starts_with(prefix.as_str()))
            && !reply.contains(['*', '>'])
            && !reply.starts_with(&self.inbox_prefix)
    }
}

/// A request that is refused before it is one.
#[derive(Debug)]
pub struct Refused {
    /// The id that it is answered under.
    pub id: RequestId,
    /// Where the answer goes.
    pub reply: Option<String>,
    /// Why.
    pub error: RouteError,
}

fn unreadable(unsound: Unsound) -> RouteError {
    RouteError::InvalidRequest(format!("the message's header block can't be read: {unsound}"))
}

fn refuse(id: RequestId, message: &Message, error: RouteError) -> Refused {
    Refused { id, reply: message.reply().map(str::to_owned), error }
}

fn made_id() -> RequestId {
    RequestId::new(&uuid::Uuid::now_v7().to_string()).expect("a UUID is a request id")
}

/// A message that may be a request.
pub(super) struct Checked {
    ask: Ask,
    keys: Keys,
    prefixes: Option<Prefixes>,
    head: RequestHead,
    alias: Option<Alias>,
}

/// Finds what is wrong with a message, whose subject was taken apart.
pub(super) fn check(
    router: &Router,
    message: &Message,
    headers: Block<'_>,
    known: &Known<'_>,
    subject: Option<RequestSubject<'_>>,
) -> Result<Checked, RouteError> {
    let subject = subject.ok_or_else(|| {
        RouteError::InvalidRequest(format!("the subject {:?} is none that takes requests", message.subject()))
    })?;
    let trusted = match router.config.frontends {
        FrontendTrust::Everywhere => true,
        FrontendTrust::TrustedSubjectOnly => subject.trusted,
    };
    let sessions = router.rules.mode != AffinityMode::Off;
    let head = RequestHead::read(known, Reading { trusted, sessions })?;
    let named = subject.model.map(subject::decode_model).transpose();
    let named = named.map_err(|e| RouteError::InvalidRequest(e.to_string()))?;
    let sessions = if sessions { Sessions::On(&router.config.session) } else { Sessions::Off };
    let prompts = if router.rules.policy == PolicyKind::Kv { Prompts::Read } else { Prompts::Unread };
    let identity = identity::find_and_read(&head, headers.iter(), message.payload(), named, sessions, prompts)?;
    let (identity, alias) = alias::resolve(router, &head.tenant, identity)?;
    let keys = keys(&identity, &head.tenant);
    let Identity { model, session, group, prefixes, prompt, source: _, elements: _, texts: _ } = identity;
    let ask = Ask {
        tenant: head.tenant.clone(),
        session,
        group,
        worker_hint: head.worker_hint.as_deref().map(clip),
        rank_hint: head.rank_hint.clone(),
        pool: head.pool.as_deref().map(clip),
        excluded: Vec::new(),
        prompt: prompt.unwrap_or_else(|| Prompt::of_bytes(message.payload().len())),
        model,
    };
    Ok(Checked { ask, keys, prefixes, head, alias })
}

fn keys(identity: &Identity, tenant: &Tenant) -> Keys {
    let Some(session) = &identity.session else { return Keys::None };
    let own = || PinKey::new(tenant, &identity.model, &session.id);
    match (session.origin, &identity.prefixes) {
        (Origin::Named, _) => Keys::Named(own()),
        (Origin::Derived, None) => Keys::Derived([own()].into()),
        (Origin::Derived, Some(prefixes)) => {
            let deepest_first = prefixes.strict().iter().rev().copied();
            Keys::Derived(PinKey::derived(tenant, &identity.model, deepest_first).collect())
        }
    }
}

/// The pin key of a derived key.
pub fn derived_pin_key(ask: &Ask, key: u64) -> PinKey {
    PinKey::new(&ask.tenant, &ask.model, &SessionId::derived(key))
}

fn clip(text: &str) -> Arc<str> {
    match text.char_indices().nth(MAX_HINT_SHOWN) {
        Some((end, _)) => text[..end].into(),
        None => text.into(),
    }
}

/// Makes a request of a checked message, where there is room for it.
pub(super) fn take(
    router: &Arc<Router>,
    message: Message,
    id: RequestId,
    checked: Checked,
    job: Option<JobPart>,
    now: Instant,
) -> Result<Request, Refused> {
    let priority = match job {
        Some(_) => Priority::Job(checked.head.priority),
        None => Priority::Request(checked.head.priority),
    };
    let kind = if job.is_some() { Kind::Job } else { Kind::Request };
    let Some(seq) = router.state().live.insert(id.clone(), message.size(), kind) else {
        let full = "the router has as many requests under way as it can hold; try again later";
        let full = router.overloaded(&checked.ask, &checked.keys, priority, full);
        return Err(refuse(id, &message, full));
    };
    let Checked { ask, keys, prefixes, head, alias } = checked;
    let timeout = head.timeout_ms.map_or(router.config.request_timeout, |ms| Duration::from_millis(ms.into()));
    router.metrics.admitted.inc();
    Ok(Request {
        router: Arc::clone(router),
        seq,
        id,
        ask,
        keys,
        prefixes,
        message,
        alias,
        priority,
        accept_until: now + timeout,
        deadline: head.deadline_ms.map(|ms| (now + Duration::from_millis(ms.into()), ms.into())),
        mail: None,
        attempt: job.as_ref().map_or(0, JobPart::attempts_before),
        job,
        basis: Basis::default(),
        continued: None,
        claim: None,
        claimed: None,
        later: Vec::new(),
        given_back: false,
        contested: 0,
        rechecked: false,
        last_failure: None,
        cancelled: false,
    })
}
