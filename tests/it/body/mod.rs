//! Reading bodies (protocol sections 3.2 and 4): properties against a naive implementation, and what is made to break it.

mod conversations;
mod generate;
mod hostile;
mod properties;
mod rules;

use rankpin::core::id::Model;
use rankpin::core::session::configured::BodyFields;
use rankpin::core::session::derived::Prefixes;
use rankpin::wire::Encoding;
use rankpin::wire::body::{BodyError, Reading, Wanted, read};

const EVERYTHING: Wanted = Wanted { model: true, elements: true, fields: BodyFields::NONE };

fn model() -> Model {
    Model::new("m").expect("a model's name")
}

fn json(body: impl AsRef<[u8]>) -> Result<Reading, BodyError> {
    read(body.as_ref(), Encoding::Json, EVERYTHING)
}

fn packed(body: impl AsRef<[u8]>) -> Result<Reading, BodyError> {
    read(body.as_ref(), Encoding::MessagePack, EVERYTHING)
}

/// The prefixes of a body that is valid; `None` where it gives no session.
fn prefixes(body: impl AsRef<[u8]>) -> Option<Prefixes> {
    json(body).expect("valid").prefixes(&model())
}

/// The keys of a body that gives a session.
fn keys(body: impl AsRef<[u8]>) -> Vec<u64> {
    prefixes(body).expect("a session").keys().to_vec()
}
