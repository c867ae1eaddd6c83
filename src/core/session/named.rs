//! Sessions that a header names: one table, the precedence (protocol section 3.1, rows 1 to 6).

/// One row of the precedence.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// The header, in lower case.
    pub header: &'static str,
    /// A second header that, where it is there too, is the session instead.
    pub refined_by: Option<&'static str>,
}

/// The headers that name a session, in the order in which they count. To support another client, add its header
/// here and to [`crate::wire::header::NAMES`] (a test says so if you forget).
pub const PRECEDENCE: [Source; 11] = [
    source("rankpin-session-id"),
    source("x-dynamo-session-id"),
    // Claude Code's subagents share the session and add an agent id of their own.
    Source { header: "x-claude-code-session-id", refined_by: Some("x-claude-code-agent-id") },
    // Codex.
    source("thread-id"),
    // OpenCode.
    source("x-session-id"),
    // Older Codex, and pi.
    source("session_id"),
    source("x-session-affinity"),
    source("x-smg-routing-key"),
    source("x-litellm-session-id"),
    source("agent-session-id"),
    source("x-roo-task-id"),
];

const fn source(header: &'static str) -> Source {
    Source { header, refined_by: None }
}

/// The session that the headers name: `lookup` gives a header's non-blank value by its lower-case name.
/// Returns the header that decided and the value, not yet checked.
pub fn resolve<'v>(lookup: impl Fn(&'static str) -> Option<&'v str>) -> Option<(&'static str, &'v str)> {
    PRECEDENCE.iter().find_map(|row| {
        let session = lookup(row.header)?;
        let refined = row.refined_by.and_then(|name| Some((name, lookup(name)?)));
        Some(refined.unwrap_or((row.header, session)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(headers: &[(&'static str, &'static str)]) -> Option<&'static str> {
        resolve(|name| headers.iter().find(|h| h.0 == name).map(|h| h.1)).map(|found| found.1)
    }

    #[test]
    fn the_first_row_that_is_there_wins() {
        assert_eq!(session(&[("session_id", "a"), ("x-session-id", "o")]), Some("o"));
        assert_eq!(session(&[("session_id", "a"), ("rankpin-session-id", "r")]), Some("r"));
        assert_eq!(session(&[]), None);
    }

    #[test]
    fn an_agent_refines_its_session_and_is_nothing_alone() {
        let agent = ("x-claude-code-agent-id", "A");
        assert_eq!(session(&[agent, ("x-claude-code-session-id", "S")]), Some("A"));
        assert_eq!(session(&[agent]), None);
        assert_eq!(session(&[agent, ("session_id", "s")]), Some("s"));
    }
}
