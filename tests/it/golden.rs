//! Golden values, made by an independent implementation: pin keys (protocol section 8), hashed ranks (5), model
//! tokens (2), sessions named by headers (3.1). Those of bodies are in `golden_bodies.rs`.

use rankpin::core::hash::{PinKey, hashed_rank};
use rankpin::core::id::{Model, RankRange, SessionId, Tenant};
use rankpin::nats::Headers;
use rankpin::wire::header::Known;
use rankpin::wire::request::{Reading, RequestHead};
use rankpin::wire::subject::{decode_model, encode_model};
use serde::Deserialize;

const GOLDEN: &str = include_str!("../golden/keys.json");

#[derive(Deserialize)]
struct Golden {
    pins: Vec<Pin>,
    ranks: Vec<Rank>,
    models: Vec<Token>,
    headers: Vec<Named>,
}

#[derive(Deserialize)]
struct Pin {
    tenant: String,
    model: String,
    session: String,
    key: String,
}

#[derive(Deserialize)]
struct Rank {
    session: String,
    dp_start: u32,
    dp_size: u32,
    rank: u16,
}

#[derive(Deserialize)]
struct Token {
    model: String,
    token: String,
}

#[derive(Deserialize)]
struct Named {
    headers: Vec<(String, String)>,
    session: Option<String>,
}

fn golden() -> Golden {
    let golden: Golden = serde_json::from_str(GOLDEN).expect("the file has this shape");
    let all = [golden.pins.len(), golden.ranks.len(), golden.models.len(), golden.headers.len()];
    assert!(all.iter().all(|count| *count > 0), "a part of the golden values is missing: {all:?}");
    golden
}

/// A session's id as it stands in the file: named, or derived from a key.
fn session(text: &str) -> SessionId {
    let Some(digits) = text.strip_prefix("\u{1}px:") else {
        return SessionId::named(text).expect("valid");
    };
    let id = SessionId::derived(u64::from_str_radix(digits, 16).expect("hex digits"));
    assert_eq!(id.as_str(), text);
    id
}

#[test]
fn pin_keys() {
    for pin in golden().pins {
        // The rule is one of texts: some of these are longer than a name may be.
        let key = PinKey::of(&pin.tenant, &pin.model, &pin.session);
        assert_eq!(key.to_string(), pin.key, "{:?} {:?} {:?}", pin.tenant, pin.model, pin.session);
        assert_eq!(PinKey::parse(&pin.key), Some(key));
        if let (Ok(tenant), Ok(model)) = (Tenant::new(&pin.tenant), Model::new(&pin.model)) {
            assert_eq!(PinKey::new(&tenant, &model, &session(&pin.session)), key);
        }
    }
}

#[test]
fn hashed_ranks() {
    for case in golden().ranks {
        let ranks = RankRange::new(case.dp_start, case.dp_size).expect("valid");
        let session = session(&case.session);
        let rank = hashed_rank(&session, ranks);
        assert_eq!(rank.0, case.rank, "{session:?} over {} ranks from {}", case.dp_size, case.dp_start);
        assert!(ranks.contains(rank));
    }
}

#[test]
fn model_tokens() {
    for case in golden().models {
        assert_eq!(encode_model(&case.model), case.token);
        assert_eq!(decode_model(&case.token).expect("valid").as_str(), case.model);
    }
}

#[test]
fn sessions_named_by_headers() {
    let reading = Reading { trusted: true, sessions: true };
    for case in golden().headers {
        let pairs = || case.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        // As they come from the wire, and as the client library keeps them: in a map by spelling, in no order.
        let kept: Headers = pairs().collect();
        for known in [Known::read(pairs()), Known::read(kept.iter())] {
            let head = RequestHead::read(&known, reading).expect("valid");
            let session = head.session.map(|session| session.id.as_str().to_owned());
            assert_eq!(session, case.session, "{:?}", case.headers);
        }
    }
}
