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
        let mut subscriptions = Self { streams: SelectAll::new(), generation: link.client().1 };
        for (index, wanted) in wanted.iter().enumerate() {
            subscriptions.add(link, index, wanted).await?;
        }
        link.barrier().await?;
        Ok(subscriptions)
    }

    /// Subscribes to one more, under a place that is free. An error means that the client is dead.
    pub async fn add(
        &mut self,
        link: &Link,
        index: usize,
        (subject, queue): &(String, Option<&str>),
    ) -> Result<(), ConnectError> {
        let silent = || ConnectError::Silent(link.servers());
        let (client, generation) = link.client();
        if generation != self.generation {
            return Err(silent());
        }
        let subscribed = match queue {
            Some(queue) => client.queue_subscribe(subject.clone(), (*queue).to_owned()).await,
            None => client.subscribe(subject.clone()).await,
        };
        let subscriber = subscribed.map_err(|_| silent())?;
        self.streams.push(Tagged { index, subscriber: Some(subscriber), closing: false });
        Ok(())
    }

    /// Ends the subscription of a place. What has come in for it already is still told.
    pub async fn close(&mut self, index: usize) {
        for tagged in self.streams.iter_mut().filter(|tagged| tagged.index == index && !tagged.closing) {
            tagged.closing = true;
            if let Some(subscriber) = &mut tagged.subscriber {
                // A client that can't be told is dead, and the subscription with it.
                let _ = subscriber.unsubscribe().await;
            }
        }
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
    /// Its end is wanted, and says nothing of the client.
    closing: bool,
}

impl Stream for Tagged {
    type Item = (usize, Option<Inbound>);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (index, closing) = (self.index, self.closing);
        let Some(subscriber) = &mut self.subscriber else {
            return Poll::Ready(None);
        };
        subscriber.poll_next_unpin(context).map(|message| {
            if message.is_none() {
                self.subscriber = None;
                if closing {
                    return None;
                }
            }
            Some((index, message.map(Inbound::from)))
        })
    }
}
