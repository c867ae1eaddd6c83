//! Recorded conversations of real clients. The recordings are no part of the project; where they are not there, the
//! conversations of `examples/` stand in, which were written in the same shapes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rankpin::core::id::Model;
use rankpin::core::session::named;
use rankpin::wire::header;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Names another file of recordings, or a directory of them.
const VARIABLE: &str = "RANKPIN_CONVERSATIONS";

/// One conversation, in the form that `examples/conversations/README.md` describes.
#[derive(Debug, Deserialize)]
pub struct Conversation {
    pub name: String,
    pub api: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    turn_headers: Vec<BTreeMap<String, String>>,
    turns: Vec<Box<RawValue>>,
    agent: Option<String>,
    client_version: Option<String>,
}

#[derive(Deserialize)]
struct Body {
    model: String,
}

/// The conversations and where they are from.
pub struct Conversations {
    pub from: PathBuf,
    pub all: Vec<Conversation>,
}

impl Conversations {
    /// Those of the file that [`VARIABLE`] names, else the recordings beside the repository, else the examples. Never
    /// none.
    pub fn load() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let beside = root.join("../shared/data/conversations.jsonl");
        let from = match std::env::var_os(VARIABLE) {
            Some(named) => named.into(),
            None if beside.is_file() => beside,
            None => root.join("examples/conversations"),
        };
        let files = if from.is_dir() { json_files(&from) } else { vec![from.clone()] };
        let all: Vec<_> = files.iter().flat_map(|file| read(file)).collect();
        assert!(!all.is_empty(), "{} holds no conversations", from.display());
        Self { from, all }
    }
}

fn json_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory can be read");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json" || extension == "jsonl"));
    files.sort();
    files
}

fn read(file: &Path) -> Vec<Conversation> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display()));
    let conversations = serde_json::Deserializer::from_str(&text).into_iter();
    conversations.map(|read| read.unwrap_or_else(|e| panic!("{}: {e}", file.display()))).collect()
}

impl Conversation {
    pub fn turns(&self) -> usize {
        self.turns.len()
    }

    /// The body of a turn, from 0, byte for byte.
    pub fn body(&self, turn: usize) -> &[u8] {
        self.turns[turn].get().as_bytes()
    }

    /// The model that a turn's body names.
    pub fn model(&self, turn: usize) -> Model {
        let body: Body = serde_json::from_slice(self.body(turn)).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        Model::new(&body.model).unwrap_or_else(|e| panic!("{}: the model {e}", self.name))
    }

    /// The headers of a turn; what stands twice is what the turn itself says.
    pub fn headers(&self, turn: usize) -> BTreeMap<&str, &str> {
        let own = self.turn_headers.get(turn).into_iter().flatten();
        self.headers.iter().chain(own).map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    /// The header that names a turn's session, and the session.
    pub fn session(&self, turn: usize) -> Option<(&'static str, String)> {
        let headers = self.headers(turn);
        let found = named::resolve(|name| header::find(headers.iter().map(|(name, value)| (*name, *value)), name))?;
        Some((found.0, found.1.to_owned()))
    }

    /// Whether it was kept by a test suite, and not recorded from a client itself.
    pub fn is_from_a_suite(&self) -> bool {
        self.agent.is_none()
    }

    /// The client that it was recorded from: what the recording says, or the test suite that its name begins with.
    pub fn client(&self) -> String {
        let version = self.client_version.as_deref().and_then(|version| version.split(' ').nth(1));
        match (&self.agent, self.name.split_once(':')) {
            (Some(agent), _) => [agent, version.unwrap_or_default()].join(" ").trim_end().to_owned(),
            (None, Some((suite, _))) => suite.to_owned(),
            (None, None) => "written for this project".to_owned(),
        }
    }
}
