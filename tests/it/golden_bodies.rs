//! The golden values of derived keys (protocol sections 3.2 and 4), made by an independent implementation.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rankpin::core::id::{Model, SessionId};
use rankpin::core::session::configured::BodyFields;
use rankpin::core::session::derived::Prefixes;
use rankpin::wire::Encoding;
use rankpin::wire::body::{BodyError, Reading, Wanted, read};
use serde::Deserialize;

const GOLDEN: &str = include_str!("../golden/keys.json");

#[derive(Deserialize)]
struct Golden {
    bodies: Vec<Keyed>,
    no_session: Vec<Body>,
    refused: Vec<Body>,
}

#[derive(Deserialize)]
struct Keyed {
    #[serde(flatten)]
    body: Body,
    model: String,
    keys: Vec<String>,
    session: String,
    second: Option<String>,
    continues: Option<String>,
}

#[derive(Deserialize)]
struct Body {
    name: String,
    body: Option<String>,
    msgpack: Option<String>,
}

impl Body {
    /// The body in each encoding that it is given in.
    fn encodings(&self) -> Vec<(Encoding, Vec<u8>)> {
        let json = self.body.as_ref().map(|text| (Encoding::Json, text.clone().into_bytes()));
        let packed = self.msgpack.as_ref().map(|text| (Encoding::MessagePack, STANDARD.decode(text).expect("base64")));
        let all: Vec<_> = json.into_iter().chain(packed).collect();
        assert!(!all.is_empty(), "{} has no body", self.name);
        all
    }

    fn readings(&self) -> Vec<Result<Reading, BodyError>> {
        let wanted = Wanted { model: true, elements: true, fields: BodyFields::NONE };
        self.encodings().iter().map(|(encoding, bytes)| read(bytes, *encoding, wanted)).collect()
    }
}

fn golden() -> Golden {
    serde_json::from_str(GOLDEN).expect("the golden file has this shape")
}

fn hex(key: u64) -> String {
    format!("{key:016x}")
}

fn prefixes(body: &Keyed, reading: &Reading) -> Prefixes {
    let model = Model::new(&body.model).expect("a model's name");
    reading.prefixes(&model).unwrap_or_else(|| panic!("{} gives no session", body.body.name))
}

#[test]
fn keys_sessions_and_assistant_prefixes() {
    for body in golden().bodies {
        for reading in body.body.readings() {
            let reading = reading.unwrap_or_else(|e| panic!("{}: {e}", body.body.name));
            let prefixes = prefixes(&body, &reading);
            let keys: Vec<_> = prefixes.keys().iter().copied().map(hex).collect();
            assert_eq!(keys, body.keys, "{}", body.body.name);
            assert_eq!(SessionId::derived(prefixes.full()).as_str(), body.session, "{}", body.body.name);
            assert_eq!(prefixes.last_assistant().map(hex), body.second, "{}", body.body.name);
        }
    }
}

#[test]
fn bodies_that_continue_others_begin_with_their_keys() {
    let bodies = golden().bodies;
    let mut continued = 0;
    for body in &bodies {
        let Some(name) = &body.continues else { continue };
        let before = bodies.iter().find(|other| other.body.name == *name).expect("it is in the file");
        assert!(body.keys.starts_with(&before.keys), "{} continues {name}", body.body.name);
        continued += 1;
    }
    assert!(continued > 20, "the file names what continues what");
}

#[test]
fn bodies_without_a_session_are_valid() {
    for body in golden().no_session {
        for reading in body.readings() {
            let reading = reading.unwrap_or_else(|e| panic!("{}: {e}", body.name));
            assert_eq!(reading.elements, None, "{}", body.name);
        }
    }
}

#[test]
fn refused_bodies_are_refused_whatever_is_wanted() {
    for body in golden().refused {
        for (encoding, bytes) in body.encodings() {
            for (model, elements) in [(true, true), (true, false), (false, true), (false, false)] {
                assert!(
                    read(&bytes, encoding, Wanted { model, elements, fields: BodyFields::NONE }).is_err(),
                    "{}",
                    body.name
                );
            }
        }
    }
}
