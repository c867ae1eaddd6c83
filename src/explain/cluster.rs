//! The same request as the routers of a cluster see it now: the pin it would follow, and where it would go. Nothing is
//! written.

use std::time::{Duration, Instant, SystemTime};

use rand::SeedableRng as _;
use serde::Serialize;

use super::show;
use super::turn::Turn;
use crate::config::{Level, RouterConfig};
use crate::core::alias::{self, Asked, Choice};
use crate::core::ask::Ask;
use crate::core::decide::survey::{Score, Standing, Surveyed, survey};
use crate::core::decide::{Decision, NoPlacement, Pin, PinStep, Reason, Rules, WaitFor, decide};
use crate::core::error::RouteError;
use crate::core::fleet::{Fleet, Worker};
use crate::core::hash::PinKey;
use crate::core::id::{DpRank, Origin};
use crate::core::kv::Prompt;
use crate::core::mode::{AffinityMode, PolicyKind};
use crate::core::partition::{MAX_PARTITIONS, Partition};
use crate::core::pins::{self, Mirror};
use crate::core::pool::PoolPolicy;
use crate::nats::bucket::{Bucket, Unreachable, Watched};
use crate::nats::{self, AccessError, ConnectError, Link, Subscription};
use crate::wire::identity::Identity;
use crate::wire::load::LoadReport;
use crate::wire::pin::PinValue;
use crate::wire::registration::Registration;
use crate::wire::subject::Subjects;
use crate::wire::{Encoding, header};

/// How long load reports are listened for: every worker sends one a second.
const LOAD_WAIT: Duration = Duration::from_millis(1200);
/// How long the server may take to tell all registrations.
const WATCH_WAIT: Duration = Duration::from_secs(5);
/// Most prefixes that are read from the bucket, the deepest first: each costs a round trip.
const MAX_READ: usize = 4096;

/// What a cluster makes of a request.
#[derive(Debug, Serialize)]
pub struct Cluster {
    /// What stands under the keys that the request may follow, the one that counts most first; keys without anything are
    /// left out.
    pub found: Vec<Found>,
    /// How many keys were looked up.
    pub looked_up: usize,
    /// Which of what was found it follows, as an index.
    pub follows: Option<usize>,
    /// Every worker, by name, as a new placement.
    pub workers: Vec<Candidate>,
    /// Where it would go.
    pub placement: Option<String>,
    /// `Rankpin-Decision` of that, or the error that its frontend would get.
    pub decision: String,
    /// The same in a sentence.
    pub because: String,
    /// What else is worth knowing.
    pub notes: Vec<String>,
}

/// A pin that was found.
#[derive(Debug, Serialize)]
pub struct Found {
    /// What the key stands for.
    pub of: String,
    /// Its key in the bucket.
    pub key: String,
    /// Its revision.
    pub revision: u64,
    /// Seconds since it was stored or used.
    pub age_s: u64,
    /// Where it points; `None` where it was deleted, is another session's, or can't be read.
    pub placement: Option<String>,
    /// Of a derived pin, the session id of the first turn.
    pub root: Option<String>,
    /// Whether several conversations begin so, and it is passed over.
    pub shared: bool,
}

/// A worker as a new placement.
#[derive(Debug, Serialize)]
pub struct Candidate {
    /// The worker, and the rank that the request would have there.
    pub placement: String,
    /// Whether it may have the request.
    pub open: bool,
    /// How it stands to the request, in words.
    pub standing: &'static str,
    /// What the policy compares, by what workers report; the lowest has it. What ranks have cached only routers know.
    #[serde(flatten)]
    pub score: Option<Compared>,
    /// Requests in flight by its last report, where one came.
    pub inflight: Option<u64>,
    /// Requests that may be in flight there, where it has a limit.
    pub max_inflight: Option<u64>,
    /// Requests that its ranks have accepted and not begun, by that report.
    pub queued: Option<u64>,
    /// Share of its blocks in use by that report, in percent, where it declares how many it has.
    pub kv_used_percent: Option<u64>,
}

/// What a policy compares.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Compared {
    /// Requests in flight for each that the worker should have.
    RelativeLoad(f64),
    /// Tokens.
    Cost(f64),
}

impl From<Score> for Compared {
    fn from(score: Score) -> Self {
        match score {
            Score::Load(load) => Self::RelativeLoad(load),
            Score::Cost(cost) => Self::Cost(cost),
        }
    }
}

