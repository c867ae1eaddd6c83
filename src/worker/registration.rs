//! Keeping a worker's name in the bucket of registrations (protocol section 7).

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::WorkerError;
use crate::nats::registry::{Entry, EntryValue, Registry, RegistryError};
use crate::wire::Encoding;
use crate::wire::registration::{Registration, State};

/// How often the value is put again.
const PUT_EVERY: Duration = Duration::from_secs(2);
/// How long another instance's value has to stay unchanged before its name may be taken over.
const TAKEOVER_AFTER: Duration = Duration::from_secs(3);
/// Pause between two looks at a name that somebody holds.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Pause between two looks for a bucket that is not there.
const BUCKET_EVERY: Duration = Duration::from_millis(500);
/// Looks for a bucket between two warnings that it is missing.
const LOOKS_PER_WARNING: u32 = 60;
/// Compare-and-sets that may lose in a row before the next try waits for its turn.
const MAX_ROUNDS: u32 = 3;

/// What the keeper is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Put the value again and again.
    Ready,
    /// Not registered: what serves the requests does not work at the moment. The key is deleted, and the name kept in
    /// mind.
    Away,
    /// The same, as a worker that takes no more requests.
    Draining,
    /// Delete the key and end.
    Leaving,
}

/// Keeps one name.
#[derive(Debug)]
pub(super) struct Keeper {
    registry: Registry,
    registration: Registration,
    revision: u64,
}

/// Who holds the name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Holder {
    /// Nobody; the revision to expect.
    Nobody(u64),
    /// This instance.
    Us(u64),
    /// Another one, as far as the value can be read.
    Other { revision: u64, instance: Option<String> },
}

/// Whether the name may be had.
enum Room {
    /// It may, at this revision.
    Free(u64),
    /// A live instance has it.
    Taken(Option<String>),
}

impl Keeper {
    /// Waits for the bucket and until the name is free: nobody holds it, or its value has not changed for 3 s.
    /// A name that another instance keeps is an error. Nothing is put yet.
    pub(super) async fn wait_for_name(registry: Registry, registration: Registration) -> Result<Self, WorkerError> {
        let mut keeper = Self { registry, registration, revision: 0 };
        let mut looks = 0;
        loop {
            match keeper.find_room().await {
                Ok(Room::Free(revision)) => {
                    keeper.revision = revision;
                    return Ok(keeper);
                }
                Ok(Room::Taken(instance)) => return Err(keeper.taken(instance)),
                Err(problem) => {
                    if looks % LOOKS_PER_WARNING == 0 {
                        warn!(worker = keeper.registration.worker, %problem, "waiting for the bucket of registrations");
                    }
                    looks += 1;
                    keeper.revive(&problem).await;
                    tokio::time::sleep(BUCKET_EVERY).await;
                }
            }
        }
    }

    /// Whether the name may be had. A holder has 3 s to show that it is alive.
    async fn find_room(&self) -> Result<Room, RegistryError> {
        let (revision, instance) = match self.holder().await? {
            Holder::Nobody(revision) | Holder::Us(revision) => return Ok(Room::Free(revision)),
            Holder::Other { revision, instance } => (revision, instance),
        };
        info!(worker = self.registration.worker, instance, "the name is in use; waiting whether its holder is alive");
        if self.stays_unchanged(revision).await? {
            return Ok(Room::Free(revision));
        }
        match self.holder().await? {
            Holder::Nobody(revision) | Holder::Us(revision) => Ok(Room::Free(revision)),
            Holder::Other { instance, .. } => Ok(Room::Taken(instance)),
        }
    }

    /// Puts the first value. The worker has to listen by now.
    pub(super) async fn register(&mut self) -> Result<(), WorkerError> {
        loop {
            match self.put().await {
                Ok(()) => return Ok(()),
                Err(PutProblem::Lost(instance)) => return Err(self.taken(instance)),
                Err(PutProblem::Later(problem)) => {
                    warn!(worker = self.registration.worker, %problem, "cannot register, trying on");
                    self.revive(&problem).await;
                    tokio::time::sleep(BUCKET_EVERY).await;
                }
            }
        }
    }

    /// Puts the value every 2 s, and at once when the phase changes. Ends when told to leave; an error is the loss of
    /// the name to another instance.
    pub(super) async fn keep(mut self, mut phase: watch::Receiver<Phase>) -> Result<(), WorkerError> {
        let mut reachable = true;
        let mut gone = false;
        loop {
            // Both arms may be dropped: a change that was not read yet is still marked as one.
            tokio::select! {
                changed = phase.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                () = tokio::time::sleep(PUT_EVERY) => (),
            }
            let now = *phase.borrow_and_update();
            self.registration.state = match now {
                Phase::Ready => State::Ready,
                // One that is away takes nothing as it is, and need not say so.
                Phase::Draining if gone => continue,
                Phase::Draining => State::Draining,
                Phase::Away => {
                    // Once: what is not there need not be deleted again.
                    if !std::mem::replace(&mut gone, true) {
                        self.leave().await;
                    }
                    continue;
                }
                Phase::Leaving => {
                    self.say_draining(gone).await;
                    self.leave().await;
                    return Ok(());
                }
            };
            gone = false;
            match self.put().await {
                Ok(()) => {
                    if !std::mem::replace(&mut reachable, true) {
                        info!(worker = self.registration.worker, "registered again");
                    }
                }
                Err(PutProblem::Lost(instance)) => return Err(self.lost(instance)),
                Err(PutProblem::Later(problem)) => {
                    if std::mem::replace(&mut reachable, false) {
                        warn!(worker = self.registration.worker, %problem, "cannot put the registration, trying on");
                    }
                    self.revive(&problem).await;
                }
            }
        }
    }

