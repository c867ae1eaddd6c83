//! What must hold of every body.

use proptest::prelude::*;
use serde_json::Value;

use super::generate::{self, Choices, conversation, render, turns};
use super::{json, keys, model, packed};
use crate::fuzzing::checks::reference;

fn to_packed(body: &Value) -> Vec<u8> {
    rmp_serde::to_vec(body).expect("MessagePack")
}

/// Valid bodies with some bytes changed, so that errors stand everywhere.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let change =
        (any::<prop::sample::Index>(), prop_oneof![any::<u8>(), prop::sample::select(&b"\"\\{}[],:u0-.e \xc3"[..])]);
    (generate::body(), any::<u64>(), prop::collection::vec(change, 0..3), any::<bool>()).prop_map(
        |(body, seed, changes, insert)| {
            let mut bytes = render(&body, &mut Choices::new(seed)).into_bytes();
            for (index, byte) in changes {
                let at = index.index(bytes.len());
                if insert {
                    bytes.insert(at, byte);
                } else {
                    bytes[at] = byte;
                }
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn keys_are_those_of_the_naive_implementation(body in generate::body(), seed: u64) {
        let reading = json(render(&body, &mut Choices::new(seed))).expect("valid");
        let prefixes = reading.prefixes(&model());
        let found = prefixes.map(|prefixes| (prefixes.keys().to_vec(), prefixes.last_assistant()));
        prop_assert_eq!(found, reference::keys(&body, "m"));
        prop_assert_eq!(reading.model.as_deref(), body["model"].as_str());
    }

    #[test]
    fn what_is_seen_explains_every_key_and_changes_none(body in generate::body(), seed: u64) {
        use rankpin::core::session::derived::text_hash;
        use rankpin::wire::{Encoding, body::{Verdict, read_traced}};

        let text = render(&body, &mut Choices::new(seed));
        let (reading, seen) = read_traced(text.as_bytes(), Encoding::Json, super::EVERYTHING).expect("valid");
        prop_assert_eq!(&reading, &json(&text).expect("valid"));
        for traced in &seen {
            let counted = || traced.texts.iter().filter(|text| text.verdict == Verdict::Counts);
            let sum = counted().filter_map(|text| text_hash(text.text.as_bytes())).fold(0, u64::wrapping_add);
            let hash = traced.element.map(|element| element.hash);
            prop_assert_eq!(hash, counted().next().map(|_| sum), "{:?}", traced);
        }
        if let Some(elements) = &reading.elements {
            let counted: Vec<_> = seen.iter().filter_map(|traced| traced.element).collect();
            prop_assert_eq!(&counted, elements);
        }
        let packed = read_traced(&to_packed(&body), Encoding::MessagePack, super::EVERYTHING).expect("valid");
        prop_assert_eq!((&packed.0, packed.1.len()), (&reading, seen.len()));
    }

    #[test]
    fn json_and_messagepack_read_the_same(body in generate::body(), seed: u64) {
        prop_assert_eq!(packed(to_packed(&body)), json(render(&body, &mut Choices::new(seed))));
    }

    #[test]
    fn accepted_is_what_is_json_and_utf8(bytes in mutated()) {
        // Nothing is built of what is ignored, so lone surrogates, 1e999 and any depth are fine there as here.
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok();
        let is_utf8 = std::str::from_utf8(&bytes).is_ok();
        match json(&bytes) {
            Ok(_) => prop_assert!(is_json && is_utf8),
            Err(rankpin::wire::body::BodyError::Twice { .. }) => {}
            Err(error) => prop_assert!(!is_json || !is_utf8, "{}", error),
        }
    }

    #[test]
    fn what_is_wanted_does_not_change_what_is_valid(bytes in mutated(), model: bool, elements: bool) {
        use rankpin::core::session::configured::BodyFields;
        use rankpin::wire::{Encoding, body::{Wanted, read}};
        let some = read(&bytes, Encoding::Json, Wanted { model, elements, fields: BodyFields::NONE });
        let all = json(&bytes);
        prop_assert_eq!(some.as_ref().err(), all.as_ref().err());
        if let (Ok(some), Ok(all)) = (some, all) {
            prop_assert_eq!(some.model, all.model.filter(|_| model));
            prop_assert_eq!(some.elements, all.elements.filter(|_| elements));
        }
    }

    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = json(&bytes);
        let _ = packed(&bytes);
    }

    #[test]
    fn no_changed_messagepack_does_harm(body in generate::body(), at: prop::sample::Index, byte: u8, cut: bool) {
        let mut bytes = to_packed(&body);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if cut {
            bytes.truncate(at);
        }
        let _ = packed(&bytes);
    }

    #[test]
    fn every_cut_off_messagepack_is_refused(body in generate::body(), at: prop::sample::Index) {
        let bytes = to_packed(&body);
        prop_assert!(packed(&bytes[..at.index(bytes.len())]).is_err());
    }

    #[test]
    fn what_clients_change_between_turns_keeps_the_keys(turns in turns(), seeds: [u64; 4]) {
        let [a, b, c, d] = seeds.map(Choices::new);
        let (mut a, mut b, mut c, mut d) = (a, b, c, d);
        let first = render(&conversation(&turns, &mut a), &mut b);
        let second = render(&conversation(&turns, &mut c), &mut d);
        prop_assert_eq!(keys(first), keys(second));
    }

    #[test]
    fn a_longer_conversation_begins_with_the_keys_of_the_shorter(turns in turns(), seed: u64) {
        let mut choices = Choices::new(seed);
        let all = keys(conversation(&turns, &mut choices).to_string());
        for len in 1..=turns.len() {
            let shorter = keys(conversation(&turns[..len], &mut choices).to_string());
            prop_assert_eq!(&shorter[..], &all[..len]);
        }
    }

    #[test]
    fn a_changed_text_changes_the_keys_from_there_on(turns in turns(), at: prop::sample::Index, seed: u64, what in 0..3) {
        let at = at.index(turns.len());
        let mut changed = turns.clone();
        match (what, &mut changed[at].call) {
            (0, _) => changed[at].assistant = !turns[at].assistant,
            (1, Some(call)) => {
                call.insert("added".to_owned(), "x".into());
            }
            _ => changed[at].text.push('x'),
        }
        let mut choices = Choices::new(seed);
        let before = keys(conversation(&turns, &mut choices).to_string());
        let after = keys(conversation(&changed, &mut choices).to_string());
        prop_assert_eq!(&before[..at], &after[..at]);
        for (before, after) in before[at..].iter().zip(&after[at..]) {
            prop_assert_ne!(before, after);
        }
    }
}
