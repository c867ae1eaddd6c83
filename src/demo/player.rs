//! The frontends: each conversation turn by turn, all conversations at the same time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::Event;
use super::conversation::{Conversation, Turn};
use super::usage::{self, Usage};
use super::verdict::{Played, Track};
use crate::client::{Client, ClientError, Request, Served};
use crate::core::id::{DpRank, WorkerId};
use crate::sim::RANK_HEADER;

/// How often a request is sent again after its worker was lost.
const MAX_RESENDS: u32 = 3;
/// Longest time that a user waits before the first request, and after an answer, at speed 1.
const LONGEST_PAUSE: Duration = Duration::from_millis(600);

/// How fast users are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    longest: Duration,
    seed: u64,
}

impl Pace {
    pub fn new(speed: f64, seed: u64) -> Self {
        Self { longest: LONGEST_PAUSE.div_f64(speed), seed }
    }

    /// The pauses of one user: always the same ones for a seed.
    fn of(self, user: usize) -> impl FnMut() -> Duration {
        let mut random = StdRng::seed_from_u64(self.seed.wrapping_add(user as u64));
        move || self.longest.mul_f64(random.random_range(0.1..1.0))
    }
}

/// What is under way, for the progress display and for whoever kills a worker.
pub(super) struct Board<'t> {
    tell: &'t dyn Fn(Event),
    requests: usize,
    over: Cell<usize>,
    /// Answers under way by worker.
    answering: RefCell<BTreeMap<WorkerId, usize>>,
}

impl<'t> Board<'t> {
    pub fn new(requests: usize, tell: &'t dyn Fn(Event)) -> Self {
        Self { tell, requests, over: Cell::new(0), answering: RefCell::default() }
    }

    /// Share of the requests that are over, 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "nobody plays 2^52 requests")]
    pub fn share_over(&self) -> f64 {
        self.over.get() as f64 / self.requests as f64
    }

    /// Whether a worker is in the middle of an answer.
    pub fn is_answering(&self, worker: &WorkerId) -> bool {
        self.answering.borrow().get(worker).is_some_and(|count| *count > 0)
    }

    fn one_is_over(&self) {
        self.over.set(self.over.get() + 1);
        (self.tell)(Event::Answered(self.over.get()));
    }

    fn answering(&self, worker: &WorkerId) -> Answering<'_> {
        *self.answering.borrow_mut().entry(worker.clone()).or_default() += 1;
        Answering { counts: &self.answering, worker: worker.clone() }
    }
}

/// Counts an answer under way while it lives.
struct Answering<'b> {
    counts: &'b RefCell<BTreeMap<WorkerId, usize>>,
    worker: WorkerId,
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.counts.borrow_mut().get_mut(&self.worker) {
            *count -= 1;
        }
    }
}

/// Plays all conversations to their ends, over the frontends in turn.
pub(super) async fn play_all(
    frontends: &[Client],
    conversations: &[Conversation],
    pace: Pace,
    board: &Board<'_>,
) -> Vec<Track> {
    let users = conversations.iter().zip(frontends.iter().cycle()).enumerate();
    join_all(users.map(|(user, (conversation, client))| play(client, conversation, pace.of(user), board))).await
}

async fn play(
    client: &Client,
    conversation: &Conversation,
    mut pause: impl FnMut() -> Duration,
    board: &Board<'_>,
) -> Track {
    let mut turns = Vec::with_capacity(conversation.turns.len());
    for turn in &conversation.turns {
        tokio::time::sleep(pause()).await;
        turns.push(ask(client, turn, board).await);
        board.one_is_over();
    }
    Track { name: conversation.name.clone(), turns }
}

/// Sends one request, again where its worker was lost: only the frontend knows whether that is safe, and here it is.
async fn ask(client: &Client, turn: &Turn, board: &Board<'_>) -> Played {
    let mut lost = 0;
    let answer = loop {
        match answer(client, turn, board).await {
            Err(ClientError::Service { code, retry_after_s, .. }) if code == "worker_lost" && lost < MAX_RESENDS => {
                lost += 1;
                tokio::time::sleep(Duration::from_secs(retry_after_s.unwrap_or(1).into())).await;
            }
            other => break other,
        }
    };
    let (answer, error) = match answer {
        Ok(answer) => (answer, None),
        Err(error) => (Answer::default(), Some(error.to_string())),
    };
    let placement = answer.served.map(|served| served.placement);
    Played {
        model: turn.model.clone(),
        session: turn.session.clone(),
        served_by: placement.as_ref().and_then(|placement| placement.rank).or(answer.engine_rank),
        placement,
        lost,
        usage: answer.usage,
        error,
        ended: Instant::now(),
    }
}

#[derive(Debug, Default)]
struct Answer {
    served: Option<Served>,
    engine_rank: Option<DpRank>,
    usage: Usage,
}

async fn answer(client: &Client, turn: &Turn, board: &Board<'_>) -> Result<Answer, ClientError> {
    let mut request = Request::new(turn.model.clone(), turn.body.clone());
    for (name, value) in &turn.headers {
        request = request.header(name, value);
    }
    let mut replies = client.send(request).await?;
    let mut answer = Answer::default();
    let mut answering = None;
    while let Some(chunk) = replies.next().await {
        let chunk = chunk?;
        if answer.served.is_none() {
            answer.served = replies.served().cloned();
            answer.engine_rank = chunk.headers.find(RANK_HEADER).and_then(|rank| rank.parse().ok()).map(DpRank);
            answering = answer.served.as_ref().map(|served| board.answering(&served.placement.worker));
        }
        answer.usage = usage::of(&chunk.payload).unwrap_or(answer.usage);
    }
    drop(answering);
    Ok(answer)
}
