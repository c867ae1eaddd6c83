//! An engine's cache events, turned into what routers are told of its ranks (protocol section 7).
//!
//! vLLM publishes them by ZeroMQ, a publisher for each rank. What it stores it labels with the session that its request
//! named; what it removes it names by the blocks alone, so it is kept in mind here whose they were.

mod tracker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::task::JoinSet;
use tracing::{debug, info};

use self::tracker::{Batch, Tracker};
use super::engines::Dialect;
use super::http::Http;
use super::targets::{Endpoint, Health, Targets};
use super::zmtp::Subscriber;
use crate::core::id::DpRank;
use crate::wire::kv::KvEvent;
use crate::worker::{Caches, Worker};

/// Pause before a publisher is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Where a rank's events are published, as vLLM lists it.
#[derive(Debug, Deserialize)]
struct Source {
    #[serde(default)]
    enable_kv_cache_events: bool,
    #[serde(default)]
    endpoint: String,
}

/// Follows the events of every rank of every server, where the engine has any.
pub(super) fn follow_all(
    tasks: &mut JoinSet<()>,
    targets: &Arc<Targets>,
    dialect: &'static Dialect,
    http: &Http,
    worker: &Worker,
) {
    let Some(page) = dialect.kv_sources else { return };
    for server in 0..targets.endpoints().len() {
        for local in 0..targets.per_server() {
            let feed = Feed {
                targets: Arc::clone(targets),
                server,
                local,
                rank: targets.rank_at(server, local),
                http: http.clone(),
                page,
                caches: worker.caches(),
            };
            tasks.spawn(feed.follow());
        }
    }
}

/// The events of one rank.
struct Feed {
    targets: Arc<Targets>,
    server: usize,
    local: u32,
    rank: DpRank,
    http: Http,
    page: &'static str,
    caches: Caches,
}

impl Feed {
    fn endpoint(&self) -> &Endpoint {
        &self.targets.endpoints()[self.server]
    }

    /// For ever, as long as the server says that there are any.
    async fn follow(mut self) {
        loop {
            if self.endpoint().health() == Health::Up {
                match self.address().await {
                    Ok(Some(address)) => self.read(&address).await,
                    Ok(None) => {
                        debug!(url = %self.endpoint().base, rank = %self.rank, "the engine publishes no cache events");
                    }
                    Err(problem) => {
                        debug!(url = %self.endpoint().base, problem, "the engine's cache events can't be asked for");
                    }
                }
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    /// Reads until the connection ends. What was known before it is not known any more.
    async fn read(&mut self, address: &str) {
        let mut subscriber = match Subscriber::connect(address).await {
            Ok(subscriber) => subscriber,
            Err(problem) => return debug!(address, %problem, "the engine's cache events can't be heard"),
        };
        info!(address, rank = %self.rank, "hearing the engine's cache events");
        let (mut tracker, mut seq) = (Tracker::default(), None);
        self.caches.tell(self.rank, vec![KvEvent::Cleared(true)]).await;
        let problem = loop {
            let frames = match subscriber.next().await {
                Ok(frames) => frames,
                Err(problem) => break problem.to_string(),
            };
            let [_topic, number, payload] = frames.as_slice() else { break "a message has not three frames".into() };
            let Ok(number) = <[u8; 8]>::try_from(&number[..]).map(u64::from_be_bytes) else {
                break "a message has no number".into();
            };
            let gap = seq.is_some_and(|seq| number != seq + 1);
            seq = Some(number);
            let batch: Batch = match rmp_serde::from_slice(payload) {
                Ok(batch) => batch,
                Err(problem) => break format!("a message can't be read: {problem}"),
            };
            let mut told = Vec::new();
            if gap {
                tracker = Tracker::default();
                told.push(KvEvent::Cleared(true));
            }
            tracker.take(batch, &mut told);
            if !told.is_empty() {
                self.caches.tell(self.rank, told).await;
            }
        };
        info!(address, problem, rank = %self.rank, "the engine's cache events are no longer heard");
    }

    /// Where the rank's events are published; none where the engine publishes none.
    async fn address(&self) -> Result<Option<String>, String> {
        let base = &self.endpoint().base;
        let page = self.http.page(base, self.page).await.map_err(|e| e.to_string())?;
        let listed: BTreeMap<String, Option<Source>> = serde_json::from_slice(&page).map_err(|e| e.to_string())?;
        let listed = listed.get(&self.local.to_string()).and_then(Option::as_ref);
        let source = listed.filter(|source| source.enable_kv_cache_events);
        Ok(source.and_then(|source| address_of(&source.endpoint, &base.host())))
    }
}

/// Host and port of a publisher that was told to bind to an endpoint.
fn address_of(endpoint: &str, host: &str) -> Option<String> {
    let (bound, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let host = if ["*", "0.0.0.0", "[::]", "::"].contains(&bound) { host } else { bound };
    Some(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        assert_eq!(address_of("tcp://*:28957", "gpu-7").as_deref(), Some("gpu-7:28957"));
        assert_eq!(address_of("tcp://10.0.0.1:5557", "gpu-7").as_deref(), Some("10.0.0.1:5557"));
        assert_eq!(address_of("inproc://x", "gpu-7"), None);
        assert_eq!(address_of("tcp://*:x", "gpu-7"), None);
    }
}