/// Why nothing can be told of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It is not clear where or as whom to connect.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A bucket can't be read.
    #[error("the bucket {bucket} can't be read: {problem}; has a router of this namespace ever run there?")]
    Bucket {
        /// Its name.
        bucket: String,
        /// What the server says.
        problem: String,
    },
}

/// Looks a request up in the cluster that the configuration names.
pub async fn look(turn: &Turn, config: &RouterConfig) -> Result<Cluster, ClusterError> {
    let subjects = Subjects::new(config.namespace.clone());
    let link = Link::open(config.access.link("rankpin-explain")?).await?;
    let listening = Instant::now();
    let loads = Subscription::open(&link, subjects.loads()).await;
    let mut notes = Vec::new();
    let mut fleet = Fleet::default();
    fleet.set_full_at(config.full_at);
    for worker in &config.workers {
        fleet.configure(worker.clone(), Instant::now());
    }
    for pool in &config.pools.targets {
        fleet.configure(pool.spec.clone(), Instant::now());
    }
    fleet.set_pools(config.pools.pools.clone());
    let workers = Bucket::new(link.clone(), &subjects.workers_bucket());
    if config.pools.level == Level::Worker {
        read_workers(&workers, &mut fleet, &mut notes).await.map_err(|e| unreadable(&workers, e))?;
    }
    let pins = bucket_of(turn, &link, &subjects, &mut notes).await?;
    let info = pins.info().await.map_err(|e| unreadable(&pins, e))?;
    let ttl = if info.max_age.is_zero() { Duration::MAX } else { info.max_age };
    let mut mirror = Mirror::new(ttl, Instant::now());
    let identities =
        turn.under.as_ref().map_or_else(|| vec![&turn.identity], |under| under.identities.iter().collect());
    let mut read = Vec::new();
    for identity in identities {
        let of_one = read_pins(&pins, turn, identity, &mut mirror, &mut notes).await;
        read.push(of_one.map_err(|e| unreadable(&pins, e))?);
    }
    match loads {
        Ok(loads) => hear_loads(loads, listening + LOAD_WAIT, &mut fleet).await,
        Err(problem) => notes.push(format!("the workers' load is unknown: {problem}")),
    }
    let (identity, read) = match resolve(turn, &read, &fleet, &mirror, &mut notes) {
        Ok(index) => {
            (turn.under.as_ref().map_or(&turn.identity, |under| &under.identities[index]), read.swap_remove(index))
        }
        Err(error) => return Ok(refused(&error, read.swap_remove(0), notes)),
    };
    let at = At { turn, identity, config };
    Ok(judge(at, &mut fleet, &mirror, read, notes))
}

/// The bucket in which the session's pins stand: that of its partition, where there are several.
async fn bucket_of(
    turn: &Turn,
    link: &Link,
    subjects: &Subjects,
    notes: &mut Vec<String>,
) -> Result<Bucket, ClusterError> {
    let told = Bucket::new(link.clone(), &subjects.pins_bucket());
    let mut all = nats::pins::find(link, subjects).await.map_err(|e| unreadable(&told, e))?;
    let count = u16::try_from(all.len()).unwrap_or(MAX_PARTITIONS);
    let partition = turn.constant.map(|key| Partition::of(key, count)).filter(|_| count > 1);
    notes.extend(partition.map(|partition| format!("its session is of partition {partition} of {count}")));
    Ok(all.swap_remove(partition.map_or(0, Partition::index)))
}

/// Which of the models that an alias leads to the request gets: 0 where the model is none.
fn resolve(
    turn: &Turn,
    read: &[(Vec<PinKey>, Vec<Found>)],
    fleet: &Fleet,
    mirror: &Mirror,
    notes: &mut Vec<String>,
) -> Result<usize, RouteError> {
    let Some(under) = &turn.under else { return Ok(0) };
    let keys: Vec<_> = read.iter().map(|(keys, _)| keys.clone()).collect();
    let asked =
        Asked { targets: &under.targets, keys: &keys, by: under.by.as_ref(), worker: turn.head.worker_hint.as_deref() };
    let choice = alias::choose(asked, fleet, mirror, Instant::now(), &mut rand::rngs::StdRng::seed_from_u64(0));
    let Some(Choice { index, pinned }) = choice else {
        let models = under.targets.iter().map(|target| format!("{:?}", target.model.as_str())).collect::<Vec<_>>();
        let alias = turn.alias.clone().unwrap_or_default();
        return Err(RouteError::UnknownAlias { alias, models: models.join(", ") });
    };
    let why = match (pinned, &under.by) {
        (true, _) => "it is pinned under it",
        (false, Some(_)) => "it is pinned under none, and its hash says so among those that are served",
        (false, None) => "by chance: it has no session",
    };
    notes.push(format!("of the alias's models it gets {:?}: {why}", under.targets[index].model.as_str()));
    Ok(index)
}

