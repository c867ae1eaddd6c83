//! SIGTERM and SIGINT.

use std::future::Future;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

/// A future that ends at the first SIGTERM or SIGINT, which then is the service's to act on. A second one ends the
/// process at once, with the exit code that a shell gives to a command killed by it.
///
/// The handlers stand from now on, not only once the future is polled: no signal slips through while a service
/// starts. To be called inside the runtime.
pub fn stop() -> std::io::Result<impl Future<Output = ()> + Send> {
    let mut signals =
        Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? };
    Ok(async move {
        let (name, _) = signals.next().await;
        info!(signal = name, "stopping; a second signal ends the process at once");
        tokio::spawn(async move {
            let (name, number) = signals.next().await;
            warn!(signal = name, "ending at once");
            #[expect(clippy::exit, reason = "whoever sends a second signal does not want to wait for anything")]
            std::process::exit(128 + number);
        });
    })
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Name and number of the next one. Cancel-safe: both arms only wait.
    async fn next(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", SignalKind::terminate().as_raw_value()),
            _ = self.interrupt.recv() => ("SIGINT", SignalKind::interrupt().as_raw_value()),
        }
    }
}
