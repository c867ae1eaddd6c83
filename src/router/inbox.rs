//! The inbox: what workers, and the server in their place, say of dispatched requests.

use std::time::Instant;

use super::live::{At, Live, Mail, Once, Resting, Seq};
use super::passing;
use super::seal::Topic;
use super::state::Router;
use crate::core::fleet::WorkerSlot;
use crate::core::id::{RequestId, WorkerId};
use crate::nats::{Block, ConnectError, Message, NO_RESPONDERS, writes};
use crate::wire::event::{Event, EventError, Finished};

/// What is done at once for a request at rest, once the lock is free.
enum AtOnce {
    Nothing,
    Accepted(Box<Resting>),
    Finished(Box<Resting>, Finished),
}

/// Tells a request what its worker says: where it has a task, by mail.
fn tell(live: &mut Live, event: Event) -> AtOnce {
    match event {
        Event::Accepted if live.first(Once::Accepted) => match live.hold() {
            Some(resting) => return AtOnce::Accepted(resting),
            None => live.send(Mail::Accepted),
        },
        Event::Rejected(rejection) if live.first(Once::Rejected) => live.send(Mail::Rejected(Box::new(rejection))),
        Event::Finished(finished) if live.first(Once::Ended) => match live.hold() {
            Some(resting) => return AtOnce::Finished(resting, finished),
            None => live.send(Mail::Finished(Box::new(finished))),
        },
        Event::Progress if live.at.as_ref().is_some_and(|at| at.pool && !at.accepted) && live.first(Once::Taken) => {
            live.send(Mail::Taken);
        }
        Event::Accepted | Event::Rejected(_) | Event::Finished(_) | Event::Progress => {}
    }
    AtOnce::Nothing
}

/// What a worker says of a prompt's tokens, and of those that were cached.
fn counted(finished: &Finished) -> Option<(u64, u64)> {
    Some((finished.prompt_tokens?, finished.cached_tokens?))
}

/// An accepted attempt that was given up: it is cancelled once more.
type Late = (RequestId, WorkerId, u32);

/// Number of the inbox's subscription.
const INBOX: u64 = 0;

/// Number of the subscription to what the server says of probes of partitions.
const HANDED_OVER: u64 = 1;

/// Number of the first subscription by which buckets are mirrored; the others follow.
pub const FIRST_FEED: u64 = 2;

/// Prefix of the subjects of a router's inbox on which writes to buckets are answered.
pub fn of_writes(inbox: &str) -> String {
    format!("{inbox}b")
}

/// Subscribes to this router's inbox.
pub async fn subscribe(router: &Router) -> Result<(), ConnectError> {
    router.dispatch.subscribe(INBOX, &format!("{}*", router.inbox), None);
    if router.config.partitions.is_divided() {
        router.dispatch.subscribe(HANDED_OVER, &router.hand_over_inboxes(), None);
    }
    router.dispatch.barrier().await
}

/// Takes one message of the inbox.
pub fn take(router: &Router, message: Message) {
    if let Some(feed) = message.subscription().checked_sub(FIRST_FEED) {
        return router.feed(feed, message);
    }
    if let Some((id, worker, attempt)) = router.hear(message) {
        router.give_up_at(&worker, &id, attempt);
    }
}

impl Router {
    /// Subject of the inbox on which a worker answers an attempt of a request.
    pub(super) fn inbox_of(&self, seq: Seq, attempt: u32) -> String {
        self.seal.subject(&self.inbox, Topic::Attempt, seq, attempt)
    }

    /// Subject of the inbox on which the server says that nobody listens at the rank of an attempt.
    pub(super) fn rank_inbox(&self, seq: Seq, attempt: u32) -> String {
        self.seal.subject(&self.inbox, Topic::Rank, seq, attempt)
    }

    /// Subject of the inbox on which a frontend says whether it has sent the body.
    pub(super) fn question_inbox(&self, seq: Seq, attempt: u32) -> String {
        self.seal.subject(&self.inbox, Topic::Question, seq, attempt)
    }

    /// Subject of the inbox on which the bucket answers that the pin of a request is put.
    pub(super) fn claim_inbox(&self, seq: Seq) -> String {
        self.seal.subject(&self.inbox, Topic::Claim, seq, 0)
    }

