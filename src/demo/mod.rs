//! The point of rankpin at a glance: the same conversations without affinity, with it, and while a worker is killed.
//!
//! A NATS server, two routers and two workers run as processes of their own; the frontends are tasks in this one. A
//! round has a namespace, workers and routers of its own, so that caches and pins start empty.

mod cluster;
pub mod conversation;
mod player;
mod report;
pub mod usage;
pub mod verdict;

use std::time::Duration;

pub use conversation::{Conversation, ConversationError};
pub use report::{round_table, summary_table};

use self::cluster::Cluster;
use self::player::{Board, Pace};
use self::verdict::{Fault, Track};
use crate::core::id::WorkerId;
use crate::local::{LocalError, NatsServer};
use crate::nats::ConnectError;

/// Share of the requests that are over before a worker is killed, as soon as it is in the middle of an answer.
const KILL_AFTER: f64 = 0.5;
/// Share of the requests after which it is killed even if it has nothing to do.
const KILL_AT_LAST: f64 = 0.75;
/// How often it is looked whether it is time for that. Answers are short, and the worker is to be killed within one.
const KILL_LOOK: Duration = Duration::from_millis(2);

/// What is played and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The conversations; all are under way at the same time.
    pub conversations: Vec<Conversation>,
    /// By how much faster than life engines answer and users type.
    pub speed: f64,
    /// Seed of the pauses that users make.
    pub seed: u64,
}

/// A round of the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// Affinity off: every request goes to the next worker.
    Off,
    /// Hard affinity.
    Hard,
    /// Hard affinity, and a worker is killed in the middle.
    Killed,
}

impl Round {
    /// All of them, in the order in which they are played.
    pub const ALL: [Self; 3] = [Self::Off, Self::Hard, Self::Killed];

    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            Self::Off => "affinity off",
            Self::Hard => "hard affinity",
            Self::Killed => "hard affinity, worker w1 killed in the middle",
        }
    }

    fn namespace(self) -> &'static str {
        match self {
            Self::Off => "demo-off",
            Self::Hard => "demo-hard",
            Self::Killed => "demo-kill",
        }
    }
}

/// What a round gave.
#[derive(Debug)]
pub struct Outcome {
    /// The round.
    pub round: Round,
    /// What the frontends saw, in the order of the conversations.
    pub tracks: Vec<Track>,
    /// What must not be.
    pub faults: Vec<Fault>,
}

/// Something that happens while the demo runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A round's processes are being started; so many requests will be sent.
    Starting(Round, usize),
    /// So many requests are over.
    Answered(usize),
    /// A worker was killed.
    Killed(WorkerId),
}

/// Why a round could not be played.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The cluster does not stand.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A frontend has no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// The server of a demo, and its directory.
#[derive(Debug)]
pub struct Stage {
    // Declared before the directory, so that the server is gone when the directory goes.
    server: NatsServer,
    dir: tempfile::TempDir,
}

impl Stage {
    /// Starts the server.
    pub async fn set() -> Result<Self, DemoError> {
        let dir = tempfile::Builder::new().prefix("rankpin-demo-").tempdir().map_err(LocalError::Files)?;
        let server = NatsServer::start(dir.path()).await?;
        Ok(Self { server, dir })
    }

    /// Plays one round. Everything that it starts is gone when it returns, and when it is dropped before.
    pub async fn play(&self, round: Round, options: &Options, tell: &dyn Fn(Event)) -> Result<Outcome, DemoError> {
        let requests = options.conversations.iter().map(|conversation| conversation.turns.len()).sum();
        tell(Event::Starting(round, requests));
        let mut cluster = Cluster::start(&self.server, self.dir.path(), round, options).await?;
        let board = Board::new(requests, tell);
        let pace = Pace::new(options.speed, options.seed);
        let playing = player::play_all(&cluster.frontends, &options.conversations, pace, &board);
        let victim = match round {
            Round::Off | Round::Hard => None,
            Round::Killed => Some(cluster.workers[0].id.clone()),
        };
        let tracks = match &victim {
            None => playing.await,
            Some(victim) => {
                let killing = async {
                    let is_time = || {
                        let share = board.share_over();
                        (share >= KILL_AFTER && board.is_answering(victim)) || share >= KILL_AT_LAST
                    };
                    while !is_time() {
                        tokio::time::sleep(KILL_LOOK).await;
                    }
                    cluster.workers[0].process.kill();
                    tell(Event::Killed(victim.clone()));
                };
                // Whatever happens to the worker, the round ends with the last answer.
                tokio::pin!(playing, killing);
                tokio::select! {
                    tracks = &mut playing => tracks,
                    () = &mut killing => playing.await,
                }
            }
        };
        let mut faults = verdict::failures(&tracks);
        match round {
            Round::Off => {}
            Round::Hard | Round::Killed => {
                faults.extend(verdict::broken_affinity(&tracks, &cluster.ranks(), victim.as_ref()));
            }
        }
        Ok(Outcome { round, tracks, faults })
    }
}
