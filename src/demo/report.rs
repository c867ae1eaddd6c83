//! What the frontends saw, as tables.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::usage::Usage;
use super::verdict::{self, Played, Track};
use super::{Outcome, Round};

/// Turns that a row shows; of longer conversations only their beginning.
const SHOWN_TURNS: usize = 10;
/// Longest name that is shown.
const SHOWN_NAME: usize = 40;
/// Marks a request that was sent again because its worker was lost.
const LOST: &str = "✗";

/// One row per conversation: where its turns went, and how much of their prompts the caches held.
pub fn round_table(outcome: &Outcome) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["session", "turns", "cached", "worker/rank of each turn"]);
    for track in &outcome.tracks {
        table.add_row([clip(&track.name), track.turns.len().to_string(), share(usage_of([track])), path(&track.turns)]);
    }
    let turns: usize = outcome.tracks.iter().map(|track| track.turns.len()).sum();
    let total = usage_of(&outcome.tracks);
    table.add_row(["total".to_owned(), turns.to_string(), share(total), total_line(outcome, total)]);
    for column in table.column_iter_mut().filter(|column| matches!(column.index, 1 | 2)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    for fault in &outcome.faults {
        text.push_str(&format!("FAULT: {fault}\n"));
    }
    text
}

/// One row per round.
pub fn summary_table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["", "cached", "sessions that moved", "sent again", "failed"]);
    for outcome in outcomes {
        let (sessions, moved) = verdict::sessions_and_moved(&outcome.tracks);
        table.add_row([
            outcome.round.title().to_owned(),
            share(usage_of(&outcome.tracks)),
            format!("{moved} of {sessions}"),
            lost(&outcome.tracks).to_string(),
            verdict::failures(&outcome.tracks).len().to_string(),
        ]);
    }
    for column in table.column_iter_mut().filter(|column| column.index > 0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

fn total_line(outcome: &Outcome, total: Usage) -> String {
    let mut line = format!("{} of {} prompt tokens", total.cached, total.prompt);
    match outcome.round {
        Round::Off | Round::Hard => {}
        Round::Killed => {
            let again = lost(&outcome.tracks);
            line.push_str(&format!("; {again} lost with their worker ({LOST}) and sent again"));
        }
    }
    line
}

fn usage_of<'t>(tracks: impl IntoIterator<Item = &'t Track>) -> Usage {
    let mut sum = Usage::default();
    for played in tracks.into_iter().flat_map(|track| &track.turns) {
        sum += played.usage;
    }
    sum
}

fn lost(tracks: &[Track]) -> u32 {
    tracks.iter().flat_map(|track| &track.turns).map(|played| played.lost).sum()
}

fn share(usage: Usage) -> String {
    usage.cached_share().map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn path(turns: &[Played]) -> String {
    let mut steps: Vec<String> = turns.iter().take(SHOWN_TURNS).map(step).collect();
    if turns.len() > SHOWN_TURNS {
        steps.push(format!("and {} more", turns.len() - SHOWN_TURNS));
    }
    steps.join(" ")
}

fn step(played: &Played) -> String {
    let lost = LOST.repeat(played.lost as usize);
    if played.error.is_some() {
        return lost + "failed";
    }
    let worker = played.placement.as_ref().map_or("?", |placement| placement.worker.as_str());
    match played.served_by {
        Some(rank) => format!("{lost}{worker}/{rank}"),
        None => format!("{lost}{worker}"),
    }
}

fn clip(name: &str) -> String {
    match name.char_indices().nth(SHOWN_NAME) {
        None => name.to_owned(),
        Some(_) => name.chars().take(SHOWN_NAME - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::core::id::{DpRank, Model, Placement, SessionId, WorkerId};

    fn played(worker: &str, rank: u16, lost: u32, error: Option<&str>) -> Played {
        let worker = WorkerId::new(worker).expect("valid");
        Played {
            model: Model::new("m").expect("valid"),
            session: SessionId::named("s").expect("valid"),
            placement: Some(Placement { worker, rank: Some(DpRank(rank)) }),
            served_by: Some(DpRank(rank)),
            lost,
            usage: Usage { prompt: 100, cached: 50 },
            error: error.map(str::to_owned),
            ended: Instant::now(),
        }
    }

    #[test]
    fn a_round_at_a_glance() {
        let turns = vec![played("w1", 2, 0, None), played("w2", 6, 1, None), played("w2", 6, 0, Some("503"))];
        let tracks = vec![Track { name: "sourdough".into(), turns }];
        let faults = verdict::failures(&tracks);
        let outcome = Outcome { round: Round::Killed, tracks, faults };
        insta::assert_snapshot!(round_table(&outcome));
        insta::assert_snapshot!(summary_table(&[outcome]));
    }

    #[test]
    fn long_names_and_long_conversations_are_cut() {
        assert_eq!(clip(&"x".repeat(40)), "x".repeat(40));
        assert_eq!(clip(&"é".repeat(41)), "é".repeat(39) + "…");
        let turns: Vec<Played> = (0..12).map(|_| played("w1", 0, 0, None)).collect();
        assert!(path(&turns).ends_with("w1/0 and 2 more"));
    }
}
