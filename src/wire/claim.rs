//! Bodies that travel elsewhere: a message can't hold them, so that it names an object of the bucket `{ns}_bodies`
//! instead, and carries the keys that a router would have made of the body (protocol section 3.4).

use std::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_128;

use super::header;
use crate::core::error::RouteError;
use crate::core::session::derived::Prefixes;

/// Most keys of one request.
pub const MAX_KEYS: usize = 4096;
/// Longest name of an object.
const MAX_NAME: usize = 128;
/// What the digest begins with.
const DIGEST: &str = "xxh3-128=";

/// Where a body lies, and how it is known to be the right one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Name of the object.
    pub object: String,
    /// Size of the body in bytes.
    pub size: u64,
    /// Hash of the body.
    pub digest: u128,
}

/// Why a claim is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// A header is missing or is not what it should be.
    #[error("header {0} of a body that travels elsewhere is missing or none")]
    Header(&'static str),
    /// What lies there is another body.
    #[error("the body that was stored is {found} bytes, {expected} are expected, or its hash is another")]
    Other {
        /// Size of what lies there.
        found: u64,
        /// What the claim says.
        expected: u64,
    },
}

impl Claim {
    /// The claim of a body that lies in an object of this name.
    pub fn of(object: String, body: &[u8]) -> Self {
        Self { object, size: body.len() as u64, digest: xxh3_128(body) }
    }

    /// The claim of a message's headers, if it has one.
    pub fn read<'h>(headers: impl Iterator<Item = (&'h str, &'h str)>) -> Result<Option<Self>, ClaimError> {
        let names = [header::BODY, header::BODY_SIZE, header::BODY_DIGEST];
        let [object, size, digest] = header::find_all(headers, names);
        let Some(object) = object else { return Ok(None) };
        if object.len() > MAX_NAME || !object.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        {
            return Err(ClaimError::Header(header::BODY));
        }
        let size = size.and_then(|text| text.parse().ok()).ok_or(ClaimError::Header(header::BODY_SIZE))?;
        let hex = digest.and_then(|text| text.strip_prefix(DIGEST)).filter(|hex| hex.len() == 32);
        let digest = hex.and_then(|hex| u128::from_str_radix(hex, 16).ok());
        let digest = digest.ok_or(ClaimError::Header(header::BODY_DIGEST))?;
        Ok(Some(Self { object: object.to_owned(), size, digest }))
    }

    /// The headers that tell it.
    pub fn headers(&self) -> [(&'static str, String); 3] {
        [
            (header::BODY, self.object.clone()),
            (header::BODY_SIZE, self.size.to_string()),
            (header::BODY_DIGEST, format!("{DIGEST}{:032x}", self.digest)),
        ]
    }

    /// Whether this is the body.
    pub fn check(&self, body: &[u8]) -> Result<(), ClaimError> {
        let found = body.len() as u64;
        if found == self.size && xxh3_128(body) == self.digest {
            return Ok(());
        }
        Err(ClaimError::Other { found, expected: self.size })
    }
}

/// The value of `Rankpin-Prefix-Keys`. Of a conversation with more items than that the last count: those are looked up
/// first.
pub fn write_keys(prefixes: &Prefixes) -> String {
    let dropped = prefixes.keys().len().saturating_sub(MAX_KEYS);
    let mut text = String::with_capacity(prefixes.keys().len().min(MAX_KEYS) * 17 + 1);
    for key in &prefixes.keys()[dropped..] {
        let _ = write!(text, "{}{key:016x}", if text.is_empty() { "" } else { "," });
    }
    text.push(';');
    let indices = prefixes.assistants().iter().filter_map(|index| index.checked_sub(dropped));
    for (place, index) in indices.enumerate() {
        let _ = write!(text, "{}{index}", if place == 0 { "" } else { "," });
    }
    text
}

