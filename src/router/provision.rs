//! What a router makes when it starts, made by somebody else: for deployments whose routers may not.

use super::jobs::{consumer, streams};
use super::partitions::provide_pins;
use super::run::{REGISTRATION_MAX_AGE, RouterError, provide};
use crate::config::{Level, RouterConfig};
use crate::core::mode::Provision;
use crate::nats::bucket::Bucket;
use crate::nats::{JetStream, Link};
use crate::wire::subject::Subjects;

/// Makes the buckets and streams that routers of this configuration need, where they are missing; what is there is left
/// as it is. Says what stands now, in words.
pub async fn provision(config: &RouterConfig) -> Result<Vec<String>, RouterError> {
    let config = &RouterConfig { provision: Provision::Auto, ..config.clone() };
    let subjects = Subjects::new(config.namespace.clone());
    let link = Link::open(config.access.link("rankpin provision")?).await?;
    let mut told = Vec::new();
    for (bucket, info) in provide_pins(&link, &subjects, config).await? {
        told.push(format!("bucket {}: {} keys", bucket.name(), info.messages));
    }
    if config.pools.level == Level::Worker {
        let bucket = Bucket::new(link.clone(), &subjects.workers_bucket());
        let info = provide(&bucket, REGISTRATION_MAX_AGE, "", config).await?;
        told.push(format!("bucket {}: {} keys", bucket.name(), info.messages));
    }
    if config.pools.level == Level::Global || config.jobs.max == 0 {
        return Ok(told);
    }
    let api = JetStream::new(link);
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: crate::nats::JetStreamError| RouterError::Stream { what, problem: error.to_string() }
    };
    for wanted in streams(&subjects, &config.jobs) {
        let found = match api.stream(&wanted.name).await.map_err(failed(&wanted.name))? {
            Some(info) => info,
            None => api.create_stream(&wanted).await.map_err(failed(&wanted.name))?,
        };
        told.push(format!("stream {}: {} messages", wanted.name, found.state.messages));
    }
    let (stream, wanted) = (subjects.jobs_stream(), consumer(&subjects));
    if api.consumer(&stream, &wanted.name).await.map_err(failed(&wanted.name))?.is_none() {
        api.create_consumer(&stream, &wanted).await.map_err(failed(&wanted.name))?;
    }
    told.push(format!("consumer {} of {stream}", wanted.name));
    Ok(told)
}
