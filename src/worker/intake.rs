//! Everything that comes in for a worker: dispatches on its ranks' subjects, cancels, drains (protocol section 6).
//!
//! It has a connection of its own, so that a flood of requests holds up neither events nor replies. It is a lane:
//! whoever may publish here may send a header block that would end a connection of the client library's.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::cancel::CancelReason;
use super::dispatch::{Dispatch, DispatchError};
use super::engine::{Engine, Refusal};
use super::registration::Phase;
use super::replies::Events;
use super::serve::Service;
use super::slots::MAX_HELD;
use crate::core::id::{DpRank, RankRange, RequestId, WorkerId};
use crate::nats::{Block, ConnectError, Lane, LinkOptions, Message, Subject};
use crate::wire::header;
use crate::wire::subject::{ANY_QUEUE, Subjects};

/// Tasks at most: those that serve, and as many that only refuse.
const MAX_TASKS: usize = 2 * MAX_HELD;

/// Numbers of the subscriptions. Those of the ranks follow, in their order.
const CANCELS: u64 = 0;
const ANY: u64 = 1;
const DRAINS: u64 = 2;
const FIRST_RANK: u64 = 3;

/// Where a worker listens.
#[derive(Debug, Clone)]
pub(super) struct Intake {
    lane: Lane,
    subjects: Subjects,
    worker: WorkerId,
    ranks: RankRange,
}

impl Intake {
    pub(super) async fn open(
        options: LinkOptions,
        subjects: Subjects,
        worker: WorkerId,
        ranks: RankRange,
    ) -> Result<Self, ConnectError> {
        Ok(Self { lane: Lane::open(options).await?, subjects, worker, ranks })
    }

    /// Subscribes, and waits until the server has it, which tells too whether its user may. [`Self::read`] has to run.
    pub(super) async fn listen(&self) -> Result<(), ConnectError> {
        self.lane.subscribe(CANCELS, &self.subjects.worker_cancel(&self.worker), None);
        self.lane.subscribe(ANY, &self.subjects.any(&self.worker), Some(ANY_QUEUE));
        self.lane.subscribe(DRAINS, &self.subjects.worker_drain(&self.worker), None);
        for (number, rank) in (FIRST_RANK..).zip(self.ranks.iter()) {
            self.lane.subscribe(number, &self.subjects.rank(&self.worker, rank), None);
        }
        self.lane.barrier().await
    }

    /// Reads messages until told to leave, and then until the server sends no more; every request is served in a task of
    /// its own.
    pub(super) async fn read<E: Engine>(
        self,
        service: Arc<Service<E>>,
        phase: watch::Receiver<Phase>,
        served: watch::Receiver<Vec<bool>>,
    ) {
        let mut tasks = JoinSet::new();
        let take = |message: Message| {
            while tasks.try_join_next().is_some() {}
            take(&service, &mut tasks, self.kind(message.subscription()), &message);
        };
        // The first arm never ends; where the second does, no more comes in.
        tokio::select! {
            () = self.lane.drive(take) => {}
            () = self.follow(phase, served) => {}
        }
    }

    /// Listens on the subjects of the ranks that are served, and on no other's: whoever publishes there learns from the
    /// server that nobody is there, and looks for another rank. Ends with the worker, once the server sends no more.
    async fn follow(&self, mut phase: watch::Receiver<Phase>, mut served: watch::Receiver<Vec<bool>>) {
        let mut open = vec![true; self.ranks.size() as usize];
        let leaving = async move {
            // The end of the channel is the end of the worker, too.
            let _ = phase.wait_for(|phase| *phase == Phase::Leaving).await;
        };
        let mut leaving = std::pin::pin!(leaving);
        loop {
            // Both arms may be dropped: no change is lost, and `leaving` is pinned outside.
            tokio::select! {
                biased;
                () = &mut leaving => break,
                () = changed(&mut served) => {}
            }
            let now = served.borrow_and_update().clone();
            for (((number, rank), open), now) in (FIRST_RANK..).zip(self.ranks.iter()).zip(&mut open).zip(now) {
                match (std::mem::replace(open, now), now) {
                    (true, false) => self.lane.unsubscribe(number),
                    (false, true) => self.lane.subscribe(number, &self.subjects.rank(&self.worker, rank), None),
                    (true, true) | (false, false) => (),
                }
            }
        }
        (0..FIRST_RANK + u64::from(self.ranks.size())).for_each(|number| self.lane.unsubscribe(number));
        if let Err(problem) = self.lane.barrier().await {
            debug!(%problem, "the end of the subscriptions");
        }
    }

