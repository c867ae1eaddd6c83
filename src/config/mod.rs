//! The configuration of a router: texts from flags, environment and file become one checked [`RouterConfig`].
//!
//! Nothing is guessed and nothing is silently ignored: a key that is unknown, a value that is not allowed, and a
//! setting that can have no effect are errors that name it and say where it stands.

mod access;
mod alias;
mod file;
pub mod gateway;
mod jobs;
mod overload;
mod partition;
mod pool;
mod session;
mod setting;
mod weighing;
mod worker;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::core::alias::Aliases;
use crate::core::fleet::FullAt;
use crate::core::id::Namespace;
use crate::core::mode::{AffinityMode, FrontendTrust, PolicyKind, Provision, RankChoice};
use crate::core::partition::Partitions;
use crate::core::session::configured::Sources as SessionSources;
use crate::core::weighing::Weighing;
use crate::core::worker::WorkerSpec;
use crate::nats::Access;
use crate::telemetry::logging::LogFormat;

pub use jobs::JobsConfig;
pub use overload::MAX_WAITING;
pub use pool::{Level, PoolConfig, PoolTarget};
use setting::Sources;
pub use setting::{CONFIG, Given, Origin, SETTINGS, Setting};

/// Everything that a router is told.
#[derive(Debug, Clone, PartialEq)]
pub struct RouterConfig {
    /// Where and as whom to connect to NATS.
    pub access: Access,
    /// First token of every subject, and prefix of the buckets.
    pub namespace: Namespace,
    /// How a worker is chosen where no pin decides.
    pub policy: PolicyKind,
    /// How a named session gets its rank.
    pub rank_choice: RankChoice,
    /// What decisions weigh.
    pub weighing: Weighing,
    /// After how long work counts half.
    pub balance_half_life: Duration,
    /// How strongly a session holds to its placement.
    pub affinity: AffinityMode,
    /// What names a session besides the headers of the protocol.
    pub session: SessionSources,
    /// The partitions of the namespace, and which of them this router serves.
    pub partitions: Partitions,
    /// How long an unused pin stays.
    pub pin_ttl: Duration,
    /// Most pins of sessions that nothing names.
    pub max_derived_pins: usize,
    /// How long a worker may take to accept before the request goes elsewhere.
    pub accept_timeout: Duration,
    /// How long a request may wait for a worker, where it does not say so itself.
    pub request_timeout: Duration,
    /// Most requests of one model that wait for room.
    pub max_waiting: usize,
    /// Which reports make a rank count as full.
    pub full_at: FullAt,
    /// Durable jobs.
    pub jobs: JobsConfig,
    /// Whether missing buckets and streams are made.
    pub provision: Provision,
    /// Servers that keep the buckets.
    pub replicas: usize,
    /// A reply subject has to start with one of these.
    pub reply_prefixes: Vec<String>,
    /// How long a stopping router waits for its requests to end.
    pub drain_timeout: Duration,
    /// Where health and metrics are served over HTTP.
    pub listen: Listen,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// Which requests' own word on tenant and priority counts.
    pub frontends: FrontendTrust,
    /// Whether trusted frontends may send bodies to ranks themselves.
    pub decide: DecideMode,
    /// Workers that can't register themselves.
    pub workers: Vec<WorkerSpec>,
    /// Names that stand for several models.
    pub aliases: Aliases,
    /// Pools, and whether requests are placed on them or on workers.
    pub pools: PoolConfig,
}

/// Whether frontends may ask where a request goes and send its body there themselves (protocol section 6.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecideMode {
    /// They may not.
    Off,
    /// Those that may publish to `{ns}.decide.{model}` may.
    On,
}

/// Where health and metrics are served over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// There; it is an error where that can't be.
    At(SocketAddr),
    /// There by default; a second router on the same machine finds the port taken, and does without.
    IfFree(SocketAddr),
}

/// Values given on the command line, by key.
pub type Flags = BTreeMap<&'static str, String>;

/// Shortest and longest time that a pin may stay unused. A pin is put again once per quarter of it, so that below a
/// second every turn would write; a month is longer than any prefix cache lives.
pub const PIN_TTL: (Duration, Duration) = (Duration::from_secs(1), DAY.saturating_mul(30));
/// Most derived pins that may be configured: at least half of what a router mirrors is left for named ones.
pub const MAX_DERIVED_PINS: usize = crate::core::pins::MAX_MIRRORED / 2;
/// Shortest and longest accept timeout. Below some round trips every worker would look dead.
pub const ACCEPT_TIMEOUT: (Duration, Duration) = (Duration::from_millis(10), DAY);
/// Shortest and longest request timeout.
pub const REQUEST_TIMEOUT: (Duration, Duration) = (Duration::from_millis(10), DAY);
/// Shortest and longest drain timeout.
pub const DRAIN_TIMEOUT: (Duration, Duration) = (Duration::ZERO, DAY);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Most reply prefixes; each is compared with every request.
pub const MAX_REPLY_PREFIXES: usize = 16;

