//! Whether permissions, as a server tells them, cover what a role needs.

use serde::Deserialize;

use super::Allowed;

/// A user's permissions, as `$SYS.REQ.USER.INFO` answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Permissions {
    /// For publishing; without any, everything.
    #[serde(default)]
    pub publish: Option<Rules>,
    /// For subscribing.
    #[serde(default)]
    pub subscribe: Option<Rules>,
}

/// What is allowed and denied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Rules {
    /// Allowed; empty is everything.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Denied, whatever is allowed.
    #[serde(default)]
    pub deny: Vec<String>,
}

/// What of a role's needs is not covered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lacking {
    /// Subjects that it can't publish to.
    pub publish: Vec<String>,
    /// Subjects that it can't subscribe to.
    pub subscribe: Vec<String>,
}

/// What of the needs these permissions don't cover.
pub fn lacking(needs: &Allowed, has: &Permissions) -> Lacking {
    let missing = |needs: &[String], rules: &Option<Rules>| {
        needs.iter().filter(|subject| !rules.as_ref().is_none_or(|rules| rules.cover(subject))).cloned().collect()
    };
    Lacking { publish: missing(&needs.publish, &has.publish), subscribe: missing(&needs.subscribe, &has.subscribe) }
}

impl Rules {
    /// Whether all that a subject with wildcards stands for is allowed, and none of it denied.
    fn cover(&self, need: &str) -> bool {
        let (subject, queue) = split(need);
        let allowed = self.allow.is_empty()
            || self.allow.iter().any(|allow| {
                let (wider, group) = split(allow);
                covers(wider, subject) && group.is_none_or(|group| queue == Some(group))
            });
        let denied = self.deny.iter().any(|deny| {
            let (other, group) = split(deny);
            overlap(other, subject) && (group.is_none() || group == queue)
        });
        allowed && !denied
    }
}

fn split(subject: &str) -> (&str, Option<&str>) {
    subject.split_once(' ').map_or((subject, None), |(subject, queue)| (subject, Some(queue.trim())))
}

/// Whether everything that `narrow` stands for, `wide` does too.
fn covers(wide: &str, narrow: &str) -> bool {
    let (mut wide, mut narrow) = (wide.split('.'), narrow.split('.'));
    loop {
        match (wide.next(), narrow.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some(_), Some(">")) | (None, Some(_)) | (Some(_), None) => return false,
            (Some("*"), Some(_)) => {}
            (Some(a), Some(b)) if a == b => {}
            (Some(_), Some(_)) => return false,
        }
    }
}

/// Whether there is a subject that both stand for.
fn overlap(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.split('.'), b.split('.'));
    loop {
        match (a.next(), b.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some(x), Some(y)) if x == y || x == "*" || y == "*" => {}
            (Some(_), Some(_)) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_cover_each_other() {
        for (wide, narrow) in
            [(">", "a.b"), ("a.>", "a.*.c"), ("a.*", "a.*"), ("a.*", "a.b"), ("a.>", "a.>"), ("a", "a")]
        {
            assert!(covers(wide, narrow), "{wide} {narrow}");
        }
        for (wide, narrow) in [("a.*", "a.>"), ("a.*", "a.b.c"), ("a.b", "a.*"), ("a.>", "a"), ("a", "b"), ("a.*", "a")]
        {
            assert!(!covers(wide, narrow), "{wide} {narrow}");
        }
        assert!(overlap("a.*.c", "a.b.>") && overlap("*.b", "a.*") && !overlap("a.*", "b.>") && !overlap("a", "a.b"));
    }

    #[test]
    fn what_lacks_is_named() {
        let rules = |allow: &[&str], deny: &[&str]| {
            let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
            Some(Rules { allow: texts(allow), deny: texts(deny) })
        };
        let needs = Allowed { publish: vec!["a.*".into(), "b".into()], subscribe: vec!["r.> router".into()] };
        let all = lacking(&needs, &Permissions::default());
        assert!(all.publish.is_empty() && all.subscribe.is_empty());
        let has = Permissions { publish: rules(&["a.>"], &[]), subscribe: rules(&["r.> router"], &[]) };
        assert_eq!(lacking(&needs, &has), Lacking { publish: vec!["b".into()], subscribe: vec![] });
        let has = Permissions { publish: rules(&[], &["a.x"]), subscribe: rules(&["r.> other"], &[]) };
        assert_eq!(
            lacking(&needs, &has),
            Lacking { publish: vec!["a.*".into()], subscribe: vec!["r.> router".into()] }
        );
    }
}
