//! `[[alias]]` tables: names that stand for several models.

use std::collections::BTreeSet;

use super::ConfigError;
use super::file::{AliasEntry, Table};
use crate::core::alias::{Aliases, MAX_ALIASES, MAX_TARGETS, Target};
use crate::core::id::Model;
use crate::wire::header;

/// All aliases of the file.
pub(super) fn all(tables: &[Table<AliasEntry>]) -> Result<Aliases, ConfigError> {
    let names: BTreeSet<&str> = tables.iter().map(|table| table.entry.model.as_str()).collect();
    let mut aliases = Aliases::new();
    for table in tables {
        let refuse = |problem: String| ConfigError::table(&table.origin, "alias", &table.entry.model, problem);
        if aliases.len() >= MAX_ALIASES {
            return Err(refuse(format!("at most {MAX_ALIASES} aliases are allowed")));
        }
        let name = model(&table.entry.model).map_err(|problem| refuse(format!("field model: {problem}")))?;
        let targets = targets(&table.entry, &names).map_err(|problem| refuse(format!("field to: {problem}")))?;
        if aliases.insert(name, targets).is_some() {
            return Err(refuse("there is another [[alias]] of this name".into()));
        }
    }
    Ok(aliases)
}

fn targets(entry: &AliasEntry, names: &BTreeSet<&str>) -> Result<Vec<Target>, String> {
    if entry.to.is_empty() {
        return Err("is empty; name the models that it stands for".into());
    }
    if entry.to.len() > MAX_TARGETS {
        return Err(format!("names {} models, at most {MAX_TARGETS} are allowed", entry.to.len()));
    }
    let mut targets: Vec<Target> = Vec::with_capacity(entry.to.len());
    for target in &entry.to {
        let name = &target.model;
        if *name == entry.model {
            return Err(format!(
                "names the alias itself, {name:?}: it would lead in a circle; give the alias another name"
            ));
        }
        if names.contains(name.as_str()) {
            return Err(format!(
                "{name:?} is an alias too; an alias leads to models, so that none can lead in a circle: name the models"
            ));
        }
        let model = model(name)?;
        let weight = target.weight.unwrap_or(1.0);
        if !(weight.is_finite() && weight > 0.0) {
            return Err(format!(
                "the weight of {name:?} is {weight}, allowed are numbers above 0; leave a model without a share out"
            ));
        }
        if targets.iter().any(|other| other.model == model) {
            return Err(format!("names {name:?} twice; add the weights"));
        }
        targets.push(Target { model, weight });
    }
    Ok(targets)
}

fn model(name: &str) -> Result<Model, String> {
    let model = Model::new(name).map_err(|problem| format!("the model {name:?} {problem}"))?;
    if header::is_value(name) {
        Ok(model)
    } else {
        Err(format!("the model {name:?} begins or ends with white space or holds a control character"))
    }
}
