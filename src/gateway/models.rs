//! `/v1/models`: what the registered workers serve.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::problem::Problem;
use crate::nats::bucket::{Bucket, Unreachable, Watched};
use crate::wire::registration::Registration;

/// How long a list of models counts.
const FRESH: Duration = Duration::from_secs(1);
/// How long the bucket may take to tell all that it holds.
const PATIENCE: Duration = Duration::from_secs(3);

/// The models of a namespace, read from the workers' bucket when they are asked for.
#[derive(Debug)]
pub struct Models {
    workers: Bucket,
    last: Mutex<Option<(Instant, Arc<Listed>)>>,
}

/// Model names, each with the unix time in seconds since which the oldest registration that serves it stands.
type Listed = BTreeMap<String, u64>;

impl Models {
    /// The models of these workers.
    pub fn new(workers: Bucket) -> Self {
        Self { workers, last: Mutex::default() }
    }

    /// All of them. Whoever asks at the same time gets the same list.
    async fn list(&self) -> Result<Arc<Listed>, Problem> {
        let mut last = self.last.lock().await;
        if let Some((read, models)) = last.as_ref().filter(|(read, _)| read.elapsed() < FRESH) {
            let _ = read;
            return Ok(Arc::clone(models));
        }
        let models = tokio::time::timeout(PATIENCE, self.read()).await.unwrap_or(Err(Unreachable("no answer".into())));
        let models = Arc::new(models.map_err(|error| Problem::unavailable("no_connection", error.to_string()))?);
        *last = Some((Instant::now(), Arc::clone(&models)));
        Ok(models)
    }

    async fn read(&self) -> Result<Listed, Unreachable> {
        let mut models = Listed::new();
        if self.workers.info().await?.messages == 0 {
            return Ok(models);
        }
        let mut watch = self.workers.watch(None).await?;
        loop {
            let change = match watch.next().await {
                Watched::Change(change) => change,
                Watched::Interrupted(problem) => return Err(Unreachable(problem)),
                Watched::Dead => return Err(Unreachable("the connection was lost".into())),
            };
            let value = change.stored.value.as_deref();
            if let Some(Ok(worker)) = value.map(|value| Registration::parse(&change.key, value)) {
                let since = change.stored.created.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
                for model in worker.models {
                    let known = models.entry(model.as_str().to_owned()).or_insert(since);
                    *known = since.min(*known);
                }
            }
            if change.pending == 0 {
                return Ok(models);
            }
        }
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
