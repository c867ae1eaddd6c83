//! One subscription, for whoever listens for a while.

use async_nats::Subscriber;
use futures_util::StreamExt as _;

use super::{ConnectError, Inbound, Link};

/// A subscription of one connection.
#[derive(Debug)]
pub struct Subscription(Subscriber);

impl Subscription {
    /// Subscribes, and waits until the server has it, which tells too whether its user may.
    pub async fn open(link: &Link, subject: String) -> Result<Self, ConnectError> {
        let (client, _) = link.client();
        let subscriber = client.subscribe(subject).await.map_err(|_| ConnectError::Silent(link.servers()))?;
        link.barrier().await?;
        Ok(Self(subscriber))
    }

    /// The next message. `None`: the connection has died. Nothing is lost where the returned future is dropped.
    pub async fn next(&mut self) -> Option<Inbound> {
        self.0.next().await.map(Inbound::from)
    }
}
