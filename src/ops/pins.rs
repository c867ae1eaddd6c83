//! Pins one by one and in numbers; moved and removed by compare-and-set, so that no router's write is lost.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::fleet::{read_all, registrations};
use super::{OpsError, PATIENCE};
use crate::core::hash::{PinKey, hashed_rank};
use crate::core::id::{DEFAULT_POOL, DpRank, Model, SessionId, Tenant, WorkerId};
use crate::core::worker::WorkerSpec;
use crate::nats::bucket::{Bucket, CasError, Change, Stored};
use crate::nats::{self, Link};
use crate::wire::pin::{OriginName, PinValue};
use crate::wire::subject::Subjects;

/// Times that a compare-and-set may lose to a router in a row.
const MAX_ROUNDS: u32 = 5;

/// A pin as it stands in the bucket.
#[derive(Debug, Clone, Serialize)]
pub struct PinView {
    /// Its key in the bucket.
    pub key: String,
    /// The partition whose bucket that is, where the namespace has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u16>,
    /// The session; a derived one as `px:` and digits.
    pub session: String,
    /// The model.
    pub model: String,
    /// The tenant; empty where there is none.
    pub tenant: String,
    /// The worker.
    pub worker: String,
    /// The rank, where there is one.
    pub dp_rank: Option<u16>,
    /// The pool, where it is not the default one.
    pub pool: Option<String>,
    /// `named` or `derived`.
    pub origin: &'static str,
    /// Of a derived one: the session id of the first turn.
    pub root: Option<String>,
    /// Whether several conversations begin so.
    pub shared: bool,
    /// Its revision.
    pub revision: u64,
    /// Seconds since it was stored or refreshed, by this machine's clock.
    pub age_s: u64,
}

impl PinView {
    /// `worker` or `worker/rank`.
    pub fn placement(&self) -> String {
        self.dp_rank.map_or_else(|| self.worker.clone(), |rank| format!("{}/{rank}", self.worker))
    }
}

/// Which pins are meant; all that is said has to fit.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Their session, or its beginning where it ends in `*`.
    pub session: Option<String>,
    /// Their model.
    pub model: Option<String>,
    /// Their tenant.
    pub tenant: Option<String>,
    /// Their worker.
    pub worker: Option<String>,
    /// Their rank.
    pub rank: Option<u16>,
}

impl Filter {
    fn fits(&self, pin: &PinView) -> bool {
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let session = self.session.as_deref().is_none_or(|wanted| match wanted.strip_suffix('*') {
            Some(beginning) => pin.session.starts_with(beginning),
            None => pin.session == wanted,
        });
        session
            && is(&self.model, &pin.model)
            && is(&self.tenant, &pin.tenant)
            && is(&self.worker, &pin.worker)
            && self.rank.is_none_or(|rank| pin.dp_rank == Some(rank))
    }
}

/// Where a pin is to be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The worker.
    pub worker: WorkerId,
    /// The rank; without one, what a router would choose by the session's hash.
    pub rank: Option<DpRank>,
}

/// Pins in numbers.
#[derive(Debug, Default, Serialize)]
pub struct Stats {
    /// All.
    pub pins: u64,
    /// Of sessions that something names.
    pub named: u64,
    /// Of sessions that are derived from the text; a conversation has about two.
    pub derived: u64,
    /// Of these, openings that several conversations share.
    pub shared: u64,
    /// What stands in the bucket and is no pin.
    pub unreadable: u64,
    /// By model.
    pub models: BTreeMap<String, u64>,
    /// By worker, then rank; `-` is none.
    pub workers: BTreeMap<String, BTreeMap<String, u64>>,
    /// By age.
    pub ages: Vec<AgeCount>,
    /// How long a pin stays that is not used, in seconds; 0 is for ever.
    pub ttl_s: u64,
}

/// Pins of an age.
#[derive(Debug, Clone, Serialize)]
pub struct AgeCount {
    /// Up to so many seconds, and older than the class before; `None` is older than all.
    pub up_to_s: Option<u64>,
    /// How many.
    pub pins: u64,
}

/// Bounds of the classes of ages, in seconds.
const AGES_S: [u64; 4] = [60, 600, 3600, 86_400];

/// The pins of a namespace.
#[derive(Debug)]
pub struct Pins {
    /// One, or one for each partition.
    buckets: Vec<Bucket>,
    link: Link,
    subjects: Subjects,
}

