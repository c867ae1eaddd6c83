//! `rankpin replay`: a recorded trace against simulated ranks, in virtual time.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;

use crate::core::mode::{AffinityMode, PolicyKind, RankChoice};
use crate::core::weighing::Weighing;
use crate::replay::{self, Combination, Measured, Named, Setup, Trace};

/// Play a recorded request trace against simulated ranks, in virtual time
///
/// Drives the router's own decisions, with each policy and affinity, and reference rules beside them. Prints which share of
/// the prompts' blocks was found in the ranks' prefix caches, how unevenly prompts and prefills fell, and the time to the
/// first token. No server is needed, and a seed gives the same figures each time.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The trace
    trace: PathBuf,

    /// Workers
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: u32,

    /// Ranks of each worker
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,

    /// Blocks in the prefix cache of each rank, or infinite
    #[arg(long, value_name = "N|infinite", default_value = "10000", value_parser = blocks)]
    blocks: Blocks,

    /// Tokens a second that a rank prefills
    #[arg(long, value_name = "RATE", default_value_t = 8000.0, value_parser = positive)]
    prefill_rate: f64,

    /// Tokens a second of each answer
    #[arg(long, value_name = "RATE", default_value_t = 50.0, value_parser = positive)]
    decode_rate: f64,

    /// How many times faster than recorded the requests come
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    speed: f64,

    /// Seed of every choice by chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Policies, several with commas between [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = policy)]
    policy: Vec<PolicyKind>,

    /// Affinities, several with commas between
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "hard,soft", value_parser = affinity)]
    affinity: Vec<AffinityMode>,

    /// As the router's setting of this name
    #[arg(long, value_name = "hash|least-loaded", default_value = "hash", value_parser = rank_choice)]
    rank_choice: RankChoice,

    /// As the router's setting of this name
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    pin_ttl: Duration,

    /// As the router's setting of this name
    #[arg(long, value_name = "NUMBER", default_value_t = Weighing::DEFAULT.prefill, value_parser = not_negative)]
    kv_prefill_weight: f64,

    /// As the router's setting of this name
    #[arg(long, value_name = "NUMBER", default_value_t = Weighing::DEFAULT.load, value_parser = not_negative)]
    kv_load_weight: f64,

    /// As the router's setting of this name
    #[arg(long, value_name = "NUMBER", default_value_t = Weighing::DEFAULT.temperature, value_parser = not_negative)]
    kv_temperature: f64,

    /// As the router's setting of this name
    #[arg(long, value_name = "NUMBER|off", default_value = "1.12", value_parser = limit)]
    balance_limit: Limit,

    /// As the router's setting of this name
    #[arg(long, value_name = "TIME", default_value = "4h", value_parser = humantime::parse_duration)]
    balance_half_life: Duration,

    /// Leave the reference rules out
    #[arg(long)]
    no_references: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
A trace is a file of JSON lines, compressed by gzip or not: first {\"trace\":NAME,\"block_tokens\":N}, then a request a line
in the order of time, {\"t\":SECONDS,\"session\":NAME,\"blocks\":[[FIRST,COUNT],…],\"out\":TOKENS}. The id of a block names the
whole prefix up to its end.

Examples:
  rankpin replay trace.jsonl.gz
  rankpin replay trace.jsonl.gz --policy kv,least-loaded --affinity hard,soft,off
  rankpin replay trace.jsonl.gz --workers 4 --ranks 8 --blocks infinite --rank-choice least-loaded
  rankpin replay trace.jsonl.gz --policy kv --affinity soft --balance-limit 1.3 --no-references --json";

/// Blocks of a cache; without a number without end.
#[derive(Debug, Clone, Copy)]
struct Blocks(Option<u64>);

/// A limit of recent work; without a number there is none.
#[derive(Debug, Clone, Copy)]
struct Limit(Option<f64>);

/// Prints what came of each run.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let trace = Trace::open(&args.trace).with_context(|| args.trace.display().to_string())?;
    let setup = args.setup();
    let all = measure(&trace, &setup, &args.runs());
    if args.json {
        println!("{:#}", replay::json(&trace, &setup, &all));
    } else {
        println!("{}", replay::table(&trace, &setup, &all));
    }
    Ok(())
}

impl Args {
    fn setup(&self) -> Setup {
        Setup {
            workers: self.workers,
            ranks: self.ranks,
            blocks: self.blocks.0,
            prefill_rate: self.prefill_rate,
            decode_rate: self.decode_rate,
            seed: self.seed,
            speed: self.speed,
            rank_choice: self.rank_choice,
            pin_ttl: self.pin_ttl,
            weighing: Weighing {
                prefill: self.kv_prefill_weight,
                load: self.kv_load_weight,
                temperature: self.kv_temperature,
                limit: self.balance_limit.0,
            },
            half_life: self.balance_half_life,
        }
    }

    fn runs(&self) -> Vec<Named> {
        let mut runs = vec![Named::Ideal];
        if !self.no_references {
            runs.extend(Named::references());
        }
        let every = PolicyKind::NAMED.map(|(_, policy)| policy);
        let policies = if self.policy.is_empty() { &every[..] } else { &self.policy };
        for &mode in &self.affinity {
            runs.extend(policies.iter().map(|&policy| Named::Core(Combination { mode, policy })));
        }
        runs
    }
}

/// Makes the runs on every core that there is; they have nothing in common but the trace.
fn measure(trace: &Trace, setup: &Setup, runs: &[Named]) -> Vec<Measured> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(runs.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(named) = runs.get(place) else { return };
                    let measured = replay::replay(trace, setup, named);
                    done.lock().expect("no code panics while it holds this lock").push((place, measured));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no code panics while it holds this lock");
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, measured)| measured).collect()
}

fn blocks(text: &str) -> Result<Blocks, String> {
    if text == "infinite" {
        return Ok(Blocks(None));
    }
    let parsed = text.parse().ok().filter(|blocks| (1..=1 << 32).contains(blocks));
    parsed.map(|blocks| Blocks(Some(blocks))).ok_or_else(|| "write a number of blocks, 1 or more, or infinite".into())
}

fn limit(text: &str) -> Result<Limit, String> {
    if text == "off" {
        return Ok(Limit(None));
    }
    let parsed = text.parse().ok().filter(|limit: &f64| (1.01..=100.0).contains(limit));
    parsed.map(|limit| Limit(Some(limit))).ok_or_else(|| "write a number from 1.01 to 100, or off".into())
}

fn positive(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    parsed.ok_or_else(|| "write a number above 0".into())
}

fn not_negative(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|number: &f64| (0.0..=1000.0).contains(number));
    parsed.ok_or_else(|| "write a number from 0 to 1000".into())
}

fn policy(text: &str) -> Result<PolicyKind, String> {
    named(text, &PolicyKind::NAMED)
}

fn affinity(text: &str) -> Result<AffinityMode, String> {
    named(text, &AffinityMode::NAMED)
}

fn rank_choice(text: &str) -> Result<RankChoice, String> {
    named(text, &RankChoice::NAMED)
}

fn named<T: Copy>(text: &str, all: &[(&str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        format!("there are {}", names.join(", "))
    })
}
