//! What gateways keep, made by somebody else: for deployments whose gateways may not make streams.

use std::time::Duration;

use super::OpsError;
use crate::core::id::Namespace;
use crate::nats::Link;
use crate::nats::bucket::{Bucket, Look};
use crate::nats::objects::{Making, Objects};
use crate::wire::subject::Subjects;

/// How long what gateways keep is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ages {
    /// Bodies that a message can't hold.
    pub bodies: Duration,
    /// Files and batches.
    pub files: Duration,
}

/// Makes the object stores and the bucket that gateways of this namespace need, on so many servers, where they are missing;
/// what is there is left as it is. Says what stands now, in words.
pub async fn provision(
    link: &Link,
    namespace: &Namespace,
    ages: Ages,
    replicas: usize,
) -> Result<Vec<String>, OpsError> {
    let subjects = Subjects::new(namespace.clone());
    let mut told = Vec::new();
    for (name, max_age) in [(subjects.bodies_bucket(), ages.bodies), (subjects.files_bucket(), ages.files)] {
        let store = Objects::made_with(link.clone(), &name, Making { max_age, replicas });
        store.provide().await.map_err(|error| OpsError::refused(error.to_string()))?;
        told.push(format!("object store {name}"));
    }
    let name = subjects.batches_bucket();
    let bucket = Bucket::new(link.clone(), &name);
    if bucket.look().await == Look::Missing {
        let made = bucket.create_on(replicas, 1, ages.files, "").await;
        made.map_err(|error| OpsError::Bucket { bucket: name.clone(), verb: "made", problem: error.0 })?;
    }
    told.push(format!("bucket {name}"));
    Ok(told)
}
