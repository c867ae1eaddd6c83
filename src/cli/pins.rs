//! `rankpin pins`: which session is where, and moving them.

use anyhow::{anyhow, bail};
use clap::Subcommand;
use serde_json::json;

use super::connection::Connection;
use super::output;
use crate::core::hash::PinKey;
use crate::core::id::{DpRank, WorkerId};
use crate::ops::pins::{self, Filter, PinView, Pins, Stats, Target};

/// Show, move and remove pins: which session is on which worker and rank
///
/// A pin is what keeps a session where its prefix is cached. Routers learn of every change at once. Moving and removing
/// are compare-and-sets: what a router has written in the meantime is never lost.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,

    /// Print JSON, one value a line
    #[arg(long, global = true)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

const EXAMPLES: &str = "\
Examples:
  rankpin pins ls --worker gpu-0
  rankpin pins get chat-1 --model my-model
  rankpin pins move chat-1 --model my-model --to gpu-1/4
  rankpin pins stats";

#[derive(Debug, Subcommand)]
enum Command {
    Ls(ListArgs),
    Get(OneArgs),
    Rm(RemoveArgs),
    Move(MoveArgs),
    Stats(StatsArgs),
}

/// List pins
#[derive(Debug, clap::Args)]
#[command(after_long_help = LIST_EXAMPLES)]
struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,

    /// Most that are shown
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
}

const LIST_EXAMPLES: &str = "\
Examples:
  rankpin pins ls
  rankpin pins ls --worker gpu-0 --rank 4
  rankpin pins ls --session 'user-42-*' --model my-model --json";

/// Which pins; all that is given has to fit
#[derive(Debug, clap::Args)]
struct FilterArgs {
    /// Of this session, or of those that begin so where it ends in *
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    /// Of this model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// Pinned to this worker
    #[arg(long, value_name = "WORKER")]
    worker: Option<String>,

    /// Pinned to this rank
    #[arg(long, value_name = "RANK")]
    rank: Option<u16>,
}

/// Show the pin of a session
#[derive(Debug, clap::Args)]
#[command(after_long_help = GET_EXAMPLES)]
struct OneArgs {
    #[command(flatten)]
    which: Which,
}

const GET_EXAMPLES: &str = "\
Examples:
  rankpin pins get chat-1 --model my-model
  rankpin pins get chat-1              # under every model: reads all pins
  rankpin pins get px:9f86d081884c7d65 --model my-model
  rankpin pins get --key 5f3b0a7c8d9e4f10a1b2c3d4e5f60718";

/// Which pin
#[derive(Debug, clap::Args)]
struct Which {
    /// The session's id; a derived one as rankpin shows it, px: and 16 digits
    #[arg(value_name = "SESSION", required_unless_present_any = ["key", "from"])]
    session: Option<String>,

    /// Its model; without it, the session is looked for under all of them
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Its tenant
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,

    /// The key in the bucket instead, 32 digits
    #[arg(long, value_name = "KEY", conflicts_with_all = ["session", "model"])]
    key: Option<String>,

    /// Every pin of a worker, or of one of its ranks, instead
    #[arg(long, value_name = "WORKER[/RANK]", conflicts_with_all = ["session", "key"])]
    from: Option<String>,
}

/// Remove pins: the session's next turn is placed anew
#[derive(Debug, clap::Args)]
#[command(after_long_help = REMOVE_EXAMPLES)]
struct RemoveArgs {
    #[command(flatten)]
    which: Which,
}

const REMOVE_EXAMPLES: &str = "\
Examples:
  rankpin pins rm chat-1 --model my-model
  rankpin pins rm --from gpu-0         # everything that is pinned there";

/// Move pins to a worker and rank: the session's next turn goes there
///
/// The worker has to be registered, to declare the rank and to serve the model. A pin that has moved since it was looked
/// at is left alone. The cache does not move along: the next turn there costs a prefill.
#[derive(Debug, clap::Args)]
#[command(after_long_help = MOVE_EXAMPLES)]
struct MoveArgs {
    #[command(flatten)]
    which: Which,

