//! What is said of prefix caches: by workers on `{ns}.kv.{worker}.{r}`, and between routers on `{ns}.router.kv` (protocol
//! section 7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::core::fleet::{CacheEvent, Note};
use crate::core::hash;
use crate::core::id::{DpRank, InstanceId, WorkerId};
use crate::core::kv::{MAX_MARKS, Mark};

/// Largest message of either kind that is read, in bytes.
pub const MAX_KV_BYTES: usize = 1024 * 1024;
/// Most events in one message.
pub const MAX_EVENTS: usize = 16_384;
/// Most notes in one message between routers.
pub const MAX_NOTES: usize = 1024;

/// What a rank holds more or less of. Unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KvEvents {
    /// Version of this shape: 1.
    #[schemars(range(min = 1, max = 1))]
    pub v: u32,
    /// The process that reports.
    #[schemars(length(max = 64), regex(pattern = r"^[^\u0000-\u001f\u007f]+$"))]
    pub instance: String,
    /// One more than that of the rank's last message.
    #[schemars(range(max = u64::MAX))]
    pub seq: u64,
    /// What has happened, in order.
    #[schemars(length(max = 16384))]
    pub events: Vec<KvEvent>,
}

/// One change of a prefix cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KvEvent {
    /// The rank holds blocks more of a session.
    Stored(SessionBlocks),
    /// The rank holds blocks less of a session.
    Removed(SessionBlocks),
    /// The rank holds nothing any more.
    Cleared(bool),
}

/// Blocks of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionBlocks {
    /// The `Rankpin-Session` of its requests.
    pub session: String,
    /// How many.
    #[schemars(range(max = u32::MAX))]
    pub blocks: u32,
}

impl KvEvents {
    /// Reads a message. The error names the field.
    pub fn parse(encoding: super::Encoding, payload: &[u8]) -> Result<(InstanceId, u64, Vec<CacheEvent>), String> {
        if payload.len() > MAX_KV_BYTES {
            return Err(format!("the message is {} bytes long", payload.len()));
        }
        let read: Self = encoding.decode(payload)?;
        if read.v != 1 {
            return Err(format!("field v: is {}, this version reads 1", read.v));
        }
        if read.events.len() > MAX_EVENTS {
            return Err(format!("field events: holds {} entries, {MAX_EVENTS} are allowed", read.events.len()));
        }
        let instance = InstanceId::new(&read.instance).map_err(|e| format!("field instance: {e}"))?;
        Ok((instance, read.seq, read.events.iter().filter_map(KvEvent::of_core).collect()))
    }
}

impl KvEvent {
    fn of_core(&self) -> Option<CacheEvent> {
        match self {
            Self::Stored(of) => Some(CacheEvent::Stored { session: hash::session(&of.session), blocks: of.blocks }),
            Self::Removed(of) => Some(CacheEvent::Removed { session: hash::session(&of.session), blocks: of.blocks }),
            Self::Cleared(true) => Some(CacheEvent::Cleared),
            Self::Cleared(false) => None,
        }
    }
}

/// Dispatches that a router tells the others, always as MessagePack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterNotes {
    /// Version of this shape: 1.
    pub v: u32,
    /// Who tells, so that it can pass over its own.
    pub router: String,
    /// What was dispatched.
    pub notes: Vec<DispatchNote>,
}

/// One dispatch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatchNote {
    /// The worker.
    pub worker: String,
    /// Its process.
    pub instance: String,
    /// The rank; none for a worker of one rank, or where the engine chooses.
    pub dp_rank: Option<u16>,
    /// Tokens of the prompt, as the router guesses them.
    pub tokens: u32,
    /// How many of them it did not expect in the cache.
    pub missed: u32,
    /// The mark that it expected there: key, and tokens up to there.
    pub behind: Option<(u64, u32)>,
    /// The marks that follow.
    pub tail: Vec<(u64, u32)>,
}

/// Where a note is about.
pub type At = (WorkerId, InstanceId, Option<DpRank>);

