//! What commands print: JSON, or tables and lines for people.

use std::borrow::Cow;
use std::io::Write as _;

use anyhow::Context as _;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

/// Writes text to stdout. A reader that has gone away (`| head`) is no error.
pub(super) fn text(text: &str) -> anyhow::Result<()> {
    is_read(text).map(drop)
}

/// The same, for what goes on until it is stopped: whether anybody still reads it.
pub(super) fn is_read(text: &str) -> anyhow::Result<bool> {
    is_read_raw(&[text.as_bytes()])
}

/// The same of bytes as they are.
pub(super) fn is_read_raw(parts: &[&[u8]]) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match parts.iter().try_for_each(|part| out.write_all(part)) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write to stdout"),
    }
}

/// Writes one line.
pub(super) fn line(words: &str) -> anyhow::Result<()> {
    text(&format!("{}\n", shown(words)))
}

/// Text as a terminal may get it. Names come from whoever registers or asks: one could hold what moves the cursor, clears the
/// screen, or turns the direction of what stands behind it.
fn shown(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) { safe.extend(c.escape_unicode()) } else { safe.push(c) }
    }
    Cow::Owned(safe)
}

/// Writes a value as JSON on one line.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    text(&json_line(value))
}

/// A value as JSON, and the end of its line.
pub(super) fn json_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("what is told is plain data") + "\n"
}

/// A table without lines, as `kubectl` and `nats` print them. Columns whose title begins with `>` stand to the right.
pub(super) fn table(titles: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(titles.iter().map(|title| title.trim_start_matches('>')));
    for row in rows {
        table.add_row(row.iter().map(|cell| shown(cell)));
    }
    for (index, title) in titles.iter().enumerate() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
            if title.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// What may be unknown: a dash where it is.
pub(super) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// Seconds in words: `5s`, `12m`, `3h 5m`.
pub(super) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        _ => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_on_is_printed() {
        let evil = "a\u{1b}[2Jb\u{9b}c\u{202e}d\u{7f}";
        assert_eq!(shown(evil), "a\\u{1b}[2Jb\\u{9b}c\\u{202e}d\\u{7f}");
        assert_eq!(shown("größer\n漢字"), "größer\n漢字");
        assert!(!table(&["MODEL"], [vec![evil.to_owned()]]).contains('\u{1b}'));
    }

    #[test]
    fn tables_are_plain_text() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["long".to_owned(), "12".to_owned()]];
        assert_eq!(table(&["NAME", ">N"], rows), "NAME   N\na      1\nlong  12\n");
        assert_eq!((age(59), age(61), age(7_500)), ("59s".into(), "1m 1s".into(), "2h 5m".into()));
    }
}