    /// Where to; without a rank, where the session's hash says on that worker
    #[arg(long, value_name = "WORKER[/RANK]", required = true)]
    to: String,
}

const MOVE_EXAMPLES: &str = "\
Examples:
  rankpin pins move chat-1 --model my-model --to gpu-1/4
  rankpin pins move --from gpu-0/2 --to gpu-1
  rankpin pins move --key 5f3b0a7c8d9e4f10a1b2c3d4e5f60718 --to gpu-1";

/// Count pins: by model, worker, rank and age
#[derive(Debug, clap::Args)]
#[command(after_long_help = STATS_EXAMPLES)]
struct StatsArgs {}

const STATS_EXAMPLES: &str = "\
Examples:
  rankpin pins stats
  rankpin pins stats --json | jq .workers";

/// Most pins that one command moves or removes.
const MAX_AT_ONCE: usize = 1 << 20;

/// Runs the command.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let link = args.connection.open("rankpin pins").await?;
    let pins = Pins::open(&link, &args.connection.subjects()).await?;
    let json = args.json;
    match args.command {
        Command::Ls(args) => list(&pins, args, json).await,
        Command::Get(args) => get(&pins, &args.which, json).await,
        Command::Rm(args) => remove(&pins, &args.which, json).await,
        Command::Move(args) => relocate(&pins, &args, json).await,
        Command::Stats(StatsArgs {}) => stats(&pins.stats().await?, json),
    }
}

async fn list(pins: &Pins, args: ListArgs, json: bool) -> anyhow::Result<()> {
    let FilterArgs { session, model, tenant, worker, rank } = args.filter;
    let filter = Filter { session, model, tenant, worker, rank };
    let (found, total) = pins.list(&filter, args.limit).await?;
    if json {
        return found.iter().try_for_each(output::json);
    }
    let mut text = table(&found);
    if total > found.len() as u64 {
        text.push_str(&format!("\n{} of {total}; --limit shows more\n", found.len()));
    }
    output::text(&text)
}

fn table(found: &[PinView]) -> String {
    let rows = found.iter().map(|pin| {
        let origin = if pin.shared { "shared".to_owned() } else { pin.origin.to_owned() };
        let placement = pin.placement();
        vec![
            pin.session.clone(),
            pin.model.clone(),
            pin.tenant.clone(),
            placement,
            origin,
            output::age(pin.age_s),
            pin.key.clone(),
        ]
    });
    output::table(&["SESSION", "MODEL", "TENANT", "PLACEMENT", "ORIGIN", ">AGE", "KEY"], rows)
}

/// The pins that are meant; at least one.
async fn find(pins: &Pins, which: &Which) -> anyhow::Result<Vec<PinView>> {
    let key = match (&which.key, &which.session, &which.model) {
        (Some(key), ..) => Some(
            PinKey::parse(key)
                .ok_or_else(|| anyhow!("--key {key:?}: a key is 32 hexadecimal digits, in lower case"))?,
        ),
        (None, Some(session), Some(model)) => Some(pins::key_of(session, model, &which.tenant)?),
        (None, _, None | Some(_)) => None,
    };
    let found = match key {
        Some(key) => pins.get(key).await?,
        None => {
            let tenant = (!which.tenant.is_empty()).then(|| which.tenant.clone());
            let mut filter =
                Filter { session: which.session.clone(), model: which.model.clone(), tenant, ..Filter::default() };
            if let Some(from) = &which.from {
                let from = target(from)?;
                filter.worker = Some(from.worker.as_str().to_owned());
                filter.rank = from.rank.map(|rank| rank.0);
            }
            pins.list(&filter, MAX_AT_ONCE).await?.0
        }
    };
    if found.is_empty() {
        let what = which.session.as_ref().or(which.key.as_ref()).or(which.from.as_ref());
        bail!("nothing is pinned of {}; `rankpin pins ls` lists what is", what.map_or("that", |what| what));
    }
    Ok(found)
}

