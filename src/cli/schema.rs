//! `rankpin schema`: the JSON Schemas of the wire.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::Value;

use crate::wire::schema;

/// Write the JSON Schemas of every JSON message of the protocol
///
/// Each file is one schema of draft 2020-12. With them a worker or a frontend in any language can check what it
/// sends before a router refuses it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Directory to write the files to, made where it is missing; without it, one JSON object with the file names
    /// as keys goes to stdout
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  rankpin schema --out schemas
  rankpin schema | jq '.\"registration.json\".required'";

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.out {
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
            for (name, text) in schema::all() {
                let path = dir.join(name);
                std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            }
            Ok(())
        }
        None => {
            let mut all = serde_json::Map::new();
            for (name, text) in schema::all() {
                all.insert(name.to_owned(), serde_json::from_str(&text).expect("a schema is JSON"));
            }
            let text = serde_json::to_string_pretty(&Value::Object(all)).expect("JSON values can be written");
            writeln!(std::io::stdout(), "{text}").context("cannot write to stdout")
        }
    }
}
