//! Load reports (protocol section 7): every second, and on change at most every 50 ms.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use super::engine::Engine;
use super::serve::Service;
use crate::nats::Headers;
use crate::wire::Encoding;
use crate::wire::header;
use crate::wire::load::{LoadReport, RankReport};

/// Longest time between two reports.
const AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// Shortest time between two reports.
const AT_MOST_EVERY: Duration = Duration::from_millis(50);

/// Reports for ever.
pub(super) async fn report<E: Engine>(service: Arc<Service<E>>, instance: String, subject: String) {
    let mut seq = 0;
    let mut last: Option<(Instant, Vec<RankReport>)> = None;
    loop {
        let ranks = figures(&service);
        let due = last.as_ref().is_none_or(|(at, told)| at.elapsed() >= AT_LEAST_EVERY || *told != ranks);
        // While there is no connection the client would keep reports and send them when they are stale.
        if due && service.store.is_connected() {
            seq += 1;
            let worker = service.worker.as_str().to_owned();
            let report = LoadReport { v: 1, worker, instance: instance.clone(), seq, ranks: ranks.clone() };
            let mut headers = Headers::new();
            headers.set(header::CONTENT_TYPE, Encoding::Json.media_type());
            let payload = Encoding::Json.encode(&report);
            if let Err(problem) = service.store.publish(subject.clone(), None, headers, payload.into()).await {
                debug!(%problem, "a load report was not sent");
            }
            last = Some((Instant::now(), ranks));
        }
        let next = last.as_ref().map_or_else(Instant::now, |(at, _)| *at) + AT_LEAST_EVERY;
        tokio::time::sleep(AT_MOST_EVERY).await;
        if !service.slots.is_busy() {
            // Both arms may be dropped; a wake-up that nobody waits for is kept.
            tokio::select! {
                () = tokio::time::sleep_until(next) => (),
                () = service.slots.woken() => (),
            }
        }
    }
}

fn figures<E: Engine>(service: &Service<E>) -> Vec<RankReport> {
    let mut ranks = service.slots.reports();
    service.engine.load(&mut ranks);
    ranks
}
