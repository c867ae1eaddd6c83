//! `rankpin demo`: the point of it all, at a glance.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::demo::{self, Conversation, ConversationError, DemoError, Event, Options, Outcome, Round, Stage};

/// Play conversations without affinity, with it, and while a worker is killed
///
/// Starts a NATS server, two routers and two workers with four simulated data-parallel ranks each, and
/// plays the same conversations three times. The tables show where each turn went, and how much of its
/// prompt that rank's prefix cache held. Everything that was started is gone at the end.
///
/// Exit code 1: hard affinity did not hold, a request failed that no worker had accepted, or a session
/// of the worker that stayed moved.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// File or directory of conversations, may be given several times; without it, a dozen that are built in
    #[arg(long, value_name = "PATH")]
    conversations: Vec<PathBuf>,

    /// Most conversations to play of each of these
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,

    /// By how much faster than life engines answer and users type
    #[arg(long, value_name = "FACTOR", default_value = "2", value_parser = speed)]
    speed: f64,

    /// Seed of the pauses that users make
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

const EXAMPLES: &str = "\
Examples:
  rankpin demo
  rankpin demo --conversations recorded.jsonl --limit 30 --speed 4

The form of the files is described in examples/conversations/README.md.";

fn speed(text: &str) -> Result<f64, String> {
    const RANGE: std::ops::RangeInclusive<f64> = 0.01..=1000.0;
    text.parse().ok().filter(|speed| RANGE.contains(speed)).ok_or_else(|| "it is a number from 0.01 to 1000".to_owned())
}

pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let conversations = args.load()?;
    let options = Options { conversations, speed: args.speed, seed: args.seed };
    let stop = super::signals::stop()?;
    let outcomes = tokio::select! {
        outcomes = play(&options) => outcomes?,
        // The rounds are dropped, and end all that they started.
        () = stop => anyhow::bail!("stopped by a signal"),
    };
    println!("\n{}", demo::summary_table(&outcomes));
    let faults: usize = outcomes.iter().map(|outcome| outcome.faults.len()).sum();
    anyhow::ensure!(faults == 0, "{faults} faults, listed below their rounds");
    Ok(())
}

async fn play(options: &Options) -> Result<Vec<Outcome>, DemoError> {
    let stage = Stage::set().await?;
    let mut outcomes = Vec::new();
    for (number, round) in (1..).zip(Round::ALL) {
        let display = Display::new();
        let outcome = stage.play(round, options, &|event| display.show(&event)).await?;
        display.bar.finish_and_clear();
        println!("\nRound {number}: {}\n\n{}", round.title(), demo::round_table(&outcome));
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

impl Args {
    fn load(&self) -> Result<Vec<Conversation>, ConversationError> {
        let limit = self.limit.map(|limit| limit as usize);
        if self.conversations.is_empty() {
            let mut all = demo::conversation::built_in()?;
            all.truncate(limit.unwrap_or(usize::MAX));
            return Ok(all);
        }
        let mut all = Vec::new();
        for path in &self.conversations {
            all.extend(demo::conversation::load(path, limit)?);
        }
        Ok(all)
    }
}

/// What happens, on stderr: as a bar on a terminal, as lines elsewhere.
struct Display {
    bar: ProgressBar,
    terminal: bool,
}

impl Display {
    fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        if !terminal {
            return Self { bar: ProgressBar::hidden(), terminal };
        }
        let bar = ProgressBar::new(0);
        let template = "{spinner} {elapsed} {bar:40} {pos}/{len} {msg}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar, terminal }
    }

    fn show(&self, event: &Event) {
        let say = |text: String| {
            if self.terminal {
                self.bar.set_message(text);
            } else {
                eprintln!("{text}");
            }
        };
        match event {
            Event::Starting(round, requests) => {
                self.bar.set_length(*requests as u64);
                say(format!("{}: {requests} requests", round.title()));
            }
            Event::Answered(count) => self.bar.set_position(*count as u64),
            Event::Killed(worker) => say(format!("worker {worker} killed")),
        }
    }
}
