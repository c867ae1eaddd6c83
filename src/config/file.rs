//! The TOML file: a table of settings, some of them in tables of their own, and `[[worker]]` tables.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IntoDeserializer as _};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::setting::{SETTINGS, Setting};
use super::{ConfigError, Given, Origin};

/// What may stand in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// The settings.
    pub(super) settings: &'static [&'static Setting],
    /// The lists of tables.
    pub(super) lists: &'static [&'static str],
}

/// The file of a router.
pub(super) static OF_ROUTER: Shape = Shape { settings: &SETTINGS, lists: &["worker", "alias", "pool"] };

/// A file that was read.
#[derive(Debug, Default)]
pub(super) struct ConfigFile {
    settings: BTreeMap<&'static str, Given>,
    workers: Vec<Table<WorkerEntry>>,
    aliases: Vec<Table<AliasEntry>>,
    pools: Vec<Table<PoolEntry>>,
}

/// A pool.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PoolEntry {
    pub(super) name: String,
    pub(super) weight: Option<f64>,
    pub(super) spill_over: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) trusted: Option<bool>,
    pub(super) max_inflight: Option<u32>,
    pub(super) models: Option<Vec<String>>,
}

/// A table of a list of tables, and where it begins.
#[derive(Debug)]
pub(super) struct Table<T> {
    pub(super) origin: Origin,
    pub(super) entry: T,
}

/// A name that stands for several models.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AliasEntry {
    pub(super) model: String,
    pub(super) to: Vec<TargetEntry>,
}

/// One of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TargetEntry {
    pub(super) model: String,
    pub(super) weight: Option<f64>,
}

/// A worker that can't register itself: any NATS service that answers requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkerEntry {
    pub(super) id: String,
    pub(super) models: Vec<String>,
    pub(super) subject: String,
    pub(super) dp_start: Option<u32>,
    pub(super) dp_size: Option<u32>,
    pub(super) pool: Option<String>,
    pub(super) weight: Option<f64>,
    pub(super) max_inflight: Option<u32>,
    pub(super) device: Option<String>,
}

impl ConfigFile {
    /// Reads a file.
    pub(super) fn read(path: &str, shape: Shape) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| ConfigError::Unreadable { path: path.to_owned(), problem: e.to_string() })?;
        Self::parse(path, &text, shape)
    }

    /// Reads the text of a file; the path is for messages.
    pub(super) fn parse(path: &str, text: &str, shape: Shape) -> Result<Self, ConfigError> {
        let place = Place { path, text, shape };
        let table = DeTable::parse(text).map_err(|e| place.error(e.span(), e.message()))?.into_inner();
        let mut file = Self::default();
        for (key, value) in table {
            let at = key.span();
            match key.get_ref().as_ref() {
                name if !shape.lists.contains(&name) => {}
                "worker" => {
                    file.workers = tables(&place, "worker", at, value)?;
                    continue;
                }
                "alias" => {
                    file.aliases = tables(&place, "alias", at, value)?;
                    continue;
                }
                "pool" => {
                    file.pools = tables(&place, "pool", at, value)?;
                    continue;
                }
                _ => {}
            }
            match value.get_ref().as_table() {
                Some(table) if shape.has_table(key.get_ref()) => {
                    for (inner, value) in table {
                        file.take(&place, &format!("{}.{}", key.get_ref(), inner.get_ref()), inner.span(), value)?;
                    }
                }
                Some(_) | None => file.take(&place, key.get_ref(), at, &value)?,
            }
        }
        Ok(file)
    }

    fn take(
        &mut self,
        place: &Place<'_>,
        key: &str,
        at: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), ConfigError> {
        let Some(setting) = place.shape.settings.iter().find(|setting| setting.key == key) else {
            return Err(place.error(Some(at), &place.shape.unknown(key)));
        };
        let text = setting_text(setting, value.get_ref()).ok_or_else(|| {
            let example = setting.default.unwrap_or(setting.value);
            let plain = example.parse::<f64>().is_ok() && (setting.is_count() || setting.is_number());
            let example = if plain { example.to_owned() } else { format!("{example:?}") };
            let found = value.get_ref().type_str();
            let name = setting.key;
            place.error(Some(at.clone()), &format!("{name} is of type {found}; write {name} = {example}"))
        })?;
        self.settings.insert(setting.key, Given { key: setting.key, text, origin: place.origin(Some(at)) });
        Ok(())
    }

    /// The value of a key.
    pub(super) fn find(&self, key: &str) -> Option<Given> {
        self.settings.get(key).cloned()
    }

    /// The `[[worker]]` tables.
    pub(super) fn workers(&self) -> &[Table<WorkerEntry>] {
        &self.workers
    }

    /// The `[[pool]]` tables.
    pub(super) fn pools(&self) -> &[Table<PoolEntry>] {
        &self.pools
    }

    /// The `[[alias]]` tables.
    pub(super) fn aliases(&self) -> &[Table<AliasEntry>] {
        &self.aliases
    }
}