    fn kind(&self, number: u64) -> Kind {
        match number {
            CANCELS => Kind::Cancel,
            ANY => Kind::Dispatch(None),
            DRAINS => Kind::Drain,
            rank => Kind::Dispatch(Some(self.ranks.at(rank - FIRST_RANK))),
        }
    }
}

/// What a message is, by the subscription that it came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Dispatch(Option<DpRank>),
    Cancel,
    Drain,
}

/// Returns when other ranks are served than before.
async fn changed(served: &mut watch::Receiver<Vec<bool>>) {
    if served.changed().await.is_err() {
        // The worker is dropped, and this with it.
        std::future::pending::<()>().await;
    }
}

fn take<E: Engine>(service: &Arc<Service<E>>, tasks: &mut JoinSet<()>, kind: Kind, message: &Message) {
    match kind {
        Kind::Cancel => cancel(service, message),
        // Not even a refusal can be sent in time; the router hears nothing and tries elsewhere.
        Kind::Drain | Kind::Dispatch(_) if tasks.len() >= MAX_TASKS => debug!("dropped a message: too many tasks"),
        // A server answers wherever it is told to, whoever asks it, and never with nothing.
        Kind::Drain if !message.payload().is_empty() => {
            warn!("what came on the subject of drains is none: it has a payload");
        }
        Kind::Drain => {
            let (service, reply) = (Arc::clone(service), message.reply().map(Subject::from));
            tasks.spawn(async move { service.answer_drain(reply).await });
        }
        Kind::Dispatch(rank) => dispatch(service, tasks, rank, message),
    }
}

fn cancel<E: Engine>(service: &Service<E>, message: &Message) {
    let headers = message.headers().unwrap_or(Block::NONE);
    if headers.find(header::PROBE).is_some() {
        return;
    }
    let id = headers.find(header::REQUEST_ID).and_then(|id| RequestId::new(id).ok());
    let attempt = headers.find(header::ATTEMPT).and_then(|attempt| attempt.parse().ok());
    match (id, attempt) {
        (Some(id), Some(attempt)) => {
            let given_up = headers.find(header::GIVEN_UP).is_some();
            let reason = if given_up { CancelReason::GivenUp } else { CancelReason::Asked };
            service.cancels.cancel((id, attempt), reason, Instant::now());
        }
        (None, _) | (_, None) => debug!("ignored a cancel that names no request id and attempt"),
    }
}

fn dispatch<E: Engine>(service: &Arc<Service<E>>, tasks: &mut JoinSet<()>, rank: Option<DpRank>, message: &Message) {
    match Dispatch::read(message, rank) {
        Ok(dispatch) => {
            if let Some((held, late)) = service.enter(&dispatch) {
                let service = Arc::clone(service);
                tasks.spawn(async move { service.serve(dispatch, held, late).await });
            }
        }
        Err(problem @ (DispatchError::Id(_) | DispatchError::Headers(_))) => {
            let events = Events::new(service.outlet.clone(), message.reply().map(Subject::from));
            tasks.spawn(async move { events.rejected(&Refusal::invalid(problem.to_string())).await });
        }
        Err(problem @ DispatchError::Subject(_)) => debug!(%problem, "dropped a request"),
    }
}
