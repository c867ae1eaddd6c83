//! `rankpin explain`: what a router would make of a request, and why.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};

use super::connection::Login;
use crate::config::{self, Flags, RouterConfig};
use crate::core::id::Model;
use crate::explain::{self, Explanation, Given};

/// Explain which session a router would see in a request, which pin it would follow, and why
///
/// Reads one body and prints its session and where that comes from, the key of each prefix of the conversation, and
/// which texts counted. Given two bodies, says whether the second continues the first, and if not, where they part.
/// Without --nats-url no server is asked; with it, the pins and workers there are read (nothing is written).
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The request's body; - or nothing is standard input. With a second one, two turns are compared
    #[arg(value_name = "BODY", num_args = 0..=2)]
    bodies: Vec<PathBuf>,

    /// A header of the request, 'Name: value'; may be given several times
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    headers: Vec<String>,

    /// Encoding of the body, such as application/msgpack [default: application/json]
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,

    /// The model that the request's subject names; without it, the body's
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// The router's configuration file: its session table, affinity, policy and workers count. The router's
    /// environment variables count too
    #[arg(long, value_name = "FILE")]
    config: Option<String>,

    /// Look pins and workers up there; the user needs to read both buckets
    #[arg(long, value_name = "URL")]
    nats_url: Option<String>,

    /// First token of every subject, and prefix of the buckets
    #[arg(long, value_name = "NAME", requires = "nats_url")]
    namespace: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    login: Login,
}

const EXAMPLES: &str = "\
Examples:
  rankpin explain turn.json
  rankpin explain turn1.json turn2.json
  curl … | rankpin explain - -H 'x-session-id: chat-1' --model my-model
  rankpin explain turn.json --config rankpin.toml --nats-url nats://127.0.0.1:4222
  rankpin explain turn.msgpack --content-type application/msgpack --json | jq .keys";

/// Prints what is to be told.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config()?;
    let standard_input = PathBuf::from("-");
    let text = match args.bodies.as_slice() {
        [first, second] => {
            if args.nats_url.is_some() {
                bail!("--nats-url can have no effect with two bodies: they are compared by what they say; give one");
            }
            if first == &standard_input && second == &standard_input {
                bail!("standard input holds only one body; give a file for the other");
            }
            let read = |path: &Path| read(&args, path, &config);
            let compared = explain::compare(&read(first)?, &read(second)?);
            if args.json { json(&compared) } else { explain::comparison(&compared) }
        }
        bodies => {
            let turn = read(&args, bodies.first().unwrap_or(&standard_input), &config)?;
            let cluster = match &args.nats_url {
                Some(_) => Some(explain::look(&turn, &config).await?),
                None => None,
            };
            let explanation = Explanation { turn, cluster };
            if args.json { json(&explanation) } else { explain::explanation(&explanation) }
        }
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to stdout")
}

fn json(told: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(told).expect("what is told is plain data") + "\n"
}

fn read(args: &Args, path: &Path, config: &RouterConfig) -> anyhow::Result<explain::Turn> {
    let body = if path == Path::new("-") {
        let mut body = Vec::new();
        std::io::stdin().read_to_end(&mut body).context("cannot read standard input")?;
        body
    } else {
        std::fs::read(path).with_context(|| format!("cannot read the body {}", path.display()))?
    };
    let model = args.model.as_deref().map(Model::new).transpose().map_err(|e| anyhow!("--model {e}"))?;
    let given = Given { headers: args.headers()?, body, model };
    explain::read(&given, config).map_err(|error| {
        let hint = if given.model.is_none() { "; --model names the one of the subject" } else { "" };
        anyhow!("{}: a router would answer {} {}: {error}{hint}", path.display(), error.status(), error.code())
    })
}

impl Args {
    fn config(&self) -> anyhow::Result<RouterConfig> {
        let given = [("config", &self.config), ("nats_url", &self.nats_url), ("namespace", &self.namespace)];
        let flags: Flags = given.into_iter().filter_map(|(key, text)| Some((key, text.clone()?))).collect();
        let mut config = config::resolve(&flags, &|name| std::env::var(name).ok())?;
        // What is said here goes before what the router's file says.
        config.access = self.login.over(config.access);
        Ok(config)
    }

    fn headers(&self) -> anyhow::Result<Vec<(String, String)>> {
        let split = |header: &String| {
            let (name, value) = header.split_once(':').ok_or_else(|| anyhow!("-H {header:?}: write 'Name: value'"))?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        };
        let mut headers = self.headers.iter().map(split).collect::<anyhow::Result<Vec<_>>>()?;
        headers.extend(self.content_type.iter().map(|media_type| ("Content-Type".to_owned(), media_type.clone())));
        Ok(headers)
    }
}
