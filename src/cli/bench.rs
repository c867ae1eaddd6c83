//! `rankpin bench`: what the router costs.

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use super::connection::{Connection, Login};
use crate::bench::{self, Accepts, Decides, Firsts, JobsToo, Options, Running, SessionsFrom};
use crate::core::id::{DpRank, Model, Namespace, WorkerId};
use crate::nats::access::Urls;

/// Measure what the router costs, against a null forwarder and against no router at all
///
/// Starts a NATS server, a router, a worker that echoes and a null forwarder, and measures in turns,
/// each time with the same bodies and one load generator that keeps so many requests in flight:
///
///   direct: generator → worker → generator. Request and reply, 2 messages. The request goes to the
///     subject of a rank with the headers that a router writes, and names no router's inbox, so the
///     worker sends no events.
///
///   null forwarder: generator → forwarder → worker → generator. 3 messages. The forwarder is a
///     queue-group subscriber that publishes each message again, unchanged: the least that anything
///     in between can do.
///
///   router: generator → router → worker → generator, sessions pinned. Request, dispatch and reply,
///     and the worker's events accepted and finished to the router: 5 messages, 4 with --accept no.
///
///   router by text (with --sessions-from both): the same, without the header that names the session.
///     The router reads the body and finds the pins of the conversation's first messages.
///
///   router decides (with --decide): the generator asks the router with the headers alone, and sends the
///     body to the rank that it says. Question, placement and a probe of the rank, the body and the
///     reply, and both events: 7 messages, of which one carries the request's body.
///
///   storing forwarder and router, first turns (with --first-turns): the forwarder stores a value in a
///     JetStream bucket for each request before it publishes it again, which is the least that a router
///     can do with a session that nobody has seen: it pins it first. 5 and 7 messages.
///
///   durable jobs (with --jobs): each is stored in the stream of jobs, pulled by the router, answered into the
///     stream of results, and acknowledged.
///
/// With --nats-url it measures a cluster that runs, and starts only the null forwarder.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// Requests in flight, several with commas between: one measurement for each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "64,512", value_parser = positive)]
    in_flight: Vec<usize>,

    /// Size of a request's body, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    payload: usize,

    /// Pinned sessions, used in turn
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    sessions: u64,

    /// What tells the router the session: a header; or both, a header and, in turns with it, the text alone. With both,
    /// each session has a conversation of its own, and every request is a late turn of one
    #[arg(long, value_enum, value_name = "WHAT", default_value = "header")]
    sessions_from: SessionsFrom,

    /// Time of each measurement
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    duration: Duration,

    /// Time before each measurement
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    warmup: Duration,

    /// Measurements of each way; the medians count
    #[arg(long, value_name = "N", default_value = "3", value_parser = positive)]
    rounds: usize,

    /// Whether the worker says accepted before it answers, or lets finished count as both
    #[arg(long, value_enum, default_value = "yes", conflicts_with = "nats_url")]
    accept: Accepts,

    /// Messages of each answer: 100 are a stream of as many tokens. The worker sends them to the generator, past the router
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "nats_url")]
    parts: u32,

    /// Bytes of an answer at most: the beginning of the request's body, since prompts are longer than their answers
    #[arg(long, value_name = "BYTES", default_value_t = 1024, conflicts_with = "nats_url")]
    answer: usize,

    /// Measure too what it costs where the router only decides (decide mode). A cluster that runs needs --decide-mode
    #[arg(long)]
    decide: bool,

    /// Measure first turns too, each of a new session
    #[arg(long, conflicts_with = "nats_url")]
    first_turns: bool,

    /// Measure durable jobs too
    #[arg(long, conflicts_with = "nats_url")]
    jobs: bool,

    /// Routers of the cluster that is started
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive, conflicts_with = "nats_url")]
    routers: usize,

    /// Print JSON in place of a table
    #[arg(long)]
    json: bool,

    /// NATS servers of a cluster that runs, with commas between
    #[arg(long, value_name = "URLS", requires_all = ["model", "worker"])]
    nats_url: Option<String>,

    /// Namespace of that cluster
    #[arg(long, value_name = "NAME", default_value = "rankpin", value_parser = Namespace::new, requires = "nats_url")]
    namespace: Namespace,

    /// Model to ask that cluster for
    #[arg(long, value_name = "NAME", value_parser = Model::new, requires = "nats_url")]
    model: Option<Model>,

    /// Worker of that cluster to ask directly; it must answer whatever it is asked
    #[arg(long, value_name = "ID", value_parser = WorkerId::new, requires = "nats_url")]
    worker: Option<WorkerId>,

    /// Rank of that worker to ask directly
    #[arg(long, value_name = "RANK", default_value_t = 0, requires = "nats_url")]
    rank: u16,

    #[command(flatten)]
    login: Login,
}

