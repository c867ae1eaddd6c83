//! An examination of a deployment, from outside and without changing anything: each finding says what was looked at, how
//! it is, and what to do.

mod fleet;
mod partitions;
mod room;

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use self::room::Used;
use super::permissions::{Permissions, Role, User, lacking, needs};
use super::{OpsError, routers};
use crate::config::{Level, RouterConfig};
use crate::core::id::WorkerId;
use crate::nats::bucket::{Bucket, BucketInfo, Look};
use crate::nats::jetstream::{Discard, StreamInfo};
use crate::nats::{ConnectError, JetStream, Link};
use crate::wire::service::RouterState;
use crate::wire::subject::{JOBS_CONSUMER, Subjects};

/// Who a user may be, in the order in which they are told.
const ROLES: [Role; 7] = [
    Role::Operator,
    Role::Router,
    Role::Worker(None),
    Role::DecidingGateway,
    Role::Gateway,
    Role::Frontend,
    Role::Batch,
];
/// Least `max_payload` that does not get a warning, in bytes: a conversation of some hundred turns with tools.
const MAX_PAYLOAD_WANTED: usize = 8 * 1024 * 1024;
/// Largest `max_payload` that a server is good at, in bytes.
const MAX_PAYLOAD_SOUND: usize = 64 * 1024 * 1024;
/// Largest difference of clocks that does no harm; beyond, deadlines on messages are off by as much.
const CLOCKS: Duration = Duration::from_millis(500);
/// How long routers may take to answer.
const ROUTERS_WAIT: Duration = Duration::from_secs(1);
/// How long the server may take.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// Age at which the server drops a registration (protocol section 7).
const REGISTRATION_MAX_AGE: Duration = Duration::from_secs(30);
/// Oldest server that is known to work.
const OLDEST_SERVER: (u64, u64) = (2, 11);

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// It works, and may not under load or tomorrow.
    Warn,
    /// It does not work.
    Fail,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How it is.
    pub health: Health,
    /// What was found.
    pub found: String,
    /// What to do; empty where nothing is.
    pub advice: String,
}

impl Finding {
    fn new(check: &'static str, health: Health, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, health, found: found.into(), advice: advice.into() }
    }

    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Health::Ok, found, "")
    }
}

/// Examines what the configuration names, over this connection.
pub async fn examine(link: &Link, config: &RouterConfig) -> Vec<Finding> {
    let subjects = Subjects::new(config.namespace.clone());
    let mut findings = vec![server(link)];
    findings.push(payload(link));
    findings.push(clock(link, &subjects).await);
    findings.extend(storage(link, &subjects, config).await);
    findings.push(permissions(link, &subjects, config).await);
    match routers::ask(link, &config.namespace, ROUTERS_WAIT).await {
        Ok(states) => {
            findings.extend(routers_seen(&states));
            findings.extend(partitions::served(&states));
        }
        Err(OpsError::Connect(error @ ConnectError::Permissions(_))) => {
            findings.push(unseen("routers", &error, "an operator may ask routers"));
        }
        Err(error) => findings.push(Finding::new("routers", Health::Warn, error.to_string(), "")),
    }
    if config.pools.level == Level::Global {
        // Its pools stand in the configuration, their workers in their own namespaces.
        return findings;
    }
    match super::fleet::registrations(link, &subjects).await {
        Ok((specs, refused)) => findings.extend(fleet::examine(&specs, &refused)),
        Err(error) => findings.push(unread("workers", &error)),
    }
    findings
}

/// What this user may not look at. Which role lacks what, the check of the permissions says.
fn unseen(check: &'static str, error: &ConnectError, advice: &str) -> Finding {
    Finding::new(check, Health::Note, format!("not examined: {error}"), advice)
}

fn unread(check: &'static str, error: &OpsError) -> Finding {
    Finding::new(check, Health::Warn, error.to_string(), "without it, this can't be examined")
}

