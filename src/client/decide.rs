//! Bodies that this frontend sends to their ranks itself (protocol section 6.4): a router is asked with the headers alone,
//! and says where the body goes. Where it can't, the request goes the usual way.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::task::AbortHandle;
use tracing::{debug, warn};

use super::{HEADROOM, Request};
use crate::core::id::{DpRank, Model, WorkerId};
use crate::core::session::named;
use crate::nats::{Block, ConnectError, Headers, Lane, Lines, Message, NO_RESPONDERS, Payload, Unsent};
use crate::wire::body::{self, Wanted};
use crate::wire::header::{self, Known};
use crate::wire::subject::Subjects;
use crate::wire::{Encoding, claim, event, identity};

/// How long nobody is asked after nobody was there to decide.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Clock skew between router and frontend that is allowed for, as at a worker.
const SKEW: Duration = Duration::from_secs(2);
/// Code word of a router's answer that the request has to go the usual way.
const UNDECIDED: &str = "undecided";
/// Model, worker and inbox that nobody has, to which is published to see whether that is allowed.
const NOBODY: &str = "rankpin-permission-check";

/// Which bodies are sent so, and whether anybody decides.
#[derive(Debug)]
pub(super) struct Decider {
    /// The least size in bytes.
    from: usize,
    quiet_until: Mutex<Option<Instant>>,
    /// The connection on which this user may do all that it takes, counted from 1; 0 for none.
    allowed_on: AtomicU64,
    checking: OnceLock<AbortHandle>,
}

/// A body that waits for its place, or for word that it arrived there.
#[derive(Debug)]
pub(super) struct Held {
    /// Where its request goes the usual way.
    subject: String,
    /// All that the request says.
    headers: Headers,
    body: Bytes,
    /// The attempt for which it was last sent; 0 for none.
    sent: AtomicU32,
}

/// What a message asks for that is about a body which is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// To publish the body where this placement says.
    Place,
    /// To say whether that was done.
    Answer,
    /// To publish the request with its body, as any other.
    Usual(WhyUsual),
}

/// Publishes what messages ask for.
#[derive(Debug)]
pub(super) struct Carrier {
    pub lane: Lane,
    pub decider: Arc<Decider>,
}

/// Why a request goes the usual way after all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhyUsual {
    /// Nobody listens for such questions.
    NobodyDecides,
    /// The router can't say where this one goes.
    Undecided,
}

impl Decider {
    /// For bodies from this size on, in bytes.
    pub fn new(from: usize) -> Self {
        Self { from, quiet_until: Mutex::default(), allowed_on: AtomicU64::new(0), checking: OnceLock::new() }
    }

    /// Finds out whether this user may do what it takes, now and on each connection that follows, until [`Self::stop`].
    pub async fn begin(self: &Arc<Self>, lane: &Lane, subjects: &Subjects) -> Result<(), ConnectError> {
        let connection = lane.state().borrow().connects;
        check(lane, subjects).await?;
        self.allowed_on.store(connection, Ordering::Relaxed);
        let checking = keep_checking(lane.clone(), subjects.clone(), Arc::clone(self), connection);
        let _ = self.checking.set(tokio::spawn(checking).abort_handle());
        Ok(())
    }

    /// Looks at no further connections.
    pub fn stop(&self) {
        if let Some(checking) = self.checking.get() {
            checking.abort();
        }
    }

    /// Whether this user is known to be allowed what it takes on this connection. A question that the server drops would
    /// never be answered.
    pub fn is_allowed_on(&self, connection: u64) -> bool {
        self.allowed_on.load(Ordering::Relaxed) == connection
    }

    /// The headers by which a router is asked where the request's body goes; `None` where it goes the usual way.
    pub fn question(&self, request: &Request, max_payload: usize) -> Option<Headers> {
        let size = request.body.len();
        let fits = size + request.headers.wire_len() + HEADROOM <= max_payload;
        let model = request.model.as_ref().filter(|_| size >= self.from && fits && !self.is_quiet())?;
        let mut headers = request.headers.clone();
        headers.set(header::BODY_SIZE, &size.to_string());
        let known = Known::read(request.headers.iter());
        if identity::is_turn(known.get("rankpin-path")) && named::resolve(|name| known.get(name)).is_none() {
            let encoding = Encoding::of(known.get("content-type"));
            // What is wrong with a body the router says, to whom it is sent the usual way.
            let reading = body::read(&request.body, encoding, Wanted { elements: true, ..Wanted::default() }).ok()?;
            if reading.previous_response_id.is_some() {
                return None;
            }
            if let Some(prefixes) = reading.prefixes(model) {
                headers.set(header::PREFIX_KEYS, &claim::write_keys(&prefixes));
            }
        }
        Some(headers)
    }

