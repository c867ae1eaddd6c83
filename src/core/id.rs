//! Names and numbers of the domain as types of their own, so that swapped arguments don't compile.

use std::fmt;
use std::sync::Arc;

/// Longest model name in bytes, decoded (protocol section 1).
pub const MAX_MODEL_BYTES: usize = 256;
/// Longest session id in bytes (protocol section 3.1).
pub const MAX_SESSION_BYTES: usize = 256;
/// Longest id of a response that a request may go on from, in bytes: with what stands before it, it is a session id
/// (protocol section 4.1).
pub const MAX_RESPONSE_BYTES: usize = MAX_SESSION_BYTES - RESPONSE.len();
/// What stands before a response's id in the session id under which it is pinned. No client can name such a session,
/// since named ids hold no control characters.
const RESPONSE: &str = "\u{1}rs:";
/// Longest tenant name in bytes (protocol section 3).
pub const MAX_TENANT_BYTES: usize = 256;
/// Longest worker id, request id and pool name in bytes (protocol sections 1 and 3).
pub const MAX_ID_BYTES: usize = 64;
/// Ranks are numbered below this (protocol section 7).
pub const MAX_RANKS: u32 = 65_536;

/// What is wrong with a name; the text completes "the session id …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("is empty")]
    Empty,
    /// The name has more bytes than allowed.
    #[error("is {len} bytes long, the limit is {max}")]
    TooLong {
        /// Length found, in bytes.
        len: usize,
        /// Longest allowed, in bytes.
        max: usize,
    },
    /// The name holds a character that is not allowed.
    #[error("holds {found:?}, allowed are {allowed}")]
    Character {
        /// The first character that is not allowed.
        found: char,
        /// Which are allowed.
        allowed: &'static str,
    },
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type!(
    /// One registered engine instance's name: 1 to 64 of `[A-Za-z0-9_-]`.
    WorkerId
);
name_type!(
    /// The process behind a worker id; a restart gives another one.
    InstanceId
);
name_type!(
    /// A model's name, 1 to 256 bytes.
    Model
);
name_type!(
    /// Scope of sessions; empty where there is none.
    Tenant
);
name_type!(
    /// The id of a conversation, 1 to 256 bytes without control characters (derived ids start with U+0001).
    SessionId
);
name_type!(
    /// The id of a request: 1 to 64 of `[A-Za-z0-9_-]`.
    RequestId
);
name_type!(
    /// A named group of workers, 1 to 64 bytes without control characters.
    Pool
);
name_type!(
    /// First token of every subject: 1 to 32 of `[a-z0-9_-]`.
    Namespace
);

const WORD: &str = "A-Z a-z 0-9 _ -";

fn word(text: &str, max: usize) -> Result<Arc<str>, NameError> {
    bounded(text, max)?;
    // Without an early end, so that many are looked at at once: of nearly all, all are good.
    if text.bytes().fold(true, |good, byte| good & is_word(byte)) {
        return Ok(text.into());
    }
    let found = text.chars().find(|c| !c.is_ascii() || !is_word(*c as u8)).unwrap_or_default();
    Err(NameError::Character { found, allowed: WORD })
}

fn is_word(byte: u8) -> bool {
    let letter = (byte | 0x20).wrapping_sub(b'a') < 26;
    let digit = byte.wrapping_sub(b'0') < 10;
    letter | digit | (byte == b'_') | (byte == b'-')
}

fn bounded(text: &str, max: usize) -> Result<(), NameError> {
    match text.len() {
        0 => Err(NameError::Empty),
        len if len > max => Err(NameError::TooLong { len, max }),
        _ => Ok(()),
    }
}

fn printable(text: &str) -> Result<(), NameError> {
    // Control characters are those below 0x20 and 0x7f (protocol section 3.1); others pass, whatever their plane.
    match text.chars().find(char::is_ascii_control) {
        Some(found) => Err(NameError::Character { found, allowed: "characters other than control characters" }),
        None => Ok(()),
    }
}

impl WorkerId {
    /// Checks and takes a worker id.
    pub fn new(text: &str) -> Result<Self, NameError> {
        word(text, MAX_ID_BYTES).map(Self)
    }
}

impl RequestId {
    /// Checks and takes a request id.
    pub fn new(text: &str) -> Result<Self, NameError> {
        word(text, MAX_ID_BYTES).map(Self)
    }
}

impl Namespace {
    /// Checks and takes a namespace.
    pub fn new(text: &str) -> Result<Self, NameError> {
        bounded(text, 32)?;
        match text.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '_' | '-')) {
            Some(found) => Err(NameError::Character { found, allowed: "a-z 0-9 _ -" }),
            None => Ok(Self(text.into())),
        }
    }
}

impl InstanceId {
    /// Checks and takes an instance id: 1 to 64 bytes without control characters.
    pub fn new(text: &str) -> Result<Self, NameError> {
        bounded(text, MAX_ID_BYTES)?;
        printable(text)?;
        Ok(Self(text.into()))
    }
}

