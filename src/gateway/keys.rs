//! API keys: who a client is. The file holds hashes, so that whoever reads it has no key.

use std::collections::HashMap;
use std::path::Path;

use axum::http::{HeaderMap, StatusCode, header};
use sha2::{Digest as _, Sha256};

use super::problem::Problem;
use crate::core::id::Tenant;

/// Most keys of a file.
pub const MAX_KEYS: usize = 1 << 20;
/// Headers that hold a key, besides `Authorization: Bearer`: Anthropic's and Azure's.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "api-key"];

type Hash = [u8; 32];

/// The keys, by their hashes.
#[derive(Debug, Default)]
pub struct Keys {
    tenants: HashMap<Hash, Tenant>,
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file can't be read.
    #[error("cannot read the API keys in {path}: {problem}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system says.
        problem: std::io::Error,
    },
    /// A line is no key.
    #[error("{path}, line {line}: {problem}; write sha256:{{64 hex digits}}, a space, and the tenant")]
    Line {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The file holds none, or too many.
    #[error("{path} holds {count} keys; a gateway takes 1 to {MAX_KEYS}")]
    Count {
        /// The file.
        path: String,
        /// How many.
        count: usize,
    },
}

impl Keys {
    /// Reads a file of keys.
    pub fn read(path: &Path) -> Result<Self, KeysError> {
        let shown = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|problem| KeysError::Unreadable { path: shown.clone(), problem })?;
        Self::parse(&shown, &text)
    }

    fn parse(path: &str, text: &str) -> Result<Self, KeysError> {
        let mut tenants = HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |problem: String| KeysError::Line { path: path.to_owned(), line: number, problem };
            let (hash, tenant) = entry(line).map_err(wrong)?;
            if tenants.insert(hash, tenant).is_some() {
                return Err(wrong("the same key stands on an earlier line".into()));
            }
        }
        if tenants.is_empty() || tenants.len() > MAX_KEYS {
            return Err(KeysError::Count { path: path.to_owned(), count: tenants.len() });
        }
        Ok(Self { tenants })
    }

    /// Whose request this is.
    pub fn tenant(&self, headers: &HeaderMap) -> Result<Tenant, Problem> {
        let unauthorized = |message: &str| Problem::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message);
        let key = key(headers).ok_or_else(|| {
            unauthorized("there is no API key; send one as Authorization: Bearer {key}, or as x-api-key: {key}")
        })?;
        // What is compared is a hash of what was sent, so that its time tells nothing of a key.
        let hash: Hash = Sha256::digest(key).into();
        self.tenants.get(&hash).cloned().ok_or_else(|| unauthorized("the API key is not one of this gateway's"))
    }
}

fn key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
    });
    let keys = bearer.into_iter().chain(KEY_HEADERS.iter().filter_map(|name| Some(headers.get(*name)?.as_bytes())));
    keys.map(<[u8]>::trim_ascii).find(|key| !key.is_empty())
}

fn entry(line: &str) -> Result<(Hash, Tenant), String> {
    let (hash, tenant) = line.split_once(char::is_whitespace).ok_or("there is no tenant behind the hash")?;
    let digits = hash.strip_prefix("sha256:").ok_or("it does not begin with sha256:")?;
    let tenant = Tenant::new(tenant.trim()).map_err(|error| format!("the tenant {error}"))?;
    if digits.len() != 64 || !digits.is_ascii() {
        return Err(format!("the hash has {} digits", digits.len()));
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| "the hash is not hex")?;
    }
    Ok((bytes, tenant))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf %s secret | sha256sum`
    const SECRET: &str = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    fn tenant(keys: &Keys, name: &'static str, value: &str) -> Result<String, u16> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().expect("a value"));
        keys.tenant(&headers).map(|tenant| tenant.as_str().to_owned()).map_err(|problem| problem.status.as_u16())
    }

    #[test]
    fn a_key_tells_the_tenant_wherever_clients_put_it() {
        let keys = Keys::parse("keys", &format!("# ours\n\n  {SECRET}   acme corp \n")).expect("valid");
        for (name, value) in [
            ("authorization", "Bearer secret"),
            ("authorization", "bearer  secret "),
            ("x-api-key", "secret"),
            ("api-key", "secret"),
        ] {
            assert_eq!(tenant(&keys, name, value), Ok("acme corp".into()), "{name}: {value}");
        }
        for (name, value) in [
            ("authorization", "Basic secret"),
            ("authorization", "Bearer "),
            ("x-api-key", "Secret"),
            ("cookie", "secret"),
        ] {
            assert_eq!(tenant(&keys, name, value), Err(401), "{name}: {value}");
        }
    }

    #[test]
    fn a_line_that_is_no_key_is_named() {
        let twice = format!("{SECRET} a\n{SECRET} b");
        for (text, told) in [
            ("", "keys holds 0 keys"),
            ("secret acme", "line 1: it does not begin with sha256:"),
            (SECRET, "there is no tenant"),
            ("sha256:2bb8 acme", "the hash has 4 digits"),
            (&format!("sha256:{} acme", "zz".repeat(32)), "the hash is not hex"),
            (&twice, "line 2: the same key"),
        ] {
            let error = Keys::parse("keys", text).expect_err(told).to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
