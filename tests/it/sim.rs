//! `rankpin sim` as a process: each test plays the router.

use std::process::Command;
use std::time::{Duration, SystemTime};

use rankpin::wire::event::{Event, Outcome};
use serde_json::{Value, json};

use crate::support::process::{Process, Signal};
use crate::support::{PATIENCE, eventually};
use crate::worker::Field;

fn start(field: &Field, args: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankpin"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RANKPIN_") || name.starts_with("NATS_")) {
        command.env_remove(name);
    }
    command.args(["sim", "--worker", "w", "--nats-url", &field.server.url()]).args(args);
    Process::start("sim", command, field.server.dir())
}

async fn registered(field: &Field) {
    eventually("the worker is registered", PATIENCE, async || field.registration().await).await;
}

fn turn(n: usize, body: Value) -> Value {
    let long = "words that fill blocks ".repeat(20);
    let mut messages = vec![json!({"role": "user", "content": long})];
    for i in 0..n {
        messages.push(json!({"role": "assistant", "content": format!("answer {i}")}));
        messages.push(json!({"role": "user", "content": format!("question {i}")}));
    }
    let mut turn = body;
    turn["model"] = "m".into();
    turn["messages"] = messages.into();
    turn
}

fn parse(payload: &[u8]) -> Value {
    serde_json::from_slice(payload).expect("JSON")
}

#[tokio::test]
async fn turns_on_one_rank_reuse_its_cache_and_other_ranks_know_nothing() {
    let field = Field::new().await;
    let _sim = start(&field, &["--model", "m", "--dp-start", "4", "--dp-size", "2", "--speed", "1000"]);
    registered(&field).await;
    let registration = field.registration().await.expect("registered");
    assert_eq!((registration.block_size, registration.kv_blocks), (Some(16), Some(8192)));
    let ask = async |rank: u16, n: usize| {
        let body = turn(n, json!({"max_tokens": 4}));
        let mut attempt = field.dispatch(&format!("rank.{rank}"), "r", body.to_string(), &[]).await;
        attempt.accepted().await;
        let usage = parse(&attempt.reply().await.1)["usage"].clone();
        let finished = attempt.finished(Outcome::Ok).await;
        assert_eq!(usage["prompt_tokens"].as_u64(), finished.prompt_tokens);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"].as_u64(), finished.cached_tokens);
        assert_eq!(finished.output_tokens, Some(4));
        (finished.prompt_tokens.expect("given"), finished.cached_tokens.expect("given"))
    };
    let (first, cached) = ask(5, 0).await;
    assert_eq!(cached, 0);
    let (second, cached) = ask(5, 1).await;
    assert!(second > first && cached > first - 32, "{cached} of the first turn's {first} tokens were cached");
    assert_eq!(ask(4, 1).await, (second, 0), "another rank knows nothing");
}

#[tokio::test]
async fn the_three_apis_stream_whole_events() {
    let field = Field::new().await;
    let _sim = start(&field, &["--speed", "1000", "--output-tokens", "8"]);
    registered(&field).await;
    let chat = turn(0, json!({"stream": true}));
    let messages = turn(0, json!({"stream": true, "system": "be brief", "max_tokens": 3}));
    let responses = json!({"model": "m", "input": "hello", "stream": true});
    for (body, usage) in [
        (chat, "/usage/prompt_tokens_details/cached_tokens"),
        (messages, "/usage/cache_read_input_tokens"),
        (responses, "/response/usage/input_tokens_details/cached_tokens"),
    ] {
        let mut attempt = field.dispatch("any", "r", body.to_string(), &[]).await;
        attempt.accepted().await;
        let mut events = Vec::new();
        for seq in 0.. {
            let (head, payload) = attempt.reply().await;
            assert_eq!(head.seq, Some(seq));
            if head.last {
                assert!(payload.is_empty(), "the end is no event");
                break;
            }
            events.push(parse(&payload));
        }
        assert!(events.iter().any(|event| event.pointer(usage).is_some_and(Value::is_u64)), "{events:#?}");
        let finished = attempt.finished(Outcome::Ok).await;
        // Only a response can be gone on from by its id.
        let named = events.iter().find_map(|event| event.pointer("/response/id")?.as_str());
        assert_eq!(finished.response_id.as_deref(), named);
        assert_eq!(named.is_some(), usage.starts_with("/response/"), "{events:#?}");
    }
}

