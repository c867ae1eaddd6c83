//! `[[pool]]` tables and the level at which a router works: over workers, or over pools of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::file::{PoolEntry, Table};
use super::jobs::OF_STREAMS;
use super::overload;
use super::setting::{self, Sources};
use super::{ConfigError, choice};
use crate::core::id::{InstanceId, Model, Namespace, Pool, RankRange, WorkerId};
use crate::core::pool::{MAX_POOLS, PoolPolicy, PoolRule, Pools};
use crate::core::worker::{WorkerKind, WorkerSpec, WorkerState};
use crate::wire::subject::Subjects;

/// What a router places requests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Workers.
    Worker,
    /// Pools, whose own routers place them on workers.
    Global,
}

impl Level {
    /// Each with its name.
    pub const NAMED: [(&'static str, Self); 2] = [("worker", Self::Worker), ("global", Self::Global)];
}

/// What the configuration says of levels and pools.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolConfig {
    /// At which level the router works.
    pub level: Level,
    /// How pools are chosen.
    pub pools: Pools,
    /// At the global level, the pools as what requests are placed on, in the same order.
    pub targets: Vec<PoolTarget>,
}

/// A pool, to a router at the global level.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolTarget {
    /// The pool, as a worker.
    pub spec: WorkerSpec,
    /// The namespace of its routers.
    pub namespace: Namespace,
}

/// Reads all of it.
pub(super) fn read(sources: &Sources<'_>, own: &Namespace) -> Result<PoolConfig, ConfigError> {
    let level = choice(&sources.get(&setting::LEVEL), &Level::NAMED)?;
    let policy: PoolPolicy = choice(&sources.get(&setting::POOL_POLICY), &PoolPolicy::NAMED)?;
    let tables = sources.pools();
    if tables.is_empty() {
        if let Some(given) = sources.find(&setting::POOL_POLICY) {
            return Err(given.no_effect("there is no [[pool]] in the configuration file; add them, or leave it out"));
        }
        if level == Level::Global {
            let given = sources.get(&setting::LEVEL);
            return Err(
                given.refuse("a router at the global level needs a [[pool]] for each pool in its --config file".into())
            );
        }
    }
    let (mut rules, mut targets) = (Vec::new(), Vec::new());
    let mut taken: (BTreeSet<&str>, BTreeSet<&str>) = (BTreeSet::new(), BTreeSet::new());
    for table in tables {
        let entry = &table.entry;
        let refuse = |problem: String| ConfigError::table(&table.origin, "pool", &entry.name, problem);
        if rules.len() >= MAX_POOLS {
            return Err(refuse(format!("at most {MAX_POOLS} pools are allowed")));
        }
        if !taken.0.insert(&entry.name) {
            return Err(refuse("there is another [[pool]] of this name".into()));
        }
        if entry.namespace.as_ref().is_some_and(|namespace| !taken.1.insert(namespace)) {
            return Err(refuse(
                "field namespace: another [[pool]] has it; each pool's routers have one of their own".into(),
            ));
        }
        rules.push(rule(entry).map_err(refuse)?);
        match level {
            Level::Worker => refuse_global_fields(table)?,
            Level::Global => targets.push(target(entry, own).map_err(refuse)?),
        }
    }
    Ok(PoolConfig { level, pools: Pools { policy, rules }, targets })
}

fn rule(entry: &PoolEntry) -> Result<PoolRule, String> {
    let name = Pool::new(&entry.name).map_err(|problem| format!("field name: the name {problem}"))?;
    let weight = entry.weight.unwrap_or(1.0);
    if !(weight.is_finite() && weight > 0.0) {
        return Err(format!(
            "field weight: is {weight}, allowed are numbers above 0; leave a pool without a share out"
        ));
    }
    let spill_over = entry.spill_over.as_deref().map(|text| {
        overload::parse_percent(text).ok_or_else(|| format!("field spill_over: is {text:?}, allowed are 1% to 100%"))
    });
    Ok(PoolRule { name, weight, spill_over: spill_over.transpose()? })
}

