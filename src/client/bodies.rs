//! Bodies that a message can't hold: they travel through the object store, and the message says where they lie
//! (protocol section 3.4).

use std::time::Duration;

use tracing::debug;

use super::{ClientError, Request};
use crate::core::id::RequestId;
use crate::nats::objects::{Making, Objects, ObjectsError};
use crate::nats::{ConnectError, Link, LinkOptions};
use crate::wire::body::{self, Wanted};
use crate::wire::claim::{self, Claim};
use crate::wire::header;
use crate::wire::{Encoding, subject::Subjects};

/// Room that is left for the headers of the router, in bytes.
pub const HEADROOM: usize = 8 * 1024;

/// How large bodies travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargeBodies {
    /// How long they may lie in the object store, where this client makes it.
    pub max_age: Duration,
    /// How many servers keep them, where this client makes the store.
    pub replicas: usize,
}

/// The store of large bodies.
#[derive(Debug)]
pub(super) struct Bodies {
    objects: Objects,
}

impl Bodies {
    /// Over a connection of its own: megabytes would hold up other requests.
    pub async fn open(large: LargeBodies, link: LinkOptions, subjects: &Subjects) -> Result<Self, ConnectError> {
        let making = Making { max_age: large.max_age, replicas: large.replicas };
        let link = Link::open(LinkOptions { name: format!("{} bodies", link.name), ..link }).await?;
        Ok(Self { objects: Objects::made_with(link, &subjects.bodies_bucket(), making) })
    }

    /// Stores the request's body, and makes it a request that says where it lies, with the keys that a router would have
    /// made of it. Returns the name of the object, to be forgotten in the end.
    pub async fn store(&self, request: &mut Request) -> Result<String, ClientError> {
        let name = uuid::Uuid::now_v7().simple().to_string();
        let encoding = Encoding::of(request.headers.find(header::CONTENT_TYPE));
        let wanted = Wanted { elements: true, ..Wanted::default() };
        if let Some(model) = &request.model
            && let Some(prefixes) = body::read(&request.body, encoding, wanted)?.prefixes(model)
        {
            request.headers.set(header::PREFIX_KEYS, &claim::write_keys(&prefixes));
            // Nowhere else they are believed.
            request.trusted = true;
        }
        for (header, value) in Claim::of(name.clone(), &request.body).headers() {
            request.headers.set(header, &value);
        }
        let body = std::mem::take(&mut request.body);
        self.put(&name, &body).await.map_err(|error| ClientError::LargeBody(error.to_string()))?;
        Ok(name)
    }

    /// Stores the body of a job under the job's id, unless it lies there already: a worker may be reading it. Returns the
    /// headers that say so.
    pub async fn store_job(&self, id: &RequestId, body: &[u8]) -> Result<[(&'static str, String); 3], ObjectsError> {
        match self.objects.info(id.as_str()).await {
            Ok(info) if info.size == body.len() as u64 => {}
            Ok(_) | Err(ObjectsError::Missing) => self.put(id.as_str(), body).await?,
            Err(error) => return Err(error),
        }
        Ok(Claim::of(id.as_str().to_owned(), body).headers())
    }

    async fn put(&self, name: &str, body: &[u8]) -> Result<(), ObjectsError> {
        self.objects.put(name, std::collections::HashMap::new(), body).await.map(drop)
    }

    /// Deletes the body of a job.
    pub async fn forget_job(&self, id: &RequestId) {
        if let Err(error) = self.objects.delete(id.as_str()).await {
            debug!(%error, "the large body of a job was not deleted, and stays until its time is up");
        }
    }

    /// Deletes a body: nobody needs it any more. It would go by itself in time.
    pub fn forget(&self, name: String) {
        let objects = self.objects.clone();
        tokio::spawn(async move {
            if let Err(error) = objects.delete(&name).await {
                debug!(%error, "a large body was not deleted, and stays until its time is up");
            }
        });
    }
}
