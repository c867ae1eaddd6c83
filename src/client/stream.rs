//! The reply stream of one request, as its caller reads it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use tokio::time::{Instant, Sleep};

use super::error::{Answer, ClientError};
use super::inbox::{Ending, Opened};
use super::sequence::{Mark, Sequence, Verdict};
use super::{Shared, StoredBody};
use crate::core::id::{DpRank, Placement, RequestId, WorkerId};
use crate::nats::{Headers, Message, NO_RESPONDERS};
use crate::wire::header;
use crate::wire::reply::{self, MAX_REPLY_BYTES, ReplyHead};

/// How much longer than its deadline a request is waited for: the router ends it and says so.
const DEADLINE_GRACE: Duration = Duration::from_secs(2);

/// One message of a reply: for a streaming body one server-sent event's data, otherwise the whole answer.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// The payload, not copied. The last one's may be empty.
    pub payload: Bytes,
    /// All its headers.
    pub headers: Headers,
    /// Its `Content-Type`.
    pub content_type: Option<String>,
    /// Whether it ends the stream.
    pub last: bool,
}

/// Who answers, and why that one; known from the first chunk on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Worker and, where there is one, rank.
    pub placement: Placement,
    /// `Rankpin-Decision`.
    pub decision: Option<String>,
    /// `Rankpin-Attempt`.
    pub attempt: Option<u32>,
}

/// How long a stream is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Longest silence before the first message: the request may wait for a worker.
    pub first: Duration,
    /// Longest silence after it.
    pub idle: Duration,
    /// Time for the whole.
    pub deadline: Option<Duration>,
}

/// The replies to one request, in order. It ends after the last chunk or after the first error. Dropped before, it
/// cancels the request.
#[derive(Debug)]
pub struct ReplyStream {
    shared: Arc<Shared>,
    id: RequestId,
    opened: Opened,
    sequence: Sequence,
    served: Option<Served>,
    /// What has come of a reply that goes on in further messages.
    begun: Option<Begun>,
    patience: Patience,
    silence: Duration,
    until: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    state: State,
    /// What the request's body lies in, until it has ended.
    stored: Option<StoredBody>,
}

/// A reply of which more is to come: its first message, and the payload as far as it has come.
#[derive(Debug)]
struct Begun {
    first: Chunk,
    payload: BytesMut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// More is to come.
    Open,
    /// The caller has had the end, and the service knows that it is over.
    Settled,
    /// The caller has had an error of our own; the worker may still be at it.
    Abandoned,
}

impl ReplyStream {
    pub(super) fn new(
        shared: Arc<Shared>,
        id: RequestId,
        opened: Opened,
        patience: Patience,
        stored: Option<StoredBody>,
    ) -> Self {
        let now = Instant::now();
        // A deadline too far away to be a point in time is none.
        let until = patience.deadline.and_then(|deadline| now.checked_add(deadline.saturating_add(DEADLINE_GRACE)));
        let mut stream = Self {
            shared,
            id,
            opened,
            sequence: Sequence::new(),
            served: None,
            begun: None,
            silence: patience.first,
            patience,
            until,
            timer: Box::pin(tokio::time::sleep(patience.first)),
            state: State::Open,
            stored,
        };
        stream.wait_for(patience.first);
        stream
    }

    /// The request's id, also the one under which it can be cancelled.
    pub fn request_id(&self) -> &RequestId {
        &self.id
    }

