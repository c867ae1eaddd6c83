//! Measures what the router costs: the same request straight to a worker, through a null forwarder, and through the
//! router, in turns within one run, because machines are noisy.

mod bodies;
mod cluster;
mod forwarder;
mod load;
mod report;

use std::time::Duration;

pub use cluster::Running;
pub use forwarder::{forward, forward_and_store};
pub use report::{Figures, Level, Report};

use self::bodies::{Bodies, Turn};
use self::cluster::Cluster;
use self::load::{Extent, Generator, Sample, SessionFrom};
use crate::local::LocalError;
use crate::nats::ConnectError;

/// Requests of each session that are sent to count their messages.
const COUNTED_PER_SESSION: u64 = 10;
/// In flight while nothing is measured.
const CALM_IN_FLIGHT: usize = 64;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Requests in flight, one measurement for each number.
    pub in_flight: Vec<usize>,
    /// Size of a request's body, in bytes.
    pub payload: usize,
    /// Pinned sessions, used in turn.
    pub sessions: u64,
    /// What names the sessions.
    pub sessions_from: SessionsFrom,
    /// Time before each measurement.
    pub warmup: Duration,
    /// Time of each measurement.
    pub duration: Duration,
    /// Measurements of each kind; the medians count.
    pub rounds: usize,
    /// Whether the worker says `accepted`.
    pub accepts: Accepts,
    /// Messages of each answer.
    pub parts: u32,
    /// Bytes of an answer at most; where the request's body is shorter, it is the answer.
    pub answer: usize,
    /// Whether it is measured too what it costs where the generator sends bodies to their ranks itself.
    pub decides: Decides,
    /// Whether first turns are measured too, each of a session of its own.
    pub firsts: Firsts,
    /// Whether durable jobs are measured too.
    pub jobs: JobsToo,
    /// How many routers a cluster of our own has.
    pub routers: usize,
    /// What is measured: a cluster that runs, or one of our own.
    pub running: Option<Running>,
}

/// Whether the worker says `accepted` before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Accepts {
    /// It does: five messages through the router.
    Yes,
    /// Its `finished` counts as both: four.
    No,
}

/// Whether decide mode is measured (protocol section 6.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decides {
    /// It is not.
    No,
    /// In turns with the other ways.
    Too,
}

/// Whether first turns are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firsts {
    /// They are not.
    No,
    /// In turns with the other ways.
    Too,
}

/// Whether durable jobs are measured (protocol section 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobsToo {
    /// They are not.
    No,
    /// In turns with the other ways.
    Yes,
}

/// What tells the router the session of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SessionsFrom {
    /// A header. Bodies are padded to their size: nobody reads them.
    Header,
    /// A header, and in turns with it the text alone of the same bodies. Each session has a conversation of its own.
    Both,
}

/// The way of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// Straight to a rank of the worker.
    Direct,
    /// Through a queue-group subscriber that publishes the same message again.
    Forwarded,
    /// Through the router, with pinned sessions that a header names.
    Routed,
    /// Through the router, with pinned sessions that only the text tells.
    Derived,
    /// Straight to the rank that the router says, with pinned sessions that a header names.
    Decided,
    /// Through a forwarder that stores a value for each request before it publishes it again.
    Stored,
    /// Through the router, each the first turn of a session that a header names: it is pinned before it is sent on.
    First,
    /// As a durable job, with pinned sessions that a header names.
    Job,
}

impl Way {
    /// Those of bodies that nobody reads, in the order in which they are measured.
    const OF_NAMED: [Self; 3] = [Self::Direct, Self::Forwarded, Self::Routed];

