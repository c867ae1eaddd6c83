//! Looking after one server: whether it works, and what it says of its load.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info, warn};

use super::engines::Dialect;
use super::figures::Page;
use super::http::{Http, HttpError};
use super::targets::{Endpoint, Health, Targets};

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shortest pause between two looks, however often somebody suspects the server.
const AT_MOST_EVERY: Duration = Duration::from_millis(50);
/// Looks in a row without an answer after which a server counts as silent.
const MAX_SILENT: u32 = 3;

/// Looks after a server for ever.
pub async fn look_after(targets: Arc<Targets>, index: usize, dialect: &'static Dialect, http: Http) {
    let endpoint = &targets.endpoints()[index];
    let mut silent = 0;
    loop {
        let before = endpoint.health();
        let seen = look(endpoint, dialect, &http).await;
        let health = match &seen {
            Ok(()) => Health::Up,
            Err(HttpError::Silent(_)) => {
                silent += 1;
                let patient = before == Health::Up && silent < MAX_SILENT;
                if patient { before } else { Health::Silent }
            }
            // A server that refuses connections, breaks them or says that its engine is dead has lost what it had.
            Err(HttpError::Connect(_) | HttpError::Broken(_) | HttpError::TooLarge(_) | HttpError::Status(_)) => {
                Health::Dead
            }
        };
        if seen.is_ok() {
            silent = 0;
        }
        if health != before {
            match &seen {
                Ok(()) => info!(url = %endpoint.base, "the engine works"),
                Err(problem) => warn!(url = %endpoint.base, %problem, "the engine does not work"),
            }
            targets.set_health(endpoint, health);
        }
        if health == Health::Up {
            read_figures(endpoint, dialect, &http).await;
        }
        tokio::time::sleep(AT_MOST_EVERY).await;
        // Both arms may be dropped: a suspicion that nobody waited for is kept.
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => (),
            () = endpoint.suspected() => (),
        }
    }
}

async fn look(endpoint: &Endpoint, dialect: &Dialect, http: &Http) -> Result<(), HttpError> {
    let seen = http.page(&endpoint.base, dialect.health).await.map(drop);
    if matches!(seen, Err(HttpError::Connect(_))) {
        endpoint.trust();
    }
    if seen.is_ok() && endpoint.is_distrusted() {
        return Err(HttpError::Broken("its engine has said that it is dead".into()));
    }
    seen
}

async fn read_figures(endpoint: &Endpoint, dialect: &Dialect, http: &Http) {
    let Some(names) = &dialect.figures else { return };
    match http.page(&endpoint.base, names.page).await {
        Ok(page) => endpoint.keep(Page::read(&String::from_utf8_lossy(&page), names).ranks),
        Err(problem) => debug!(url = %endpoint.base, %problem, "the engine's figures can't be had"),
    }
}