    fn is_quiet(&self) -> bool {
        let quiet_until = self.quiet_until.lock().unwrap_or_else(PoisonError::into_inner);
        quiet_until.is_some_and(|until| Instant::now() < until)
    }

    fn nobody_decides(&self) {
        let mut quiet_until = self.quiet_until.lock().unwrap_or_else(PoisonError::into_inner);
        *quiet_until = Some(Instant::now() + ASK_AGAIN_AFTER);
    }
}

/// Publishes, to nobody, all that it takes: the server tells only on the side of what it drops.
async fn check(lane: &Lane, subjects: &Subjects) -> Result<(), ConnectError> {
    // What was told before is about something else.
    let _ = lane.check_permissions();
    let model = Model::new(NOBODY).expect("letters and dashes are a name");
    let worker = WorkerId::new(NOBODY).expect("letters and dashes are an id");
    let inbox = format!("{}.{NOBODY}", subjects.router_inbox_prefix());
    for subject in [subjects.decide(&model), subjects.rank(&worker, DpRank(0)), subjects.any(&worker), inbox] {
        if let Err(error) = lane.publish(&subject, None, &Lines::new(), Payload::EMPTY) {
            debug!(%error, "what tells of permissions could not be published");
        }
    }
    lane.barrier().await.map_err(|error| match error {
        ConnectError::Permissions(lacking) => ConnectError::Permissions(format!(
            "{lacking} (bodies are to be sent to their ranks, decide_from: `rankpin nats-permissions \
             --deciding-gateway` writes users that may)"
        )),
        error @ (ConnectError::Url { .. }
        | ConnectError::Credentials { .. }
        | ConnectError::Connect { .. }
        | ConnectError::Silent(_)) => error,
    })
}

/// Checks each connection behind this one. Until it is known, bodies go the usual way.
async fn keep_checking(lane: Lane, subjects: Subjects, decider: Arc<Decider>, mut checked: u64) {
    let mut state = lane.state();
    loop {
        let unknown = state.wait_for(|state| state.connected && state.connects != checked).await;
        let Ok(connection) = unknown.map(|state| state.connects) else { return };
        match check(&lane, &subjects).await {
            Ok(()) => {
                decider.allowed_on.store(connection, Ordering::Relaxed);
                checked = connection;
            }
            Err(error @ ConnectError::Permissions(_)) => {
                warn!(%error, "large bodies go to the routers from now on");
                checked = connection;
            }
            Err(error) => {
                debug!(%error, "what this user may do is not known yet");
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
            }
        }
    }
}

impl Held {
    /// The body of a request that may go this way.
    pub fn new(request: &Request, subjects: &Subjects) -> Self {
        Self {
            subject: request.subject(subjects),
            headers: request.headers.clone(),
            body: request.body.clone(),
            sent: AtomicU32::new(0),
        }
    }

    /// The headers of the body at its placement.
    fn headers_at(&self, placement: Block<'_>) -> Lines {
        let mut lines = Lines::new();
        lines.extend(self.headers.block(), header::goes_to_worker);
        let told = |name: &str| ![header::EVENT, header::SEND_TO].iter().any(|not| name.eq_ignore_ascii_case(not));
        lines.extend(placement, told);
        lines
    }
}

/// What a message asks for; nothing where it is none about a body that is held.
pub(super) fn sort(message: &Message) -> Option<Order> {
    if message.status() == Some(NO_RESPONDERS) {
        return Some(Order::Usual(WhyUsual::NobodyDecides));
    }
    match header::find_all(message.headers().ok()?.iter(), [header::EVENT, header::SERVICE_ERROR]) {
        [Some(event::PLACED), _] => Some(Order::Place),
        [Some(event::UNACCEPTED), _] => Some(Order::Answer),
        [_, Some(UNDECIDED)] => Some(Order::Usual(WhyUsual::Undecided)),
        _ => None,
    }
}

impl Carrier {
    /// Does what a message asks for.
    pub fn carry_out(&self, held: &Held, order: Order, message: &Message) {
        let published = match order {
            Order::Place => self.place(held, message),
            Order::Answer => self.answer(held, message),
            Order::Usual(why) => {
                if why == WhyUsual::NobodyDecides {
                    self.decider.nobody_decides();
                }
                let headers = Lines::from(&held.headers);
                self.lane.publish(&held.subject, Some(message.subject()), &headers, Payload::from(&held.body))
            }
        };
        if let Err(error) = published {
            // Its permit expires, and the router says so.
            debug!(%error, "a body could not be published");
        }
    }

