//! The hot thread: both connections of the hot path, and all that is handled where their messages are read, run on one
//! thread of their own. A runtime of several threads would wake others up for each batch of messages, to find that there
//! is nothing for them to do.

use std::future::Future;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread that runs tasks until this is dropped.
#[derive(Debug)]
pub struct HotThread {
    handle: Handle,
    _running: oneshot::Sender<()>,
}

impl HotThread {
    /// Starts it.
    pub fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel::<()>();
        thread::Builder::new().name("rankpin-hot".into()).spawn(move || {
            // Ends with an error when the sender is dropped, which is what it waits for.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _running: running })
    }

    /// Where its tasks are spawned.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs something there, and waits for it: what it opens belongs to that thread.
    pub async fn run<T: Send + 'static>(&self, what: impl Future<Output = T> + Send + 'static) -> T {
        self.handle.spawn(what).await.expect("the thread runs, and what runs there does not panic")
    }
}