    /// The ways that are measured.
    pub fn measured(options: &Options) -> Vec<Self> {
        let mut ways = Self::OF_NAMED.to_vec();
        match options.sessions_from {
            SessionsFrom::Header => {}
            SessionsFrom::Both => ways.push(Self::Derived),
        }
        match options.decides {
            Decides::No => {}
            Decides::Too => ways.push(Self::Decided),
        }
        match options.firsts {
            Firsts::No => {}
            Firsts::Too => ways.extend([Self::Stored, Self::First]),
        }
        match options.jobs {
            JobsToo::No => {}
            JobsToo::Yes => ways.push(Self::Job),
        }
        ways
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Forwarded => "null forwarder",
            Self::Routed => "router",
            Self::Derived => "router by text",
            Self::Decided => "router decides",
            Self::Stored => "storing forwarder",
            Self::First => "router, first turns",
            Self::Job => "durable jobs",
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The cluster does not stand.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection was lost in the middle.
    #[error("the connection to NATS was lost in the middle of a measurement")]
    ConnectionLost,
    /// The bucket of the storing forwarder can't be made.
    #[error("the bucket of the storing forwarder can't be made: {0}")]
    Bucket(String),
    /// Requests fail.
    #[error("requests fail ({}): {problem}", .way.name())]
    Failing {
        /// Which ones.
        way: Way,
        /// How, for the first one.
        problem: String,
    },
    /// The conversations would take too much memory.
    #[error(
        "{sessions} conversations of {size} bytes are more than {max} bytes; take fewer sessions, or smaller bodies"
    )]
    TooLarge {
        /// How many.
        sessions: u64,
        /// The size of each.
        size: usize,
        /// The limit for all.
        max: u64,
    },
    /// A cluster that runs does not answer.
    #[error("no answer ({}) within {} s; does the worker run, does it serve the model, and is it an echo?", .way.name(), .after.as_secs())]
    NoAnswer {
        /// Which request.
        way: Way,
        /// How long it was tried.
        after: Duration,
    },
}

/// Measures. `tell` hears what is being done, for people who wait.
pub async fn run(options: &Options, mut tell: impl FnMut(&str)) -> Result<Report, BenchError> {
    tell("starting");
    let bodies = match options.sessions_from {
        SessionsFrom::Header => Bodies::padded(options.payload),
        SessionsFrom::Both => Bodies::conversations(options.sessions, options.payload)?,
    };
    let mut cluster = Cluster::start(options).await?;
    let generator = Generator::connect(cluster.link_options(), bodies).await?;
    cluster.wait_until_ready(&generator).await?;
    tell("pinning the sessions");
    pin(&cluster, &generator, options).await?;

    let mut levels = Vec::new();
    for &in_flight in &options.in_flight {
        let mut samples: Vec<(Way, Sample)> = Vec::new();
        for round in 1..=options.rounds {
            for way in Way::measured(options) {
                tell(&format!("{in_flight} in flight, round {round} of {}: {}", options.rounds, way.name()));
                let aim = cluster.aim(way, options.sessions);
                let extent = Extent::Time { warmup: options.warmup, duration: options.duration };
                let sample = generator.run(&aim, in_flight, extent, &cluster.processes(way)).await?;
                samples.push((way, sample));
            }
        }
        levels.push(Level::of(in_flight, &Way::measured(options), &samples));
    }
    tell("counting messages");
    let messages_per_request = count_messages(&cluster, &generator, options).await?;
    Ok(Report { options: options.clone(), levels, messages_per_request })
}

/// Sends what pins the sessions: of a named one any request; of one from the text its first two turns, so that what is
/// measured then is a late turn, which finds the pins of its first messages.
async fn pin(cluster: &Cluster, generator: &Generator, options: &Options) -> Result<(), BenchError> {
    let mut turns = vec![(Way::Routed, SessionFrom::Header, Turn::Late)];
    if options.sessions_from == SessionsFrom::Both {
        turns.extend([Turn::First, Turn::Second].map(|turn| (Way::Derived, SessionFrom::Text, turn)));
    }
    for (way, session, turn) in turns {
        let aim = cluster.routed(options.sessions, session, turn);
        generator.run(&aim, CALM_IN_FLIGHT, Extent::Requests(options.sessions), &[]).await?.whole(way)?;
    }
    Ok(())
}

/// Messages that the server takes in per pinned request through the router; `None` where it does not tell.
async fn count_messages(
    cluster: &Cluster,
    generator: &Generator,
    options: &Options,
) -> Result<Option<f64>, BenchError> {
    let Some(before) = cluster.messages_in().await else { return Ok(None) };
    let aim = cluster.aim(Way::Routed, options.sessions);
    let count = options.sessions.saturating_mul(COUNTED_PER_SESSION);
    generator.run(&aim, CALM_IN_FLIGHT, Extent::Requests(count), &[]).await?.whole(Way::Routed)?;
    let Some(after) = cluster.messages_in().await else { return Ok(None) };
    #[expect(clippy::cast_precision_loss, reason = "nobody sends 2^52 requests")]
    let per_request = after.saturating_sub(before) as f64 / count as f64;
    Ok(Some(per_request))
}