    /// Who answers; `None` before the first chunk.
    pub fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }

    /// Whether the request's body went through the object store.
    pub fn has_stored_body(&self) -> bool {
        self.stored.is_some()
    }

    /// Reads to the end: all chunks, or the first error.
    pub async fn collect(mut self) -> Result<Vec<Chunk>, ClientError> {
        let mut chunks = Vec::new();
        while let Some(chunk) = self.next().await {
            chunks.push(chunk?);
        }
        Ok(chunks)
    }

    fn wait_for(&mut self, silence: Duration) {
        self.silence = silence;
        let now = Instant::now();
        let idle = now.checked_add(silence);
        if let Some(at) = [idle, self.until].into_iter().flatten().min() {
            self.timer.as_mut().reset(at);
        }
    }

    fn timed_out(&self) -> ClientError {
        match (self.until, self.patience.deadline) {
            (Some(until), Some(deadline)) if Instant::now() >= until => ClientError::Deadline(deadline),
            _ => ClientError::Idle(self.silence),
        }
    }

    /// What the caller gets of a message; nothing where it belongs to an attempt that was given up.
    fn judge(&mut self, message: &Message) -> Result<Option<Chunk>, ClientError> {
        if message.status() == Some(NO_RESPONDERS) {
            self.state = State::Settled;
            return Err(ClientError::NoResponders);
        }
        let headers = message.headers()?;
        let head = ReplyHead::read(headers.iter());
        if let Some((status, code)) = head.error {
            // The router's errors are not numbered and always count; a worker's may be of an attempt given up.
            if head.seq.is_some() && self.sequence.is_stale(head.attempt) {
                return Ok(None);
            }
            self.state = State::Settled;
            let words = reply::error_message(message.payload()).unwrap_or_else(|| code.clone());
            let answer = Answer { payload: message.payload_bytes(), content_type: head.content_type };
            let retry_after_s = head.retry_after_s;
            return Err(ClientError::Service { status, code, message: words, retry_after_s, answer });
        }
        let seq = match head.seq {
            Some(seq) => seq,
            // A placement that comes after a reply of an attempt which was given up: its permit is left to expire.
            None if headers.find(header::EVENT).is_some() => return Ok(None),
            None => return Err(ClientError::Unnumbered),
        };
        match self.sequence.judge(Mark { attempt: head.attempt, seq, last: head.last })? {
            Verdict::Drop => return Ok(None),
            Verdict::Deliver => {}
        }
        if seq == 0 {
            self.served = served(&head);
        }
        if head.last {
            self.state = State::Settled;
            if head.continues {
                return Err(ClientError::CutShort);
            }
        } else {
            self.wait_for(self.patience.idle);
        }
        let (payload, headers) = (message.payload_bytes(), Headers::from(headers));
        let chunk = Chunk { payload, headers, content_type: head.content_type, last: head.last };
        self.join(chunk, head.continues)
    }

    /// Puts together a reply that came in several messages; gives it once it is whole.
    fn join(&mut self, chunk: Chunk, continues: bool) -> Result<Option<Chunk>, ClientError> {
        if !continues && self.begun.is_none() {
            return Ok(Some(chunk));
        }
        let last = chunk.last;
        let payload = chunk.payload.clone();
        let begun = self.begun.get_or_insert_with(|| Begun { first: chunk, payload: BytesMut::new() });
        if begun.payload.len() + payload.len() > MAX_REPLY_BYTES {
            return Err(ClientError::ReplyTooLarge { max: MAX_REPLY_BYTES });
        }
        begun.payload.extend_from_slice(&payload);
        if continues {
            return Ok(None);
        }
        let whole = self.begun.take();
        Ok(whole.map(|Begun { first, payload }| Chunk { payload: payload.freeze(), last, ..first }))
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Chunk, ClientError>> {
        loop {
            match self.opened.messages.poll_recv(cx) {
                Poll::Ready(Some(message)) => {
                    if let Some(outcome) = self.judge(&message).transpose() {
                        return Poll::Ready(outcome);
                    }
                }
                Poll::Ready(None) => {
                    let ending = self.opened.ending.get().copied().unwrap_or(Ending::Disconnected);
                    return Poll::Ready(Err(match ending {
                        Ending::Overflow => ClientError::Overflow { capacity: self.shared.options.stream_capacity },
                        Ending::Disconnected => ClientError::Disconnected,
                    }));
                }
                Poll::Pending => {
                    return self.timer.as_mut().poll(cx).map(|()| Err(self.timed_out()));
                }
            }
        }
    }
}

fn served(head: &ReplyHead) -> Option<Served> {
    let worker = head.worker.as_deref().and_then(|text| WorkerId::new(text).ok())?;
    Some(Served {
        placement: Placement { worker, rank: head.dp_rank.map(DpRank) },
        decision: head.decision.clone(),
        attempt: head.attempt,
    })
}

impl Stream for ReplyStream {
    type Item = Result<Chunk, ClientError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        match this.state {
            State::Settled | State::Abandoned => return Poll::Ready(None),
            State::Open => {}
        }
        this.poll_chunk(cx).map(|outcome| {
            if outcome.is_err() && this.state == State::Open {
                this.state = State::Abandoned;
            }
            Some(outcome)
        })
    }
}

impl Drop for ReplyStream {
    fn drop(&mut self) {
        self.shared.inbox.close(self.opened.token);
        if self.state != State::Settled {
            self.shared.cancel(&self.id);
        }
    }
}
