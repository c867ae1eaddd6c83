//! The result by client, as the table that `docs/sessions.md` shows.

use std::collections::BTreeMap;
use std::fmt;

use crate::support::conversations::Conversation;

/// Counts by client and API.
#[derive(Debug, Default)]
pub struct Tally {
    rows: BTreeMap<Key, Row>,
}

/// Clients that were recorded themselves come first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    from_a_suite: bool,
    client: String,
    api: String,
    session: String,
}

#[derive(Debug, Default, Clone, Copy)]
struct Row {
    conversations: usize,
    later_turns: usize,
    continued_with: usize,
    continued_without: usize,
}

impl Tally {
    /// Counts a conversation, and of it the turns that hopped with its headers and without.
    pub fn add(&mut self, conversation: &Conversation, with: &[usize], without: &[usize]) {
        let session =
            conversation.session(0).map_or_else(|| "its text".to_owned(), |(header, _)| format!("`{header}`"));
        let later = conversation.turns() - 1;
        let key = Key {
            from_a_suite: conversation.is_from_a_suite(),
            client: conversation.client(),
            api: conversation.api.clone(),
            session,
        };
        let row = self.rows.entry(key).or_default();
        *row = row.and(Row {
            conversations: 1,
            later_turns: later,
            continued_with: later - with.len(),
            continued_without: later - without.len(),
        });
    }
}

impl Row {
    fn and(self, other: Self) -> Self {
        Self {
            conversations: self.conversations + other.conversations,
            later_turns: self.later_turns + other.later_turns,
            continued_with: self.continued_with + other.continued_with,
            continued_without: self.continued_without + other.continued_without,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { conversations, later_turns, continued_with, continued_without } = self;
        write!(f, "| {conversations} | {later_turns} | {continued_with} | {continued_without} |")
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| client | API | session | conversations | later turns | continued | without its headers |")?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- |")?;
        for (key, row) in &self.rows {
            writeln!(f, "| {} | {} | {} {row}", key.client, key.api, key.session)?;
        }
        let all = self.rows.values().fold(Row::default(), |all, row| all.and(*row));
        write!(f, "| **all** | | {all}")
    }
}
