//! How long clients may pause within the body of a request: one bound for every endpoint, put on where bodies come in.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::HttpBody;
use axum::http::StatusCode;
use hyper::body::{Frame, SizeHint};
use tokio::time::Sleep;

use super::problem::Problem;

/// How long a client may pause within a body.
const PAUSE: Duration = Duration::from_secs(30);

type BoxError = Box<dyn Error + Send + Sync>;

/// The body of a request, which ends in [`Stalled`] where nothing more of it comes.
#[derive(Debug)]
pub struct Paced<B> {
    body: B,
    /// Runs while its reader waits: what a reader does between two looks is not the client's pause.
    pause: Option<Pin<Box<Sleep>>>,
}

/// Nothing more of a body came for too long.
#[derive(Debug, thiserror::Error)]
#[error("nothing more of the body came within {} s", PAUSE.as_secs())]
struct Stalled;

impl<B> Paced<B> {
    /// This body, bounded.
    pub fn new(body: B) -> Self {
        Self { body, pause: None }
    }
}

impl<B: HttpBody<Error: Into<BoxError>> + Unpin> HttpBody for Paced<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.pause = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let pause = this.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(PAUSE)));
        ready!(pause.as_mut().poll(cx));
        Poll::Ready(Some(Err(Stalled.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What is told where a body, or a form in it, can't be read to its end.
pub fn unreadable(what: &str, error: &(dyn Error + 'static)) -> Problem {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    match causes.find_map(|cause| cause.downcast_ref::<Stalled>()) {
        Some(stalled) => Problem::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", stalled.to_string()),
        None => Problem::invalid(format!("{what}: {error}")),
    }
}
