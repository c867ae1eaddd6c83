//! An engine that does nothing: to measure what is around it.

use crate::wire::event::{Finished, Outcome};
use crate::worker::{Acceptance, Engine, EngineRequest, Failure, ReplyStream};

/// Answers each request with its own payload, at once and in one message.
#[derive(Debug, Clone, Copy)]
pub struct Echo {
    /// When the router is told that a request was taken.
    pub acceptance: Acceptance,
}

impl Engine for Echo {
    async fn serve(&self, request: EngineRequest, replies: &mut ReplyStream) -> Result<Finished, Failure> {
        replies.finish(request.payload).await?;
        Ok(Finished::outcome(Outcome::Ok))
    }

    fn acceptance(&self) -> Acceptance {
        self.acceptance
    }
}
