//! A JetStream object store: things too large for a message, and files.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_nats::jetstream::object_store::{self, ObjectMetadata, ObjectStore};
use async_nats::jetstream::{self, context};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::link::{Link, describe};

/// Most bytes of one message of an object; a server may allow less.
const CHUNK: usize = 512 * 1024;
/// How long opening, deleting or listing may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing may come of an object that is read.
const READ_PAUSE: Duration = Duration::from_secs(30);
/// Most objects that are listed.
pub const MAX_LISTED: usize = 10_000;

/// An object store, by name, over a connection that may be replaced.
#[derive(Clone)]
pub struct Objects {
    link: Link,
    name: String,
    /// How the store is made where it is missing; `None` where this end does not make it.
    made_with: Option<Making>,
    open: Arc<Mutex<Option<(u64, ObjectStore)>>>,
}

/// How a store is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Making {
    /// How long objects live.
    pub max_age: Duration,
    /// How many servers keep them.
    pub replicas: usize,
}

/// Why nothing came of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectsError {
    /// There is no such object, or no such store.
    #[error("there is no such object")]
    Missing,
    /// The server did not do it, or did not say so.
    #[error("the object store {store} can't be used: {problem}")]
    Unreachable {
        /// Its name.
        store: String,
        /// What is wrong.
        problem: String,
    },
}

/// What is known of an object besides its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// When it was stored, by the clock of whoever stored it.
    pub modified: SystemTime,
    /// What was stored with it.
    pub metadata: HashMap<String, String>,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").field("name", &self.name).field("made_with", &self.made_with).finish_non_exhaustive()
    }
}

impl Objects {
    /// A store of this name. Where it is missing when something is put, it is made so.
    pub fn made_with(link: Link, name: &str, making: Making) -> Self {
        Self { made_with: Some(making), ..Self::there(link, name) }
    }

    /// A store of this name that somebody else makes.
    pub fn there(link: Link, name: &str) -> Self {
        Self { link, name: name.to_owned(), made_with: None, open: Arc::default() }
    }

    /// Makes the store, where it is missing.
    pub async fn provide(&self) -> Result<(), ObjectsError> {
        self.opened().await.map(drop)
    }

    /// Stores an object under a name, in place of the one that is there. Returns its size.
    pub async fn put(
        &self,
        name: &str,
        metadata: HashMap<String, String>,
        mut bytes: impl AsyncRead + Unpin,
    ) -> Result<u64, ObjectsError> {
        let store = self.opened().await?;
        // A message carries headers too.
        let chunk_size = CHUNK.min(self.link.max_payload() / 2).max(1);
        let meta =
            ObjectMetadata { name: name.to_owned(), metadata, chunk_size: Some(chunk_size), ..Default::default() };
        let put = store.put(meta, &mut bytes).await;
        put.map(|info| info.size as u64).map_err(|error| self.unreachable(&error))
    }

    /// What is known of an object.
    pub async fn info(&self, name: &str) -> Result<ObjectInfo, ObjectsError> {
        use object_store::InfoErrorKind;
        let store = self.opened().await?;
        let info = self.within(PATIENCE, store.info(name)).await?.map_err(|error| match error.kind() {
            InfoErrorKind::NotFound | InfoErrorKind::InvalidName => ObjectsError::Missing,
            InfoErrorKind::Other | InfoErrorKind::TimedOut => self.unreachable(&error),
        })?;
        if info.deleted { Err(ObjectsError::Missing) } else { Ok(read(info)) }
    }

    /// An object, to be read. Its end is only reached where all of it is there and is what was stored.
    pub async fn open(&self, name: &str) -> Result<ObjectReader, ObjectsError> {
        // Tells missing ones from those that can't be read.
        let info = self.info(name).await?;
        let store = self.opened().await?;
        let object = self.within(PATIENCE, store.get(name)).await?.map_err(|error| self.unreachable(&error))?;
        Ok(ObjectReader { object, info, store: self.clone() })
    }

    /// Deletes an object. One that is not there is no error.
    pub async fn delete(&self, name: &str) -> Result<(), ObjectsError> {
        match self.info(name).await {
            Ok(_) => {}
            Err(ObjectsError::Missing) => return Ok(()),
            Err(error) => return Err(error),
        }
        let store = self.opened().await?;
        self.within(PATIENCE, store.delete(name)).await?.map_err(|error| self.unreachable(&error))
    }