fn server(link: &Link) -> Finding {
    let server = link.server();
    let number = |part: Option<&str>| part.and_then(|part| part.parse::<u64>().ok()).unwrap_or(0);
    let mut parts = server.version.split(['.', '-']);
    let version = (number(parts.next()), number(parts.next()));
    let cluster = server.cluster.as_ref().map_or_else(String::new, |name| format!(", cluster {name}"));
    let others = if server.others.is_empty() { String::new() } else { format!(", {} addresses", server.others.len()) };
    let found = format!("nats-server {} ({}){cluster}{others}", server.version, server.name);
    if version < OLDEST_SERVER {
        let (major, minor) = OLDEST_SERVER;
        return Finding::new("server", Health::Fail, found, format!("use version {major}.{minor} or later"));
    }
    Finding::ok("server", found)
}

fn payload(link: &Link) -> Finding {
    let max = link.server().max_payload;
    let found = format!("a message may have {} KiB (max_payload)", max / 1024);
    if max < MAX_PAYLOAD_WANTED {
        let advice =
            "long conversations with tools or images grow beyond; set max_payload: 8MB in the server's configuration";
        return Finding::new("max_payload", Health::Warn, found, advice);
    }
    if max > MAX_PAYLOAD_SOUND {
        return Finding::new("max_payload", Health::Warn, found, "NATS is made for messages up to 8 MB, 64 MB at most");
    }
    Finding::ok("max_payload", found)
}

#[derive(Deserialize)]
struct Stamped {
    ts: Option<String>,
}

/// Clocks stand beside each other in deadlines and ages: that of the server against that of this machine.
async fn clock(link: &Link, subjects: &Subjects) -> Finding {
    let subject = format!("$JS.API.STREAM.INFO.KV_{}", subjects.pins_bucket());
    let before = SystemTime::now();
    let answer = link.ask(&subject, ANSWER_WAIT).await.ok();
    let round_trip = before.elapsed().unwrap_or_default();
    let stamp = answer.and_then(|answer| serde_json::from_slice::<Stamped>(&answer).ok()?.ts);
    let Some(server) = stamp.and_then(|stamp| humantime::parse_rfc3339_weak(stamp.trim_end_matches('Z')).ok()) else {
        return Finding::new("clock", Health::Note, "the server tells no time to this user", "");
    };
    let here = before + round_trip / 2;
    let skew = here.duration_since(server).or_else(|_| server.duration_since(here)).unwrap_or_default();
    let found = format!("this machine and the server differ by {} ms", skew.as_millis());
    if skew > CLOCKS + round_trip {
        let advice = "keep the clocks of all hosts together (chrony, systemd-timesyncd): requests carry times until which \
                      they may be accepted";
        return Finding::new("clock", Health::Warn, found, advice);
    }
    Finding::ok("clock", found)
}

async fn storage(link: &Link, subjects: &Subjects, config: &RouterConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    let workers = (config.pools.level == Level::Worker).then(|| (subjects.workers_bucket(), REGISTRATION_MAX_AGE));
    for (name, max_age) in workers.into_iter().chain([(subjects.pins_bucket(), config.pin_ttl)]) {
        findings.extend(bucket(link, &name, max_age).await);
        if let Some(Finding { health: Health::Fail, .. }) = findings.last() {
            return findings;
        }
    }
    findings.extend(partitions::storage(link, subjects, config).await);
    findings.extend(room::of_account(link).await);
    if config.jobs.max == 0 || config.pools.level == Level::Global {
        return findings;
    }
    let api = JetStream::new(link.clone());
    for name in [subjects.jobs_stream(), subjects.results_stream(), subjects.dead_stream()] {
        let info = match api.stream(&name).await {
            Ok(Some(info)) => info,
            Ok(None) => {
                findings.push(Finding::new("stream", Health::Warn, format!("{name} is missing"), NO_JOBS));
                continue;
            }
            Err(error) => {
                findings.push(Finding::new("stream", Health::Warn, format!("{name}: {error}"), ""));
                continue;
            }
        };
        findings.extend(stream_room(&name, &info));
        let (messages, replicas) = (info.state.messages, info.config.num_replicas);
        findings.push(Finding::ok("stream", format!("{name}: {messages} messages, {replicas} replicas")));
    }
    let stream = subjects.jobs_stream();
    if let Ok(None) = api.consumer(&stream, JOBS_CONSUMER).await {
        findings.push(Finding::new(
            "stream",
            Health::Warn,
            format!("consumer {JOBS_CONSUMER} of {stream} is missing"),
            NO_JOBS,
        ));
    }
    findings
}

const NO_JOBS: &str =
    "there are no durable jobs without it; `rankpin provision` makes it, or routers with --max-jobs 0 do without";