    /// Subject of the inbox on which a probe of this worker is answered by nobody but the server.
    pub(super) fn probe_inbox(&self, slot: WorkerSlot) -> String {
        let (index, generation) = slot.parts();
        self.seal.subject(&self.inbox, Topic::Probe, index.into(), generation)
    }

    /// What has no place is missed by its number, and asked for again.
    fn feed(&self, number: u64, message: Message) {
        let feed = usize::try_from(number).ok().and_then(|index| self.feeds.get(index));
        if let Some(feed) = feed {
            let _ = feed.try_send(message);
        }
    }

    fn hear(&self, message: Message) -> Option<Late> {
        let about = message.subject().strip_prefix(self.inbox.as_str()).and_then(|token| self.seal.read(token));
        match about {
            Some((Topic::Attempt, seq, attempt)) => return self.hear_of_attempt(seq, attempt, message),
            Some((Topic::Probe, index, generation)) => {
                if message.status() == Some(NO_RESPONDERS)
                    && let Ok(index) = u32::try_from(index)
                {
                    self.probe_refused(WorkerSlot::from_parts(index, generation));
                }
            }
            Some((Topic::Rank, seq, attempt)) => self.hear_of_rank(seq, attempt, &message),
            Some((Topic::Question, seq, attempt)) => self.hear_of_frontend(seq, attempt, &message),
            Some((Topic::Claim, seq, _)) => self.hear_of_claim(seq, &message),
            None => {
                if !self.pins.hear(&message) && !self.hear_of_hand_over(&message) {
                    self.metrics.malformed("inbox");
                }
            }
        }
        None
    }

    fn hear_of_claim(&self, seq: Seq, message: &Message) {
        let answer = writes::answer(message);
        let held = {
            let mut state = self.state();
            let Some(live) = state.live.get_mut(seq) else { return };
            match live.hold_claiming() {
                Some(resting) => resting,
                // It has a task by now, or is just being given one.
                None => return live.send_awake(Mail::Put(Box::new(answer))),
            }
        };
        passing::put(held, answer);
    }

    fn hear_of_attempt(&self, seq: Seq, attempt: u32, message: Message) -> Option<Late> {
        let event = match message.status() {
            Some(_) => None,
            None => Some(Event::read(message.headers().unwrap_or(Block::NONE).iter(), message.payload())),
        };
        let now = Instant::now();
        let mut state = self.state();
        let Some(live) = state.live.current(seq, attempt) else {
            if event == Some(Ok(Event::Accepted)) {
                return state.live.accepted_late(seq, attempt).map(|(id, worker)| (id, worker, attempt));
            }
            return None;
        };
        if let Some(at) = &mut live.at {
            at.heard = now;
        }
        let at = live.at.clone();
        let mut at_once = AtOnce::Nothing;
        match event {
            None => {
                let (once, mail) = live.no_responders();
                if message.status() == Some(NO_RESPONDERS) && live.first(once) {
                    live.send(mail);
                }
                return None;
            }
            Some(Ok(event)) => {
                live.note_word(now);
                let accepted = event == Event::Accepted;
                // A worker may leave `accepted` out where `finished` follows at once.
                if let Some(at) = at.as_ref().filter(|at| !at.accepted)
                    && matches!(event, Event::Accepted | Event::Finished(_))
                {
                    self.metrics.accept.observe(now.saturating_duration_since(at.sent));
                }
                let counted = if let Event::Finished(finished) = &event { counted(finished) } else { None };
                at_once = tell(live, event);
                if accepted {
                    state.accept(seq);
                }
                if let (Some(tokens), Some(at)) = (counted, &at) {
                    state.fleet.note_finished(at.slot, at.rank, at.expected, tokens, now);
                }
            }
            Some(Err(EventError::NoEvent)) if at.as_ref().is_some_and(|at| at.plain) => {
                if live.first(Once::Ended) {
                    live.send(Mail::Answer(Box::new(message)));
                }
            }
            Some(Err(EventError::NoEvent | EventError::Unknown(_))) => self.metrics.malformed("event"),
        }
        if let Some(At { slot, .. }) = at {
            state.fleet.handle_event(slot, now);
        }
        drop(state);
        match at_once {
            AtOnce::Nothing => {}
            AtOnce::Accepted(resting) => passing::accepted(resting),
            AtOnce::Finished(resting, finished) => passing::finished(*resting, &finished),
        }
        None
    }
}
