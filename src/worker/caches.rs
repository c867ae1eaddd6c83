//! What a worker says of its ranks' prefix caches (protocol section 7).

use crate::core::id::{DpRank, WorkerId};
use crate::nats::{Headers, Link};
use crate::wire::Encoding;
use crate::wire::header;
use crate::wire::kv::{KvEvent, KvEvents, MAX_EVENTS};
use crate::wire::subject::Subjects;

/// Tells routers of caches. Their numbers go on for as long as the worker lives: make one for each rank, and keep it.
#[derive(Debug)]
pub struct Caches {
    link: Link,
    subjects: Subjects,
    worker: WorkerId,
    instance: String,
    seq: u64,
}

impl Caches {
    pub(super) fn new(link: Link, subjects: Subjects, worker: WorkerId, instance: String) -> Self {
        Self { link, subjects, worker, instance, seq: 0 }
    }

    /// Tells of changes of one rank's cache, in order. They are hints: what is not sent costs a prefill at most.
    pub async fn tell(&mut self, rank: DpRank, events: Vec<KvEvent>) {
        let subject = self.subjects.worker_kv(&self.worker, rank);
        for part in events.chunks(MAX_EVENTS) {
            self.seq += 1;
            // While there is no connection the client would keep them and send them when they are stale. The number
            // is used up, so that routers notice what they have missed.
            if !self.link.is_connected() {
                continue;
            }
            let told = KvEvents { v: 1, instance: self.instance.clone(), seq: self.seq, events: part.to_vec() };
            let mut headers = Headers::new();
            headers.set(header::CONTENT_TYPE, Encoding::MessagePack.media_type());
            let payload = Encoding::MessagePack.encode(&told);
            if let Err(problem) = self.link.publish(subject.clone(), None, headers, payload.into()).await {
                tracing::debug!(%problem, "changes of a cache were not sent");
            }
        }
    }
}
