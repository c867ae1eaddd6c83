//! What ranks are expected to have cached (policy `kv`): told to the other routers, and heard from them and from workers
//! that know their caches. All of it is a hint: what is lost costs a prefill, and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::state::{Router, State};
use crate::core::ask::Ask;
use crate::core::decide::Decision;
use crate::core::fleet::Note;
use crate::core::hash;
use crate::core::id::{DpRank, Origin, WorkerId};
use crate::core::kv::Expected;
use crate::core::mode::PolicyKind;
use crate::nats::{Block, Lines, Message};
use crate::wire::kv::{At, DispatchNote, KvEvents, MAX_NOTES, RouterNotes};
use crate::wire::{Encoding, header};

/// How often notes are sent.
const SHARE_EVERY: Duration = Duration::from_millis(50);
/// Most notes that wait to be sent; beyond, further ones are left out.
const MAX_WAITING: usize = 4096;
/// Most marks in one message, of some 15 bytes each.
const MAX_MARKS_SENT: usize = 16_384;

/// Notes that wait to be sent.
#[derive(Debug, Default)]
pub struct Notes {
    waiting: Vec<(At, Note)>,
}

impl State {
    /// A request goes to its placement: what is expected of it there, and what the others are told.
    pub(super) fn note_dispatch(&mut self, ask: &Ask, decision: &Decision, now: Instant) -> Expected {
        let (slot, rank) = (decision.slot, decision.placement.rank);
        let (expected, known) = self.fleet.note_dispatch(slot, rank, &ask.prompt, now);
        let marks = &ask.prompt.marks;
        let Some(last) = marks.last() else { return expected };
        if let Some(session) = ask.session.as_ref().filter(|session| session.origin == Origin::Named) {
            self.fleet.note_session(slot, rank, hash::session(session.id.as_str()), last.key);
        }
        if let Some(worker) = self.fleet.get(slot)
            && self.notes.waiting.len() < MAX_WAITING
        {
            let at = (worker.spec.id.clone(), worker.instance().clone(), rank);
            let note = Note {
                tokens: expected.tokens,
                missed: expected.tokens.saturating_sub(expected.held),
                behind: known.checked_sub(1).map(|last| marks[last]),
                tail: marks[known..].to_vec(),
            };
            self.notes.waiting.push((at, note));
        }
        expected
    }

    fn take_notes(&mut self) -> Vec<DispatchNote> {
        let mut marks = 0;
        let fits = |(_, note): &(At, Note)| {
            marks += note.tail.len();
            marks <= MAX_MARKS_SENT
        };
        let count = self.notes.waiting.iter().take(MAX_NOTES).map(fits).take_while(|fits| *fits).count();
        let told = self.notes.waiting.drain(..count);
        told.map(|(at, note)| DispatchNote::new(&at, &note)).collect()
    }
}

/// Tells the other routers of dispatches; for ever.
pub async fn share(router: Arc<Router>) {
    let mut ticks = tokio::time::interval(SHARE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        loop {
            let notes = router.state().take_notes();
            if notes.is_empty() {
                break;
            }
            router.share_notes(notes);
        }
    }
}

impl Router {
    /// Tells the others of nothing: a missing permission shows.
    pub(super) fn share_nothing(&self) {
        self.share_notes(Vec::new());
    }

    fn share_notes(&self, notes: Vec<DispatchNote>) {
        let message = RouterNotes { v: 1, router: self.inbox.clone(), notes };
        let payload = Encoding::MessagePack.encode(&message);
        self.send(&self.subjects.router_kv(), None, &Lines::new(), payload.as_slice().into());
    }

    /// Whether it goes by what ranks have cached.
    pub(super) fn weighs_caches(&self) -> bool {
        self.rules.policy == PolicyKind::Kv
    }

    /// Another router tells of its dispatches.
    pub(super) fn take_notes(&self, message: &Message) {
        match RouterNotes::parse(message.payload()) {
            Ok((router, _)) if router == self.inbox => {}
            Ok((_, notes)) => {
                let now = Instant::now();
                let mut state = self.state();
                for ((worker, instance, rank), note) in notes {
                    let found = state.fleet.find(worker.as_str());
                    let known = found.filter(|(_, worker)| *worker.instance() == instance).map(|(slot, _)| slot);
                    if let Some(slot) = known {
                        state.fleet.note_foreign(slot, rank, &note, now);
                    }
                }
            }
            Err(problem) => {
                self.metrics.malformed("router_kv");
                tracing::debug!(problem, "what another router tells of its dispatches is refused");
            }
        }
    }

    /// A worker tells what one of its ranks has cached.
    pub(super) fn take_cache_events(&self, message: &Message) {
        let headers = message.headers().unwrap_or(Block::NONE);
        let encoding = Encoding::of(headers.find(header::CONTENT_TYPE));
        let read = of_subject(message.subject()).ok_or_else(|| "the subject names no worker and rank".to_owned());
        let read = read.and_then(|at| KvEvents::parse(encoding, message.payload()).map(|events| (at, events)));
        match read {
            Ok(((worker, rank), (instance, seq, events))) => {
                let now = Instant::now();
                if self.state().fleet.handle_cache_events(&worker, rank, &instance, seq, &events, now) {
                    self.metrics.cache_events.inc();
                }
            }
            Err(problem) => {
                self.metrics.malformed("kv");
                tracing::debug!(subject = message.subject(), problem, "a message about a cache is refused");
            }
        }
    }
}

/// Worker and rank of `{ns}.kv.{worker}.{r}`.
fn of_subject(subject: &str) -> Option<(WorkerId, DpRank)> {
    let (rest, rank) = subject.rsplit_once('.')?;
    let (_, worker) = rest.rsplit_once('.')?;
    Some((WorkerId::new(worker).ok()?, DpRank(rank.parse().ok()?)))
}