/// How a bucket is, the room that it has first.
async fn bucket(link: &Link, name: &str, max_age: Duration) -> Vec<Finding> {
    let look = Bucket::new(link.clone(), name).look().await;
    let room = if let Look::There(info) = &look { bucket_room(name, info) } else { None };
    room.into_iter().chain([bucket_as_it_is(link, name, max_age, look)]).collect()
}

fn bucket_room(name: &str, info: &BucketInfo) -> Option<Finding> {
    let BucketInfo { messages, max_messages, bytes, max_bytes, .. } = *info;
    Used { messages, max_messages, bytes, max_bytes }.finding(name, true)
}

fn stream_room(name: &str, StreamInfo { config, state, .. }: &StreamInfo) -> Option<Finding> {
    let used = Used {
        messages: state.messages,
        max_messages: config.max_msgs,
        bytes: state.bytes,
        max_bytes: config.max_bytes,
    };
    used.finding(name, config.discard == Discard::New)
}

fn bucket_as_it_is(link: &Link, name: &str, max_age: Duration, look: Look) -> Finding {
    match look {
        Look::There(info) => {
            let found =
                format!("{name}: {} keys, values live for {}", info.messages, humantime::format_duration(info.max_age));
            if info.history != 1 {
                return Finding::new(
                    "bucket",
                    Health::Warn,
                    found,
                    format!("it keeps {} values a key, 1 is enough", info.history),
                );
            }
            if info.rollups {
                let advice = "whoever may write one key may take all others away (header Nats-Rollup); set \
                              allow_rollup_hdrs to false in its stream's configuration";
                return Finding::new("bucket", Health::Warn, found, advice);
            }
            if info.max_age != max_age {
                let advice = format!(
                    "the configuration says {}; routers go by what the bucket has",
                    humantime::format_duration(max_age)
                );
                return Finding::new("bucket", Health::Note, found, advice);
            }
            Finding::ok("bucket", found)
        }
        Look::Missing => {
            Finding::new("bucket", Health::Fail, format!("{name} is missing"), "start a router, or `rankpin provision`")
        }
        Look::NoJetStream(problem) => Finding::new(
            "jetstream",
            Health::Fail,
            format!("there is none ({problem})"),
            "start the server with -js, or enable JetStream for this account",
        ),
        Look::Silent(problem) => match link.check_permissions() {
            Err(error) => unseen("bucket", &error, "routers and operators may look at it"),
            Ok(()) => Finding::new(
                "bucket",
                Health::Fail,
                format!("{name} can't be looked at: {problem}"),
                "the server is busy, or the bucket has no leader",
            ),
        },
    }
}

#[derive(Deserialize)]
struct UserInfo {
    data: UserData,
}

#[derive(Deserialize)]
struct UserData {
    #[serde(default)]
    user: String,
    #[serde(default)]
    account: String,
    #[serde(default)]
    permissions: Option<Permissions>,
}