impl Pins {
    /// Over this connection: finds the buckets that there are.
    pub async fn open(link: &Link, subjects: &Subjects) -> Result<Self, OpsError> {
        let buckets = buckets(link, subjects).await?;
        Ok(Self { buckets, link: link.clone(), subjects: subjects.clone() })
    }

    /// The bucket that a pin stands in.
    fn bucket_of(&self, pin: &PinView) -> &Bucket {
        let index = pin.partition.map_or(0, usize::from);
        self.buckets.get(index).expect("it was read from one of them")
    }

    /// The buckets with their partitions, where there are several.
    fn parts(&self) -> impl Iterator<Item = (Option<u16>, &Bucket)> {
        let divided = self.buckets.len() > 1;
        (0..).map(move |partition| divided.then_some(partition)).zip(&self.buckets)
    }

    /// The pins that fit, at most `limit`, and how many there are. Those of the lowest keys: everything is read.
    pub async fn list(&self, filter: &Filter, limit: usize) -> Result<(Vec<PinView>, u64), OpsError> {
        let (mut found, mut total) = (BTreeMap::new(), 0);
        for (partition, bucket) in self.parts() {
            let take = |change: Change| {
                let pin = view(partition, &change.key, &change.stored);
                let Some(pin) = pin.filter(|pin| filter.fits(pin)) else { return };
                total += 1;
                found.insert((change.key, partition), pin);
                if found.len() > limit {
                    found.pop_last();
                }
            };
            read_all(bucket, take).await.map_err(OpsError::unreadable(bucket))?;
        }
        Ok((found.into_values().collect(), total))
    }

    /// The pins under a key: one at most in each partition. In which one a session is depends on the name under which its
    /// model is asked for, so that all are looked at.
    pub async fn get(&self, key: PinKey) -> Result<Vec<PinView>, OpsError> {
        let mut found = Vec::new();
        for (partition, bucket) in self.parts() {
            found.extend(read(bucket, partition, &key.to_string()).await?);
        }
        Ok(found)
    }

    /// Removes a pin, at the revision that was seen. False where it changed since: nothing was done.
    pub async fn remove(&self, pin: &PinView) -> Result<bool, OpsError> {
        let bucket = self.bucket_of(pin);
        match bucket.delete_at(&pin.key, pin.revision).await {
            Ok(_) => Ok(true),
            Err(CasError::Lost) => Ok(false),
            Err(CasError::Unreachable(problem) | CasError::Refused(problem)) => {
                Err(OpsError::unwritable(bucket, problem))
            }
        }
    }

    /// The worker that pins are to be moved to, where it may have them.
    pub async fn target(&self, target: &Target) -> Result<WorkerSpec, OpsError> {
        let (specs, _) = registrations(&self.link, &self.subjects).await?;
        let names = specs.iter().map(|(spec, _)| spec.id.as_str().to_owned()).collect::<Vec<_>>().join(", ");
        let found = specs.into_iter().map(|(spec, _)| spec).find(|spec| spec.id == target.worker);
        let spec = found.ok_or_else(|| {
            OpsError::refused(format!("worker {} is not registered; there are {names}", target.worker))
        })?;
        if let Some(rank) = target.rank.filter(|rank| !spec.ranks.contains(*rank)) {
            let (first, last) = (spec.ranks.start().0, u32::from(spec.ranks.start().0) + spec.ranks.size() - 1);
            return Err(OpsError::refused(format!(
                "worker {} declares ranks {first} to {last}; {rank} is none of them",
                target.worker
            )));
        }
        Ok(spec)
    }

