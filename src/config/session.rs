//! `[session]`: what names a session besides the headers of the protocol.

use super::setting::{self, Sources};
use super::{ConfigError, Given};
use crate::core::session::configured::{self, BodyField, HeaderRefusal, MAX_HEADERS, Subagents};

/// `group_subagents = true` groups them.
const SUBAGENTS: [(&str, Subagents); 2] = [("false", Subagents::Apart), ("true", Subagents::Together)];

/// The configured sources; none where nothing is given.
pub(super) fn sources(sources: &Sources<'_>) -> Result<configured::Sources, ConfigError> {
    Ok(configured::Sources {
        headers: sources.find(&setting::SESSION_HEADERS).map_or(Ok(Vec::new()), |given| headers(&given))?,
        body_fields: sources.find(&setting::SESSION_BODY_FIELDS).map_or(Ok(Vec::new()), |given| body_fields(&given))?,
        subagents: super::choice(&sources.get(&setting::GROUP_SUBAGENTS), &SUBAGENTS)?,
    })
}

fn headers(given: &Given) -> Result<Vec<String>, ConfigError> {
    let mut headers: Vec<String> = Vec::new();
    for name in items(given) {
        let lower = configured::check_header(name).map_err(|refusal| match refusal {
            HeaderRefusal::BuiltIn => given.no_effect(&format!("{name:?} {refusal}")),
            HeaderRefusal::NoName | HeaderRefusal::PerRequest | HeaderRefusal::Reserved => {
                given.refuse(format!("{name:?} {refusal}"))
            }
        })?;
        if headers.contains(&lower) {
            return Err(given.no_effect(&format!("{name:?} stands there twice; leave one out")));
        }
        headers.push(lower);
    }
    if headers.len() > MAX_HEADERS {
        return Err(given.refuse(format!("at most {MAX_HEADERS} headers are allowed")));
    }
    Ok(headers)
}

fn body_fields(given: &Given) -> Result<Vec<BodyField>, ConfigError> {
    let mut fields = Vec::new();
    for name in items(given) {
        let Some((_, field)) = BodyField::NAMED.iter().find(|(known, _)| *known == name) else {
            let known = BodyField::NAMED.map(|(known, _)| known).join(", ");
            return Err(
                given.refuse(format!("{name:?} is none of the fields that can name a session; there are {known}"))
            );
        };
        if fields.contains(field) {
            return Err(given.no_effect(&format!("{name:?} stands there twice; leave one out")));
        }
        fields.push(*field);
    }
    Ok(fields)
}

/// The items of a list; an empty list has none.
fn items(given: &Given) -> impl Iterator<Item = &str> {
    let is_empty = given.text.trim().is_empty();
    given.text.split(',').map(str::trim).filter(move |_| !is_empty)
}