impl RouterNotes {
    /// Reads a message; notes that can't be true are left out.
    pub fn parse(payload: &[u8]) -> Result<(String, Vec<(At, Note)>), String> {
        if payload.len() > MAX_KV_BYTES {
            return Err(format!("the message is {} bytes long", payload.len()));
        }
        let read: Self = super::Encoding::MessagePack.decode(payload)?;
        if read.v != 1 {
            return Err(format!("field v: is {}, this version reads 1", read.v));
        }
        if read.notes.len() > MAX_NOTES {
            return Err(format!("field notes: holds {} entries, {MAX_NOTES} are allowed", read.notes.len()));
        }
        Ok((read.router, read.notes.iter().filter_map(DispatchNote::of_core).collect()))
    }
}

impl DispatchNote {
    /// As it is told.
    pub fn new((worker, instance, rank): &At, note: &Note) -> Self {
        let pair = |mark: &Mark| (mark.key, mark.upto);
        Self {
            worker: worker.as_str().to_owned(),
            instance: instance.as_str().to_owned(),
            dp_rank: rank.map(|rank| rank.0),
            tokens: note.tokens,
            missed: note.missed,
            behind: note.behind.as_ref().map(pair),
            tail: note.tail.iter().map(pair).collect(),
        }
    }

    fn of_core(&self) -> Option<(At, Note)> {
        let mark = |(key, upto): &(u64, u32)| Mark { key: *key, upto: *upto };
        let tail: Vec<Mark> = self.tail.iter().map(mark).collect();
        let behind = self.behind.as_ref().map(mark);
        let ascending = behind.iter().chain(&tail).is_sorted_by_key(|mark| mark.upto);
        if !ascending || tail.len() > MAX_MARKS || self.missed > self.tokens {
            return None;
        }
        let worker = WorkerId::new(&self.worker).ok()?;
        let instance = InstanceId::new(&self.instance).ok()?;
        let note = Note { tokens: self.tokens, missed: self.missed, behind, tail };
        Some(((worker, instance, self.dp_rank.map(DpRank)), note))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Encoding;

    #[test]
    fn events_are_read_as_the_protocol_writes_them() {
        let text = r#"{"v":1,"instance":"i","seq":9,"events":[{"stored":{"session":"s","blocks":12}},
            {"removed":{"session":"s","blocks":4}},{"cleared":true},{"cleared":false}]}"#;
        let (instance, seq, events) = KvEvents::parse(Encoding::Json, text.as_bytes()).expect("valid");
        assert_eq!((instance.as_str(), seq), ("i", 9));
        let session = hash::session("s");
        let expected = [
            CacheEvent::Stored { session, blocks: 12 },
            CacheEvent::Removed { session, blocks: 4 },
            CacheEvent::Cleared,
        ];
        assert_eq!(events, expected);
        let packed = Encoding::MessagePack.encode(&Encoding::Json.decode::<KvEvents>(text.as_bytes()).expect("valid"));
        assert_eq!(KvEvents::parse(Encoding::MessagePack, &packed).expect("valid").2, events);
        for (bad, field) in [
            (r#"{"v":2,"instance":"i","seq":9,"events":[]}"#, "field v"),
            (r#"{"v":1,"instance":"","seq":9,"events":[]}"#, "field instance"),
            (r#"{"v":1,"instance":"i","seq":9,"events":[{"stored":{"session":"s","blocks":-1}}]}"#, "events[0]"),
        ] {
            let error = KvEvents::parse(Encoding::Json, bad.as_bytes()).expect_err(field);
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn notes_come_back_as_they_were_told() {
        let at = (WorkerId::new("w").expect("valid"), InstanceId::new("i").expect("valid"), Some(DpRank(4)));
        let mark = |key, upto| Mark { key, upto };
        let note = Note { tokens: 9, missed: 5, behind: Some(mark(u64::MAX, 4)), tail: vec![mark(1, 6), mark(2, 9)] };
        let backwards = Note { tail: vec![mark(1, 9), mark(2, 6)], ..note.clone() };
        let impossible = Note { missed: 10, ..note.clone() };
        let notes = [&note, &backwards, &impossible].map(|note| DispatchNote::new(&at, note)).to_vec();
        let packed = Encoding::MessagePack.encode(&RouterNotes { v: 1, router: "r".into(), notes });
        assert_eq!(RouterNotes::parse(&packed), Ok(("r".into(), vec![(at, note)])));
        assert!(RouterNotes::parse(&packed[1..]).is_err());
    }
}