fn refused(error: &RouteError, (keys, found): (Vec<PinKey>, Vec<Found>), notes: Vec<String>) -> Cluster {
    Cluster {
        looked_up: keys.len(),
        follows: None,
        workers: Vec::new(),
        placement: None,
        decision: format!("{} {}", error.status(), error.code()),
        because: error.to_string(),
        found,
        notes,
    }
}

/// The request, under the model that it gets.
#[derive(Clone, Copy)]
struct At<'t> {
    turn: &'t Turn,
    identity: &'t Identity,
    config: &'t RouterConfig,
}

fn unreadable(bucket: &Bucket, error: Unreachable) -> ClusterError {
    ClusterError::Bucket { bucket: bucket.name().to_owned(), problem: error.0 }
}

async fn read_workers(bucket: &Bucket, fleet: &mut Fleet, notes: &mut Vec<String>) -> Result<(), Unreachable> {
    if bucket.info().await?.messages == 0 {
        return Ok(());
    }
    let mut watch = bucket.watch().await?;
    let all = async {
        while let Watched::Change(change) = watch.next().await {
            if let Some(value) = &change.stored.value {
                match Registration::parse(&change.key, value) {
                    Ok(spec) => {
                        fleet.handle_registration(spec, age(change.stored.created), Instant::now());
                    }
                    Err(problem) => notes.push(format!("the registration of {:?} is refused: {problem}", change.key)),
                }
            }
            if change.pending == 0 {
                return true;
            }
        }
        false
    };
    if !tokio::time::timeout(WATCH_WAIT, all).await.unwrap_or(false) {
        notes.push("not all registrations could be read".into());
    }
    Ok(())
}

async fn read_pins(
    bucket: &Bucket,
    turn: &Turn,
    identity: &Identity,
    mirror: &mut Mirror,
    notes: &mut Vec<String>,
) -> Result<(Vec<PinKey>, Vec<Found>), Unreachable> {
    let (mut found, mut keys) = (Vec::new(), Vec::new());
    for (depth, session) in identity.lookups().enumerate() {
        if depth == MAX_READ {
            notes.push(format!("only the {MAX_READ} deepest prefixes were looked up"));
            break;
        }
        let key = PinKey::new(&turn.head.tenant, &identity.model, &session);
        keys.push(key);
        let Some(stored) = bucket.read_leader(&key.to_string()).await? else { continue };
        let pin = stored.value.as_deref().map(|value| PinValue::parse(key, value));
        if let Some(Err(problem)) = &pin {
            notes.push(format!("what stands under {key} is no pin of this session, and would be replaced: {problem}"));
        }
        let pin: Option<pins::Pin> = pin.and_then(Result::ok).map(Into::into);
        let age = age(stored.created);
        found.push(Found {
            of: of(turn, depth),
            key: key.to_string(),
            revision: stored.revision,
            age_s: age.as_secs(),
            placement: pin.as_ref().map(|pin| pin.placement.to_string()),
            root: pin.as_ref().and_then(pins::Pin::root).map(str::to_owned),
            shared: pin.as_ref().is_some_and(|pin| pin.shared),
        });
        let now = Instant::now();
        mirror.handle_value(key, stored.revision, pin, now.checked_sub(age).unwrap_or(now));
    }
    Ok((keys, found))
}

/// What the key at this place among the lookups stands for.
fn of(turn: &Turn, depth: usize) -> String {
    match &turn.identity.prefixes {
        Some(prefixes) => {
            let index = prefixes.strict().len() - 1 - depth;
            turn.keys.get(index).map_or_else(String::new, |key| format!("the prefix up to {}", key.item))
        }
        None => format!("the session {}", show::session(turn.session.as_deref().unwrap_or_default())),
    }
}

