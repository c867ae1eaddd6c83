//! A pin that is put before a dispatch by a request at rest: the bucket's answer comes to the router's inbox, and the request
//! goes on where it is read, without a task of its own.

use std::time::Instant;

use tokio::sync::OwnedSemaphorePermit;

use super::live::Mail;
use super::pinning::{NewPin, Pinned};
use super::route::{Request, note};
use super::state::Keys;
use crate::core::decide::Decision;
use crate::core::error::RouteError;
use crate::core::hash::PinKey;
use crate::core::pins::Pin;
use crate::nats::bucket::{BUCKET_TIMEOUT, CasError};

/// A pin that is being put.
pub struct Claiming {
    pub(super) decision: Decision,
    key: PinKey,
    pin: Pin,
    /// Until when the bucket may take to answer; beyond, it is unreachable.
    pub(super) until: Instant,
    /// Its answer, where that has come.
    pub(super) answer: Option<Result<u64, CasError>>,
    _place: OwnedSemaphorePermit,
}

impl Request {
    /// Asks the bucket to put a pin, where that takes no waiting. `Err`: it does, or the pin is another than was thought.
    pub(super) fn begin_claim(&mut self, decision: Decision, new: NewPin) -> Result<Box<Claiming>, Decision> {
        let Keys::Named(key) = self.keys else { return Err(decision) };
        let bucket = &self.router.pins.of(self.partition).bucket;
        let (Some(place), Some(claim)) = (bucket.place(), self.router.claim(key)) else { return Err(decision) };
        let expected = self.basis.revision;
        let reply = self.router.claim_inbox(self.seq);
        if self.revision(key) != expected || bucket.send(&key.to_string(), &new.value, expected, &reply).is_err() {
            return Err(decision);
        }
        self.claim = Some(claim);
        let until = Instant::now() + BUCKET_TIMEOUT;
        Ok(Box::new(Claiming { decision, key, pin: new.pin, until, answer: None, _place: place }))
    }

    /// The bucket has put the pin of a request at rest.
    pub(super) fn claim_stands(&mut self, claiming: Claiming, revision: u64) -> Decision {
        self.pin_stands(claiming.key, &claiming.decision, claiming.pin, revision);
        claiming.decision
    }

    /// Goes on with a pin that is being put, now in a task. `None`: it is another than was thought.
    pub(super) async fn finish_claim(&mut self, mut claiming: Claiming) -> Result<Option<Decision>, RouteError> {
        let (answer, others) = match claiming.answer.take() {
            Some(answer) => (answer, Vec::new()),
            None => self.next_answer(claiming.until).await,
        };
        let Claiming { decision, key, pin, .. } = claiming;
        let pinned = match answer {
            Ok(revision) => {
                self.pin_stands(key, &decision, pin, revision);
                Pinned::Yes
            }
            Err(error) => self.pin_fails(key, &decision, error).await,
        };
        // What has come meanwhile: by now it is known what has to be given back.
        others.iter().try_for_each(note)?;
        match pinned {
            Pinned::Yes => Ok(Some(decision)),
            Pinned::AskAgain => {
                self.leave()?;
                Ok(None)
            }
        }
    }

    async fn next_answer(&mut self, until: Instant) -> (Result<u64, CasError>, Vec<Mail>) {
        let mut others = Vec::new();
        loop {
            match tokio::time::timeout_at(until.into(), self.mail().recv()).await {
                Ok(Some(Mail::Put(answer))) => return (*answer, others),
                Ok(Some(other)) => others.push(other),
                Ok(None) | Err(_) => return (Err(CasError::silent(BUCKET_TIMEOUT)), others),
            }
        }
    }
}
