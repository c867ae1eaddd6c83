//! Partitions (protocol section 8.1): whose sessions a router has, and what it does with a request of another's. That is handed
//! over, once: published again where the routers of its partition listen, which answer it as if it had come to them first.

use std::sync::PoisonError;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::admit::Read;
use super::answers::Answers;
use super::run::{RouterError, provide};
use super::state::{Router, unix_ms};
use crate::config::{DecideMode, RouterConfig};
use crate::core::error::RouteError;
use crate::core::hash::PinKey;
use crate::core::id::{Model, RequestId, SessionId, Tenant};
use crate::core::partition::{Partition, Partitions};
use crate::nats::bucket::{Bucket, BucketInfo};
use crate::nats::{Block, Lines, Link, Message, NO_RESPONDERS, Payload, pins};
use crate::wire::header;
use crate::wire::identity::Identity;
use crate::wire::partitions;
use crate::wire::subject::Subjects;

/// How long a cancel counts for a request that is handed over after it. The cancel comes to every router at once, and the
/// request by way of one of them.
const CANCEL_COUNTS_MS: u64 = 2000;
/// First token, behind the router's own prefix, of inboxes on which the server says that nobody serves a partition.
const HANDED: &str = "handed";

/// What is counted of them.
#[derive(Debug)]
pub struct PartitionMetrics {
    handed_over: Counter,
    taken_over: Counter,
    unserved: Counter,
    served: Gauge,
}

impl PartitionMetrics {
    /// All at zero.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            handed_over: Counter::default(),
            taken_over: Counter::default(),
            unserved: Counter::default(),
            served: Gauge::default(),
        };
        registry.register(
            "requests_handed_over",
            "Requests of other routers' partitions that were handed over to these",
            metrics.handed_over.clone(),
        );
        registry.register(
            "requests_taken_over",
            "Requests that other routers have handed over to this one",
            metrics.taken_over.clone(),
        );
        registry.register(
            "requests_of_unserved_partitions",
            "Requests whose partition no router serves",
            metrics.unserved.clone(),
        );
        registry.register("partitions_served", "Partitions that this router serves", metrics.served.clone());
        metrics
    }

    /// Which are served.
    pub fn set(&self, partitions: &Partitions) {
        self.served.set(i64::try_from(partitions.served().count()).unwrap_or(i64::MAX));
    }
}

/// Makes the buckets of pins that are missing, where that is wanted, in the order of their partitions. A namespace with
/// another number of them is an error.
pub async fn provide_pins(
    link: &Link,
    subjects: &Subjects,
    config: &RouterConfig,
) -> Result<Vec<(Bucket, BucketInfo)>, RouterError> {
    let count = config.partitions.count();
    // Made by one request with what it says, so that of two routers which differ only one can have made it.
    let told = Bucket::new(link.clone(), &subjects.pins_bucket());
    let info = provide(&told, config.pin_ttl, &partitions::describe(count), config).await?;
    let found = partitions::told(&info.description);
    if found != Some(count) {
        return Err(RouterError::OtherPartitions {
            namespace: config.namespace.clone(),
            bucket: told.name().to_owned(),
            found: found.map_or(info.description, |found| found.to_string()),
            wanted: count,
        });
    }
    if count == 1 {
        return Ok(vec![(told, info)]);
    }
    let mut all = Vec::with_capacity(count.into());
    for bucket in pins::all(link, subjects, count) {
        let info = provide(&bucket, config.pin_ttl, "", config).await?;
        all.push((bucket, info));
    }
    Ok(all)
}

impl Router {
    /// The partition of a request: that of what is the same in every turn of its conversation, under the model asked for.
    pub(super) fn partition(&self, tenant: &Tenant, identity: &Identity) -> Partition {
        match identity.constant() {
            Some(session) => self.partition_of(tenant, &identity.model, &session),
            // Nothing of it is pinned: it is served where it comes in.
            None => self.config.partitions.served().next().unwrap_or(Partition::FIRST),
        }
    }

    /// The partition of a session, under the model asked for.
    pub(super) fn partition_of(&self, tenant: &Tenant, asked: &Model, session: &SessionId) -> Partition {
        match self.config.partitions.count() {
            1 => Partition::FIRST,
            count => Partition::of(PinKey::new(tenant, asked, session), count),
        }
    }

