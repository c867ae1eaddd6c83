//! The workers of a cluster, as their registrations, load reports and the pins say.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio::time::Instant;

use super::{OpsError, PATIENCE};
use crate::core::fleet::LOST_AFTER;
use crate::core::hash::PinKey;
use crate::core::load::Report;
use crate::core::worker::{WorkerKind, WorkerSpec, WorkerState};
use crate::nats::bucket::{Bucket, Change, NO_BUCKET, Unreachable, Watched};
use crate::nats::{Link, Subscription};
use crate::wire::load::LoadReport;
use crate::wire::pin::PinValue;
use crate::wire::registration::Registration;
use crate::wire::subject::Subjects;
use crate::wire::{Encoding, header};

/// How long load reports are listened for: every worker sends one a second.
const LISTEN: Duration = Duration::from_millis(1200);
/// How long a bucket may say nothing while it is read.
const SILENT: Duration = Duration::from_secs(5);
/// Most pins that are counted for a table of workers; of more, `rankpin pins stats` tells.
pub const MAX_COUNTED: u64 = 500_000;

/// What may be so where there is no bucket of workers.
const NO_WORKERS: &str = " (routers at the global level have none: workers are in the namespaces of their pools)";

/// A fleet at a moment.
#[derive(Debug, Serialize)]
pub struct Fleet {
    /// Its workers, by name.
    pub workers: Vec<WorkerView>,
    /// Registrations that routers refuse, and why.
    pub refused: Vec<Refused>,
    /// Pins; `None` where there were too many to count them, or they may not be read.
    pub pins: Option<u64>,
    /// Why sessions were not counted.
    pub uncounted: Option<String>,
}

/// A registration that breaks a rule.
#[derive(Debug, Serialize)]
pub struct Refused {
    /// Its key.
    pub worker: String,
    /// What is wrong with it.
    pub problem: String,
}

/// A worker.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerView {
    /// Its name.
    pub worker: String,
    /// Its process.
    pub instance: String,
    /// `ready`, `draining`, or `silent`: its registration was not put again in time.
    pub state: &'static str,
    /// Its pool.
    pub pool: String,
    /// What it serves.
    pub models: Vec<String>,
    /// Kind of device.
    pub device: String,
    /// Share of traffic.
    pub weight: f64,
    /// Most requests in flight per rank.
    pub max_inflight: Option<u32>,
    /// Whether it is a plain responder.
    pub plain: bool,
    /// First rank.
    pub dp_start: u32,
    /// Number of ranks.
    pub dp_size: u32,
    /// Seconds since its registration was put, by this machine's clock.
    pub age_s: u64,
    /// Whether it reported its load while it was listened to.
    pub reports: bool,
    /// Sessions pinned to it without a rank.
    pub sessions_without_rank: Option<u64>,
    /// Its ranks.
    pub ranks: Vec<RankView>,
}

/// A rank.
#[derive(Debug, Clone, Serialize)]
pub struct RankView {
    /// Its number.
    pub dp_rank: u16,
    /// Requests in flight, as it reports.
    pub inflight: Option<u32>,
    /// Of these, accepted and not begun.
    pub queued: Option<u32>,
    /// Share of its cache's blocks in use, in percent, where it says how many it has.
    pub kv_used_percent: Option<u64>,
    /// Sessions pinned to it.
    pub sessions: Option<u64>,
}

impl WorkerView {
    /// Sessions pinned to it, on all ranks and none.
    pub fn sessions(&self) -> Option<u64> {
        self.ranks.iter().map(|rank| rank.sessions).chain([self.sessions_without_rank]).sum()
    }

    /// Requests in flight on all ranks.
    pub fn inflight(&self) -> Option<u64> {
        self.reports.then(|| self.ranks.iter().filter_map(|rank| rank.inflight).map(u64::from).sum())
    }
}

/// Reads a fleet: registrations, a second of load reports, and where sessions are pinned.
pub async fn read(link: &Link, subjects: &Subjects) -> Result<Fleet, OpsError> {
    let listening = Instant::now();
    let loads = Subscription::open(link, subjects.loads()).await?;
    let (specs, refused) = registrations(link, subjects).await?;
    let counted = count_pins(link, subjects).await;
    let reports = hear(loads, listening + LISTEN).await;
    let (counts, uncounted) = match counted {
        Ok(counts) => (Some(counts), None),
        Err(why) => (None, Some(why)),
    };
    let view = |(spec, age): (WorkerSpec, Duration)| {
        let report = reports.get(spec.id.as_str()).filter(|report| report.instance == spec.instance);
        view(&spec, age, report, counts.as_ref())
    };
    let workers = specs.into_iter().map(view).collect();
    Ok(Fleet { workers, refused, pins: counts.map(|counts| counts.total), uncounted })
}

