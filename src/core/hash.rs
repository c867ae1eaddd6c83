//! Every hash that router replicas must agree on. Golden values pin them (`tests/golden/keys.json`).

use std::fmt;
use std::hash::{Hash, Hasher};

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

use super::id::{DpRank, Model, RankRange, SessionId, Tenant, WorkerId};

/// Key of a pin in the bucket: `xxh3_128(tenant 0x00 model 0x00 session id)`, seed 0 (protocol section 8).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PinKey([u64; 2]);

impl Hash for PinKey {
    /// Two numbers: by the rule for arrays it would be bytes, which hashers take more time for.
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.0[0]);
        hasher.write_u64(self.0[1]);
    }
}

impl PinKey {
    /// The key of one (tenant, model, session).
    pub fn new(tenant: &Tenant, model: &Model, session: &SessionId) -> Self {
        Self::of(tenant.as_str(), model.as_str(), session.as_str())
    }

    /// The keys of the derived sessions of these prefixes (protocol section 4), in their order. There are as many as a
    /// conversation has items, so what is alike in all of them is written once.
    pub fn derived(tenant: &Tenant, model: &Model, prefixes: impl Iterator<Item = u64>) -> impl Iterator<Item = Self> {
        let example = SessionId::derived(0);
        let parts = [tenant.as_str().as_bytes(), &[0], model.as_str().as_bytes(), &[0], example.as_str().as_bytes()];
        let mut text = parts.concat();
        let digits_at = text.len() - 16;
        prefixes.map(move |key| {
            write_digits(key, &mut text[digits_at..]);
            Self::of_hash(xxh3_128(&text))
        })
    }

    /// The same, of texts not yet checked. Neither a tenant nor a session holds 0x00, so no two triples meet.
    pub fn of(tenant: &str, model: &str, session: &str) -> Self {
        let parts = [tenant.as_bytes(), &[0], model.as_bytes(), &[0], session.as_bytes()];
        // Most are short, and need no allocation.
        let mut short = [0; 512];
        let mut length = 0;
        for part in parts {
            let Some(place) = short.get_mut(length..length + part.len()) else {
                return Self::of_hash(xxh3_128(&parts.concat()));
            };
            place.copy_from_slice(part);
            length += part.len();
        }
        Self::of_hash(xxh3_128(&short[..length]))
    }

    /// Two halves, the higher first: a number of 128 bits would want memory at multiples of 16 wherever a key is part of
    /// something, which allocators are slow to give.
    fn of_hash(hash: u128) -> Self {
        let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).expect("cut to 64 bits");
        Self([half(hash >> 64), half(hash)])
    }

    /// The part of so many in which it stands. The lower half of the key says so, since the upper one says the partition, and
    /// is alike in all keys that a router has.
    pub fn shard(self, shards: usize) -> usize {
        usize::try_from(self.0[1] % shards as u64).expect("less than a number of the same type")
    }

    /// Its first 16 hex digits, as a number.
    pub fn first_half(self) -> u64 {
        self.0[0]
    }

    /// Reads the 32 lower-case hex digits of a bucket key.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 32 || !text.bytes().all(hex) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(Self::of_hash)
    }
}

/// Writes the sixteen hexadecimal digits of a number.
fn write_digits(number: u64, place: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (index, digit) in place.iter_mut().enumerate() {
        *digit = DIGITS[(number >> (60 - 4 * index) & 0xf) as usize];
    }
}

impl fmt::Display for PinKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 32];
        for (half, number) in text.chunks_exact_mut(16).zip(self.0) {
            write_digits(number, half);
        }
        f.write_str(std::str::from_utf8(&text).expect("digits are text"))
    }
}

impl fmt::Debug for PinKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The rank that a session hashes to: `dp_start + xxh3_64(session id) % dp_size` (protocol section 5).
pub fn hashed_rank(session: &SessionId, ranks: RankRange) -> DpRank {
    ranks.at(session_hash(session))
}

/// What a session hashes to: of a range of ranks it takes the one at this place, modulo their number.
pub fn session_hash(session: &SessionId) -> u64 {
    xxh3_64(session.as_str().as_bytes())
}

/// A session as ranks are remembered to hold it; never sent.
pub fn session(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

/// A kind of device, as decisions compare it; never sent.
pub fn device(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// Rendezvous weight of a worker for a session: `xxh3_64(worker 0x00 session id)`. The highest wins while the
/// pins bucket is unreachable, so that routers agree without it (protocol section 5).
pub fn rendezvous(worker: &WorkerId, session: &SessionId) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(worker.as_str().as_bytes());
    hasher.update(&[0]);
    hasher.update(session.as_str().as_bytes());
    hasher.digest()
}

/// Weighted rendezvous hashing: of `-ln(u) / weight`, with `u` from `xxh3_64(name 0x00 session id)`, the least wins. Where
/// one weight changes, only sessions from or to that name move (protocol sections 3.3 and 5.1).
pub fn distance(name: &str, session: &SessionId) -> f64 {
    let mut hasher = Xxh3::new();
    hasher.update(name.as_bytes());
    hasher.update(&[0]);
    hasher.update(session.as_str().as_bytes());
    // The upper 53 bits are exact as a float; with a half added never 0.
    #[expect(clippy::cast_precision_loss, reason = "see above")]
    let uniform = ((hasher.digest() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_keys_are_32_lower_case_hex_digits() {
        let key =
            PinKey::new(&Tenant::none(), &Model::new("m").expect("valid"), &SessionId::named("s").expect("valid"));
        assert_eq!(key.to_string(), "0193c2d9161482a25df37e014c3fca96");
        assert_eq!(PinKey::parse(&key.to_string()), Some(key));
        assert_eq!(PinKey::parse("0193C2D9161482A25DF37E014C3FCA96"), None);
        assert_eq!(PinKey::parse("+193c2d9161482a25df37e014c3fca96"), None);
        assert_eq!(PinKey::parse("short"), None);
    }

    #[test]
    fn keys_of_derived_sessions_are_those_of_their_ids() {
        let tenant = Tenant::new("acme").expect("valid");
        for model in ["m".to_owned(), "m".repeat(256)] {
            let model = Model::new(&model).expect("valid");
            let prefixes = [0, 1, 0xfedc_ba98_7654_3210, u64::MAX];
            let one_by_one = prefixes.map(|key| PinKey::new(&tenant, &model, &SessionId::derived(key)));
            assert!(PinKey::derived(&tenant, &model, prefixes.into_iter()).eq(one_by_one));
        }
    }
}
