//! Session ids in fields of the body, where the configuration lets them count (protocol section 3.1).

use serde::Deserialize;

use crate::core::session::configured::BodyField;

/// What stands before the session in the `metadata.user_id` of an older Claude Code.
const BEFORE_SESSION: &str = "_session_";

/// Session ids that were found, not yet checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionFields {
    found: [Option<String>; BodyField::NAMED.len()],
}

impl SessionFields {
    /// The first of these fields that names a session, and the id as it stands there; never blank.
    pub fn first(&self, order: &[BodyField]) -> Option<(BodyField, &str)> {
        order.iter().find_map(|&field| Some((field, self.found[field.index()].as_deref()?)))
    }

    /// A field says this.
    pub(super) fn take(&mut self, field: BodyField, text: &[u8]) {
        let text = std::str::from_utf8(text).expect("both readers check it").trim();
        let id = match field {
            BodyField::PromptCacheKey | BodyField::Conversation | BodyField::SessionId => Some(text.to_owned()),
            BodyField::MetadataUserId => session_of_user(text),
        };
        self.found[field.index()] = id.filter(|id| !id.is_empty());
    }

    /// The field stands there again.
    pub(super) fn forget(&mut self, field: BodyField) {
        self.found[field.index()] = None;
    }
}

/// The session in a `user_id`: Claude Code writes a JSON object with `session_id` into it, older ones end it in
/// `_session_` and a UUID. Any other value names a user, which is no session.
fn session_of_user(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct User {
        session_id: String,
    }

    if text.starts_with('{') {
        return serde_json::from_str(text).ok().map(|user: User| user.session_id.trim().to_owned());
    }
    let (_, id) = text.rsplit_once(BEFORE_SESSION)?;
    // The other spellings that a UUID may have are none of Claude Code's.
    let is_uuid = id.len() == 36 && uuid::Uuid::try_parse(id).is_ok();
    is_uuid.then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "7b3f5f0e-5a54-4a29-9a0c-1d0a3a1f9f10";

    #[test]
    fn a_user_holds_a_session_only_where_claude_code_put_it() {
        let user = |text: String| session_of_user(&text);
        assert_eq!(user(r#"{"device_id":"d","session_id":" s-1 ","x":[1e999]}"#.into()).as_deref(), Some("s-1"));
        assert_eq!(user(format!("user_abc_account__session_{UUID}")).as_deref(), Some(UUID));
        assert_eq!(user(format!("user_session_x_session_{UUID}")).as_deref(), Some(UUID));
        for none in [
            "alice".to_owned(),
            UUID.to_owned(),
            "user_session_7".to_owned(),
            format!("user_session_{}", UUID.replace('-', "")),
            format!("user_session_{UUID} "),
            r#"{"session_id":7}"#.into(),
            r#"{"user":"alice"}"#.into(),
            r#"{"session_id":"s""#.into(),
            r#"["session_id"]"#.into(),
        ] {
            assert_eq!(user(none.clone()), None, "{none}");
        }
    }

    #[test]
    fn blank_ids_are_none_and_the_order_is_the_configured_one() {
        let mut fields = SessionFields::default();
        fields.take(BodyField::PromptCacheKey, b"k");
        fields.take(BodyField::SessionId, b" \t");
        fields.take(BodyField::Conversation, b" c ");
        let order = [BodyField::SessionId, BodyField::Conversation, BodyField::PromptCacheKey];
        assert_eq!(fields.first(&order), Some((BodyField::Conversation, "c")));
        assert_eq!(fields.first(&order[2..]), Some((BodyField::PromptCacheKey, "k")));
        fields.forget(BodyField::PromptCacheKey);
        assert_eq!(fields.first(&order[2..]), None);
        assert_eq!(fields.first(&[]), None);
    }
}
