//! Traces: a first line that names the trace and the tokens of a block, then one request a line, in the order of time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use serde::Deserialize;

/// Most requests of a trace.
const MAX_REQUESTS: usize = 10_000_000;
/// Most blocks of one prompt.
const MAX_BLOCKS: u64 = 1 << 22;
/// Longest line, in bytes.
const MAX_LINE: u64 = 16 * 1024 * 1024;

/// A trace.
#[derive(Debug)]
pub struct Trace {
    /// Its name.
    pub name: String,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// How many sessions there are.
    pub sessions: usize,
    /// Its requests, in the order of time.
    pub requests: Vec<Request>,
}

/// A request.
#[derive(Debug)]
pub struct Request {
    /// When it comes, in seconds.
    pub at: f64,
    /// Its session, from 0.
    pub session: u32,
    /// Its prompt.
    pub blocks: Arc<Runs>,
    /// Tokens of the answer.
    pub out: u32,
}

/// The blocks of a prompt as runs of following ids: `(first, count)`. An id names the whole prefix up to its block.
#[derive(Debug)]
pub struct Runs(Vec<(u32, u32)>);

/// Why a trace can't be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file can't be read.
    #[error("cannot read the trace: {0}")]
    Unreadable(#[from] std::io::Error),
    /// A line is not what it should be.
    #[error("line {line}: {problem}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
struct Head {
    trace: String,
    block_tokens: u32,
}

#[derive(Deserialize)]
struct Line {
    t: f64,
    session: String,
    blocks: Vec<(u32, u32)>,
    #[serde(default)]
    out: u32,
}

impl Trace {
    /// Reads a file, compressed by gzip or not.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let mut file = BufReader::new(File::open(path)?);
        if file.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
            return Self::read(BufReader::new(MultiGzDecoder::new(file)));
        }
        Self::read(file)
    }

    /// Reads lines.
    pub fn read(mut lines: impl BufRead) -> Result<Self, TraceError> {
        let mut text = Vec::new();
        let Some(Head { trace, block_tokens }) = next(&mut lines, &mut text, 1)? else {
            return Err(wrong(1, "the trace is empty"));
        };
        if block_tokens == 0 {
            return Err(wrong(1, "block_tokens is 0"));
        }
        let mut sessions = HashMap::new();
        let mut requests: Vec<Request> = Vec::new();
        let mut number = 1;
        loop {
            number += 1;
            let Some(Line { t, session, blocks, out }) = next(&mut lines, &mut text, number)? else { break };
            if !t.is_finite() || requests.last().is_some_and(|last| t < last.at) {
                return Err(wrong(number, "t is not in order; requests are sorted by time"));
            }
            if requests.len() == MAX_REQUESTS {
                return Err(wrong(number, &format!("there are more than {MAX_REQUESTS} requests")));
            }
            let count: u64 = blocks.iter().map(|(_, count)| u64::from(*count)).sum();
            let fits = blocks.iter().all(|(first, count)| first.checked_add(*count).is_some());
            if count == 0 || count > MAX_BLOCKS || !fits {
                return Err(wrong(number, &format!("a prompt has 1 to {MAX_BLOCKS} blocks, with ids below 2^32")));
            }
            let fresh = u32::try_from(sessions.len()).expect("there are at most MAX_REQUESTS");
            let session = *sessions.entry(session).or_insert(fresh);
            requests.push(Request { at: t, session, blocks: Arc::new(Runs(blocks)), out });
        }
        Ok(Self { name: trace, block_tokens, sessions: sessions.len(), requests })
    }

    /// Blocks of all prompts.
    pub fn blocks(&self) -> u64 {
        self.requests.iter().map(|request| request.blocks.len() as u64).sum()
    }
}

fn next<T: serde::de::DeserializeOwned>(
    lines: &mut impl BufRead,
    text: &mut Vec<u8>,
    number: usize,
) -> Result<Option<T>, TraceError> {
    text.clear();
    lines.take(MAX_LINE).read_until(b'\n', text)?;
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(text).map(Some).map_err(|e| wrong(number, &e.to_string()))
}

fn wrong(line: usize, problem: &str) -> TraceError {
    TraceError::Line { line, problem: problem.to_owned() }
}

impl Runs {
    /// How many blocks.
    pub fn len(&self) -> usize {
        self.0.iter().map(|(_, count)| *count as usize).sum()
    }

    /// Writes all ids into a buffer.
    pub fn write(&self, into: &mut Vec<u32>) {
        into.clear();
        into.extend(self.0.iter().flat_map(|&(first, count)| first..first + count));
    }

    /// All ids from the last to the first, without the last `passed` ones.
    pub fn backwards(&self, passed: usize) -> impl Iterator<Item = u32> {
        let mut left = passed;
        self.0.iter().rev().flat_map(move |&(first, count)| {
            let skipped = left.min(count as usize);
            left -= skipped;
            let count = count - u32::try_from(skipped).expect("it is at most the count");
            (first..first + count).rev()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace, String> {
        Trace::read(text.as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn requests_are_read_with_their_sessions_and_runs() {
        let text = r#"{"trace":"t","block_tokens":64}
{"t":0.5,"session":"a","blocks":[[0,3],[7,2]],"out":5}
{"t":0.5,"session":"b","blocks":[[0,1]]}
{"t":2,"session":"a","blocks":[[0,3]],"out":1}
"#;
        let trace = read(text).expect("it is valid");
        assert_eq!((trace.name.as_str(), trace.block_tokens, trace.sessions, trace.blocks()), ("t", 64, 2, 9));
        assert!(trace.requests.iter().map(|request| request.session).eq([0, 1, 0]));
        let runs = &trace.requests[0].blocks;
        let mut ids = Vec::new();
        runs.write(&mut ids);
        assert_eq!(ids, [0, 1, 2, 7, 8]);
        for passed in 0..6 {
            ids.truncate(5 - passed);
            assert!(runs.backwards(passed).eq(ids.iter().rev().copied()), "{passed}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let head = r#"{"trace":"t","block_tokens":64}"#;
        for (text, problem) in [
            (String::new(), "line 1: the trace is empty"),
            ("{}".into(), "line 1: missing field `trace`"),
            (r#"{"trace":"t","block_tokens":0}"#.into(), "line 1: block_tokens is 0"),
            (format!("{head}\n{{\"t\":1}}"), "line 2: missing field `session`"),
            (format!("{head}\n{{\"t\":1,\"session\":\"a\",\"blocks\":[]}}"), "line 2: a prompt has 1 to"),
            (format!("{head}\n{{\"t\":1,\"session\":\"a\",\"blocks\":[[4294967295,1]]}}"), "line 2: a prompt has"),
            (
                format!(
                    "{head}\n{{\"t\":1,\"session\":\"a\",\"blocks\":[[0,1]]}}\n{{\"t\":0,\"session\":\"a\",\"blocks\":[[0,1]]}}"
                ),
                "line 3: t is not in order",
            ),
        ] {
            let told = read(&text).expect_err(problem);
            assert!(told.starts_with(problem), "{told}");
        }
    }
}
