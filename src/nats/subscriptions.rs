//! Several subscriptions of one connection, read as one stream that tells when the client has died.

use std::pin::Pin;
use std::task::{Context, Poll};

use async_nats::Subscriber;
use futures_util::stream::SelectAll;
use futures_util::{Stream, StreamExt as _};

use super::{ConnectError, Inbound, Link};

/// Subscriptions that live and die together.
#[derive(Debug)]
pub struct Subscriptions {
    streams: SelectAll<Tagged>,
    generation: u64,
}

impl Subscriptions {
    /// Subscribes to (subject, queue group) pairs and waits until the server has all of them. Messages may be
    /// waiting when this returns.
    pub async fn open(link: &Link, wanted: &[(String, Option<&str>)]) -> Result<Self, ConnectError> {
        let (client, generation) = link.client();
        let mut streams = SelectAll::new();
        for (index, (subject, queue)) in wanted.iter().enumerate() {
            let subscribed = match queue {
                Some(queue) => client.queue_subscribe(subject.clone(), (*queue).to_owned()).await,
                None => client.subscribe(subject.clone()).await,
            };
            let subscriber = subscribed.map_err(|_| ConnectError::Silent(link.servers()))?;
            streams.push(Tagged { index, subscriber: Some(subscriber) });
        }
        link.barrier().await?;
        Ok(Self { streams, generation })
    }

    /// The next message, with the place of its subscription in what was wanted. `None`: the client is dead, and has
    /// to be rebuilt. Nothing is lost where the returned future is dropped.
    pub async fn next(&mut self) -> Option<(usize, Inbound)> {
        match self.streams.next().await {
            Some((index, Some(message))) => Some((index, message)),
            Some((_, None)) | None => None,
        }
    }

    /// Generation of the client, for [`Link::rebuild`].
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

/// One subscription; says its own end, which a merged stream would swallow.
#[derive(Debug)]
struct Tagged {
    index: usize,
    subscriber: Option<Subscriber>,
}

impl Stream for Tagged {
    type Item = (usize, Option<Inbound>);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let index = self.index;
        let Some(subscriber) = &mut self.subscriber else {
            return Poll::Ready(None);
        };
        subscriber.poll_next_unpin(context).map(|message| {
            if message.is_none() {
                self.subscriber = None;
            }
            Some((index, message.map(Inbound::from)))
        })
    }
}
