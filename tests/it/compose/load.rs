//! Conversations that go on all the time: each waits for the answer to one turn, then sends the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rankpin::client::{Client, ClientError, ClientOptions, Request};
use rankpin::core::id::{Model, SessionId};
use serde_json::json;
use tokio::task::JoinSet;

use super::stack::LONG;
use crate::support::eventually;

/// How long a frontend waits for the next message of a reply: a killed router can't tell it.
const IDLE: Duration = Duration::from_secs(10);
/// How long a request may wait for a worker.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How often one turn is sent again.
const MAX_RESENDS: usize = 10;
/// Pause after an answer, and before a turn is sent again.
const PAUSE: Duration = Duration::from_millis(50);
/// Turns of which a body holds the text: a conversation of any length stays small enough to be sent all the time.
const TURNS_SENT: usize = 8;

/// What became of one session's turns.
#[derive(Debug, Clone, Default)]
pub struct Session {
    /// Where each turn was answered, as `worker/rank`.
    pub turns: Vec<String>,
    /// Why turns were sent again.
    pub sent_again: Vec<String>,
    /// Errors after which nothing was sent again: there must be none.
    pub failed: Vec<String>,
}

/// Sessions by name.
pub type Sessions = BTreeMap<String, Session>;

/// Conversations under way.
pub struct Load {
    sessions: Arc<Mutex<Sessions>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    client: Client,
}

impl Load {
    /// A frontend without conversations.
    pub async fn connect(urls: &str) -> Self {
        let mut options = ClientOptions::new(urls);
        options.idle_timeout = IDLE;
        options.request_timeout = TIMEOUT;
        let client = Client::connect(options).await.expect("the port of NATS is published");
        Self { sessions: Arc::default(), stop: Arc::default(), tasks: JoinSet::new(), client }
    }

    /// Begins conversations, named with this word and a number.
    pub fn begin(&mut self, word: &str, count: usize) {
        for number in 0..count {
            let name = format!("{word}-{number}");
            self.sessions.lock().expect("no holder panics").insert(name.clone(), Session::default());
            let talk = Talk { name, client: self.client.clone(), sessions: Arc::clone(&self.sessions) };
            self.tasks.spawn(talk.go_on(Arc::clone(&self.stop)));
        }
    }

    /// What has become of them so far.
    pub fn so_far(&self) -> Sessions {
        self.sessions.lock().expect("no holder panics").clone()
    }

    /// Waits until each conversation has had so many more turns answered, and says what became of them up to then.
    pub async fn goes_on(&self, what: &str, turns: usize) -> Sessions {
        let before = self.so_far();
        let had = |name: &String| before.get(name).map_or(0, |session| session.turns.len());
        let all = async || {
            let now = self.so_far();
            now.iter().all(|(name, session)| session.turns.len() >= had(name) + turns).then_some(now)
        };
        eventually(&format!("each session has {turns} more turns {what}"), LONG, all).await
    }

    /// Lets each end its turn, and says what became of all.
    pub async fn end(self) -> Sessions {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
        let sessions = self.sessions.lock().expect("no holder panics").clone();
        let of = |count: fn(&Session) -> usize| sessions.values().map(count).sum::<usize>();
        let (turns, sent_again) = (of(|s| s.turns.len()), of(|s| s.sent_again.len()));
        println!("{} sessions, {turns} turns, {sent_again} sent again", sessions.len());
        sessions
    }
}

/// One conversation.
struct Talk {
    name: String,
    client: Client,
    sessions: Arc<Mutex<Sessions>>,
}

impl Talk {
    async fn go_on(self, stop: Arc<AtomicBool>) {
        let mut turn = 0;
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = self.turn(turn).await {
                return self.note(|session| session.failed.push(error));
            }
            turn += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One turn, sent again where the protocol leaves that to the frontend: after silence, after a lost worker, and where
    /// its own connection was lost.
    async fn turn(&self, turn: usize) -> Result<(), String> {
        let mut resends = 0;
        loop {
            match self.ask(turn).await {
                Ok(place) => {
                    self.note(|session| session.turns.push(place));
                    return Ok(());
                }
                Err(error) if resends < MAX_RESENDS && is_for_the_frontend(&error) => {
                    self.note(|session| session.sent_again.push(format!("turn {turn}: {error}")));
                    resends += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(format!("turn {turn}, sent again {resends} times: {error}")),
            }
        }
    }

    async fn ask(&self, turn: usize) -> Result<String, ClientError> {
        let model = Model::new("my-model").expect("valid");
        let session = SessionId::named(&self.name).expect("valid");
        let request = Request::new(model, self.body(turn)).session(&session).timeout(TIMEOUT);
        let mut replies = self.client.send(request).await?;
        use futures_util::StreamExt as _;
        while let Some(chunk) = replies.next().await {
            chunk?;
        }
        let served = replies.served().expect("a reply without an error says who answers");
        let rank = served.placement.rank.map_or_else(|| "any".to_owned(), |rank| rank.to_string());
        Ok(format!("{}/{rank}", served.placement.worker))
    }

    fn body(&self, turn: usize) -> String {
        let first = turn.saturating_sub(TURNS_SENT);
        let mut messages = vec![json!({"role": "user", "content": format!("This is {}.", self.name)})];
        for turn in first..turn {
            messages.push(json!({"role": "assistant", "content": format!("Answer {turn}.")}));
            messages.push(json!({"role": "user", "content": format!("Question {turn}.")}));
        }
        json!({"model": "my-model", "messages": messages, "stream": true, "max_tokens": 8}).to_string()
    }

    fn note(&self, note: impl FnOnce(&mut Session)) {
        let mut sessions = self.sessions.lock().expect("no holder panics");
        note(sessions.get_mut(&self.name).expect("it was put there when it began"));
    }
}

fn is_for_the_frontend(error: &ClientError) -> bool {
    match error {
        ClientError::Disconnected | ClientError::NoResponders | ClientError::Idle(_) | ClientError::Connect(_) => true,
        ClientError::Service { code, .. } => code == "worker_lost",
        ClientError::TooLarge { .. }
        | ClientError::LargeBody(_)
        | ClientError::Body(_)
        | ClientError::TooManyOpen { .. }
        | ClientError::Deadline(_)
        | ClientError::Sequence(_)
        | ClientError::Unnumbered
        | ClientError::CutShort
        | ClientError::Unreadable(_)
        | ClientError::ReplyTooLarge { .. }
        | ClientError::Overflow { .. } => false,
    }
}

/// No request ended in an error that its frontend has to show.
pub fn assert_none_failed(sessions: &Sessions) {
    let failed: BTreeMap<_, _> = sessions.iter().filter(|(_, session)| !session.failed.is_empty()).collect();
    assert!(failed.is_empty(), "sessions failed: {failed:#?}");
}

/// The only place at which a session was answered.
pub fn only_place(session: &Session) -> &str {
    let places: BTreeSet<&String> = session.turns.iter().collect();
    assert_eq!(places.len(), 1, "a session was at {places:?}: {session:#?}");
    &session.turns[0]
}
