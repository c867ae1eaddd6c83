//! From a message to a request: everything that can be wrong with it is found here, before anything is done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::alias::{self, Alias};
use super::answers::{Answers, Dropped};
use super::jobs::JobPart;
use super::live::Kind;
use super::permits::{self, Decide};
use super::route::Request;
use super::state::{Basis, Keys, Router};
use crate::core::ask::Ask;
use crate::core::error::RouteError;
use crate::core::hash::PinKey;
use crate::core::id::{Origin, RequestId, SessionId, Tenant};
use crate::core::kv::Prompt;
use crate::core::mode::{AffinityMode, FrontendTrust, PolicyKind};
use crate::core::partition::Partition;
use crate::core::queue::Priority;
use crate::core::session::derived::Prefixes;
use crate::nats::{Block, Message, Unsound};
use crate::telemetry::trace::Span;
use crate::wire::claim;
use crate::wire::header::Known;
use crate::wire::identity::{self, Identity, Prompts, Sessions, Source};
use crate::wire::request::{self, Reading, RequestHead};
use crate::wire::subject::{self, RequestSubject};

/// Longest hint that is repeated in an error, in characters.
const MAX_HINT_SHOWN: usize = 80;

/// What is wrong with a body that lies elsewhere and is all that would name the model.
const MODEL_ELSEWHERE: &str =
    "a request whose body travels elsewhere (Rankpin-Body) has to name its model in the subject, {ns}.request.{model}";

/// Takes a message in. `Err` is the answer to a request that can't be taken, with the id it is answered under;
/// `Ok(None)` a message that must not be answered.
pub fn admit(router: &Arc<Router>, message: Message) -> Result<Option<Box<Request>>, Refused> {
    let now = Instant::now();
    let read = message.headers().map(|headers| (Known::read(headers.iter()), headers));
    let answers = match Answers::read(router, &message, read.as_ref().ok().map(|(known, headers)| (known, *headers))) {
        Ok(answers) => answers,
        Err(why) => {
            match why {
                // It wants no answer but the server's.
                Dropped::Reply if router.subjects.is_part_probe(message.subject()) => {}
                Dropped::Reply => {
                    router.metrics.dropped_reply.inc();
                }
                Dropped::Late => router.metrics.malformed("late_request"),
            }
            return Ok(None);
        }
    };
    let (known, headers) = match read {
        Ok(read) => read,
        Err(unsound) => return Err(Refused { id: made_id(), answers, error: unreadable(unsound) }),
    };
    let id = match request::request_id(&known) {
        Ok(Some(id)) => id,
        Ok(None) => made_id(),
        Err(error) => return Err(Refused { id: made_id(), answers, error }),
    };
    let subject = router.subjects.parse_request(message.subject());
    let mut read = match read_whose(router, &message, headers, &known, subject) {
        Ok(read) => read,
        Err(error) => return Err(Refused { id, answers, error }),
    };
    if router.config.partitions.is_divided() {
        read.find_partition(router);
        match router.hand_over(&message, headers, &read, &id) {
            Ok(true) => return Ok(None),
            Ok(false) => {}
            Err(error) => return Err(Refused { id, answers, error }),
        }
    }
    match check(router, read, &answers) {
        Ok(checked) => take(router, message, id, (checked, answers), None, now).map(Some),
        Err(error) => Err(Refused { id, answers, error }),
    }
}

impl Router {
    /// What may name the session of a request.
    pub(super) fn sessions(&self) -> Sessions<'_> {
        match self.rules.mode {
            AffinityMode::Off => Sessions::Off,
            AffinityMode::Hard | AffinityMode::Soft => Sessions::On(&self.config.session),
        }
    }

    /// Whether requests are read for their prompts.
    pub(super) fn prompts(&self) -> Prompts {
        if self.rules.policy == PolicyKind::Kv { Prompts::Read } else { Prompts::Unread }
    }

    /// Whether a frontend may have replies there: under an allowed prefix, no wildcards, and not a router's own inbox,
    /// where replies would pass for events.
    pub(super) fn may_reply_to(&self, reply: &str) -> bool {
        self.config.reply_prefixes.iter().any(|prefix| reply.starts_with(prefix.as_str()))
            && memchr::memchr2(b'*', b'>', reply.as_bytes()).is_none()
            && !reply.starts_with(&self.inbox_prefix)
    }

    /// Whether the headers marked * in protocol section 3 are believed on this subject.
    pub(super) fn trusts(&self, subject: &str) -> bool {
        match self.config.frontends {
            FrontendTrust::Everywhere => true,
            FrontendTrust::TrustedSubjectOnly => {
                self.subjects.parse_request(subject).is_some_and(|parsed| parsed.trusted)
            }
        }
    }
}