impl Model {
    /// Checks and takes a model name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        bounded(text, MAX_MODEL_BYTES)?;
        Ok(Self(text.into()))
    }
}

/// The pool of workers that name none.
pub const DEFAULT_POOL: &str = "default";

impl Pool {
    /// Checks and takes a pool name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        bounded(text, MAX_ID_BYTES)?;
        printable(text)?;
        Ok(Self(text.into()))
    }
}

impl Tenant {
    /// Checks and takes a tenant; empty is the tenant of requests that name none.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if !text.is_empty() {
            bounded(text, MAX_TENANT_BYTES)?;
        }
        printable(text)?;
        Ok(Self(text.into()))
    }

    /// The tenant of requests that name none.
    pub fn none() -> Self {
        Self("".into())
    }
}

impl SessionId {
    /// Checks and takes the id of a session that a client named.
    pub fn named(text: &str) -> Result<Self, NameError> {
        bounded(text, MAX_SESSION_BYTES)?;
        printable(text)?;
        Ok(Self(text.into()))
    }

    /// The id of the session that goes on from a response: U+0001 `rs:` and the response's id as it is.
    pub fn of_response(id: &str) -> Result<Self, NameError> {
        bounded(id, MAX_RESPONSE_BYTES)?;
        printable(id)?;
        Ok(Self([RESPONSE, id].concat().into()))
    }

    /// Whether it is one of [`SessionId::of_response`].
    pub fn is_of_response(&self) -> bool {
        self.0.starts_with(RESPONSE)
    }

    /// Takes an id that the core itself made.
    pub(in crate::core) fn unchecked(text: &str) -> Self {
        Self(text.into())
    }
}

/// The number of one data-parallel replica, global over all workers of a pool: 0 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DpRank(pub u16);

impl fmt::Display for DpRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The contiguous ranks that a worker declares: `start .. start + size`, never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankRange {
    start: u16,
    size: u32,
}

impl RankRange {
    /// `None` where `size` is 0 or the range reaches beyond rank 65535.
    pub fn new(start: u32, size: u32) -> Option<Self> {
        let end = start.checked_add(size)?;
        if size == 0 || end > MAX_RANKS {
            return None;
        }
        Some(Self { start: u16::try_from(start).ok()?, size })
    }

    /// The first rank.
    pub fn start(self) -> DpRank {
        DpRank(self.start)
    }

    /// How many ranks; at least 1.
    pub fn size(self) -> u32 {
        self.size
    }

    /// Whether the rank is one of these.
    pub fn contains(self, rank: DpRank) -> bool {
        self.index_of(rank).is_some()
    }

    /// Place of the rank in the range, from 0.
    pub fn index_of(self, rank: DpRank) -> Option<usize> {
        let offset = u32::from(rank.0).checked_sub(u32::from(self.start))?;
        (offset < self.size).then_some(offset as usize)
    }

    /// The rank at a place in the range; the place counts modulo the size.
    pub fn at(self, index: u64) -> DpRank {
        let offset = index % u64::from(self.size);
        DpRank(u16::try_from(u64::from(self.start) + offset).expect("a range ends below 65536"))
    }

    /// All ranks in order.
    pub fn iter(self) -> impl Iterator<Item = DpRank> {
        (0..u64::from(self.size)).map(move |i| self.at(i))
    }
}

/// Where a request goes. No rank means that the engine's own balancer chooses; it is never rank 0 by default.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The worker.
    pub worker: WorkerId,
    /// The rank, where one is named on the wire.
    pub rank: Option<DpRank>,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "{}/{rank}", self.worker),
            None => write!(f, "{}", self.worker),
        }
    }
}

/// Where a session id comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A header (or configured body field) names it.
    Named,
    /// It is derived from the conversation's own text.
    Derived,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_at_rank_65535() {
        assert!(RankRange::new(0, 0).is_none());
        assert!(RankRange::new(65_535, 2).is_none());
        assert!(RankRange::new(u32::MAX, 1).is_none());
        let last = RankRange::new(65_535, 1).expect("one rank fits");
        assert_eq!(last.at(7), DpRank(65_535));
        let range = RankRange::new(4, 4).expect("valid");
        assert_eq!(range.iter().map(|r| r.0).collect::<Vec<_>>(), [4, 5, 6, 7]);
        assert!(!range.contains(DpRank(3)) && !range.contains(DpRank(8)));
    }

    #[test]
    fn names_say_what_is_wrong() {
        assert_eq!(WorkerId::new("gpu.7").unwrap_err().to_string(), "holds '.', allowed are A-Z a-z 0-9 _ -");
        assert_eq!(
            SessionId::named("\u{1}px:0").unwrap_err(),
            NameError::Character { found: '\u{1}', allowed: "characters other than control characters" }
        );
        assert!(SessionId::named(&"x".repeat(257)).is_err());
        assert!(SessionId::named(&"é".repeat(128)).is_ok());
        assert!(Tenant::new("").is_ok());
    }
}