    /// One put, by compare-and-set on our own last revision. Where that lost, whoever stands there decides: a key
    /// that ran out or was deleted is made anew, a put of our own whose acknowledgement was lost counts.
    async fn put(&mut self) -> Result<(), PutProblem> {
        let value = Bytes::from(Encoding::Json.encode(&self.registration));
        for _ in 0..MAX_ROUNDS {
            match self.registry.put(&value, self.revision).await {
                Ok(revision) => {
                    self.revision = revision;
                    return Ok(());
                }
                Err(RegistryError::Conflict) => (),
                Err(problem) => return Err(PutProblem::Later(problem)),
            }
            match self.holder().await.map_err(PutProblem::Later)? {
                Holder::Nobody(revision) | Holder::Us(revision) => self.revision = revision,
                Holder::Other { instance: Some(instance), .. } => return Err(PutProblem::Lost(Some(instance))),
                // Not readable: the holder is another instance where it goes on putting.
                Holder::Other { revision, instance: None } => {
                    match self.stays_unchanged(revision).await {
                        Ok(true) => self.revision = revision,
                        Ok(false) => return Err(PutProblem::Lost(None)),
                        Err(problem) => return Err(PutProblem::Later(problem)),
                    };
                }
            }
        }
        Err(PutProblem::Later(RegistryError::Conflict))
    }

    /// A drain may be over before it was told: routers go by the last state whether a worker that leaves is lost to them.
    async fn say_draining(&mut self, gone: bool) {
        if !gone
            && std::mem::replace(&mut self.registration.state, State::Draining) == State::Ready
            && let Err(PutProblem::Lost(_) | PutProblem::Later(_)) = self.put().await
        {
            debug!(worker = self.registration.worker, "left without a word of its drain");
        }
    }

    /// Deletes the key where it is still ours.
    async fn leave(&mut self) {
        for _ in 0..MAX_ROUNDS {
            match self.registry.delete(self.revision).await {
                Ok(()) => return,
                Err(RegistryError::Conflict) => (),
                Err(problem) => {
                    warn!(worker = self.registration.worker, %problem, "cannot delete the registration; it runs out");
                    return;
                }
            }
            match self.holder().await {
                Ok(Holder::Us(revision)) => self.revision = revision,
                Ok(Holder::Nobody(_) | Holder::Other { .. }) | Err(_) => return,
            }
        }
    }

    async fn holder(&self) -> Result<Holder, RegistryError> {
        Ok(judge(self.registry.look().await?, &self.registration.instance))
    }

    /// Whether the revision stands for 3 s. An error is one of the bucket.
    async fn stays_unchanged(&self, revision: u64) -> Result<bool, RegistryError> {
        let since = Instant::now();
        while since.elapsed() < TAKEOVER_AFTER {
            tokio::time::sleep(LOOK_EVERY).await;
            let entry = self.registry.look().await?;
            if entry.is_none_or(|entry| entry.revision != revision) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Replaces a dead client.
    async fn revive(&self, problem: &RegistryError) {
        if let RegistryError::Dead(generation) = problem {
            self.registry.link().rebuild(*generation).await;
        }
    }

    fn taken(&self, by: Option<String>) -> WorkerError {
        WorkerError::NameTaken { worker: self.registration.worker.clone(), by: words(by) }
    }

    fn lost(&self, to: Option<String>) -> WorkerError {
        WorkerError::NameLost { worker: self.registration.worker.clone(), to: words(to) }
    }
}

/// Why a put did not succeed.
enum PutProblem {
    /// Another instance has the name.
    Lost(Option<String>),
    /// It may succeed later.
    Later(RegistryError),
}

fn judge(entry: Option<Entry>, own: &str) -> Holder {
    let Some(Entry { revision, value }) = entry else {
        return Holder::Nobody(0);
    };
    match value {
        EntryValue::Deleted => Holder::Nobody(revision),
        EntryValue::Hidden => Holder::Other { revision, instance: None },
        EntryValue::Stored(value) => match instance_of(&value) {
            Some(instance) if instance == own => Holder::Us(revision),
            Some(instance) => Holder::Other { revision, instance: Some(instance) },
            // What names no instance is no registration, and keeps nobody from the name.
            None => Holder::Nobody(revision),
        },
    }
}

/// The instance that a value names, however wrong the rest of it is.
fn instance_of(value: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Named {
        instance: String,
    }
    serde_json::from_slice::<Named>(value).ok().map(|named| named.instance)
}

fn words(instance: Option<String>) -> String {
    instance.map_or_else(|| "another instance".into(), |instance| format!("instance {instance:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_name() {
        let stored = |value: &str| Some(Entry { revision: 7, value: EntryValue::Stored(value.into()) });
        assert_eq!(judge(None, "i"), Holder::Nobody(0));
        assert_eq!(judge(Some(Entry { revision: 7, value: EntryValue::Deleted }), "i"), Holder::Nobody(7));
        assert_eq!(judge(stored(r#"{"instance":"i","v":9}"#), "i"), Holder::Us(7));
        assert_eq!(
            judge(stored(r#"{"instance":"j"}"#), "i"),
            Holder::Other { revision: 7, instance: Some("j".into()) }
        );
        for garbage in ["", "{}", "[1]", "\u{0}"] {
            assert_eq!(judge(stored(garbage), "i"), Holder::Nobody(7));
        }
    }
}
