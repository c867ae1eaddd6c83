//! `rankpin up`: everything on one machine.

use std::net::SocketAddr;

use anyhow::{Context as _, anyhow, ensure};

use super::signals;
use crate::bridge::{BaseUrl, EngineKind};
use crate::config::Flags;
use crate::core::id::Model;
use crate::up::{self, Event, Ready, Simulated, UpOptions, WorkerPart};

/// Bring up everything on this machine: NATS server, router, gateway, and a worker
///
/// The gateway then serves the OpenAI and Anthropic APIs. The worker stands in front of the engine at
/// --engine-url; without one, an engine is simulated. Ctrl-C ends all of it, and nothing is left behind: what
/// is pinned is kept only while it runs.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Where the gateway listens; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,

    /// Where an engine's server is; given several times, the ranks are spread over them in order
    #[arg(long, value_name = "URL")]
    engine_url: Vec<String>,

    /// What the engine is; without an --engine-url, it is simulated
    #[arg(long, value_enum, value_name = "ENGINE", requires = "engine_url")]
    engine: Option<EngineKind>,

    /// What is shown to the engine as `Authorization: Bearer`
    #[arg(long, env = "RANKPIN_ENGINE_KEY", value_name = "KEY", hide_env_values = true)]
    engine_key: Option<String>,

    /// Model that is served; may be given several times [default: those that the engine lists; simulated: sim]
    #[arg(long, value_name = "NAME")]
    model: Vec<String>,

    /// Number of data-parallel ranks [default: as many as the engine has; simulated: 4]
    #[arg(long, value_name = "COUNT")]
    dp_size: Option<u32>,

    /// Whether a session stays where it is
    #[arg(long, value_name = "MODE", default_value = "hard")]
    affinity: String,

    /// How the worker of a new session is chosen
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  rankpin up
  rankpin up --engine vllm --engine-url http://127.0.0.1:8000
  rankpin up --listen 0.0.0.0:8080 --dp-size 8

With several machines, the parts run by themselves: rankpin router, rankpin gateway, rankpin bridge.";

/// Runs it until it is told to stop.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let stop = signals::stop().context("cannot listen for signals")?;
    let options = args.options()?;
    let simulated = matches!(options.worker, WorkerPart::Simulated(_));
    up::run(options, |event| println!("{}", words(&event, simulated)), stop).await?;
    Ok(())
}

impl Args {
    fn options(self) -> anyhow::Result<UpOptions> {
        let models = self.model.iter().map(|name| Model::new(name).map_err(|e| anyhow!("--model {e}")));
        let mut models = models.collect::<Result<Vec<_>, _>>()?;
        let urls = self.engine_url.iter().map(|url| BaseUrl::parse(url).map_err(|e| anyhow!("--engine-url: {e}")));
        let urls = urls.collect::<Result<Vec<_>, _>>()?;
        let worker = if urls.is_empty() {
            if models.is_empty() {
                models.push(Model::new("sim").expect("a valid name"));
            }
            WorkerPart::Simulated(Simulated { models, dp_size: self.dp_size.unwrap_or(4) })
        } else {
            let engine = self.engine.context("--engine-url needs --engine: vllm, sglang, trtllm or openai")?;
            let key = self.engine_key.filter(|key| !key.is_empty());
            WorkerPart::Bridge { engine, urls, key, models, dp_size: self.dp_size }
        };
        ensure!(self.dp_size != Some(0), "--dp-size is 0: at least one rank is needed");
        let mut router = Flags::from([("affinity", self.affinity)]);
        router.extend(self.policy.map(|policy| ("policy", policy)));
        Ok(UpOptions { listen: self.listen, router, worker })
    }
}

/// What is said, ready to be pasted.
fn words(event: &Event, simulated: bool) -> String {
    let Ready { gateway, nats, models } = match event {
        Event::Waiting { engine } => return format!("waiting for the engine ({engine})"),
        Event::Drained => return "its worker was drained (rankpin drain), so all of it ends".to_owned(),
        Event::Ready(ready) => ready,
    };
    let model = models.first().map_or("sim", String::as_str);
    let body = serde_json::json!({"model": model, "messages": [{"role": "user", "content": "Hello"}]});
    // A quote in a model's name would end the shell's.
    let body = body.to_string().replace('\'', "'\\''");
    let engine = if simulated { " (a simulated engine)" } else { "" };
    format!(
        "rankpin is up and serves {}{engine}\n\n  \
         curl http://{gateway}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{body}'\n\n  \
         export OPENAI_BASE_URL=http://{gateway}/v1 OPENAI_API_KEY=none\n  \
         export ANTHROPIC_BASE_URL=http://{gateway} ANTHROPIC_API_KEY=none\n\n\
         NATS is at {nats}. Ctrl-C ends all of it.",
        models.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_pasted() {
        let ready = Ready {
            gateway: ([127, 0, 0, 1], 8080).into(),
            nats: "nats://127.0.0.1:4222".into(),
            models: vec!["it's".into(), "b".into()],
        };
        let said = words(&Event::Ready(ready), true);
        assert!(said.contains("serves it's, b (a simulated engine)"), "{said}");
        assert!(said.contains("curl http://127.0.0.1:8080/v1/chat/completions"), "{said}");
        assert!(said.contains(r#""model":"it'\''s"}'"#), "{said}");
        assert!(said.contains("ANTHROPIC_BASE_URL=http://127.0.0.1:8080 "), "{said}");
    }
}