async fn hear_loads(mut loads: Subscription, until: Instant, fleet: &mut Fleet) {
    while let Ok(Some(message)) = tokio::time::timeout_at(until.into(), loads.next()).await {
        let encoding = Encoding::of(header::find(message.headers.iter(), header::CONTENT_TYPE));
        if let Ok(report) = LoadReport::parse(encoding, &message.payload) {
            fleet.handle_report(report, Instant::now());
        }
    }
}

fn age(created: SystemTime) -> Duration {
    SystemTime::now().duration_since(created).unwrap_or_default()
}

fn judge(
    At { turn, identity, config }: At<'_>,
    fleet: &mut Fleet,
    mirror: &Mirror,
    (keys, found): (Vec<PinKey>, Vec<Found>),
    mut notes: Vec<String>,
) -> Cluster {
    let now = Instant::now();
    let ask = Ask {
        model: identity.model.clone(),
        tenant: turn.head.tenant.clone(),
        session: identity.session.clone(),
        group: identity.group.clone(),
        worker_hint: turn.head.worker_hint.as_deref().map(Into::into),
        rank_hint: turn.head.rank_hint.clone(),
        pool: turn.head.pool.as_deref().map(Into::into),
        home: None,
        excluded: Vec::new(),
        // Which prefixes of it are cached where, only routers know.
        prompt: Prompt::of_bytes(turn.size),
    };
    let rules = Rules { mode: config.affinity, policy: config.policy, rank_choice: config.rank_choice };
    let workers = survey(&ask, fleet, rules, now);
    let pinned = mirror.continued(&keys, now);
    let follows = pinned.and_then(|(key, _)| found.iter().position(|one| one.key == key.to_string()));
    let pin = pinned.and_then(|(_, entry)| entry.pin.as_ref()).map_or(Pin::None, |pin| Pin::At(&pin.placement));
    // The order of turns and random choices are each router's own; any seed shows one of them.
    let decided = decide(&ask, fleet, pin, rules, now, &mut rand::rngs::StdRng::seed_from_u64(0));
    let open = workers.iter().filter(|one| one.standing == Standing::Open).count();
    if let Err(NoPlacement::Wait(_)) = &decided {
        notes.push(format!(
            "it waits by priority, in turns with other sessions of its priority; what waits in each router, only that \
             router knows (at most {} for this model)",
            config.max_waiting
        ));
    }
    if let Ok(decision) = &decided
        && decision.reason != Reason::Pinned
        && open > 1
        && decision.cause != Some(crate::core::decide::Cause::Siblings)
    {
        notes.extend(pools(config));
        if config.pools.level == Level::Worker {
            notes.push(turns(config.policy, open));
        }
    }
    Cluster {
        looked_up: keys.len(),
        follows,
        workers: workers.into_iter().map(|one| candidate(one, fleet, now)).collect(),
        placement: decided.as_ref().ok().map(|decision| decision.placement.to_string()),
        decision: match &decided {
            Ok(decision) => decision.header(),
            Err(NoPlacement::Refused(error)) => format!("{} {}", error.status(), error.code()),
            Err(NoPlacement::Wait(_)) => "waits".into(),
            Err(NoPlacement::Exhausted) => "503 no_worker".into(),
        },
        because: because(&ask, &decided, rules.mode),
        found,
        notes,
    }
}

fn candidate(one: Surveyed, fleet: &Fleet, now: Instant) -> Candidate {
    let load = fleet.find(one.placement.worker.as_str()).map(|(_, worker)| Load::of(worker, one.placement.rank, now));
    let Load { inflight, max_inflight, queued, kv_used_percent } = load.unwrap_or_default();
    Candidate {
        placement: one.placement.to_string(),
        open: one.standing == Standing::Open,
        standing: one.standing.words(),
        score: one.score.map(Compared::from),
        inflight,
        max_inflight,
        queued,
        kv_used_percent,
    }
}

/// What is known of the load at a placement: of its rank, or of all where there is none.
#[derive(Default)]
struct Load {
    inflight: Option<u64>,
    max_inflight: Option<u64>,
    queued: Option<u64>,
    kv_used_percent: Option<u64>,
}

