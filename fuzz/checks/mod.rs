//! What must hold of any bytes that somebody sends: one function for each fuzz target. The tests of the crate call the
//! same functions with the seeds, so that what a fuzzer has found once stays found.

mod body;
mod control;
mod frames;
mod head;
pub mod reference;

use body::{json_body, packed_body};
use control::{event, load, pin, registration};
use frames::frames;
use head::{headers, subject};

/// Takes any bytes, and panics where a rule is broken.
pub type Check = fn(&[u8]);

/// Every check by the name of its target, which is that of the directory of its seeds too.
pub const ALL: [(&str, Check); 9] = [
    ("json_body", json_body),
    ("packed_body", packed_body),
    ("headers", headers),
    ("registration", registration),
    ("load", load),
    ("pin", pin),
    ("event", event),
    ("subject", subject),
    ("frames", frames),
];

/// Runs the check of a target.
pub fn run(target: &str, data: &[u8]) {
    let (_, check) = ALL.iter().find(|(name, _)| *name == target).expect("a target has a check");
    check(data);
}

/// Lines `name: value` up to an empty one, and what follows that: a simple way to have headers and a payload in one
/// input.
fn head_and_payload(data: &[u8]) -> (Vec<(String, String)>, &[u8]) {
    let mut headers = Vec::new();
    let mut rest = data;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(&rest[..end]);
        rest = &rest[end + 1..];
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        headers.push((name.to_owned(), value.to_owned()));
    }
    (headers, rest)
}
