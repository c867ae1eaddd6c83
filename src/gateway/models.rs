//! `/v1/models`: what the registered workers serve.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::problem::Problem;
use crate::nats::bucket::{Bucket, Unreachable};
use crate::wire::registration::Registration;

/// How long a list of models counts.
const FRESH: Duration = Duration::from_secs(1);

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
        Ok(models)
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