    /// Hands a request over whose partition this router does not serve; `false` where it does.
    pub(super) fn hand_over(
        &self,
        message: &Message,
        headers: Block<'_>,
        read: &Read<'_>,
        id: &RequestId,
    ) -> Result<bool, RouteError> {
        let partitions = &self.config.partitions;
        let (partition, handed_over) = read.partition();
        if !partitions.serves(partition) {
            if handed_over {
                // Two routers that reckon differently would else send it to and fro.
                return Err(RouteError::NoWorker(format!(
                    "the request was handed over to a router of the partitions {partitions}, and is of partition \
                     {partition} of {}",
                    partitions.count()
                )));
            }
            return self.publish_to(partition, message, headers, id).map(|()| true);
        }
        if handed_over {
            self.metrics.partitions.taken_over.inc();
            if read.decides() && self.config.decide == DecideMode::Off {
                return Err(RouteError::Undecided("the routers of the session's partition place no request so"));
            }
            if self.was_cancelled(id) {
                return Err(RouteError::Cancelled);
            }
        }
        Ok(false)
    }

    fn publish_to(
        &self,
        partition: Partition,
        message: &Message,
        theirs: Block<'_>,
        id: &RequestId,
    ) -> Result<(), RouteError> {
        let Some(subject) = self.subjects.hand_over(partition, message.subject()) else { return Ok(()) };
        let mut headers = Lines::with_capacity(theirs.len() + super::dispatch::OWN_HEADERS);
        headers.extend(theirs, header::goes_to_router);
        headers.push(header::HANDED_OVER, "1");
        if theirs.find(header::REQUEST_ID).is_none() {
            headers.push(header::REQUEST_ID, id.as_str());
        }
        let payload = message.sent_on();
        let size = headers.wire_len() + payload.len();
        let max = self.dispatch.max_payload();
        if size > max {
            return Err(RouteError::PayloadTooLarge { size, max });
        }
        self.metrics.partitions.handed_over.inc();
        self.send(&subject, message.reply(), &headers, payload);
        if let Some(reply) = message.reply() {
            // The server tells of missing responders only where it would deliver to this connection, which the request's
            // own reply subject is not. All that is to be known then stands in the inbox.
            let inbox = format!("{}{HANDED}.{partition}.{id}.{reply}", self.inbox);
            self.send(&self.subjects.probe_part(partition), Some(&inbox), &Lines::new(), Payload::EMPTY);
        }
        Ok(())
    }

    /// What this router subscribes to, to hear of partitions that nobody serves.
    pub(super) fn hand_over_inboxes(&self) -> String {
        format!("{}{HANDED}.>", self.inbox)
    }

    /// The server says that nobody serves the partition to which a request was handed over. `false`: it is about something
    /// else.
    pub(super) fn hear_of_hand_over(&self, message: &Message) -> bool {
        let about = message.subject().strip_prefix(self.inbox.as_str()).and_then(|rest| rest.strip_prefix(HANDED));
        let Some(about) = about.and_then(|rest| rest.strip_prefix('.')) else { return false };
        let mut tokens = about.splitn(3, '.');
        let (Some(partition), Some(id), Some(reply)) = (tokens.next(), tokens.next(), tokens.next()) else {
            return false;
        };
        let count = self.config.partitions.count();
        let (Some(partition), Ok(id)) = (Partition::parse(partition, count), RequestId::new(id)) else { return false };
        if message.status() != Some(NO_RESPONDERS) {
            return false;
        }
        self.metrics.partitions.unserved.inc();
        // Workers may publish on routers' inboxes: no more is believed of what stands there than of a request.
        let Some(answers) = Answers::at(self, reply) else { return true };
        let nobody = format!("no router serves partition {partition} of {count}, which the session is of; start one");
        self.end_in_error(&id, None, &answers, &RouteError::NoWorker(nobody));
        true
    }

    /// Something was cancelled that this router does not have, and may just be handed.
    pub(super) fn note_cancel(&self, id: &str) {
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner).note(id, unix_ms());
    }

    fn was_cancelled(&self, id: &RequestId) -> bool {
        let since = unix_ms().saturating_sub(CANCEL_COUNTS_MS);
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner).hit(id.as_str(), since)
    }
}
