//! Recorded conversations of real clients: each turn continues an earlier one, by its text alone.

use std::collections::HashSet;

use rankpin::core::id::Model;
use serde_json::Value;

use super::{json, packed};
use crate::support::conversations::Conversations;

#[test]
fn recorded_turns_continue_the_turns_before() {
    let conversations = Conversations::load();
    let (mut continued, mut chained, mut rewritten) = (0, Vec::new(), Vec::new());
    for conversation in &conversations.all {
        let mut pins = HashSet::new();
        let mut before: Option<Value> = None;
        for number in 0..conversation.turns() {
            let body: Value = serde_json::from_slice(conversation.body(number)).expect("JSON");
            let found = turn(&body, &mut pins);
            let Some(before) = before.replace(body.clone()) else { continue };
            let name = format!("{} turn {}", conversation.name, number + 1);
            if found {
                continued += 1;
            } else if body["previous_response_id"].is_string() {
                chained.push(name);
            } else {
                assert_ne!(body["system"], before["system"], "{name} continues nothing");
                rewritten.push(name);
            }
        }
    }
    println!("{continued} later turns continue an earlier one by their text");
    println!("these hold only what is new, and name the response they continue: {chained:#?}");
    println!("these have another system prompt than the turn before: {rewritten:#?}");
}

/// Whether the turn continues one of the pins; it leaves its own, as section 4 says (all placements being one).
fn turn(body: &Value, pins: &mut HashSet<u64>) -> bool {
    let reading = json(body.to_string()).expect("valid");
    assert_eq!(Ok(&reading), packed(rmp_serde::to_vec(body).expect("MessagePack")).as_ref());
    let model = Model::new(body["model"].as_str().unwrap_or("none")).expect("a model's name");
    let Some(prefixes) = reading.prefixes(&model) else {
        return false;
    };
    let continued = prefixes.strict().iter().any(|key| pins.contains(key));
    if !continued {
        pins.insert(prefixes.full());
    }
    pins.extend(prefixes.last_assistant());
    continued
}
