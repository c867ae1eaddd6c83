//! `rankpin workers`: the fleet as its registrations, load reports and pins say.

use std::io::IsTerminal as _;
use std::time::Duration;

use super::connection::Connection;
use super::{output, signals};
use crate::ops::fleet::{self, Fleet, WorkerView};

/// Show workers and ranks: state, load, sessions pinned
///
/// Reads the registrations, listens to load reports for a second and counts the pins. Needs no router: what is shown is
/// what routers see too. A worker is silent where its registration was not put again for 6 s; routers have given it up.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Only these workers; none: all
    #[arg(value_name = "WORKER")]
    workers: Vec<String>,

    /// Show again and again, until stopped
    #[arg(long)]
    watch: bool,

    /// One line a worker, ranks added up
    #[arg(long)]
    short: bool,

    /// Print JSON; with --watch one object a line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

const EXAMPLES: &str = "\
Examples:
  rankpin workers
  rankpin workers gpu-0 gpu-1 --watch
  rankpin workers --json | jq '.workers[] | select(.state != \"ready\") | .worker'
  NATS_CONTEXT=prod rankpin workers --short";

/// Pause between two rounds, beside the second that each listens.
const PAUSE: Duration = Duration::from_millis(300);

/// Prints the fleet, once or until stopped.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let link = args.connection.open("rankpin workers").await?;
    let subjects = args.connection.subjects();
    let mut stop = std::pin::pin!(signals::stop()?);
    let mut began = false;
    loop {
        // Both arms may be dropped: a look changes nothing.
        let seen = tokio::select! {
            seen = fleet::read(&link, &subjects) => seen,
            () = &mut stop => return Ok(()),
        };
        let mut seen = match seen {
            Ok(seen) => seen,
            // Whoever watches wants to see how it goes on.
            Err(error) if args.watch && began => {
                eprintln!("{error}");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        began = true;
        if !args.workers.is_empty() {
            if let Some(name) = args.workers.iter().find(|name| !seen.workers.iter().any(|one| one.worker == **name)) {
                anyhow::bail!("there is no worker {name}; `rankpin workers` lists those that there are");
            }
            seen.workers.retain(|one| args.workers.contains(&one.worker));
        }
        let text = if args.json {
            output::json_line(&seen)
        } else {
            let clear = args.watch && std::io::stdout().is_terminal();
            let begin = if clear { "\x1b[H\x1b[2J" } else { "" };
            format!("{begin}{}", shown(&seen, args.short))
        };
        if !output::is_read(&text)? || !args.watch {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = &mut stop => return Ok(()),
        }
    }
}

fn shown(seen: &Fleet, short: bool) -> String {
    let titles =
        ["WORKER", ">RANK", "STATE", "POOL", ">IN FLIGHT", ">QUEUED", ">MAX", ">KV", ">SESSIONS", ">SEEN", "MODELS"];
    let rows = seen.workers.iter().flat_map(|worker| if short { vec![total(worker)] } else { ranks(worker) });
    let mut text = output::table(&titles, rows);
    let (workers, ranks) = (seen.workers.len(), seen.workers.iter().map(|one| one.ranks.len()).sum::<usize>());
    let sessions = seen.pins.map_or_else(String::new, |pins| format!(", {pins} pins"));
    text.push_str(&format!("\n{workers} workers, {ranks} ranks{sessions}\n"));
    for refused in &seen.refused {
        text.push_str(&format!("refused: the registration of {:?}: {}\n", refused.worker, refused.problem));
    }
    if let Some(why) = &seen.uncounted {
        text.push_str(&format!("{why}\n"));
    }
    text
}

fn total(worker: &WorkerView) -> Vec<String> {
    let queued = worker.reports.then(|| worker.ranks.iter().filter_map(|rank| rank.queued).sum::<u32>());
    row(
        worker,
        format!("{}-{}", worker.dp_start, worker.dp_start + worker.dp_size - 1),
        [
            output::or_dash(worker.inflight()),
            output::or_dash(queued),
            output::or_dash(worker.max_inflight.map(|most| u64::from(most) * u64::from(worker.dp_size))),
            "-".into(),
            output::or_dash(worker.sessions()),
        ],
    )
}

fn ranks(worker: &WorkerView) -> Vec<Vec<String>> {
    let each = worker.ranks.iter().map(|rank| {
        row(
            worker,
            rank.dp_rank.to_string(),
            [
                output::or_dash(rank.inflight),
                output::or_dash(rank.queued),
                output::or_dash(worker.max_inflight),
                output::or_dash(rank.kv_used_percent.map(|percent| format!("{percent}%"))),
                output::or_dash(rank.sessions),
            ],
        )
    });
    let without = worker.sessions_without_rank.filter(|sessions| *sessions > 0);
    let without = without.map(|sessions| {
        row(worker, "any".into(), ["-".into(), "-".into(), "-".into(), "-".into(), sessions.to_string()])
    });
    each.chain(without).collect()
}

fn row(worker: &WorkerView, rank: String, figures: [String; 5]) -> Vec<String> {
    let mut row = vec![worker.worker.clone(), rank, worker.state.to_owned(), worker.pool.clone()];
    row.extend(figures);
    row.push(output::age(worker.age_s));
    row.push(worker.models.join(","));
    row
}