    /// All objects, at most [`MAX_LISTED`].
    pub async fn list(&self) -> Result<Vec<ObjectInfo>, ObjectsError> {
        let store = match self.opened().await {
            Ok(store) => store,
            Err(ObjectsError::Missing) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let all = async {
            let mut list = store.list().await.map_err(|error| self.unreachable(&error))?;
            let mut found = Vec::new();
            while let Some(info) = list.next().await {
                found.push(read(info.map_err(|error| self.unreachable(&error))?));
                if found.len() == MAX_LISTED {
                    break;
                }
            }
            Ok(found)
        };
        self.within(PATIENCE, all).await?
    }

    async fn opened(&self) -> Result<ObjectStore, ObjectsError> {
        if !self.link.is_connected() {
            return Err(self.problem("there is no connection"));
        }
        let (client, generation) = self.link.client();
        let known = self.open.lock().expect("no code panics while it holds this lock").clone();
        if let Some((_, store)) = known.filter(|(known, _)| *known == generation) {
            return Ok(store);
        }
        let context = jetstream::new(client);
        let store = self.within(PATIENCE, self.find_or_make(&context)).await??;
        *self.open.lock().expect("no code panics while it holds this lock") = Some((generation, store.clone()));
        Ok(store)
    }

    async fn find_or_make(&self, context: &jetstream::Context) -> Result<ObjectStore, ObjectsError> {
        let missing = match context.get_object_store(&self.name).await {
            Ok(store) => return Ok(store),
            Err(error) => error,
        };
        if missing.kind() != context::ObjectStoreErrorKind::GetStore {
            return Err(self.unreachable(&missing));
        }
        let Some(Making { max_age, replicas: num_replicas }) = self.made_with else {
            let is_missing = describe(&missing).contains("not found");
            return Err(if is_missing { ObjectsError::Missing } else { self.unreachable(&missing) });
        };
        let config = object_store::Config { bucket: self.name.clone(), max_age, num_replicas, ..Default::default() };
        context.create_object_store(config).await.map_err(|error| self.unreachable(&error))
    }

    async fn within<T>(&self, patience: Duration, what: impl Future<Output = T>) -> Result<T, ObjectsError> {
        let no_answer = |_| self.problem(&format!("no answer within {} s", patience.as_secs()));
        tokio::time::timeout(patience, what).await.map_err(no_answer)
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> ObjectsError {
        // The store may have been deleted: it is looked for anew.
        *self.open.lock().expect("no code panics while it holds this lock") = None;
        self.problem(&describe(error))
    }

    fn problem(&self, problem: &str) -> ObjectsError {
        ObjectsError::Unreachable { store: self.name.clone(), problem: problem.to_owned() }
    }
}

/// An object that is read.
pub struct ObjectReader {
    object: object_store::Object,
    info: ObjectInfo,
    store: Objects,
}

impl ObjectReader {
    /// What is known of it.
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// The next bytes; none at the end.
    pub async fn next(&mut self) -> Result<Bytes, ObjectsError> {
        let mut piece = BytesMut::with_capacity(CHUNK);
        let read = self.store.within(READ_PAUSE, self.object.read_buf(&mut piece)).await?;
        read.map_err(|error| self.store.unreachable(&error))?;
        Ok(piece.freeze())
    }

    /// All of it, where it is no larger than `max` bytes.
    pub async fn whole(mut self, max: u64) -> Result<Bytes, ObjectsError> {
        let too_large = |size: u64| self.store.problem(&format!("the object is {size} bytes, {max} are allowed"));
        if self.info.size > max {
            return Err(too_large(self.info.size));
        }
        let size = usize::try_from(self.info.size).map_err(|_| too_large(self.info.size))?;
        let mut whole = BytesMut::with_capacity(size);
        loop {
            let read = self.store.within(READ_PAUSE, self.object.read_buf(&mut whole)).await?;
            match read {
                Ok(0) => return Ok(whole.freeze()),
                Ok(_) if whole.len() > size => return Err(too_large(whole.len() as u64)),
                // There may be no room left in the buffer, which would read as the end.
                Ok(_) => whole.reserve(1),
                Err(error) => return Err(self.store.unreachable(&error)),
            }
        }
    }
}

fn read(info: object_store::ObjectInfo) -> ObjectInfo {
    let nanos = info.modified.map_or(0, async_nats::datetime::DateTime::unix_timestamp_nanos);
    let modified = SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX));
    ObjectInfo { name: info.name, size: info.size as u64, modified, metadata: info.metadata }
}
