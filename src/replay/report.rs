//! What came of the runs, as a table and as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;

use super::Setup;
use super::run::Measured;
use super::trace::Trace;

/// The table.
pub fn table(trace: &Trace, setup: &Setup, all: &[Measured]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["placed by", "hit share", "imbalance", "worst misses", "TTFT p50 s", "TTFT p99 s", "moves"]);
    for measured in all {
        table.add_row([
            measured.name.clone(),
            format!("{:.4}", measured.hit_share),
            format!("{:.3}", measured.imbalance),
            format!("{:.3}", measured.worst_misses),
            format!("{:.3}", measured.ttft.0),
            format!("{:.3}", measured.ttft.1),
            measured.moves.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{}\n\n{table}\n\n{LEGEND}", head(trace, setup))
}

const LEGEND: &str = "\
hit share: prompt blocks found in caches, of all. imbalance: prompt tokens of the target with most of them, over the mean.
worst misses: tokens prefilled by the target with most of them, over the mean. moves: turns that went elsewhere than the
one before.";

fn head(trace: &Trace, setup: &Setup) -> String {
    let blocks = setup.blocks.map_or_else(|| "caches without end".to_owned(), |n| format!("LRU of {n} blocks each"));
    format!(
        "{}: {} requests of {} sessions, {} blocks of {} tokens; {} workers x {} ranks, {blocks}; {} tokens/s prefill, \
         {} tokens/s decode, {}x speed, seed {}",
        trace.name,
        trace.requests.len(),
        trace.sessions,
        trace.blocks(),
        trace.block_tokens,
        setup.workers,
        setup.ranks,
        setup.prefill_rate,
        setup.decode_rate,
        setup.speed,
        setup.seed,
    )
}

/// The same as JSON.
pub fn json(trace: &Trace, setup: &Setup, all: &[Measured]) -> serde_json::Value {
    let one = |measured: &Measured| {
        json!({
            "name": measured.name,
            "hit_share": measured.hit_share,
            "imbalance": measured.imbalance,
            "worst_misses": measured.worst_misses,
            "ttft_p50_s": measured.ttft.0,
            "ttft_p99_s": measured.ttft.1,
            "moves": measured.moves,
        })
    };
    json!({
        "trace": trace.name,
        "requests": trace.requests.len(),
        "sessions": trace.sessions,
        "blocks": trace.blocks(),
        "block_tokens": trace.block_tokens,
        "workers": setup.workers,
        "ranks": setup.ranks,
        "cache_blocks": setup.blocks,
        "seed": setup.seed,
        "runs": all.iter().map(one).collect::<Vec<_>>(),
    })
}