/// Which roles this user could play, by the permissions that the server itself tells: nothing is tried.
async fn permissions(link: &Link, subjects: &Subjects, config: &RouterConfig) -> Finding {
    const CHECK: &str = "permissions";
    let answer = link.ask("$SYS.REQ.USER.INFO", ANSWER_WAIT).await.ok();
    let Some(UserInfo { data }) = answer.and_then(|answer| serde_json::from_slice(&answer).ok()) else {
        return Finding::new(
            CHECK,
            Health::Note,
            "this user may not ask what it may do",
            "allow it to publish $SYS.REQ.USER.INFO, or ask as operator",
        );
    };
    let who = format!("user {:?} of account {:?}", data.user, data.account);
    let Some(has) = data.permissions else {
        let advice = "fine for trying things out; `rankpin nats-permissions` writes users with no more than they need";
        return Finding::new(CHECK, Health::Note, format!("{who} may do everything"), advice);
    };
    let count = partitions::count(link, subjects).await.unwrap_or_else(|| config.partitions.count());
    let (mut plays, mut nearest) = (Vec::new(), None);
    for role in ROLES.into_iter().chain(workers_by_name(&has, config)) {
        let user = User { name: data.user.clone(), role };
        let mut needs = needs(&config.namespace, count, &user);
        if user.role != Role::Router {
            // Whatever the user is called, its inboxes are where this client has them.
            let (made, own) =
                (format!("{}.>", user.inbox(&config.namespace)), format!("{}.>", link.options().inbox_prefix));
            for subject in needs.publish.iter_mut().chain(&mut needs.subscribe).filter(|subject| **subject == made) {
                subject.clone_from(&own);
            }
        }
        let lacking = lacking(&needs, &has);
        let missing = lacking.publish.len() + lacking.subscribe.len();
        if missing == 0 {
            plays.push(user.role.word());
        } else if nearest.as_ref().is_none_or(|(least, _, _)| missing < *least) {
            nearest = Some((missing, user.role.word(), lacking));
        }
    }
    match (plays.is_empty(), nearest) {
        (false, _) => Finding::ok(CHECK, format!("{who} can be {}", plays.join(", "))),
        (true, Some((_, role, lacking))) => {
            let list = |what: &str, subjects: &[String]| match subjects {
                [] => String::new(),
                some => format!("; may not {what} {}", some.join(", ")),
            };
            let found = format!(
                "{who} has all that no role needs; nearest is {role}{}{}",
                list("publish", &lacking.publish),
                list("subscribe to", &lacking.subscribe)
            );
            Finding::new(
                CHECK,
                Health::Warn,
                found,
                "give it these, or use a user that `rankpin nats-permissions` writes",
            )
        }
        (true, None) => Finding::new(CHECK, Health::Note, who, ""),
    }
}

/// The workers whose registrations this user alone may write: a user for each worker may be no other one.
fn workers_by_name(has: &Permissions, config: &RouterConfig) -> Vec<Role> {
    let prefix = format!("$KV.{}.", Subjects::new(config.namespace.clone()).workers_bucket());
    let allowed = has.publish.iter().flat_map(|rules| &rules.allow);
    let names = allowed.filter_map(|subject| WorkerId::new(subject.strip_prefix(&prefix)?).ok());
    names.map(|name| Role::Worker(Some(name))).collect()
}

fn routers_seen(states: &[RouterState]) -> Vec<Finding> {
    const CHECK: &str = "routers";
    if states.is_empty() {
        let advice =
            "start one (`rankpin router`); where one runs, may it subscribe to $SRV.>, and this user publish there?";
        return vec![Finding::new(CHECK, Health::Fail, "none answers", advice)];
    }
    let mut findings = Vec::new();
    let ready = states.iter().filter(|state| state.ready).count();
    let found = format!("{} routers, {ready} ready", states.len());
    findings.push(match (ready, states.len()) {
        (0, _) => Finding::new(CHECK, Health::Fail, found, "look at their logs"),
        (1, 1) => Finding::new(CHECK, Health::Note, found, "with a second one, a restart is noticed by nobody"),
        _ => Finding::ok(CHECK, found),
    });
    let one_of = |what: &'static str, of: fn(&RouterState) -> String| {
        let mut values: Vec<String> = states.iter().map(of).collect();
        values.sort();
        values.dedup();
        (values.len() > 1).then(|| {
            let advice = "routers have to agree to place alike; give all of them the same configuration";
            Finding::new(CHECK, Health::Warn, format!("they differ in {what}: {}", values.join(", ")), advice)
        })
    };
    findings.extend(one_of("version", |state| state.version.clone()));
    findings.extend(one_of("affinity", |state| state.affinity.clone()));
    findings.extend(one_of("policy", |state| state.policy.clone()));
    for state in states {
        let behind = if state.pins.unreachable {
            Some("can't reach the pins bucket")
        } else if !state.pins.fresh {
            Some("has not read all pins yet")
        } else {
            None
        };
        findings.extend(behind.map(|what| {
            Finding::new(
                CHECK,
                Health::Warn,
                format!("router {} {what}", state.router),
                "it routes on by what it knows",
            )
        }));
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(state.now_ms);
        let here = SystemTime::now();
        let skew = here.duration_since(now).or_else(|_| now.duration_since(here)).unwrap_or_default();
        if skew > ROUTERS_WAIT + CLOCKS {
            let found =
                format!("the clock of router {} differs from this machine's by {} ms", state.router, skew.as_millis());
            findings.push(Finding::new("clock", Health::Warn, found, "keep the clocks of all hosts together"));
        }
    }
    findings
}
