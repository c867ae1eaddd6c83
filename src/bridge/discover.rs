//! What an engine says of itself, where flags don't.

use serde::Deserialize;

use super::engines::Dialect;
use super::figures::Page;
use super::http::{BaseUrl, Http, HttpError};
use crate::core::id::Model;

/// What is known of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The models it serves.
    pub models: Vec<Model>,
    /// Data-parallel ranks of one server, where it says so.
    pub ranks: Option<u32>,
    /// Blocks of each rank's cache.
    pub kv_blocks: Option<u64>,
    /// Tokens of a block.
    pub block_size: Option<u32>,
}

/// Why an engine can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// A page can't be had.
    #[error("{url}{page}: {problem}")]
    Page {
        /// The server.
        url: BaseUrl,
        /// The page.
        page: &'static str,
        /// Why.
        problem: HttpError,
    },
    /// The list of models can't be read.
    #[error("{url}/v1/models: {problem}; name the models with --model")]
    Models {
        /// The server.
        url: BaseUrl,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
struct Listed {
    data: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    id: String,
}

/// Asks a server that works.
pub async fn discover(base: &BaseUrl, dialect: &Dialect, http: &Http) -> Result<Facts, DiscoverError> {
    const MODELS: &str = "/v1/models";
    let page = http.page(base, MODELS).await;
    let page = page.map_err(|problem| DiscoverError::Page { url: base.clone(), page: MODELS, problem })?;
    let models = models(&page).map_err(|problem| DiscoverError::Models { url: base.clone(), problem })?;
    let mut facts = Facts { models, ..Facts::default() };
    if let Some(names) = &dialect.figures
        && let Ok(page) = http.page(base, names.page).await
    {
        let page = Page::read(&String::from_utf8_lossy(&page), names);
        facts.ranks = u32::try_from(page.ranks.len()).ok().filter(|ranks| *ranks > 0);
        (facts.kv_blocks, facts.block_size) = (page.kv_blocks, page.block_size);
    }
    if let Some((page, field)) = dialect.ranks_in
        && let Ok(page) = http.page(base, page).await
    {
        let told: serde_json::Value = serde_json::from_slice(&page).unwrap_or_default();
        let ranks = told[field].as_u64().and_then(|ranks| u32::try_from(ranks).ok());
        facts.ranks = ranks.filter(|ranks| *ranks > 0).or(facts.ranks);
    }
    Ok(facts)
}

fn models(page: &[u8]) -> Result<Vec<Model>, String> {
    let listed: Listed = serde_json::from_slice(page).map_err(|e| format!("the list can't be read: {e}"))?;
    let models = listed.data.iter().map(|named| Model::new(&named.id).map_err(|e| format!("a name {e}")));
    let models = models.collect::<Result<Vec<_>, _>>()?;
    if models.is_empty() { Err("the list is empty".into()) } else { Ok(models) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_models() {
        let read = |text: &str| models(text.as_bytes()).map(|models| models.iter().map(Model::to_string).collect());
        assert_eq!(read(r#"{"object":"list","data":[{"id":"a","x":1},{"id":"b"}]}"#), Ok(vec!["a".into(), "b".into()]));
        for bad in [r#"{"data":[]}"#, r#"{"data":[{"id":""}]}"#, "[]"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