/// What says where a pool is, says nothing to a router that places requests on workers.
fn refuse_global_fields(table: &Table<PoolEntry>) -> Result<(), ConfigError> {
    let entry = &table.entry;
    let given = [
        ("namespace", entry.namespace.is_some()),
        ("trusted", entry.trusted.is_some()),
        ("max_inflight", entry.max_inflight.is_some()),
        ("models", entry.models.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((field, _)) => Err(ConfigError::table(
            &table.origin,
            "pool",
            &entry.name,
            format!(
                "field {field}: can have no effect at level worker, where the workers say it; leave it out, or set level = \"global\""
            ),
        )),
    }
}

fn target(entry: &PoolEntry, own: &Namespace) -> Result<PoolTarget, String> {
    let id = WorkerId::new(&entry.name).map_err(|problem| format!("field name: the name {problem}"))?;
    let namespace =
        entry.namespace.as_deref().ok_or("field namespace: is missing; it is the one of the pool's routers")?;
    let namespace = Namespace::new(namespace).map_err(|problem| format!("field namespace: it {problem}"))?;
    if namespace == *own {
        return Err("field namespace: is this router's own; it would send requests to itself".into());
    }
    if entry.max_inflight == Some(0) {
        return Err("field max_inflight: is 0, allowed are numbers from 1 on".into());
    }
    if entry.spill_over.is_some() && entry.max_inflight.is_none() {
        return Err("field spill_over: can have no effect without max_inflight, of which it is a share".into());
    }
    let subjects = Subjects::new(namespace.clone());
    let spec = WorkerSpec {
        id,
        instance: InstanceId::new("configured").expect("a valid id"),
        models: models(entry)?,
        pool: Pool::new(&entry.name).map_err(|problem| format!("field name: the name {problem}"))?,
        ranks: RankRange::new(0, 1).expect("one rank"),
        device: Arc::from("pool"),
        weight: entry.weight.unwrap_or(1.0),
        max_inflight: entry.max_inflight,
        kv_blocks: None,
        block_size: None,
        state: WorkerState::Ready,
        kind: WorkerKind::Pool,
        subject: Some(subjects.requests(entry.trusted.unwrap_or(false)).into()),
    };
    Ok(PoolTarget { spec, namespace })
}

fn models(entry: &PoolEntry) -> Result<Vec<Model>, String> {
    let Some(names) = &entry.models else { return Ok(Vec::new()) };
    if names.is_empty() {
        return Err("field models: is empty; leave it out for a pool that may be asked for any".into());
    }
    let mut models = Vec::with_capacity(names.len());
    for name in names {
        models.push(Model::new(name).map_err(|problem| format!("field models: {name:?} {problem}"))?);
    }
    models.sort();
    if models.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("field models: names a model twice".into());
    }
    Ok(models)
}

/// Settings that mean nothing where pools choose the workers.
pub(super) fn refuse_what_has_no_effect(sources: &Sources<'_>, config: &PoolConfig) -> Result<(), ConfigError> {
    if config.level == Level::Worker {
        return Ok(());
    }
    if let Some(given) = std::iter::once(&setting::MAX_JOBS).chain(OF_STREAMS).find_map(|one| sources.find(one)) {
        return Err(given
            .no_effect("at level global no jobs are taken: they are submitted to a pool's namespace; set it there"));
    }
    for setting in [&setting::POLICY, &setting::RANK_CHOICE, &setting::FULL_AT_KV_USE, &setting::FULL_AT_QUEUED] {
        if let Some(given) = sources.find(setting) {
            return Err(given.no_effect("at level global the routers of each pool choose workers; set it there"));
        }
    }
    match sources.workers().first() {
        None => Ok(()),
        Some(table) => Err(ConfigError::table(
            &table.origin,
            "worker",
            &table.entry.id,
            "can have no effect at level global; list it in the configuration of its pool's routers".into(),
        )),
    }
}