    /// Moves a pin by compare-and-set. Where a router has written it meanwhile it is read anew, and moved still if it is
    /// at the same place as it was.
    pub async fn relocate(&self, pin: &PinView, spec: &WorkerSpec, rank: Option<DpRank>) -> Result<PinView, OpsError> {
        let model = Model::new(&pin.model).map_err(|e| OpsError::refused(format!("model: {e}")))?;
        if !spec.serves(&model) {
            return Err(OpsError::refused(format!("worker {} does not serve model {:?}", spec.id, pin.model)));
        }
        let bucket = self.bucket_of(pin);
        for _ in 0..MAX_ROUNDS {
            let stored = bucket.read_leader(&pin.key).await.map_err(OpsError::unreadable(bucket))?;
            let now = stored.as_ref().and_then(|stored| view(pin.partition, &pin.key, stored));
            let (Some(stored), Some(now)) = (stored, now) else {
                return Err(OpsError::refused(format!("{} is no longer pinned", pin.session)));
            };
            if now.placement() != pin.placement() {
                return Err(OpsError::refused(format!(
                    "{} has moved from {} to {} in the meantime; look again",
                    pin.session,
                    pin.placement(),
                    now.placement()
                )));
            }
            let value = moved(stored.value.unwrap_or_default(), spec, rank.or_else(|| chosen(pin, spec)))?;
            match bucket.put_at(&pin.key, value, stored.revision).await {
                Ok(_) => {
                    let now = read(bucket, pin.partition, &pin.key).await?;
                    return now.ok_or_else(|| OpsError::refused("it has just been removed"));
                }
                Err(CasError::Lost) => {}
                Err(CasError::Unreachable(problem) | CasError::Refused(problem)) => {
                    return Err(OpsError::unwritable(bucket, problem));
                }
            }
        }
        Err(OpsError::refused(format!("{} is written by routers all the time; try again", pin.session)))
    }

    /// Counts all pins.
    pub async fn stats(&self) -> Result<Stats, OpsError> {
        let first = &self.buckets[0];
        let info = first.info().await.map_err(OpsError::unreadable(first))?;
        let ages = AGES_S.into_iter().map(Some).chain([None]);
        let ages = ages.map(|up_to_s| AgeCount { up_to_s, pins: 0 }).collect();
        let mut stats = Stats { ttl_s: info.max_age.as_secs(), ages, ..Stats::default() };
        let mut take = |change: Change| {
            let Some(pin) = view(None, &change.key, &change.stored) else {
                stats.unreadable += u64::from(change.stored.value.is_some());
                return;
            };
            stats.pins += 1;
            *(if pin.origin == "named" { &mut stats.named } else { &mut stats.derived }) += 1;
            stats.shared += u64::from(pin.shared);
            *stats.models.entry(pin.model).or_default() += 1;
            let rank = pin.dp_rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
            *stats.workers.entry(pin.worker).or_default().entry(rank).or_default() += 1;
            let class = AGES_S.iter().position(|up_to| pin.age_s <= *up_to).unwrap_or(AGES_S.len());
            stats.ages[class].pins += 1;
        };
        for bucket in &self.buckets {
            read_all(bucket, &mut take).await.map_err(OpsError::unreadable(bucket))?;
        }
        Ok(stats)
    }
}

/// The buckets of pins that there are, for somebody who can wait.
pub(super) async fn buckets(link: &Link, subjects: &Subjects) -> Result<Vec<Bucket>, OpsError> {
    let told = Bucket::new(link.clone(), &subjects.pins_bucket());
    let found = nats::pins::find(link, subjects).await.map_err(OpsError::unreadable(&told))?;
    Ok(found.into_iter().map(|bucket| bucket.patient(PATIENCE)).collect())
}

async fn read(bucket: &Bucket, partition: Option<u16>, key: &str) -> Result<Option<PinView>, OpsError> {
    let stored = bucket.read_leader(key).await.map_err(OpsError::unreadable(bucket))?;
    Ok(stored.and_then(|stored| view(partition, key, &stored)))
}

/// Where a session goes on a worker for which no rank is said: nowhere in particular where it has one rank, else where
/// its hash says, as with a router (protocol section 5).
fn chosen(pin: &PinView, spec: &WorkerSpec) -> Option<DpRank> {
    let session = session_id(&pin.session).ok().filter(|_| spec.ranks.size() > 1)?;
    Some(hashed_rank(&session, spec.ranks))
}

/// The value with another placement; fields that this version does not know stay.
fn moved(value: Bytes, spec: &WorkerSpec, rank: Option<DpRank>) -> Result<Bytes, OpsError> {
    let unreadable = || OpsError::refused("the pin's value can't be read");
    let mut value: Value = serde_json::from_slice(&value).map_err(|_| unreadable())?;
    let fields = value.as_object_mut().ok_or_else(unreadable)?;
    fields.insert("worker".into(), spec.id.as_str().into());
    fields.insert("dp_rank".into(), rank.map_or(Value::Null, |rank| rank.0.into()));
    match spec.pool.as_str() {
        DEFAULT_POOL => drop(fields.remove("pool")),
        pool => drop(fields.insert("pool".into(), pool.into())),
    }
    Ok(value.to_string().into())
}

