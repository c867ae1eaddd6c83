//! Bodies that a message could not hold are fetched before the engine sees the request (protocol section 3.4).

use std::time::Duration;

use bytes::Bytes;

use super::engine::{EngineRequest, Refusal};
use crate::nats::Link;
use crate::nats::objects::{Objects, ObjectsError};
use crate::wire::claim::{Claim, ClaimError};
use crate::wire::header;
use crate::wire::subject::Subjects;

/// Largest body that is fetched, in bytes.
pub const MAX_FETCHED: u64 = 1 << 30;

/// How often a body is looked for: a server of a cluster may be behind the one that has stored it.
const LOOKS: u32 = 4;
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// The store of large bodies.
#[derive(Debug)]
pub(super) struct Bodies {
    objects: Objects,
}

impl Bodies {
    /// The namespace's store, which frontends make.
    pub fn new(link: Link, subjects: &Subjects) -> Self {
        Self { objects: Objects::there(link, &subjects.bodies_bucket()) }
    }

    /// The request with its body, wherever that travelled.
    pub async fn complete(&self, mut request: EngineRequest) -> Result<EngineRequest, Refusal> {
        let Some(claim) = Claim::read(request.headers.iter()).map_err(|error| wrong(&error))? else {
            return Ok(request);
        };
        if claim.size > MAX_FETCHED {
            let message = format!("the body is {} bytes, a worker fetches {MAX_FETCHED} at most", claim.size);
            return Err(Refusal::invalid(message));
        }
        let body = self.fetch(&claim).await.map_err(|error| match error {
            ObjectsError::Missing => Refusal::not_found(
                "body_missing",
                "the body of the request is not in the object store, or no longer; send it again",
            ),
            ObjectsError::Unreachable { .. } => Refusal::unavailable("body_unreachable", error.to_string()),
        })?;
        claim.check(&body).map_err(|error| wrong(&error))?;
        let own = [header::BODY, header::BODY_SIZE, header::BODY_DIGEST];
        let is_own = |name: &str| own.iter().any(|own| own.eq_ignore_ascii_case(name));
        request.headers = request.headers.iter().filter(|(name, _)| !is_own(name)).collect();
        request.payload = body;
        Ok(request)
    }

    async fn fetch(&self, claim: &Claim) -> Result<Bytes, ObjectsError> {
        let mut looks = 1;
        loop {
            match self.objects.open(&claim.object).await {
                Ok(object) => return object.whole(claim.size).await,
                Err(ObjectsError::Missing) if looks < LOOKS => looks += 1,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn wrong(error: &ClaimError) -> Refusal {
    Refusal::invalid(error.to_string())
}