impl Load {
    fn of(worker: &Worker, rank: Option<DpRank>, now: Instant) -> Self {
        let ranks = rank.map_or_else(|| u64::from(worker.spec.ranks.size()), |_| 1);
        let max_inflight = worker.spec.max_inflight.map(|most| u64::from(most) * ranks);
        let Some(report) = worker.fresh_report(now) else { return Self { max_inflight, ..Self::default() } };
        let here = || report.ranks.iter().filter(|load| rank.is_none_or(|rank| rank == load.rank));
        let used: u64 = here().map(|load| load.kv_used_blocks).sum();
        let blocks = worker.spec.kv_blocks.map(|blocks| blocks.saturating_mul(ranks)).filter(|blocks| *blocks > 0);
        Self {
            inflight: Some(here().map(|load| u64::from(load.inflight)).sum()),
            max_inflight,
            queued: Some(here().map(|load| u64::from(load.queued)).sum()),
            kv_used_percent: blocks.map(|blocks| used.saturating_mul(100) / blocks),
        }
    }
}

/// How a pool is chosen before a worker in it is.
fn pools(config: &RouterConfig) -> Option<String> {
    let pools = &config.pools.pools;
    let names = pools.rules.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>().join(", ");
    let how = match pools.policy {
        PoolPolicy::Affinity => "by the session's hash and their weights, without a session by chance",
        PoolPolicy::Weighted => "by chance and their weights",
        PoolPolicy::Priority => "the first that has room",
    };
    (!names.is_empty())
        .then(|| format!("its pool is chosen first, of {names}: {how}; those above spill_over come last"))
}

fn turns(policy: PolicyKind, open: usize) -> String {
    match policy {
        PolicyKind::RoundRobin => format!(
            "{open} workers may have it, and each router takes them in turn: whose turn it is only that router knows"
        ),
        PolicyKind::Random => format!("{open} workers may have it, with chances in proportion to their weights"),
        PolicyKind::PowerOfTwo => format!("{open} workers may have it: of two by chance the less loaded one gets it"),
        PolicyKind::LeastLoaded => {
            format!(
                "{open} workers may have it: the least loaded one gets it, and each router counts its own requests too"
            )
        }
        PolicyKind::Kv => format!(
            "{open} workers may have it: the rank where prefill and load cost least gets it, and each router knows itself what \
             ranks are expected to have cached"
        ),
        PolicyKind::DeviceAwareWeighted => format!(
            "{open} workers may have it: a kind of device is drawn by weight, and its least loaded worker gets it"
        ),
    }
}

fn because(ask: &Ask, decided: &Result<Decision, NoPlacement>, mode: AffinityMode) -> String {
    let decision = match decided {
        Ok(decision) => decision,
        Err(NoPlacement::Refused(error)) => return error.to_string(),
        Err(NoPlacement::Wait(WaitFor::Placement(at))) => {
            return format!("it is pinned to {at}, which has no room: it waits within its timeout, and is never moved");
        }
        Err(NoPlacement::Wait(WaitFor::Any)) => return "nobody has room: it waits within its timeout".into(),
        Err(NoPlacement::Exhausted) => return "no worker that may have it is left".into(),
    };
    let why = match decision.reason {
        Reason::Pinned => "it follows its pin",
        Reason::Placed => "its session is new",
        Reason::Repinned => "where it was pinned it can't stay, and its pin moves along",
        Reason::Hinted => "its headers ask for a worker or rank",
        Reason::Unpinned => "it has no session, so nothing is pinned",
    };
    let rank = match (decision.placement.rank, ask.session.as_ref().map(|session| session.origin), decision.reason) {
        (None, Some(_), _) if mode == AffinityMode::Hard => "; the worker has one rank, so that none is named",
        (None, ..) => "; the engine chooses the rank",
        (Some(_), Some(Origin::Named), Reason::Placed | Reason::Repinned) => "; the rank is a hash of the session id",
        (Some(_), Some(Origin::Derived), Reason::Placed | Reason::Repinned) => {
            "; the rank is the worker's least loaded"
        }
        (Some(_), ..) => "",
    };
    let pin = match decision.pin {
        PinStep::None | PinStep::Keep => "",
        PinStep::Claim => "; it is pinned there before it is sent",
        PinStep::Complete => "; the pin gets its rank before it is sent",
        PinStep::AfterAccept => "; it is pinned after the worker has accepted",
    };
    format!("{why}{rank}{pin}")
}
