//! Conversations to play: files in the form that `examples/conversations/README.md` describes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::core::id::{Model, NameError, SessionId};
use crate::core::session::named;
use crate::wire::header;

/// Those of `examples/conversations`, so that the demo plays anywhere.
const BUILT_IN: [&str; 12] = [
    include_str!("../../examples/conversations/01-sourdough.json"),
    include_str!("../../examples/conversations/02-support-tour.json"),
    include_str!("../../examples/conversations/03-support-cargo.json"),
    include_str!("../../examples/conversations/04-train-tickets.json"),
    include_str!("../../examples/conversations/05-houseplant.json"),
    include_str!("../../examples/conversations/06-ledger-rounding.json"),
    include_str!("../../examples/conversations/07-tidewater-duplicates.json"),
    include_str!("../../examples/conversations/08-tidewater-subagent.json"),
    include_str!("../../examples/conversations/09-lease-review.json"),
    include_str!("../../examples/conversations/10-fathom-empty-csv.json"),
    include_str!("../../examples/conversations/11-japanese-particles.json"),
    include_str!("../../examples/conversations/12-queue-edits.json"),
];

/// Names a session for conversations whose client names none.
const SESSION_PREFIX: &str = "demo-";

/// One conversation, ready to be played.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// What it is called in tables.
    pub name: String,
    /// The successive requests.
    pub turns: Vec<Turn>,
}

/// One request of a conversation.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The model that its body names.
    pub model: Model,
    /// The session that its headers name.
    pub session: SessionId,
    /// Its headers, a name for the session included.
    pub headers: Vec<(String, String)>,
    /// Its body, as the file has it.
    pub body: Bytes,
}

/// Why conversations can't be played.
#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
    /// A file or directory can't be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file holds something else.
    #[error("{file}: {source}; examples/conversations/README.md describes the form")]
    Form {
        /// The file.
        file: String,
        /// What is wrong where.
        source: serde_json::Error,
    },
    /// A name in a conversation is none.
    #[error("conversation {conversation:?}: the {what} {source}")]
    Name {
        /// The conversation.
        conversation: String,
        /// The name of what.
        what: &'static str,
        /// What is wrong.
        source: NameError,
    },
    /// A file has no conversations.
    #[error("{} holds no conversations", .0.display())]
    Nothing(PathBuf),
}

#[derive(Debug, Deserialize)]
struct Recorded {
    name: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    turn_headers: Vec<BTreeMap<String, String>>,
    turns: Vec<Box<RawValue>>,
}

/// The only field of a body that is needed here.
#[derive(Debug, Deserialize)]
struct Body {
    model: String,
}

/// The built-in conversations.
pub fn built_in() -> Result<Vec<Conversation>, ConversationError> {
    let mut all = Vec::new();
    for text in BUILT_IN {
        read_text("a built-in conversation", text, &mut all)?;
    }
    Ok(all)
}

/// The conversations of a file, or of all `.json` and `.jsonl` files of a directory; at most `limit`, the first ones.
pub fn load(path: &Path, limit: Option<usize>) -> Result<Vec<Conversation>, ConversationError> {
    let unreadable = |source| ConversationError::Read { path: path.to_owned(), source };
    let mut files = Vec::new();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            files.push(entry.map_err(unreadable)?.path());
        }
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json" || extension == "jsonl"));
        files.sort();
    } else {
        files.push(path.to_owned());
    }
    let mut all = Vec::new();
    for file in files {
        let text =
            std::fs::read_to_string(&file).map_err(|source| ConversationError::Read { path: file.clone(), source })?;
        read_text(&file.display().to_string(), &text, &mut all)?;
    }
    all.truncate(limit.unwrap_or(usize::MAX));
    if all.is_empty() { Err(ConversationError::Nothing(path.to_owned())) } else { Ok(all) }
}

/// Reads the JSON objects of a text, one after the other, whatever the white space between them.
fn read_text(file: &str, text: &str, into: &mut Vec<Conversation>) -> Result<(), ConversationError> {
    let form = |source| ConversationError::Form { file: file.to_owned(), source };
    for recorded in serde_json::Deserializer::from_str(text).into_iter::<Recorded>() {
        let recorded = recorded.map_err(form)?;
        let mut turns = Vec::with_capacity(recorded.turns.len());
        for (index, body) in recorded.turns.iter().enumerate() {
            let Body { model } = serde_json::from_str(body.get()).map_err(form)?;
            turns.push(turn(&recorded, index, &model)?);
        }
        into.push(Conversation { name: recorded.name, turns });
    }
    Ok(())
}

fn turn(recorded: &Recorded, index: usize, model: &str) -> Result<Turn, ConversationError> {
    let bad = |what| move |source| ConversationError::Name { conversation: recorded.name.clone(), what, source };
    let own = recorded.turn_headers.get(index).into_iter().flatten();
    // What stands twice is what the turn says.
    let merged: BTreeMap<String, String> =
        recorded.headers.iter().chain(own).map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut headers: Vec<(String, String)> = merged.into_iter().collect();
    let lookup = |name| header::find(headers.iter().map(|(n, v)| (n.as_str(), v.as_str())), name);
    let session = match named::resolve(lookup) {
        Some((_, session)) => SessionId::named(session).map_err(bad("session"))?,
        None => {
            let session = SessionId::named(&format!("{SESSION_PREFIX}{}", recorded.name)).map_err(bad("session"))?;
            headers.push((header::SESSION_ID.to_owned(), session.to_string()));
            session
        }
    };
    let model = Model::new(model).map_err(bad("model"))?;
    let body = Bytes::copy_from_slice(recorded.turns[index].get().as_bytes());
    Ok(Turn { model, session, headers, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_ones_are_those_of_the_repository() {
        let built_in = built_in().expect("they can be read");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/conversations");
        let there = load(&path, None).expect("they can be read");
        let bodies = |all: &[Conversation]| -> Vec<(String, Vec<Bytes>)> {
            all.iter().map(|c| (c.name.clone(), c.turns.iter().map(|t| t.body.clone()).collect())).collect()
        };
        assert_eq!(bodies(&built_in), bodies(&there));
        assert!(built_in.iter().all(|conversation| conversation.turns.len() >= 3));
        assert_eq!(load(&path, Some(2)).expect("they can be read").len(), 2);
    }

    #[test]
    fn a_session_is_the_clients_own_or_made_of_the_name() {
        let all = built_in().expect("they can be read");
        let session = |name: &str| {
            let conversation = all.iter().find(|c| c.name == name).expect("there is one");
            conversation.turns[0].session.to_string()
        };
        assert_eq!(session("sourdough"), "demo-sourdough");
        assert_eq!(session("support-tour"), "desk-20418");
        assert_eq!(session("tidewater-subagent"), "agent-a17f");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let read = |text| read_text("f", text, &mut Vec::new()).expect_err("wrong").to_string();
        assert!(read(r#"{"name":"n","turns":[{"messages":[]}]}"#).contains("missing field `model`"));
        assert!(read("[]").starts_with("f: "));
        let long = format!(r#"{{"name":"n","turns":[{{"model":"{}"}}]}}"#, "m".repeat(300));
        assert!(read(&long).contains("the model is 300 bytes long"));
    }
}