const EXAMPLES: &str = "\
Examples:
  rankpin bench
  rankpin bench --in-flight 64 --duration 2s --accept no --json
  rankpin bench --sessions-from both --payload 65536
  rankpin bench --parts 100
  rankpin bench --decide --payload 65536
  rankpin bench --first-turns --routers 3
  rankpin bench --jobs --in-flight 64
  rankpin bench --nats-url nats://127.0.0.1:4222 --model m --worker w1 --rank 4

Build with --release before you believe a number.";

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("it is a number from 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let json = args.json;
    let options = args.options()?;
    let bar = progress();
    let stop = super::signals::stop()?;
    let report = tokio::select! {
        report = bench::run(&options, |doing| bar.set_message(doing.to_owned())) => report?,
        // The run is dropped, and ends all that it started.
        () = stop => anyhow::bail!("stopped by a signal"),
    };
    bar.finish_and_clear();
    if json {
        println!("{:#}", report.json());
    } else {
        print!("{}", report.table());
    }
    report.problem().map_or(Ok(()), |problem| Err(anyhow::Error::msg(problem)))
}

impl Args {
    fn options(self) -> anyhow::Result<Options> {
        let running = match (self.nats_url, self.model, self.worker) {
            (Some(urls), Some(model), Some(worker)) => {
                let access = self.login.at(Some(Urls::new(urls)));
                let link = access.link("rankpin bench")?;
                Some(Running { link, access, namespace: self.namespace, model, worker, rank: DpRank(self.rank) })
            }
            // The arguments require each other.
            _ => None,
        };
        Ok(Options {
            in_flight: self.in_flight,
            payload: self.payload,
            sessions: self.sessions,
            sessions_from: self.sessions_from,
            warmup: self.warmup,
            duration: self.duration,
            rounds: self.rounds,
            accepts: self.accept,
            parts: self.parts,
            answer: self.answer,
            decides: if self.decide { Decides::Too } else { Decides::No },
            firsts: if self.first_turns { Firsts::Too } else { Firsts::No },
            jobs: if self.jobs { JobsToo::Yes } else { JobsToo::No },
            routers: self.routers,
            running,
        })
    }
}

/// Says on stderr what is being done; nothing where that is no terminal.
fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {elapsed} {msg}").expect("the template is valid"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Publish what comes in on one subject to another
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  rankpin bench-forwarder --nats-url nats://127.0.0.1:4222 --from a --to b")]
pub struct ForwarderArgs {
    #[command(flatten)]
    connection: Connection,

    /// Subject to subscribe to
    #[arg(long, value_name = "SUBJECT")]
    from: String,

    /// Subject to publish to
    #[arg(long, value_name = "SUBJECT")]
    to: String,

    /// Bucket in which a value is stored for each message before it is published
    #[arg(long, value_name = "BUCKET")]
    store: Option<String>,
}

pub(super) async fn run_forwarder(args: ForwarderArgs) -> anyhow::Result<()> {
    let link = args.connection.link("rankpin bench-forwarder")?;
    match &args.store {
        Some(bucket) => bench::forward_and_store(link, &args.from, &args.to, bucket).await,
        None => bench::forward(link, &args.from, &args.to).await,
    }
    .context("cannot forward")
}