/// Why there is no configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("cannot read the configuration file {path}: {problem}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system says.
        problem: String,
    },
    /// The file is not TOML, or has a key that there is not, or a value of another type than the key's.
    #[error("{origin}: {problem}")]
    File {
        /// Where.
        origin: Origin,
        /// What is wrong there.
        problem: String,
    },
    /// A value is not allowed.
    #[error("{origin}: {key} is {text:?}; {allowed}")]
    Value {
        /// Where the value stands.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// The value.
        text: String,
        /// What is allowed.
        allowed: String,
    },
    /// A setting can have no effect.
    #[error("{origin}: {key} can have no effect: {reason}")]
    NoEffect {
        /// Where the setting stands.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// Why not, and what to do.
        reason: String,
    },
    /// A table such as `[[worker]]` breaks a rule.
    #[error("{origin}: {table} {name:?}: {problem}")]
    Table {
        /// Where the table begins.
        origin: Origin,
        /// Which kind of table.
        table: &'static str,
        /// The name of what it describes, as it stands there.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

impl ConfigError {
    fn table(origin: &Origin, table: &'static str, name: &str, problem: String) -> Self {
        Self::Table { origin: origin.clone(), table, name: name.to_owned(), problem }
    }
}

/// The configuration from flags, environment (asked by name) and the file that one of these names, in this
/// precedence; defaults for the rest.
pub fn resolve(flags: &Flags, environment: &dyn Fn(&str) -> Option<String>) -> Result<RouterConfig, ConfigError> {
    let sources = Sources::open(flags, environment, file::OF_ROUTER)?;
    let namespace = namespace(&sources.get(&setting::NAMESPACE))?;
    let config = RouterConfig {
        access: access::read(&sources)?,
        policy: choice(&sources.get(&setting::POLICY), &PolicyKind::NAMED)?,
        rank_choice: choice(&sources.get(&setting::RANK_CHOICE), &RankChoice::NAMED)?,
        weighing: weighing::weighing(&sources)?,
        balance_half_life: duration(&sources.get(&setting::BALANCE_HALF_LIFE), weighing::HALF_LIFE)?,
        affinity: choice(&sources.get(&setting::AFFINITY), &AffinityMode::NAMED)?,
        session: session::sources(&sources)?,
        partitions: partition::read(&sources)?,
        pin_ttl: duration(&sources.get(&setting::PIN_TTL), PIN_TTL)?,
        max_derived_pins: count(&sources.get(&setting::MAX_DERIVED_PINS), MAX_DERIVED_PINS)?,
        accept_timeout: duration(&sources.get(&setting::ACCEPT_TIMEOUT), ACCEPT_TIMEOUT)?,
        request_timeout: duration(&sources.get(&setting::REQUEST_TIMEOUT), REQUEST_TIMEOUT)?,
        max_waiting: overload::max_waiting(&sources)?,
        full_at: overload::full_at(&sources)?,
        jobs: jobs::read(&sources)?,
        provision: choice(&sources.get(&setting::PROVISION), &Provision::NAMED)?,
        replicas: jobs::replicas(&sources.get(&setting::REPLICAS))?,
        reply_prefixes: reply_prefixes(&sources.get(&setting::REPLY_PREFIXES), &namespace)?,
        drain_timeout: duration(&sources.get(&setting::DRAIN_TIMEOUT), DRAIN_TIMEOUT)?,
        listen: listen(&sources.get(&setting::LISTEN))?,
        log_format: choice(&sources.get(&setting::LOG_FORMAT), &LogFormat::NAMED)?,
        frontends: choice(&sources.get(&setting::UNTRUSTED_FRONTENDS), &UNTRUSTED)?,
        decide: choice(&sources.get(&setting::DECIDE_MODE), &DECIDE)?,
        workers: worker::all(sources.workers(), &namespace)?,
        aliases: alias::all(sources.aliases())?,
        pools: pool::read(&sources, &namespace)?,
        namespace,
    };
    refuse_what_has_no_effect(&sources, &config)?;
    Ok(config)
}

/// Every setting with the value that counts, and where it stands; without a value those that have none.
pub fn effective(
    flags: &Flags,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<(&'static Setting, Option<Given>)>, ConfigError> {
    let sources = Sources::open(flags, environment, file::OF_ROUTER)?;
    let value = |setting: &Setting| match setting.default {
        Some(_) => Some(sources.get(setting)),
        None => sources.find(setting),
    };
    Ok(SETTINGS.iter().map(|setting| (*setting, value(setting))).collect())
}

/// `untrusted_frontends = true` is the careful choice.
const UNTRUSTED: [(&str, FrontendTrust); 2] =
    [("false", FrontendTrust::Everywhere), ("true", FrontendTrust::TrustedSubjectOnly)];

const DECIDE: [(&str, DecideMode); 2] = [("false", DecideMode::Off), ("true", DecideMode::On)];

fn refuse_what_has_no_effect(sources: &Sources<'_>, config: &RouterConfig) -> Result<(), ConfigError> {
    if let Some(given) = sources.find(&setting::RANK_CHOICE) {
        let why = match (config.affinity, config.rank_choice) {
            (AffinityMode::Soft, RankChoice::Hash) => Some("soft affinity gives no session a rank by its hash"),
            (AffinityMode::Off, _) => Some("with affinity off no session is read"),
            (AffinityMode::Hard, _) | (AffinityMode::Soft, RankChoice::LeastLoaded) => None,
        };
        if let Some(why) = why {
            return Err(given.no_effect(&format!("{why}; leave one of the two out")));
        }
    }
    weighing::refuse_what_has_no_effect(sources, config)?;
    for setting in [&setting::PIN_TTL, &setting::MAX_DERIVED_PINS] {
        if let (AffinityMode::Off, Some(given)) = (config.affinity, sources.find(setting)) {
            return Err(given.no_effect("with affinity off nothing is pinned; leave one of the two out"));
        }
    }
    for setting in [&setting::SESSION_HEADERS, &setting::SESSION_BODY_FIELDS, &setting::GROUP_SUBAGENTS] {
        if let (AffinityMode::Off, Some(given)) = (config.affinity, sources.find(setting)) {
            return Err(given.no_effect("with affinity off no session is read; leave one of the two out"));
        }
    }
    if let (DecideMode::On, Some(given)) = (config.decide, sources.find(&setting::DECIDE_MODE)) {
        if config.policy == PolicyKind::Kv {
            return Err(given.no_effect("the policy kv reads every body; leave it out, or take another policy"));
        }
        if config.pools.level == Level::Global {
            return Err(
                given.no_effect("a router at the global level knows no ranks; set it for the pools' own routers")
            );
        }
    }
    partition::refuse_what_has_no_effect(sources, config)?;
    jobs::refuse_what_has_no_effect(sources, &config.jobs)?;
    pool::refuse_what_has_no_effect(sources, &config.pools)?;
    access::refuse_what_has_no_effect(sources, &config.access)?;
    Ok(())
}

fn choice<T: Copy>(given: &Given, named: &[(&str, T)]) -> Result<T, ConfigError> {
    let names = || named.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let found = named.iter().find(|(name, _)| *name == given.text);
    found.map(|(_, value)| *value).ok_or_else(|| given.refuse(format!("allowed are {}", names())))
}

fn duration(given: &Given, (least, most): (Duration, Duration)) -> Result<Duration, ConfigError> {
    let parsed = humantime::parse_duration(&given.text).ok();
    parsed.filter(|duration| (least..=most).contains(duration)).ok_or_else(|| {
        let (least, most) = (humantime::format_duration(least), humantime::format_duration(most));
        given.refuse(format!("allowed is a duration from {least} to {most}, written such as 250ms, 2s or 1h"))
    })
}

fn count(given: &Given, most: usize) -> Result<usize, ConfigError> {
    let digits = given.text.bytes().all(|b| b.is_ascii_digit());
    let parsed = given.text.parse().ok().filter(|count| digits && *count <= most);
    parsed.ok_or_else(|| given.refuse(format!("allowed is a whole number from 0 to {most}")))
}

fn namespace(given: &Given) -> Result<Namespace, ConfigError> {
    Namespace::new(&given.text).map_err(|e| given.refuse(format!("it {e}; allowed are 1 to 32 of a-z 0-9 _ -")))
}

fn listen(given: &Given) -> Result<Listen, ConfigError> {
    if given.text == "off" {
        return Ok(Listen::Off);
    }
    let listen = if given.origin == Origin::Default { Listen::IfFree } else { Listen::At };
    let allowed = || "allowed are an IP address with a port, such as 0.0.0.0:9464 or [::1]:9464, and off".to_owned();
    given.text.parse().map(listen).map_err(|_| given.refuse(allowed()))
}

fn reply_prefixes(given: &Given, namespace: &Namespace) -> Result<Vec<String>, ConfigError> {
    let prefixes: Vec<String> = given.text.split(',').map(|prefix| prefix.trim().to_owned()).collect();
    if prefixes.len() > MAX_REPLY_PREFIXES {
        return Err(given.refuse(format!("at most {MAX_REPLY_PREFIXES} prefixes are allowed")));
    }
    for prefix in &prefixes {
        check_reply_prefix(prefix, namespace).map_err(|problem| given.refuse(problem))?;
    }
    for (index, prefix) in prefixes.iter().enumerate() {
        let wider = prefixes.iter().enumerate().find(|(i, wider)| *i != index && prefix.starts_with(wider.as_str()));
        if let Some((_, wider)) = wider {
            return Err(given.no_effect(&format!("{prefix:?} is covered by {wider:?}; leave it out")));
        }
    }
    Ok(prefixes)
}

fn check_reply_prefix(prefix: &str, namespace: &Namespace) -> Result<(), String> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>');
    if prefix.is_empty() || prefix.contains(bad) {
        let allowed = "allowed are beginnings of subjects such as _INBOX. with commas between, without wildcards";
        return Err(allowed.to_owned());
    }
    // Whoever may send a request could otherwise have a router or a worker write there in its place.
    let own = format!("{namespace}.");
    if prefix.starts_with('$') || own.starts_with(prefix) || prefix.starts_with(&own) {
        let problem = "would let a frontend have replies written to the server's own subjects ($…) or to";
        return Err(format!("{prefix:?} {problem} {own}>"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