    fn place(&self, held: &Held, placement: &Message) -> Result<(), Unsent> {
        let block = placement.headers().unwrap_or(Block::NONE);
        let [to, attempt, accept_by] =
            header::find_all(block.iter(), [header::SEND_TO, header::ATTEMPT, header::ACCEPT_BY]);
        let attempt = attempt.and_then(|attempt| attempt.parse().ok()).unwrap_or(0);
        let late = accept_by.and_then(|ms| ms.parse().ok()).is_some_and(is_past);
        let Some(to) = to.filter(|_| !late && attempt > held.sent.load(Ordering::Relaxed)) else {
            debug!(attempt, late, "a placement is not used");
            return Ok(());
        };
        self.lane.publish(to, placement.reply(), &held.headers_at(block), Payload::from(&held.body))?;
        held.sent.store(attempt, Ordering::Relaxed);
        Ok(())
    }

    fn answer(&self, held: &Held, question: &Message) -> Result<(), Unsent> {
        let attempt = question.headers().unwrap_or(Block::NONE).find(header::ATTEMPT);
        let attempt: Option<u32> = attempt.and_then(|attempt| attempt.parse().ok());
        let (Some(reply), true) = (question.reply(), attempt == Some(held.sent.load(Ordering::Relaxed))) else {
            return Ok(());
        };
        let mut headers = Lines::new();
        headers.push(header::EVENT, event::SENT);
        self.lane.publish(reply, None, &headers, Payload::EMPTY)
    }
}

fn is_past(accept_by_ms: u64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now > Duration::from_millis(accept_by_ms).saturating_add(SKEW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::id::{Model, Namespace, SessionId};

    const MAX: usize = 1 << 20;

    fn request(body: &str) -> Request {
        Request::new(Model::new("m").expect("valid"), body.to_owned())
    }

    #[test]
    fn a_router_is_asked_with_what_it_needs_and_only_where_it_can_say() {
        let body = r#"{"messages":[{"role":"user","content":"q"}]}"#;
        let decider = Decider::new(body.len());
        let of = |request: &Request| decider.question(request, MAX);
        let derived = of(&request(body)).expect("large enough");
        let size = body.len().to_string();
        assert_eq!(derived.find("Rankpin-Body-Size"), Some(size.as_str()));
        assert!(derived.find("Rankpin-Prefix-Keys").expect("keys").ends_with(';'));
        let named = of(&request(body).session(&SessionId::named("s").expect("valid"))).expect("large enough");
        assert_eq!((named.find("Rankpin-Prefix-Keys"), named.find("Rankpin-Session-Id")), (None, Some("s")));
        let no_turn = of(&request(body).header("Rankpin-Path", "/v1/embeddings")).expect("large enough");
        assert_eq!(no_turn.find("Rankpin-Prefix-Keys"), None);
        assert!(of(&request("{}")).is_none(), "too small");
        assert!(of(&request(&format!("{body}{{"))).is_none(), "no body at all");
        assert!(of(&request(&body.replace("messages", r#"previous_response_id":"r","input"#))).is_none());
        assert!(of(&Request::without_model(body)).is_none());
        assert!(decider.question(&request(body), body.len() + HEADROOM).is_none(), "no room for headers");
        decider.nobody_decides();
        assert!(of(&request(body)).is_none(), "nobody was there a moment ago");
    }

    #[test]
    fn a_body_carries_what_the_router_would_have_written_and_its_own_headers() {
        let request =
            request("{}").header("traceparent", "t").header("Rankpin-Attempt", "9").header("Nats-Msg-Id", "n");
        let held = Held::new(&request, &Subjects::new(Namespace::new("ns").expect("valid")));
        let mut placement = Headers::new();
        for (name, value) in [("Rankpin-Event", "placed"), ("Rankpin-Send-To", "x"), ("Rankpin-Attempt", "1")] {
            placement.add(name, value);
        }
        let headers = held.headers_at(placement.block()).to_headers();
        let mut all: Vec<_> = headers.iter().collect();
        all.sort_unstable();
        assert_eq!(all, [("Rankpin-Attempt", "1"), ("traceparent", "t")]);
        assert_eq!(held.subject, "ns.request.m");
    }
}