/// A request that is refused before it is one.
#[derive(Debug)]
pub struct Refused {
    /// The id that it is answered under.
    pub id: RequestId,
    /// Whom it is answered to.
    pub answers: Answers,
    /// Why.
    pub error: RouteError,
}

fn unreadable(unsound: Unsound) -> RouteError {
    RouteError::InvalidRequest(format!("the message's header block can't be read: {unsound}"))
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
    trusted: bool,
    /// Whether the frontend sends the body itself.
    decides: bool,
    source: Source,
    partition: Partition,
}

impl Checked {
    /// Forgets what was read for it of a partition that nobody watches here: it is read anew.
    pub(super) fn forget_unwatched(&self, router: &Router) {
        if router.config.partitions.serves(self.partition) {
            return;
        }
        let mut state = router.state();
        let mirror = state.mirrors.of_mut(self.partition);
        match &self.keys {
            Keys::None => {}
            Keys::Named(key) => mirror.forget(*key),
            Keys::Derived(keys) => keys.iter().for_each(|key| mirror.forget(*key)),
        }
    }
}

/// A message that was read: whose it is, before anything that only the router that serves it can say.
pub(super) struct Read<'m> {
    subject: RequestSubject<'m>,
    trusted: bool,
    head: RequestHead,
    identity: Identity,
    body_size: usize,
    partition: Partition,
}

impl Read<'_> {
    /// Finds out of which partition it is; until then it is of the first, which may be the only one.
    pub(super) fn find_partition(&mut self, router: &Router) {
        self.partition = router.partition(&self.head.tenant, &self.identity);
    }

    /// The partition that it is of, and whether another router has handed it over for that.
    pub(super) fn partition(&self) -> (Partition, bool) {
        (self.partition, self.subject.handed_over)
    }

    /// Whether its frontend sends the body itself.
    pub(super) fn decides(&self) -> bool {
        self.subject.decide
    }
}

/// Reads a message, whose subject was taken apart.
pub(super) fn read_whose<'m>(
    router: &Router,
    message: &'m Message,
    headers: Block<'_>,
    known: &Known<'_>,
    subject: Option<RequestSubject<'m>>,
) -> Result<Read<'m>, RouteError> {
    let subject = subject.ok_or_else(|| {
        RouteError::InvalidRequest(format!("the subject {:?} is none that takes requests", message.subject()))
    })?;
    let trusted = router.trusts(message.subject());
    let sessions = router.rules.mode != AffinityMode::Off;
    let head = RequestHead::read(known, Reading { trusted, sessions })?;
    let named = subject.model.map(subject::decode_model).transpose();
    let named = named.map_err(|e| RouteError::InvalidRequest(e.to_string()))?;
    let sessions = if identity::is_turn(known.get("rankpin-path")) { router.sessions() } else { Sessions::Off };
    let (payload, prompts) = (message.payload(), router.prompts());
    let is_elsewhere = subject.decide || known.get("rankpin-body").is_some();
    let identity = if is_elsewhere {
        let model = named.ok_or_else(|| RouteError::InvalidRequest(MODEL_ELSEWHERE.into()))?;
        // They are the gateway's word for what the body says.
        let keys = known.get("rankpin-prefix-keys").filter(|_| subject.trusted);
        let keys = keys.map(claim::read_keys).transpose()?;
        identity::of_claim(&head, headers.iter(), model, sessions, keys)?
    } else {
        identity::find_and_read(&head, headers.iter(), payload, named, sessions, prompts)?
    };
    let elsewhere = known.get("rankpin-body-size").and_then(|size| size.parse().ok());
    let body_size = elsewhere.filter(|_| is_elsewhere).unwrap_or(payload.len());
    Ok(Read { subject, trusted, head, identity, body_size, partition: Partition::FIRST })
}

