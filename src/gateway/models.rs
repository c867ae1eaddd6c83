//! `/v1/models`: what the registered workers serve, and the aliases of these models that routers know.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::problem::Problem;
use crate::core::alias::MAX_ALIASES;
use crate::core::id::Namespace;
use crate::nats::bucket::{Bucket, Unreachable};
use crate::wire::Encoding;
use crate::wire::registration::Registration;
use crate::wire::service::{Info, MAX_ANSWER_BYTES, NAME, NAMESPACE, PREFIX, Verb};

/// How long a list of models counts.
const FRESH: Duration = Duration::from_secs(1);
/// How long the aliases count that routers have told: they change with a router's restart.
const ALIASES_FRESH: Duration = Duration::from_secs(10);
/// How long routers may take to tell them. How many there are is not known, so that it is always waited for.
const ROUTERS_WAIT: Duration = Duration::from_millis(250);

/// The models of a namespace, read from the workers' bucket when they are asked for.
#[derive(Debug)]
pub struct Models {
    workers: Bucket,
    namespace: Namespace,
    last: Mutex<Option<(Instant, Arc<Listed>)>>,
    aliases: Mutex<Option<(Instant, Aliases)>>,
}

/// Aliases, each with the models that it leads to.
type Aliases = BTreeMap<String, Vec<String>>;

/// Model names, each with the unix time in seconds since which the oldest registration that serves it stands.
type Listed = BTreeMap<String, u64>;

impl Models {
    /// The models of the workers in this bucket of a namespace.
    pub fn new(workers: Bucket, namespace: Namespace) -> Self {
        Self { workers, namespace, last: Mutex::default(), aliases: Mutex::default() }
    }

    /// All of them. Whoever asks at the same time gets the same list.
    async fn list(&self) -> Result<Arc<Listed>, Problem> {
        let mut last = self.last.lock().await;
        if let Some((_, models)) = last.as_ref().filter(|(read, _)| read.elapsed() < FRESH) {
            return Ok(Arc::clone(models));
        }
        let models = self.read().await.map_err(|error| Problem::unavailable("no_connection", error.to_string()))?;
        let models = Arc::new(models);
        *last = Some((Instant::now(), Arc::clone(&models)));
        Ok(models)
    }

    async fn read(&self) -> Result<Listed, Unreachable> {
        let mut models = Listed::new();
        for change in self.workers.all().await? {
            let since = change.stored.created.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
            let worker = change.stored.value.and_then(|value| Registration::parse(&change.key, &value).ok());
            for model in worker.into_iter().flat_map(|worker| worker.models) {
                let known = models.entry(model.as_str().to_owned()).or_insert(since);
                *known = since.min(*known);
            }
        }
        for (alias, targets) in self.aliases().await {
            // One that leads to nothing that is served would be answered 404.
            if let Some(since) = targets.iter().filter_map(|target| models.get(target)).min().copied() {
                models.entry(alias).or_insert(since);
            }
        }
        Ok(models)
    }

    /// The aliases that routers know; none where none answers.
    async fn aliases(&self) -> Aliases {
        let mut last = self.aliases.lock().await;
        if let Some((_, aliases)) = last.as_ref().filter(|(told, _)| told.elapsed() < ALIASES_FRESH) {
            return aliases.clone();
        }
        let subject = format!("{PREFIX}.{}.{NAME}", Verb::Info.word());
        let answers = self.workers.link().ask_all(&subject, ROUTERS_WAIT).await.unwrap_or_default();
        let read = answers.iter().filter(|answer| answer.len() <= MAX_ANSWER_BYTES);
        let routers = read.filter_map(|answer| Encoding::Json.read::<Info>(answer));
        let ours = |info: &Info| info.head.metadata.get(NAMESPACE).is_some_and(|ns| ns == self.namespace.as_str());
        let mut told = None;
        for router in routers.filter(ours) {
            let aliases: &mut Aliases = told.get_or_insert_default();
            aliases.extend(router.aliases().into_iter().take(MAX_ALIASES));
        }
        // Where no router is there yet it is asked again with the next list.
        *last = told.map(|aliases| (Instant::now(), aliases));
        last.as_ref().map(|(_, aliases)| aliases.clone()).unwrap_or_default()
    }

    /// Answers `/v1/models`, or `/v1/models/{name}`.
    pub async fn answer(&self, headers: &HeaderMap, name: Option<&str>) -> Result<Response<Body>, Problem> {
        let models = self.list().await?;
        // Both client libraries ask at the same path; only one of them says its version.
        let entry = if headers.contains_key("anthropic-version") { of_anthropic } else { of_open_ai };
        let body = match name {
            Some(name) => match models.get_key_value(name) {
                Some((name, since)) => entry(name, *since),
                None => {
                    let message = format!("no worker serves the model {name:?}");
                    return Err(Problem::not_found("unknown_model", message));
                }
            },
            None => {
                let data: Vec<Value> = models.iter().map(|(name, since)| entry(name, *since)).collect();
                json!({
                    "object": "list", "first_id": models.keys().next(), "last_id": models.keys().next_back(),
                    "has_more": false, "data": data,
                })
            }
        };
        let mut response = Response::new(Body::from(body.to_string()));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }
}

fn of_open_ai(name: &str, since: u64) -> Value {
    json!({"id": name, "object": "model", "created": since, "owned_by": "rankpin"})
}

fn of_anthropic(name: &str, since: u64) -> Value {
    let created = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_secs(since)).to_string();
    json!({"id": name, "type": "model", "display_name": name, "created_at": created})
}