/// The text of a setting's value. A duration without its unit would be a guess, so only what has none may be a number.
fn setting_text(setting: &Setting, value: &DeValue<'_>) -> Option<String> {
    let is_numeric = setting.is_count() || setting.is_number();
    if let Some(number) = value.as_integer().filter(|number| number.radix() == 10) {
        return is_numeric.then(|| number.as_str().to_owned());
    }
    if let Some(number) = value.as_float() {
        return setting.is_number().then(|| number.as_str().to_owned());
    }
    as_text(value).filter(|_| !(is_numeric && value.as_bool().is_some()))
}

/// A string as it is, a boolean as its word, an array of strings with commas between.
fn as_text(value: &DeValue<'_>) -> Option<String> {
    if let Some(array) = value.as_array() {
        let items: Option<Vec<&str>> = array.iter().map(|item| item.get_ref().as_str()).collect();
        return items.map(|items| items.join(","));
    }
    value.as_bool().map(|flag| flag.to_string()).or_else(|| value.as_str().map(str::to_owned))
}

impl Shape {
    /// Whether settings stand in a table of this name.
    fn has_table(self, name: &str) -> bool {
        self.settings.iter().any(|setting| setting.key.split_once('.').is_some_and(|(table, _)| table == name))
    }

    fn unknown(self, key: &str) -> String {
        let known: Vec<&str> = self.settings.iter().map(|setting| setting.key).collect();
        if self.has_table(key) {
            let inside: Vec<&str> = known.iter().filter_map(|known| known.strip_prefix(&format!("{key}."))).collect();
            return format!("{key} is a table; write [{key}], and in it {}", inside.join(", "));
        }
        let near = key.replace('-', "_").to_ascii_lowercase();
        match known.iter().find(|known| **known == near) {
            Some(meant) => format!("there is no setting {key}; write {meant}"),
            None => {
                let mut there: Vec<String> = known.iter().map(|key| (*key).to_owned()).collect();
                there.extend(self.lists.iter().map(|list| format!("[[{list}]]")));
                let last = there.pop().unwrap_or_default();
                format!("there is no setting {key}; there are {} and {last}", there.join(", "))
            }
        }
    }
}

fn tables<T: DeserializeOwned>(
    place: &Place<'_>,
    name: &str,
    at: Range<usize>,
    value: Spanned<DeValue<'_>>,
) -> Result<Vec<Table<T>>, ConfigError> {
    let DeValue::Array(tables) = value.into_inner() else {
        return Err(place.error(Some(at), &format!("{name} is no list of tables; write [[{name}]]")));
    };
    let mut entries = Vec::new();
    for table in tables {
        let at = table.span();
        let entry = serde_path_to_error::deserialize(table.into_deserializer()).map_err(|e| {
            let span = e.inner().span().unwrap_or(at.clone());
            let field = match e.path().to_string() {
                path if path == "." => format!("[[{name}]]"),
                path => format!("[[{name}]] {path}"),
            };
            place.error(Some(span), &format!("{field}: {}", e.inner().message()))
        })?;
        entries.push(Table { origin: place.origin(Some(at)), entry });
    }
    Ok(entries)
}

/// Turns places in the text into lines.
struct Place<'t> {
    path: &'t str,
    text: &'t str,
    shape: Shape,
}

impl Place<'_> {
    fn origin(&self, span: Option<Range<usize>>) -> Origin {
        let before = span.map_or(0, |span| span.start).min(self.text.len());
        let line = 1 + self.text.as_bytes()[..before].iter().filter(|byte| **byte == b'\n').count();
        Origin::File { path: self.path.to_owned(), line }
    }

    fn error(&self, span: Option<Range<usize>>, problem: &str) -> ConfigError {
        ConfigError::File { origin: self.origin(span), problem: problem.to_owned() }
    }
}