/// Every valid registration with its age, by name, and those that are refused.
pub async fn registrations(
    link: &Link,
    subjects: &Subjects,
) -> Result<(Vec<(WorkerSpec, Duration)>, Vec<Refused>), OpsError> {
    let bucket = Bucket::new(link.clone(), &subjects.workers_bucket()).patient(PATIENCE);
    let (mut specs, mut refused) = (BTreeMap::new(), BTreeMap::new());
    let take = |change: Change| {
        specs.remove(&change.key);
        refused.remove(&change.key);
        let Some(value) = &change.stored.value else { return };
        let age = SystemTime::now().duration_since(change.stored.created).unwrap_or_default();
        match Registration::parse(&change.key, value) {
            Ok(spec) => drop(specs.insert(change.key, (spec, age))),
            Err(problem) => drop(refused.insert(change.key, problem)),
        }
    };
    read_all(&bucket, take).await.map_err(|Unreachable(problem)| {
        let hint = if problem == NO_BUCKET { NO_WORKERS } else { "" };
        OpsError::unreadable(&bucket)(Unreachable(format!("{problem}{hint}")))
    })?;
    let refused = refused.into_iter().map(|(worker, problem)| Refused { worker, problem }).collect();
    Ok((specs.into_values().collect(), refused))
}

/// Reads every key of a bucket, as its values come. Fails where the server says nothing for a while: half a bucket would
/// be taken for all of it.
pub async fn read_all(bucket: &Bucket, mut take: impl FnMut(Change)) -> Result<(), Unreachable> {
    if bucket.info().await?.messages == 0 {
        return Ok(());
    }
    let mut watch = bucket.watch().await?;
    loop {
        match tokio::time::timeout(SILENT, watch.next()).await {
            Ok(Watched::Change(change)) => {
                let last = change.pending == 0;
                take(change);
                if last {
                    return Ok(());
                }
            }
            Ok(Watched::Interrupted(problem)) => return Err(Unreachable(problem)),
            Ok(Watched::Dead) => return Err(Unreachable("the connection ended".into())),
            Err(_) => return Err(Unreachable("it says nothing for 5 s; may this user watch it?".into())),
        }
    }
}

#[derive(Default)]
struct Counts {
    total: u64,
    at: HashMap<(String, Option<u16>), u64>,
}

async fn count_pins(link: &Link, subjects: &Subjects) -> Result<Counts, String> {
    let buckets = super::pins::buckets(link, subjects).await.map_err(|e| format!("sessions are not counted: {e}"))?;
    let mut found = 0;
    for bucket in &buckets {
        found += bucket.info().await.map_err(|e| format!("sessions are not counted: {}", e.0))?.messages;
    }
    if found > MAX_COUNTED {
        return Err(format!("sessions are not counted: there are {found} pins; `rankpin pins stats` counts them"));
    }
    let mut counts = Counts::default();
    let mut take = |change: Change| {
        let pin =
            change.stored.value.as_deref().and_then(|value| PinValue::parse(PinKey::parse(&change.key)?, value).ok());
        if let Some(pin) = pin {
            counts.total += 1;
            let at = (pin.placement.worker.as_str().to_owned(), pin.placement.rank.map(|rank| rank.0));
            *counts.at.entry(at).or_default() += 1;
        }
    };
    for bucket in &buckets {
        read_all(bucket, &mut take).await.map_err(|e| format!("sessions are not counted: {}", e.0))?;
    }
    Ok(counts)
}

/// The last report of each worker, by name.
pub async fn hear(mut loads: Subscription, until: Instant) -> HashMap<String, Report> {
    let mut reports = HashMap::new();
    while let Ok(Some(message)) = tokio::time::timeout_at(until, loads.next()).await {
        let encoding = Encoding::of(header::find(message.headers.iter(), header::CONTENT_TYPE));
        if let Ok(report) = LoadReport::parse(encoding, &message.payload) {
            reports.insert(report.worker.as_str().to_owned(), report);
        }
    }
    reports
}

fn view(spec: &WorkerSpec, age: Duration, report: Option<&Report>, counts: Option<&Counts>) -> WorkerView {
    let sessions = |rank: Option<u16>| {
        counts.map(|counts| counts.at.get(&(spec.id.as_str().to_owned(), rank)).copied().unwrap_or(0))
    };
    let rank = |rank: crate::core::id::DpRank| {
        let load = report.and_then(|report| report.ranks.iter().find(|load| load.rank == rank));
        let blocks = spec.kv_blocks.filter(|blocks| *blocks > 0);
        RankView {
            dp_rank: rank.0,
            inflight: load.map(|load| load.inflight),
            queued: load.map(|load| load.queued),
            kv_used_percent: load.zip(blocks).map(|(load, blocks)| load.kv_used_blocks.saturating_mul(100) / blocks),
            sessions: sessions(Some(rank.0)),
        }
    };
    let state = match spec.state {
        _ if age > LOST_AFTER => "silent",
        WorkerState::Ready => "ready",
        WorkerState::Draining => "draining",
    };
    WorkerView {
        worker: spec.id.as_str().into(),
        instance: spec.instance.as_str().into(),
        state,
        pool: spec.pool.as_str().into(),
        models: spec.models.iter().map(|model| model.as_str().to_owned()).collect(),
        device: spec.device.to_string(),
        weight: spec.weight,
        max_inflight: spec.max_inflight,
        plain: spec.kind == WorkerKind::Plain,
        dp_start: spec.ranks.start().0.into(),
        dp_size: spec.ranks.size(),
        age_s: age.as_secs(),
        reports: report.is_some(),
        sessions_without_rank: sessions(None),
        ranks: spec.ranks.iter().map(rank).collect(),
    }
}
