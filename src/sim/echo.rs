//! An engine that does nothing: to measure what is around it.

use bytes::Bytes;

use crate::wire::event::{Finished, Outcome};
use crate::worker::{Acceptance, Engine, EngineRequest, Failure, ReplyStream};

/// Bytes of each part but the last: about a token, as engines stream it.
const PART: &[u8] = br#"{"choices":[{"index":0,"delta":{"content":" word"}}]}"#;

/// Answers each request with its own payload, or the beginning of it, at once.
#[derive(Debug, Clone, Copy)]
pub struct Echo {
    /// When the router is told that a request was taken.
    pub acceptance: Acceptance,
    /// Messages of an answer: so many less one, each about a token, and then the payload.
    pub parts: u32,
    /// Bytes of the payload that it answers with at most; all, where nothing is said.
    pub most: Option<usize>,
}

impl Engine for Echo {
    async fn serve(&self, request: EngineRequest, replies: &mut ReplyStream) -> Result<Finished, Failure> {
        for _ in 1..self.parts {
            replies.send(Bytes::from_static(PART)).await?;
        }
        let mut answer = request.payload;
        answer.truncate(self.most.unwrap_or(usize::MAX));
        replies.finish(answer).await?;
        Ok(Finished::outcome(Outcome::Ok))
    }

    fn acceptance(&self) -> Acceptance {
        self.acceptance
    }
}
