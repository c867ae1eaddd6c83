//! The picture: a line of figures, the ranks as a grid, decisions, what waits, and what happened.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Sparkline};

use super::board::Board;
use crate::wire::service::{RankState, WorkerState};

/// Width of a rank's cell.
const CELL: usize = 10;
/// Width of a worker's name and state.
const NAME: usize = 26;

/// Draws the board; `from` is the first worker that is shown.
pub fn draw(frame: &mut Frame<'_>, namespace: &str, board: &Board, from: usize) {
    let [head, fleet, low] =
        Layout::vertical([Constraint::Length(4), Constraint::Min(5), Constraint::Length(9)]).areas(frame.area());
    draw_head(frame, head, namespace, board);
    draw_fleet(frame, fleet, &board.fleet(), from);
    let [left, middle, right] =
        Layout::horizontal([Constraint::Length(28), Constraint::Length(30), Constraint::Min(20)]).areas(low);
    draw_decisions(frame, left, board);
    draw_queue(frame, middle, board);
    draw_happenings(frame, right, board);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, namespace: &str, board: &Board) {
    let routers = board.routers();
    let ready = routers.iter().filter(|router| router.ready).count();
    let colour = if ready == 0 { Color::Red } else { Color::Green };
    let mode =
        routers.first().map_or_else(String::new, |router| format!("{} affinity, {}", router.affinity, router.policy));
    let title = Line::from(vec![
        Span::from("rankpin ").bold(),
        Span::from(namespace.to_owned()),
        Span::from("  "),
        Span::styled(format!("{ready} of {} routers ready", routers.len()), Style::new().fg(colour)),
        Span::from(format!("  {mode}")),
    ]);
    let sum = |of: fn(&crate::wire::service::RequestCounts) -> u64| -> u64 {
        routers.iter().map(|router| of(&router.requests)).sum()
    };
    let percent = |share: Option<f64>| share.map_or_else(|| "-".into(), |share| format!("{:.1}%", 100.0 * share));
    let rates = board.rates();
    let figures = [
        ("req/s", rates.map_or_else(|| "-".into(), |rates| format!("{:.0}", rates.requests))),
        ("in flight", sum(|requests| requests.in_flight).to_string()),
        ("queued", sum(|requests| requests.queued).to_string()),
        ("on pin", percent(rates.and_then(|rates| rates.hit))),
        ("cached", percent(rates.and_then(|rates| rates.cached))),
        ("accept", rates.and_then(|rates| rates.accept_ms).map_or_else(|| "-".into(), |ms| format!("{ms:.2} ms"))),
        ("errors/s", rates.map_or_else(|| "-".into(), |rates| format!("{:.1}", rates.errors))),
        ("pins", board.pins().to_string()),
    ];
    let mut line = Line::default();
    for (name, value) in figures {
        line.push_span(Span::from(format!("{name} ")).dim());
        line.push_span(Span::from(format!("{value}   ")).bold());
    }
    let hint = Line::from("q ends, arrows scroll").dim();
    frame.render_widget(Paragraph::new(vec![title, line, hint]), area);
}

fn draw_fleet(frame: &mut Frame<'_>, area: Rect, workers: &[WorkerState], from: usize) {
    let ranks: usize = workers.iter().map(|worker| worker.ranks.len()).sum();
    let title = format!(" {} workers, {ranks} ranks: in flight, p pins ", workers.len());
    let block = Block::new().borders(Borders::TOP).title(title);
    let inside = block.inner(area);
    let most = workers.iter().flat_map(|worker| &worker.ranks).map(load).max().unwrap_or(0).max(4);
    let each_line = (usize::from(inside.width).saturating_sub(NAME) / CELL).max(1);
    let lines: Vec<Line<'_>> = workers.iter().skip(from).flat_map(|worker| rows(worker, each_line, most)).collect();
    let text = if workers.is_empty() { vec![Line::from("no worker, or no router answers").dim()] } else { lines };
    frame.render_widget(Paragraph::new(text).block(block), area);
}

fn rows(worker: &WorkerState, each_line: usize, most: u64) -> Vec<Line<'static>> {
    let colour = match worker.state.as_str() {
        "ready" => Color::Green,
        "draining" => Color::Yellow,
        _ => Color::Red,
    };
    let limit = worker.max_inflight.map_or(most, u64::from).max(1);
    let cells: Vec<Span<'static>> = worker.ranks.iter().map(|rank| cell(rank, limit)).collect();
    let name: String = worker.worker.chars().take(16).collect();
    cells
        .chunks(each_line)
        .enumerate()
        .map(|(index, chunk)| {
            let mut line = if index == 0 {
                Line::from(vec![
                    Span::from(format!("{name:<17}")).bold(),
                    Span::styled(format!("{:<9}", worker.state), Style::new().fg(colour)),
                ])
            } else {
                Line::from(" ".repeat(NAME))
            };
            line.extend(chunk.iter().cloned());
            line
        })
        .collect()
}