fn target(text: &str) -> anyhow::Result<Target> {
    let (worker, rank) = match text.split_once('/') {
        Some((worker, rank)) => {
            let rank =
                rank.parse().map_err(|_| anyhow!("{text:?}: {rank:?} is no rank; write WORKER or WORKER/RANK"))?;
            (worker, Some(DpRank(rank)))
        }
        None => (text, None),
    };
    let worker = WorkerId::new(worker).map_err(|e| anyhow!("{text:?}: the worker {e}"))?;
    Ok(Target { worker, rank })
}

async fn get(pins: &Pins, which: &Which, json: bool) -> anyhow::Result<()> {
    let found = find(pins, which).await?;
    if json {
        return found.iter().try_for_each(output::json);
    }
    output::text(&table(&found))
}

async fn remove(pins: &Pins, which: &Which, json: bool) -> anyhow::Result<()> {
    let (mut removed, mut changed) = (0, 0);
    for pin in find(pins, which).await? {
        let gone = pins.remove(&pin).await?;
        *(if gone { &mut removed } else { &mut changed }) += 1;
        if json {
            output::json(&json!({ "key": pin.key, "session": pin.session, "removed": gone }))?;
        }
    }
    if !json {
        output::line(&format!("removed {removed}"))?;
    }
    if changed > 0 {
        bail!("{changed} were written by a router in the meantime and are left as they are; give the command again");
    }
    Ok(())
}

async fn relocate(pins: &Pins, args: &MoveArgs, json: bool) -> anyhow::Result<()> {
    let target = target(&args.to)?;
    let found = find(pins, &args.which).await?;
    let spec = pins.target(&target).await?;
    let several = found.len() > 1;
    let mut problems = Vec::new();
    for pin in found {
        match pins.relocate(&pin, &spec, target.rank).await {
            Ok(now) if json => output::json(&json!({ "from": pin.placement(), "pin": now }))?,
            Ok(now) => output::line(&format!("{}  {} -> {}", pin.session, pin.placement(), now.placement()))?,
            Err(error) if several => problems.push(error.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(first) = problems.first() {
        bail!("{} were not moved; the first: {first}", problems.len());
    }
    Ok(())
}

fn stats(stats: &Stats, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(stats);
    }
    let Stats { pins, named, derived, shared, unreadable, models, workers, ages, ttl_s } = stats;
    let ttl = if *ttl_s == 0 { "for ever".to_owned() } else { output::age(*ttl_s) };
    let mut text =
        format!("{pins} pins: {named} named, {derived} derived ({shared} of them shared); unused ones stay {ttl}\n");
    if *unreadable > 0 {
        text.push_str(&format!("{unreadable} values are no pins; routers replace them\n"));
    }
    text.push('\n');
    text.push_str(&output::table(
        &["MODEL", ">PINS"],
        models.iter().map(|(model, count)| vec![model.clone(), count.to_string()]),
    ));
    text.push('\n');
    let rows = workers.iter().flat_map(|(worker, ranks)| {
        let mut ranks: Vec<(&String, &u64)> = ranks.iter().collect();
        ranks.sort_by_key(|(rank, _)| rank.parse::<u32>().ok());
        ranks.into_iter().map(|(rank, count)| vec![worker.clone(), rank.clone(), count.to_string()]).collect::<Vec<_>>()
    });
    text.push_str(&output::table(&["WORKER", ">RANK", ">PINS"], rows));
    text.push('\n');
    let rows = ages.iter().map(|class| {
        let name = class.up_to_s.map_or_else(|| "older".to_owned(), |up_to| format!("up to {}", output::age(up_to)));
        vec![name, class.pins.to_string()]
    });
    text.push_str(&output::table(&["AGE", ">PINS"], rows));
    output::text(&text)
}