/// Reads the value of `Rankpin-Prefix-Keys`.
pub fn read_keys(text: &str) -> Result<Prefixes, RouteError> {
    let wrong = |problem: &str| RouteError::InvalidRequest(format!("header {}: {problem}", header::PREFIX_KEYS));
    let (keys, indices) = text.split_once(';').ok_or_else(|| wrong("there is no ; behind the keys"))?;
    let mut read = Vec::new();
    for key in keys.split(',') {
        if read.len() == MAX_KEYS {
            return Err(wrong(&format!("more than {MAX_KEYS} keys")));
        }
        let is_key = key.len() == 16 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
        let key = if is_key { u64::from_str_radix(key, 16).ok() } else { None };
        read.push(key.ok_or_else(|| wrong("a key is not 16 hex digits"))?);
    }
    let indices: Result<Vec<usize>, _> = indices.split(',').filter(|index| !index.is_empty()).map(str::parse).collect();
    let indices = indices.map_err(|_| wrong("an index is no number"))?;
    Prefixes::from_parts(read, indices).ok_or_else(|| wrong("the indices don't ascend, or name no key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_reads_as_it_was_written_and_knows_its_body() {
        let claim = Claim::of("b-1".into(), b"body");
        let headers = claim.headers();
        let pairs = headers.iter().map(|(name, value)| (*name, value.as_str()));
        assert_eq!(Claim::read(pairs), Ok(Some(claim.clone())));
        assert_eq!(claim.check(b"body"), Ok(()));
        assert!(claim.check(b"bodx").is_err() && claim.check(b"bod").is_err());
        assert_eq!(Claim::read([("a", "b")].into_iter()), Ok(None));
    }

    #[test]
    fn what_is_no_claim_names_its_header() {
        let good = Claim::of("b".into(), b"").headers();
        for (at, bad) in [(0, "a.b"), (0, &"x".repeat(129)), (1, "-1"), (1, ""), (2, "sha-256=00"), (2, "xxh3-128=0")] {
            let mut headers = good.clone();
            headers[at].1 = bad.to_owned();
            let read = Claim::read(headers.iter().map(|(name, value)| (*name, value.as_str())));
            assert_eq!(read, Err(ClaimError::Header(headers[at].0)), "{bad}");
        }
    }

    #[test]
    fn keys_read_as_they_were_written() {
        let prefixes = Prefixes::from_parts(vec![1, u64::MAX, 3], vec![1]).expect("valid");
        assert_eq!(write_keys(&prefixes), "0000000000000001,ffffffffffffffff,0000000000000003;1");
        assert_eq!(read_keys(&write_keys(&prefixes)), Ok(prefixes));
        let none = Prefixes::from_parts(vec![7], vec![]).expect("valid");
        assert_eq!(read_keys(&write_keys(&none)), Ok(none));
    }

    #[test]
    fn of_too_many_keys_the_last_are_kept() {
        let keys: Vec<u64> = (0..5000).collect();
        let long = Prefixes::from_parts(keys, vec![0, 903, 904, 4999]).expect("valid");
        let read = read_keys(&write_keys(&long)).expect("valid");
        assert_eq!((read.keys().len(), read.keys()[0], read.full()), (MAX_KEYS, 904, 4999));
        assert_eq!(read.assistants(), [0, 4095]);
    }

    #[test]
    fn what_are_no_keys_is_told() {
        let many = vec!["0000000000000001"; MAX_KEYS + 1].join(",");
        for (text, told) in [
            ("", "no ; behind"),
            (";", "not 16 hex digits"),
            ("1;", "not 16 hex digits"),
            ("+000000000000001;", "not 16 hex digits"),
            ("0000000000000001;x", "no number"),
            ("0000000000000001;1", "name no key"),
            ("0000000000000001,0000000000000002;1,0", "don't ascend"),
            (&format!("{many};"), "more than 4096"),
        ] {
            let error = read_keys(text).expect_err(told).to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
