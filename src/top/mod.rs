//! `rankpin top`: a cluster at a glance in a terminal, from what its routers say of themselves over NATS.
//!
//! [`board`] adds up what several routers say and makes rates of counts; [`draw`] draws it, and knows nothing else.

pub mod board;
pub mod draw;

use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use self::board::Board;
use crate::core::id::Namespace;
use crate::nats::Link;
use crate::ops::{OpsError, routers};

/// How long routers may take to answer; then what came is shown.
const ANSWER_WAIT: Duration = Duration::from_millis(400);
/// How long one look for a key takes, so that the thread that looks ends with the view.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Shows the cluster until somebody ends it by a key, or `stop` does.
pub async fn show(
    link: &Link,
    namespace: &Namespace,
    every: Duration,
    stop: impl Future<Output = ()>,
) -> Result<(), OpsError> {
    let mut terminal = ratatui::init();
    let shown = run(&mut terminal, link, namespace, every, stop).await;
    ratatui::restore();
    shown
}

async fn run(
    terminal: &mut DefaultTerminal,
    link: &Link,
    namespace: &Namespace,
    every: Duration,
    stop: impl Future<Output = ()>,
) -> Result<(), OpsError> {
    let mut stop = std::pin::pin!(stop);
    let mut keys = keys();
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut board = Board::default();
    let mut from = 0_usize;
    loop {
        // Every arm may be dropped: the ticks and keys keep their place, and a look changes nothing.
        tokio::select! {
            () = &mut stop => return Ok(()),
            key = keys.recv() => match key {
                Some(Key::Down) => from += 1,
                Some(Key::Up) => from = from.saturating_sub(1),
                Some(Key::Redraw) => {}
                Some(Key::End) | None => return Ok(()),
            },
            _ = ticks.tick() => board.take(routers::ask(link, namespace, ANSWER_WAIT).await?),
        }
        from = from.min(board.fleet().len().saturating_sub(1));
        let drawn = terminal.draw(|frame| draw::draw(frame, namespace.as_str(), &board, from));
        drawn.map_err(|e| OpsError::refused(format!("the terminal can't be drawn on: {e}")))?;
    }
}

enum Key {
    Up,
    Down,
    Redraw,
    End,
}

/// Keys as they are pressed. The thread that waits for them ends once nobody listens any more.
fn keys() -> mpsc::Receiver<Key> {
    let (sender, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let Ok(true) = event::poll(KEY_WAIT) else { continue };
            let Ok(event) = event::read() else { return };
            let key = match event {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => Key::End,
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::End,
                    KeyCode::Down | KeyCode::Char('j') => Key::Down,
                    KeyCode::Up | KeyCode::Char('k') => Key::Up,
                    _ => continue,
                },
                Event::Resize(..) => Key::Redraw,
                _ => continue,
            };
            if sender.blocking_send(key).is_err() {
                return;
            }
        }
    });
    keys
}
