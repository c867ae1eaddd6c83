//! Recorded conversations of real clients, turn by turn through a real router: each turn has to land where the turn
//! before did, by the client's own headers and by the text alone.

mod pins;
mod table;

use std::collections::BTreeSet;

use futures_util::future::join_all;
use rankpin::core::id::Namespace;
use rankpin::wire::subject::Subjects;

use self::pins::Pins;
use self::table::Tally;
use crate::support::conversations::{Conversation, Conversations};
use crate::support::frontend::Answer;
use crate::support::process::Process;
use crate::support::rankpin::command;
use crate::support::{Ask, NatsServer, PATIENCE, RouterProcess, eventually};

/// Ranks of each of the two workers.
const RANKS: &str = "4";
/// A turn that holds only what is new, and names the response that it continues.
const DELTA: &str = "holds only what is new, and names the response it continues";
/// Turns, from 1, that by their text alone can't continue the turn before.
const EXCEPTIONS: [(&str, &[usize], &str); 5] = [
    ("pydantic-ai:test_openai_previous_response_id_seed_auto_chains_through_retries", &[2, 3, 4], DELTA),
    ("langchain_openai:test_mcp_builtin", &[2], DELTA),
    ("openinference:test_agent_with_tool_calls", &[2], DELTA),
    ("openinference:test_tool_with_complex_return_type", &[2], DELTA),
    (
        "ruby_llm:chat_basic_chat_functionality_anthropic_claude-haiku-4-5_replaces_previous_system_messages_by_default",
        &[2],
        "has another system prompt than the turn before",
    ),
];

/// Which headers are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Those that the client sent.
    Recorded,
    /// None: only the text is left.
    None,
}

/// A router and two echo workers, each a process, on a server of their own.
struct Field {
    router: RouterProcess,
    _workers: Vec<Process>,
    client: async_nats::Client,
    subjects: Subjects,
    // Gone after the processes that use it.
    _server: NatsServer,
}

impl Field {
    async fn start(conversations: &Conversations) -> Self {
        let server = NatsServer::start();
        let client = server.client().await;
        let router = RouterProcess::start("router", &server, &["--accept-timeout", "15s"]).await;
        let all = &conversations.all;
        let models: BTreeSet<_> = all.iter().flat_map(|c| (0..c.turns()).map(|turn| c.model(turn))).collect();
        let mut workers = Vec::new();
        for (id, first) in [("w1", "0"), ("w2", "4")] {
            let mut command = command(&["sim", "--engine", "echo", "--nats-url", &server.url(), "--worker", id]);
            command.args(["--dp-start", first, "--dp-size", RANKS]);
            for model in &models {
                command.args(["--model", model.as_str()]);
            }
            workers.push(Process::start(id, command, server.dir()));
        }
        let count = workers.len() as f64;
        eventually("the router knows both workers", PATIENCE, async || {
            (router.metric("workers").await == count).then_some(())
        })
        .await;
        let subjects = Subjects::new(Namespace::new("rankpin").expect("a valid name"));
        Self { router, _workers: workers, client, subjects, _server: server }
    }

    async fn send(&self, conversation: &Conversation, turn: usize, sent: Sent, tenant: &str) -> Answer {
        let ask = Ask::new().on(&self.subjects.request(&conversation.model(turn)));
        let ask = ask.header("Rankpin-Tenant", tenant).id(&format!("{tenant}-{turn}"));
        let ask = match sent {
            Sent::Recorded => conversation.headers(turn).iter().fold(ask, |ask, (name, value)| ask.header(name, value)),
            Sent::None => ask,
        };
        ask.body(conversation.body(turn).to_vec()).send(&self.client).await.end().await
    }

    /// Pins of derived sessions are written without anybody waiting, and clients take longer than that from a turn to
    /// the next. Here the next turn waits until the router knows every pin that there should be.
    async fn mirrors(&self, pins: usize) {
        let what = format!("the router mirrors {pins} pins");
        let mirrored = async || (self.router.metric("pins_mirrored").await == pins as f64).then_some(());
        eventually(&what, PATIENCE, mirrored).await;
    }
}

/// One conversation on its way.
struct Track<'c> {
    conversation: &'c Conversation,
    /// A tenant of its own: conversations of one test suite begin alike, and are not to meet.
    tenant: String,
    pins: Pins,
    at: Option<String>,
    /// Turns, from 1, that did not continue the turn before.
    hops: Vec<usize>,
}

impl<'c> Track<'c> {
    fn new(conversation: &'c Conversation, tenant: String) -> Self {
        Self { conversation, tenant, pins: Pins::default(), at: None, hops: Vec::new() }
    }

    fn take(&mut self, turn: usize, sent: Sent, answer: &Answer) {
        let name = &self.conversation.name;
        let (at, decision) = (answer.at(), answer.decision());
        let pinned = decision.split(',').next() == Some("pinned");
        let known = self.pins.turn(self.conversation, turn, sent);
        assert_eq!(pinned, known, "{name} turn {}: the router says {decision} of {at}", turn + 1);
        if let Some(before) = self.at.replace(at.clone())
            && !(pinned && before == at)
        {
            self.hops.push(turn + 1);
        }
    }
}

/// All conversations side by side, the turns of each in their order.
async fn replay<'c>(field: &Field, conversations: &'c Conversations, sent: Sent, pins_before: usize) -> Vec<Track<'c>> {
    let numbered = conversations.all.iter().enumerate();
    let mut tracks: Vec<_> =
        numbered.map(|(number, conversation)| Track::new(conversation, format!("{sent:?}-{number}"))).collect();
    let longest = conversations.all.iter().map(Conversation::turns).max().unwrap_or_default();
    for turn in 0..longest {
        let mut going = tracks.iter_mut().filter(|track| turn < track.conversation.turns()).collect::<Vec<_>>();
        let asks = going.iter().map(|track| field.send(track.conversation, turn, sent, &track.tenant));
        let answers = join_all(asks).await;
        for (track, answer) in going.iter_mut().zip(answers) {
            track.take(turn, sent, &answer);
        }
        field.mirrors(pins_before + pins(&tracks)).await;
    }
    tracks
}

fn pins(tracks: &[Track<'_>]) -> usize {
    tracks.iter().map(|track| track.pins.len()).sum()
}

/// Turns that may hop, from 1.
fn exceptions(conversation: &Conversation) -> Vec<usize> {
    let found = EXCEPTIONS.iter().find(|(name, _, _)| *name == conversation.name);
    found.map(|(_, turns, _)| turns.to_vec()).unwrap_or_default()
}

#[tokio::test]
async fn every_turn_of_a_recorded_conversation_continues_the_turn_before() {
    let conversations = Conversations::load();
    let field = Field::start(&conversations).await;
    let with = replay(&field, &conversations, Sent::Recorded, 0).await;
    let without = replay(&field, &conversations, Sent::None, pins(&with)).await;
    let mut tally = Tally::default();
    for (with, without) in with.iter().zip(&without) {
        tally.add(with.conversation, &with.hops, &without.hops);
    }
    println!("{}\n\n{tally}", conversations.from.display());
    for track in with.iter().chain(&without) {
        let (name, tenant) = (&track.conversation.name, &track.tenant);
        assert_eq!(track.hops, exceptions(track.conversation), "turns of {name} ({tenant}) that hopped");
    }
    for (name, turns, reason) in EXCEPTIONS {
        if conversations.all.iter().any(|conversation| conversation.name == name) {
            println!("{name}: turns {turns:?}: {reason}");
        }
    }
}