/// A session id as people write it: a derived one as `px:` and 16 hex digits.
pub fn session_id(text: &str) -> Result<SessionId, OpsError> {
    let derived = text.strip_prefix("px:").filter(|digits| digits.len() == 16);
    if let Some(key) = derived.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
        return Ok(SessionId::derived(key));
    }
    SessionId::named(text).map_err(|e| OpsError::refused(format!("the session id {text:?} {e}")))
}

/// The key of a session's pin.
pub fn key_of(session: &str, model: &str, tenant: &str) -> Result<PinKey, OpsError> {
    let model = Model::new(model).map_err(|e| OpsError::refused(format!("the model {model:?} {e}")))?;
    let tenant = match tenant {
        "" => Tenant::none(),
        name => Tenant::new(name).map_err(|e| OpsError::refused(format!("the tenant {name:?} {e}")))?,
    };
    Ok(PinKey::new(&tenant, &model, &session_id(session)?))
}

fn view(partition: Option<u16>, key: &str, stored: &Stored) -> Option<PinView> {
    let value = stored.value.as_deref()?;
    PinValue::parse(PinKey::parse(key)?, value).ok()?;
    let pin: PinValue = serde_json::from_slice(value).ok()?;
    let shown = |session: String| session.trim_start_matches('\u{1}').to_owned();
    Some(PinView {
        key: key.to_owned(),
        partition,
        session: shown(pin.session),
        model: pin.model,
        tenant: pin.tenant,
        worker: pin.worker,
        dp_rank: pin.dp_rank,
        pool: pin.pool,
        origin: match pin.origin {
            OriginName::Named => "named",
            OriginName::Derived => "derived",
        },
        root: pin.root.map(shown),
        shared: pin.shared,
        revision: stored.revision,
        age_s: age(stored.created).as_secs(),
    })
}

fn age(created: SystemTime) -> Duration {
    SystemTime::now().duration_since(created).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::registration::Registration;

    fn pin(session: &str, worker: &str, rank: Option<u16>) -> PinView {
        let value = serde_json::json!({
            "v": 1, "session": session, "model": "m", "tenant": "", "worker": worker, "dp_rank": rank, "origin": "named",
        });
        let stored = Stored { revision: 7, value: Some(value.to_string().into()), created: SystemTime::now() };
        view(None, &PinKey::of("", "m", session).to_string(), &stored).expect("a pin")
    }

    #[test]
    fn filters_fit_by_all_that_is_said() {
        let pin = pin("chat-1", "w", Some(4));
        let fits = |session: &str, worker: &str, rank| {
            Filter { session: Some(session.into()), worker: Some(worker.into()), rank, ..Filter::default() }.fits(&pin)
        };
        assert!(fits("chat-1", "w", Some(4)) && fits("chat*", "w", None));
        assert!(!fits("chat", "w", None) && !fits("chat*", "v", None) && !fits("chat*", "w", Some(5)));
    }

    #[test]
    fn moving_keeps_what_is_not_known() {
        let spec = Registration::new("w", "i", &["m"], 4, 4).check().expect("valid");
        let old = br#"{"v":1,"worker":"a","dp_rank":1,"pool":"x","later":[1]}"#;
        let new = moved(Bytes::from_static(old), &spec, Some(DpRank(5))).expect("an object");
        let new: Value = serde_json::from_slice(&new).expect("JSON");
        assert_eq!(new, serde_json::json!({ "v": 1, "worker": "w", "dp_rank": 5, "later": [1] }));
        assert!(moved(Bytes::from_static(b"[]"), &spec, None).is_err());
        let chosen = chosen(&pin("s", "a", None), &spec).expect("several ranks");
        assert!(spec.ranks.contains(chosen));
    }

    #[test]
    fn sessions_as_people_write_them() {
        assert_eq!(session_id("px:00000000000000ff").expect("derived"), SessionId::derived(255));
        assert_eq!(session_id("px:ff").expect("named").as_str(), "px:ff");
        assert!(session_id("\u{1}x").is_err());
        assert_eq!(key_of("s", "m", "").expect("valid"), PinKey::of("", "m", "s"));
    }
}
