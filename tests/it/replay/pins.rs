//! What should be pinned of one conversation, by section 4 of the protocol where no rank is lost or overloaded.

use std::collections::HashSet;

use rankpin::core::session::derived::Prefixes;
use rankpin::wire::Encoding;
use rankpin::wire::body::{Wanted, read};

use super::Sent;
use crate::support::conversations::Conversation;

/// The sessions that are pinned.
#[derive(Debug, Default)]
pub struct Pins {
    named: HashSet<String>,
    derived: HashSet<u64>,
}

impl Pins {
    pub fn len(&self) -> usize {
        self.named.len() + self.derived.len()
    }

    /// Whether the turn continues a pin; it leaves its own.
    pub fn turn(&mut self, conversation: &Conversation, turn: usize, sent: Sent) -> bool {
        let named = match sent {
            Sent::Recorded => conversation.session(turn),
            Sent::None => None,
        };
        if let Some((_, session)) = named {
            return !self.named.insert(session);
        }
        let wanted = Wanted { elements: true, ..Wanted::default() };
        let reading = read(conversation.body(turn), Encoding::Json, wanted).expect("a recorded body is valid");
        if reading.previous_response_id.is_some() {
            // Only the response that it names is looked up, which an echo has never named; a fragment is not pinned.
            return false;
        }
        reading.prefixes(&conversation.model(turn)).is_some_and(|prefixes| self.derived(&prefixes))
    }

    fn derived(&mut self, prefixes: &Prefixes) -> bool {
        let found = prefixes.strict().iter().rposition(|key| self.derived.contains(key));
        if found.is_none() {
            self.derived.insert(prefixes.full());
        }
        if !found.is_some_and(|index| prefixes.covers_assistant(index)) {
            self.derived.extend(prefixes.last_assistant());
        }
        found.is_some()
    }
}