/// Finds what is wrong with a message that was read.
pub(super) fn check(router: &Router, read: Read<'_>, answers: &Answers) -> Result<Checked, RouteError> {
    let Read { subject, trusted, head, identity, body_size, partition } = read;
    // Of workers and ranks only the routers of a pool know.
    let worker_hint = head.worker_hint.as_deref().filter(|_| !router.is_global());
    let (identity, alias) = alias::resolve(router, partition, &head.tenant, worker_hint, identity)?;
    if subject.decide {
        permits::check(router, answers, &identity, alias.is_some())?;
    }
    // What a router above has been asked for stays visible.
    let asked_above = answers.above.as_ref().and_then(|above| above.alias.clone());
    let alias = asked_above.map(Alias::passed_on).or(alias);
    let keys = keys(&identity, &head.tenant);
    let Identity { model, session, group, prefixes, prompt, source, elements: _, texts: _ } = identity;
    let ask = Ask {
        tenant: head.tenant.clone(),
        session,
        group,
        worker_hint: worker_hint.map(clip),
        rank_hint: head.rank_hint.clone().filter(|_| !router.is_global()),
        pool: head.pool.as_deref().map(clip),
        home: None,
        excluded: Vec::new(),
        prompt: prompt.unwrap_or_else(|| Prompt::of_bytes(body_size)),
        model,
    };
    Ok(Checked { ask, keys, prefixes, head, alias, trusted, decides: subject.decide, source, partition })
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

fn kind(job: Option<&JobPart>, decide: Option<&Decide>) -> Kind {
    match (job, decide) {
        (Some(_), _) => Kind::Job,
        (None, Some(_)) => Kind::Decide,
        (None, None) => Kind::Request,
    }
}

/// Makes a request of a checked message, where there is room for it.
pub(super) fn take(
    router: &Arc<Router>,
    message: Message,
    id: RequestId,
    (checked, answers): (Checked, Answers),
    job: Option<JobPart>,
    now: Instant,
) -> Result<Box<Request>, Refused> {
    let priority = match job {
        Some(_) => Priority::Job(checked.head.priority),
        None => Priority::Request(checked.head.priority),
    };
    // Its session waits for its own first round here: nobody else would ever say that it goes in a circle.
    if let Some(above) = answers.above.as_ref().filter(|_| router.is_global())
        && router.state().live.was_here(&id, above.hops)
    {
        let circle =
            "the request has come here for the second time: the pools of routers at the global level lead in a circle";
        return Err(Refused { id, answers, error: RouteError::NoWorker(circle.into()) });
    }
    let decide = match checked.decides.then(|| Decide::begin(router)).transpose() {
        Ok(decide) => decide,
        Err(error) => return Err(Refused { id, answers, error }),
    };
    let kind = kind(job.as_ref(), decide.as_ref());
    let Some(seq) = router.state().live.insert(id.clone(), message.size(), kind) else {
        let full = "the router has as many requests under way as it can hold; try again later";
        let full = router.overloaded(&checked.ask, (checked.partition, &checked.keys), priority, full);
        return Err(Refused { id, answers, error: full });
    };
    let Checked { ask, keys, prefixes, head, alias, trusted, decides: _, source, partition } = checked;
    if let Some(above) = &answers.above {
        router.state().live.tell_of(seq, &above.events_to, above.hops);
    }
    let timeout = head.timeout_ms.map_or(router.config.request_timeout, |ms| Duration::from_millis(ms.into()));
    router.metrics.admitted.inc();
    let source = router.metrics.session_from(&source);
    Ok(Box::new(Request {
        router: Arc::clone(router),
        seq,
        id,
        ask,
        partition,
        keys,
        prefixes,
        message,
        alias,
        trusted,
        priority,
        accept_until: now + timeout,
        deadline: head.deadline_ms.map(|ms| (now + Duration::from_millis(ms.into()), ms.into())),
        mail: None,
        attempt: job.as_ref().map_or_else(|| answers.first_attempt(), JobPart::attempts_before),
        answers,
        job,
        decide,
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
        source,
        span: Span::default(),
    }))
}
