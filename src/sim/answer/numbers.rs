//! Answers that are no words: vectors of texts, and the count of a prompt's tokens.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Usage;

/// Length of every vector.
const LENGTH: u64 = 8;

pub(super) fn token_count(usage: &Usage) -> Value {
    json!({"input_tokens": usage.prompt_tokens})
}

pub(super) fn vectors(model: &str, texts: &[String], usage: &Usage, base64: bool) -> Value {
    let entry = |(index, text): (usize, &String)| {
        let vector = vector(text);
        let embedding = match base64 {
            true => BASE64_STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).into(),
            false => json!(vector),
        };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    };
    let data: Vec<Value> = texts.iter().enumerate().map(entry).collect();
    let usage = json!({"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens});
    json!({"object": "list", "model": model, "data": data, "usage": usage})
}

/// A vector that depends on the text alone, each part of it in [-0.5, 0.5).
fn vector(text: &str) -> Vec<f32> {
    let part = |place: u64| {
        let draw = xxh3_64_with_seed(text.as_bytes(), place) >> 48;
        f32::from(u16::try_from(draw).unwrap_or(0)) / 65_536.0 - 0.5
    };
    (0..LENGTH).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_encodings_hold_the_same_vector() {
        let texts = ["a".to_owned(), "b".to_owned()];
        let plain = vectors("m", &texts, &Usage::default(), false);
        let packed = vectors("m", &texts, &Usage::default(), true);
        let bytes = BASE64_STANDARD.decode(packed["data"][1]["embedding"].as_str().expect("text")).expect("base64");
        let first = f32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        assert_eq!(plain["data"][1]["embedding"][0].as_f64(), Some(f64::from(first)));
        assert_ne!(plain["data"][0]["embedding"], plain["data"][1]["embedding"]);
    }
}