#[tokio::test]
async fn a_cancel_stops_the_generation() {
    let field = Field::new().await;
    let _sim = start(&field, &["--decode-rate", "1"]);
    registered(&field).await;
    let body = turn(0, json!({"stream": true}));
    let mut attempt = field.dispatch("any", "r", body.to_string(), &[]).await;
    attempt.accepted().await;
    attempt.reply().await;
    field.cancel("r", "1").await;
    let finished = attempt.finished(Outcome::Cancelled).await;
    assert!(finished.output_tokens.expect("given") < 64);
}

#[tokio::test]
async fn what_is_no_body_is_refused() {
    let field = Field::new().await;
    let _sim = start(&field, &[]);
    registered(&field).await;
    let mut attempt = field.dispatch("any", "r", "no json".to_owned(), &[]).await;
    attempt.accepted().await;
    assert_eq!(attempt.rejected().await, (400, "invalid_request".into()));
}

#[tokio::test]
async fn sigterm_drains() {
    let field = Field::new().await;
    let mut sim = start(&field, &["--decode-rate", "20", "--output-tokens", "20"]);
    registered(&field).await;
    let mut attempt = field.dispatch("any", "r", turn(0, json!({})).to_string(), &[]).await;
    attempt.accepted().await;
    sim.signal(Signal::Terminate);
    attempt.finished(Outcome::Ok).await;
    assert!(sim.wait(PATIENCE).await.success(), "{}", sim.log());
    assert_eq!(field.registration().await, None);
}

#[tokio::test]
async fn a_worker_that_thaws_accepts_nothing_that_was_given_up() {
    let field = Field::new().await;
    let sim = start(&field, &["--engine", "echo"]);
    registered(&field).await;
    sim.signal(Signal::Stop);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis();
    let accept_by = (now + 300).to_string();
    let mut frozen = field.dispatch("any", "r1", "x".to_owned(), &[("Rankpin-Accept-By", &accept_by)]).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    field.cancel("r1", "1").await;
    sim.signal(Signal::Continue);
    // Held for as long as the first at most, and served.
    let mut next = field.dispatch("any", "r2", "x".to_owned(), &[("Rankpin-Accept-By", &accept_by)]).await;
    next.accepted().await;
    next.finished(Outcome::Ok).await;
    assert!(frozen.is_silent());
}

#[tokio::test]
async fn the_echo_may_leave_out_accepted() {
    let field = Field::new().await;
    let _sim = start(&field, &["--engine", "echo", "--no-accept"]);
    registered(&field).await;
    let mut attempt = field.dispatch("any", "r", "any bytes".to_owned(), &[]).await;
    assert!(matches!(attempt.event().await, Event::Finished(finished) if finished.outcome == Outcome::Ok));
    let (head, payload) = attempt.reply().await;
    assert!(head.last);
    assert_eq!(payload, "any bytes");
}

#[tokio::test]
async fn an_answer_of_the_echo_may_have_parts_and_be_shorter_than_what_was_asked() {
    let field = Field::new().await;
    let _sim = start(&field, &["--engine", "echo", "--parts", "3", "--answer-bytes", "3"]);
    registered(&field).await;
    let mut attempt = field.dispatch("any", "r", "any bytes".to_owned(), &[]).await;
    for _ in 1..3 {
        let (head, payload) = attempt.reply().await;
        assert!(!head.last && payload.starts_with(b"{"), "{payload:?}");
    }
    let (head, payload) = attempt.reply().await;
    assert!(head.last);
    assert_eq!(payload, "any");
}

#[tokio::test]
async fn flags_without_effect_are_refused() {
    let field = Field::new().await;
    for (args, named) in [
        (&["--engine", "echo", "--speed", "2"][..], "--speed"),
        (&["--no-accept"], "--no-accept"),
        (&["--parts", "2"], "--parts"),
        (&["--answer-bytes", "2"], "--answer-bytes"),
        (&["--speed", "0"], "speed"),
        (&["--dp-size", "0"], "--dp-size"),
        (&["--weight", "0"], "weight"),
        (&["--worker", "a.b"], "--worker"),
    ] {
        let mut sim = start(&field, args);
        assert!(!sim.wait(PATIENCE).await.success());
        assert!(sim.log().contains(named), "{}", sim.log());
    }
}
