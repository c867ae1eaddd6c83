//! Whether buckets, streams and the account have room for more.

use serde::Deserialize;

use super::{ANSWER_WAIT, Finding, Health};
use crate::nats::Link;

const CHECK: &str = "room";
/// Share of a limit from which on it is told, in percent.
const SHORT: u64 = 80;
/// Share from which on the next message may find no room, in percent.
const FULL: u64 = 99;

/// What is used of what may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Used {
    pub messages: u64,
    pub max_messages: i64,
    pub bytes: u64,
    pub max_bytes: i64,
}

impl Used {
    /// The finding where a bucket or stream is short of room; `new` where it refuses what comes once it is full.
    pub(super) fn finding(self, name: &str, new: bool) -> Option<Finding> {
        let Self { messages, max_messages, bytes, max_bytes } = self;
        let worst = [(messages, max_messages, "messages"), (bytes, max_bytes, "bytes")]
            .into_iter()
            .filter_map(|(used, most, what)| Some((percent(used, most)?, used, most, what)))
            .max()?;
        let (share, used, most, what) = worst;
        let found = format!("{name} has {used} of {most} {what} ({share} %)");
        let (full, lost) = match new {
            true => ("its stream takes nothing more once it is full", "raise the limit of its stream, or take it away"),
            false => ("what is oldest goes before its time", "raise the limit of the stream, or take it away"),
        };
        let health = match (share, new) {
            (..SHORT, _) => return None,
            (FULL.., true) => Health::Fail,
            _ => Health::Warn,
        };
        Some(Finding::new(CHECK, health, found, format!("{full}; {lost}")))
    }
}

fn percent(used: u64, most: i64) -> Option<u64> {
    let most = u64::try_from(most).ok().filter(|most| *most > 0)?;
    Some(u64::try_from(u128::from(used) * 100 / u128::from(most)).unwrap_or(u64::MAX))
}

#[derive(Deserialize)]
struct Account {
    #[serde(default)]
    memory: u64,
    #[serde(default)]
    storage: u64,
    #[serde(default)]
    limits: Limits,
}

#[derive(Default, Deserialize)]
struct Limits {
    #[serde(default)]
    max_memory: i64,
    #[serde(default)]
    max_storage: i64,
}

/// The same of the account, where this user may ask and it has limits.
pub(super) async fn of_account(link: &Link) -> Option<Finding> {
    let answer = link.ask("$JS.API.INFO", ANSWER_WAIT).await.ok()?;
    account(&answer)
}

fn account(answer: &[u8]) -> Option<Finding> {
    let Account { memory, storage, limits } = serde_json::from_slice(answer).ok()?;
    let worst = [(storage, limits.max_storage, "storage"), (memory, limits.max_memory, "memory")]
        .into_iter()
        .filter_map(|(used, most, what)| Some((percent(used, most)?, used, most, what)))
        .max()?;
    let (share, used, most, what) = worst;
    let found = format!("the account uses {used} of {most} bytes of JetStream's {what} ({share} %)");
    match share {
        ..SHORT => None,
        _ => {
            let health = if share < FULL { Health::Warn } else { Health::Fail };
            let advice = "once it is used up no pin, job or result is stored; raise the account's limit in the server's \
                          configuration";
            Some(Finding::new(CHECK, health, found, advice))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(bytes: u64, max_bytes: i64) -> Used {
        Used { messages: 10, max_messages: -1, bytes, max_bytes }
    }

    #[test]
    fn room_is_short_before_it_is_gone() {
        let health = |used: Used, new| used.finding("KV_p", new).map(|finding| finding.health);
        assert_eq!(health(used(u64::MAX, -1), true), None);
        assert_eq!(health(used(5, 0), true), None);
        assert_eq!(health(used(79, 100), true), None);
        assert_eq!(health(used(80, 100), true), Some(Health::Warn));
        assert_eq!(health(used(99, 100), true), Some(Health::Fail));
        assert_eq!(health(used(120, 100), false), Some(Health::Warn));
        let few = Used { max_messages: 10, ..used(1, 100) };
        assert_eq!(few.finding("s", true).map(|f| f.found), Some("s has 10 of 10 messages (100 %)".into()));
    }

    #[test]
    fn an_account_without_limits_is_nothing_to_tell() {
        let answer =
            |most: i64| format!(r#"{{"memory":0,"storage":99,"limits":{{"max_memory":-1,"max_storage":{most}}}}}"#);
        assert_eq!(account(answer(-1).as_bytes()), None);
        assert_eq!(account(answer(1000).as_bytes()), None);
        assert_eq!(account(answer(100).as_bytes()).map(|f| f.health), Some(Health::Fail));
        assert_eq!(account(b"{}"), None);
        assert_eq!(account(b"no"), None);
    }
}
