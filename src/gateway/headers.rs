//! Which headers of a client go on to router and worker. What is not named here stays: credentials above all.

use axum::http::{HeaderMap, HeaderName};

use super::problem::Problem;
use crate::client::Request;
use crate::config::gateway::{ClientHints, GatewayConfig};
use crate::core::session::named::PRECEDENCE;
use crate::wire::header::{PARENT_NAMES, TARGET_DP_RANK_NAMES, TARGET_WORKER_NAMES};

/// Headers that are carried besides those that name sessions and their parents: traces, the version of the API, and the
/// id that the client gives its request.
const PASSED: [&str; 6] =
    ["traceparent", "tracestate", "baggage", "anthropic-version", "anthropic-beta", "x-request-id"];
/// Further headers by which a client says how urgent its request is and where it goes.
const HINTS: [&str; 2] = ["rankpin-pool", "rankpin-priority"];

/// The headers that are carried.
#[derive(Debug)]
pub struct AllowList {
    names: Vec<HeaderName>,
}

impl AllowList {
    /// Those of a configuration.
    pub fn new(config: &GatewayConfig) -> Self {
        let sessions = PRECEDENCE.iter().flat_map(|row| std::iter::once(row.header).chain(row.refined_by));
        let mut names: Vec<&str> = sessions.chain(PARENT_NAMES).chain(PASSED).collect();
        if config.client_hints == ClientHints::Carried {
            names.extend(TARGET_WORKER_NAMES.iter().chain(&TARGET_DP_RANK_NAMES).chain(&HINTS));
        }
        names.extend(config.forward_headers.iter().map(String::as_str));
        names.sort_unstable();
        names.dedup();
        let known = |name: &str| HeaderName::from_bytes(name.as_bytes()).expect("the configuration holds names");
        Self { names: names.into_iter().map(known).collect() }
    }

    /// The request with what of these headers is carried.
    pub fn carry(&self, headers: &HeaderMap, mut request: Request) -> Result<Request, Problem> {
        for (name, value) in headers {
            if !self.names.contains(name) {
                continue;
            }
            let value = std::str::from_utf8(value.as_bytes())
                .map_err(|_| Problem::invalid(format!("the value of the header {name} is not UTF-8")))?;
            request = request.header(name.as_str(), value);
        }
        Ok(request)
    }
}

/// Times in ms that a client may set where its hints count.
pub fn millis(headers: &HeaderMap, name: &str) -> Result<Option<std::time::Duration>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(|text| text.trim().parse::<u32>().ok());
    let parsed =
        parsed.ok_or_else(|| Problem::invalid(format!("the header {name} is no number of ms up to 2^32-1")))?;
    Ok(Some(std::time::Duration::from_millis(parsed.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    fn carried(flags: &[(&'static str, &str)], headers: &[(&str, &str)]) -> Vec<String> {
        let flags: Flags = flags.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
        let config = crate::config::gateway::resolve(&flags, &|_| None).expect("valid");
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            map.append(name, value.parse().expect("a value"));
        }
        let request = AllowList::new(&config).carry(&map, Request::without_model("")).expect("UTF-8");
        let mut names: Vec<String> = request.headers().iter().map(|(name, value)| format!("{name}={value}")).collect();
        names.sort_unstable();
        names
    }

    const SENT: [(&str, &str); 12] = [
        ("Authorization", "Bearer secret"),
        ("x-api-key", "secret"),
        ("Cookie", "secret"),
        ("Thread-Id", "t"),
        ("session_id", "s"),
        ("x-claude-code-agent-id", "a"),
        ("x-codex-parent-thread-id", "p"),
        ("traceparent", "00-1"),
        ("anthropic-beta", "b"),
        ("Rankpin-Target-Worker", "w"),
        ("Rankpin-Tenant", "forged"),
        ("Rankpin-Reply-To", "forged"),
    ];

    #[test]
    fn sessions_and_traces_are_carried_credentials_and_forgeries_are_not() {
        let expected = [
            "anthropic-beta=b",
            "session_id=s",
            "thread-id=t",
            "traceparent=00-1",
            "x-claude-code-agent-id=a",
            "x-codex-parent-thread-id=p",
        ];
        assert_eq!(carried(&[], &SENT), expected);
    }

    #[test]
    fn hints_and_further_headers_are_carried_where_asked() {
        let all = carried(&[("client_hints", "true"), ("forward_headers", "Authorization")], &SENT);
        assert!(all.contains(&"rankpin-target-worker=w".into()) && all.contains(&"authorization=Bearer secret".into()));
        assert!(!all.iter().any(|pair| pair.contains("forged") || pair.starts_with("cookie")), "{all:?}");
    }

    #[test]
    fn every_session_header_of_the_protocol_is_carried() {
        for row in PRECEDENCE {
            assert_eq!(carried(&[], &[(row.header, "s")]), [format!("{}=s", row.header)]);
        }
    }
}