/// A rank: its number, its requests, its pins; the colour is its load.
fn cell(rank: &RankState, limit: u64) -> Span<'static> {
    let load = load(rank);
    let name = rank.rank.map_or_else(|| "any".to_owned(), |rank| rank.to_string());
    let text: String = format!("{name}:{load} {}p", rank.pins).chars().take(CELL - 1).collect();
    let style = match load.saturating_mul(100) / limit {
        0..=10 => Style::new(),
        11..=60 => Style::new().fg(Color::Black).bg(Color::Green),
        61..=90 => Style::new().fg(Color::Black).bg(Color::Yellow),
        _ => Style::new().fg(Color::White).bg(Color::Red).add_modifier(Modifier::BOLD),
    };
    Span::styled(format!("{text:<CELL$}"), style)
}

fn load(rank: &RankState) -> u64 {
    rank.own.max(rank.inflight.unwrap_or(0))
}

fn draw_decisions(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let block = Block::new().borders(Borders::TOP).title(" decisions a second ");
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let [chart, list] = Layout::vertical([Constraint::Length(2), Constraint::Min(1)]).areas(inside);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, for a chart")]
    let values: Vec<u64> = board.history().map(|rates| rates.requests.round() as u64).collect();
    let width = usize::from(chart.width);
    let shown = &values[values.len().saturating_sub(width)..];
    frame.render_widget(Sparkline::default().data(shown).style(Style::new().fg(Color::Cyan)), chart);
    let rates = board.rates().into_iter().flat_map(|rates| &rates.decisions);
    let lines: Vec<Line<'_>> = rates.map(|(reason, rate)| Line::from(format!("{reason:<10} {rate:>8.1}"))).collect();
    frame.render_widget(Paragraph::new(lines), list);
}

fn draw_queue(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let block = Block::new().borders(Borders::TOP).title(" waiting for room ");
    let mut waiting = std::collections::BTreeMap::<&str, u64>::new();
    for queue in board.routers().iter().flat_map(|router| &router.queue) {
        *waiting.entry(&queue.model).or_default() += queue.waiting;
    }
    let lines: Vec<Line<'_>> = if waiting.is_empty() {
        vec![Line::from("nobody").dim()]
    } else {
        waiting.iter().map(|(model, count)| Line::from(format!("{count:>6} {model}"))).collect()
    };
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_happenings(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let block = Block::new().borders(Borders::TOP).title(" lately ");
    let now = board.routers().iter().map(|router| router.now_ms).max().unwrap_or(0);
    let lines: Vec<Line<'_>> = board
        .happenings()
        .into_iter()
        .map(|one| {
            let ago = now.saturating_sub(one.at_ms) / 1000;
            let text = Span::from(one.text);
            let text = if one.warn { text.yellow() } else { text };
            Line::from(vec![Span::from(format!("{ago:>5} s ")).dim(), text])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::board::tests::router;
    use super::*;

    fn drawn(board: &Board, from: usize) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(100, 20)).expect("a terminal in memory");
        terminal.draw(|frame| draw(frame, "rankpin", board, from)).expect("it draws");
        terminal
    }

    #[test]
    fn a_cluster_at_a_glance() {
        let mut board = Board::default();
        board.take(vec![router("a", 1, 100), router("b", 1, 100)]);
        board.take(vec![router("a", 2, 150), router("b", 2, 150)]);
        let terminal = drawn(&board, 0);
        insta::assert_snapshot!(terminal.backend());
        let at = |x, y| terminal.backend().buffer()[(x, y)].bg;
        // Rank 1 has 14 of 8 requests, rank 0 has 2 of 8.
        assert_eq!((at(26, 5), at(36, 5)), (Color::Green, Color::Red));
    }

    #[test]
    fn nothing_there_and_scrolled() {
        let empty = drawn(&Board::default(), 0);
        assert!(empty.backend().to_string().contains("0 of 0 routers ready"));
        let mut board = Board::default();
        board.take(vec![router("a", 1, 100)]);
        let text = drawn(&board, 1).backend().to_string();
        assert!(text.contains("gpu-1") && !text.contains("gpu-0 "), "{text}");
    }
}
