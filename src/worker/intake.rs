//! Everything that comes in for a worker: dispatches on its ranks' subjects, cancels, probes (protocol section 6).
//!
//! It has a connection of its own. Whoever may publish here may send a header block that kills the client library's
//! connection task; then this connection is made anew, and the registration, events and replies, which go out on
//! others, are none the wiser.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::dispatch::{Dispatch, DispatchError};
use super::engine::{Engine, Refusal};
use super::registration::Phase;
use super::replies::Events;
use super::serve::Service;
use super::slots::MAX_HELD;
use crate::core::id::{DpRank, RankRange, RequestId, WorkerId};
use crate::nats::subscriptions::Subscriptions;
use crate::nats::{ConnectError, Inbound, Link};
use crate::wire::header;
use crate::wire::subject::{ANY_QUEUE, Subjects};

/// Tasks at most: those that serve, and as many that only refuse.
const MAX_TASKS: usize = 2 * MAX_HELD;
/// Pause before subscribing is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Place of the first rank's subscription.
const FIRST_RANK: usize = 3;

/// What a worker subscribes to. The place of a subscription tells what its messages are.
#[derive(Debug)]
pub(super) struct Wanted {
    ranks: RankRange,
    subjects: Vec<(String, Option<&'static str>)>,
}

/// What a message is, by the subscription that it came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Dispatch(Option<DpRank>),
    Cancel,
    Drain,
}

impl Wanted {
    pub(super) fn new(subjects: &Subjects, worker: &WorkerId, ranks: RankRange) -> Self {
        let mut wanted = vec![
            (subjects.worker_cancel(worker), None),
            (subjects.any(worker), Some(ANY_QUEUE)),
            (subjects.worker_drain(worker), None),
        ];
        wanted.extend(ranks.iter().map(|rank| (subjects.rank(worker, rank), None)));
        Self { ranks, subjects: wanted }
    }

    pub(super) async fn open(&self, link: &Link) -> Result<Subscriptions, ConnectError> {
        Subscriptions::open(link, &self.subjects).await
    }

    /// Listens on the subjects of the ranks that are served, and on no other's: whoever publishes there learns from the
    /// server that nobody is there, and looks for another rank. An error means that the client is dead.
    async fn follow(
        &self,
        link: &Link,
        subscriptions: &mut Subscriptions,
        open: &mut [bool],
        served: &[bool],
    ) -> Result<(), ConnectError> {
        for (rank, (open, served)) in open.iter_mut().zip(served).enumerate() {
            let index = rank + FIRST_RANK;
            match (std::mem::replace(open, *served), *served) {
                (true, false) => subscriptions.close(index).await,
                (false, true) => subscriptions.add(link, index, &self.subjects[index]).await?,
                (true, true) | (false, false) => (),
            }
        }
        Ok(())
    }

    fn kind(&self, index: usize) -> Kind {
        match index {
            0 => Kind::Cancel,
            1 => Kind::Dispatch(None),
            2 => Kind::Drain,
            _ => Kind::Dispatch(Some(self.ranks.at((index - FIRST_RANK) as u64))),
        }
    }
}

/// Reads messages until told to leave; every request is served in a task of its own.
pub(super) async fn read<E: Engine>(
    service: Arc<Service<E>>,
    link: Link,
    wanted: Wanted,
    mut subscriptions: Subscriptions,
    mut phase: watch::Receiver<Phase>,
    mut served: watch::Receiver<Vec<bool>>,
) {
    let mut tasks = JoinSet::new();
    let mut open = vec![true; wanted.ranks.size() as usize];
    let leaving = async move {
        // The end of the channel is the end of the worker, too.
        let _ = phase.wait_for(|phase| *phase == Phase::Leaving).await;
    };
    let mut leaving = std::pin::pin!(leaving);
    loop {
        // Every arm may be dropped: no message or change is lost, and `leaving` is pinned outside.
        let next = tokio::select! {
            biased;
            () = &mut leaving => return,
            () = changed(&mut served) => {
                let now = served.borrow_and_update().clone();
                match wanted.follow(&link, &mut subscriptions, &mut open, &now).await {
                    Ok(()) => continue,
                    Err(_) => None,
                }
            }
            next = subscriptions.next() => next,
        };
        match next {
            Some((index, message)) => take(&service, &mut tasks, wanted.kind(index), message),
            None => {
                subscriptions = open_again(&link, &wanted, subscriptions.generation()).await;
                open.fill(true);
                served.mark_changed();
            }
        }
        while tasks.try_join_next().is_some() {}
    }
}

/// Returns when other ranks are served than before.
async fn changed(served: &mut watch::Receiver<Vec<bool>>) {
    if served.changed().await.is_err() {
        // The worker is dropped, and this with it.
        std::future::pending::<()>().await;
    }
}

/// Subscribes anew with a new client, until it stands.
async fn open_again(link: &Link, wanted: &Wanted, mut dead: u64) -> Subscriptions {
    loop {
        link.rebuild(dead).await;
        match wanted.open(link).await {
            Ok(subscriptions) => {
                info!("subscribed again");
                return subscriptions;
            }
            Err(problem) => warn!(%problem, "cannot subscribe again, trying on"),
        }
        tokio::time::sleep(RETRY_AFTER).await;
        dead = link.client().1;
    }
}

fn take<E: Engine>(service: &Arc<Service<E>>, tasks: &mut JoinSet<()>, kind: Kind, message: Inbound) {
    match kind {
        Kind::Cancel => cancel(service, &message),
        Kind::Drain => {
            let service = Arc::clone(service);
            tasks.spawn(async move { service.answer_drain(message).await });
        }
        Kind::Dispatch(rank) => {
            if tasks.len() >= MAX_TASKS {
                // Not even a refusal can be sent in time; the router hears nothing and tries elsewhere.
                debug!("dropped a request: too many tasks");
                return;
            }
            dispatch(service, tasks, rank, message);
        }
    }
}

fn cancel<E: Engine>(service: &Service<E>, message: &Inbound) {
    if message.headers.find(header::PROBE).is_some() {
        return;
    }
    let id = message.headers.find(header::REQUEST_ID).and_then(|id| RequestId::new(id).ok());
    let attempt = message.headers.find(header::ATTEMPT).and_then(|attempt| attempt.parse().ok());
    match (id, attempt) {
        (Some(id), Some(attempt)) => service.cancels.cancel((id, attempt), Instant::now()),
        (None, _) | (_, None) => debug!("ignored a cancel that names no request id and attempt"),
    }
}

fn dispatch<E: Engine>(service: &Arc<Service<E>>, tasks: &mut JoinSet<()>, rank: Option<DpRank>, message: Inbound) {
    let reply = message.reply.clone();
    match Dispatch::read(message, rank) {
        Ok(dispatch) => {
            if let Some((held, late)) = service.enter(&dispatch) {
                let service = Arc::clone(service);
                tasks.spawn(async move { service.serve(dispatch, held, late).await });
            }
        }
        Err(problem @ DispatchError::Id(_)) => {
            let events = Events::new(service.outlet.clone(), reply);
            tasks.spawn(async move { events.rejected(&Refusal::invalid(problem.to_string())).await });
        }
        Err(problem @ DispatchError::Subject(_)) => debug!(%problem, "dropped a request"),
    }
}
