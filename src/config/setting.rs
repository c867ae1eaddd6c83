//! One table of all settings: flags, environment variables, file keys, defaults and help texts come from it.

use std::fmt;

use super::file::{AliasEntry, ConfigFile, PoolEntry, Shape, Table, WorkerEntry};
use super::{ConfigError, Flags, partition};
use crate::nats::access::Urls;

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// Its key in the file, after a dot where it stands in a table; the flag is the same with `-` for `_` and dot, the
    /// variable the same with `_`, in upper case after `RANKPIN_`.
    pub key: &'static str,
    /// What stands for its value in the help.
    pub value: &'static str,
    /// Its value where nothing is given; none where there then is none.
    pub default: Option<&'static str>,
    /// Other variables that count, after its own.
    pub also: &'static [&'static str],
    /// What it does.
    pub help: &'static str,
}

impl Setting {
    pub(super) const fn new(key: &'static str, value: &'static str, default: &'static str, help: &'static str) -> Self {
        Self { key, value, default: Some(default), also: &[], help }
    }

    /// Whether its value is never shown.
    pub fn is_secret(&self) -> bool {
        matches!(self.key, "password" | "token")
    }

    /// The flag, without the dashes.
    pub fn flag(&self) -> String {
        self.key.replace(['_', '.'], "-")
    }

    /// The environment variables, the first that is set counts.
    pub fn variables(&self) -> impl Iterator<Item = String> {
        let own = format!("RANKPIN_{}", self.key.replace('.', "_").to_ascii_uppercase());
        std::iter::once(own).chain(self.also.iter().map(|name| (*name).to_owned()))
    }

    /// Whether its value is a whole number.
    pub fn is_count(&self) -> bool {
        self.value.split('|').any(|value| value == "COUNT")
    }

    /// Whether its value is a number that need not be whole.
    pub fn is_number(&self) -> bool {
        self.value.split('|').any(|value| value == "NUMBER")
    }

    /// A setting without a default.
    pub(super) const fn optional(key: &'static str, value: &'static str, help: &'static str) -> Self {
        Self { key, value, default: None, also: &[], help }
    }

    /// Whether the flag may stand without a value.
    pub fn is_switch(&self) -> bool {
        self.default == Some("false")
    }
}

/// The file; the one setting that can't stand in it.
pub static CONFIG: Setting = Setting {
    key: "config",
    value: "FILE",
    default: None,
    also: &[],
    help: "TOML file with settings, keys as the flags with _ for -, and [[worker]], [[alias]] and [[pool]] tables",
};

pub(super) static NATS_URL: Setting = Setting {
    also: &["NATS_URL"],
    ..Setting::new(
        "nats_url",
        "URL",
        "nats://127.0.0.1:4222",
        "NATS servers, several with commas between; a login may stand in it (nats://user:password@host)",
    )
};
pub(super) static CREDS: Setting =
    Setting { key: "creds", value: "FILE", default: None, also: &["NATS_CREDS"], help: "Credentials file for NATS" };
pub(super) static CONTEXT: Setting = Setting {
    also: &["NATS_CONTEXT"],
    ..Setting::optional(
        "context",
        "NAME",
        "Context of the nats command line (~/.config/nats/context/NAME.json, or a path): what is given here outright \
         goes before what it says",
    )
};
pub(super) static NKEY: Setting = Setting {
    also: &["NATS_NKEY"],
    ..Setting::optional("nkey", "FILE", "File with the seed of the user's nkey, instead of credentials")
};
pub(super) static USER: Setting =
    Setting { also: &["NATS_USER"], ..Setting::optional("user", "NAME", "User to connect as, with a password") };
pub(super) static PASSWORD: Setting = Setting {
    also: &["NATS_PASSWORD"],
    ..Setting::optional("password", "TEXT", "The user's password; better as a variable, other users see flags")
};
pub(super) static TOKEN: Setting = Setting {
    also: &["NATS_TOKEN"],
    ..Setting::optional("token", "TEXT", "Token to connect with; better as a variable, other users see flags")
};
pub(super) static TLS_CA: Setting = Setting {
    also: &["NATS_CA"],
    ..Setting::optional("tls_ca", "FILE", "PEM file of the authorities that are believed, instead of the system's")
};
pub(super) static TLS_CERT: Setting = Setting {
    also: &["NATS_CERT"],
    ..Setting::optional("tls_cert", "FILE", "PEM file of this client's certificate, where the server asks for one")
};
pub(super) static TLS_KEY: Setting =
    Setting { also: &["NATS_KEY"], ..Setting::optional("tls_key", "FILE", "PEM file of the certificate's key") };
pub(super) static NAMESPACE: Setting =
    Setting::new("namespace", "NAME", "rankpin", "First token of every subject, and prefix of the buckets");
pub(super) static LEVEL: Setting = Setting::new(
    "level",
    "worker|global",
    "worker",
    "What this router places requests on: workers, or pools ([[pool]]), whose own routers place them on workers",
);
pub(super) static POOL_POLICY: Setting = Setting::new(
    "pool_policy",
    "NAME",
    "affinity",
    "How a new session gets its pool ([[pool]]): affinity (by its hash and the weights), weighted (by chance), priority \
     (the first in the file that has room)",
);
pub(super) static POLICY: Setting = Setting::new(
    "policy",
    "NAME",
    "round-robin",
    "How a worker is chosen where no pin decides: round-robin, random, power-of-two (the less loaded of two by chance), \
     least-loaded, device-aware-weighted (a kind of device by its workers' weights, in it the least loaded), kv (the rank \
     where prefill and load cost least, by what it is expected to have cached; reads every body)",
);
pub(super) static KV_PREFILL_WEIGHT: Setting =
    Setting::new("kv_prefill_weight", "NUMBER", "1", "Policy kv: what a token costs that is still to be prefilled");
pub(super) static KV_LOAD_WEIGHT: Setting = Setting::new(
    "kv_load_weight",
    "NUMBER",
    "1",
    "Policy kv: what a token costs that is to be prefilled there for others, and with it what work above the fleet's mean costs",
);
pub(super) static KV_TEMPERATURE: Setting = Setting::new(
    "kv_temperature",
    "NUMBER",
    "0",
    "Policy kv: how much chance there is in the choice, in prompts; 0 takes the least cost",
);
pub(super) static BALANCE_LIMIT: Setting = Setting::new(
    "balance_limit",
    "NUMBER|off",
    "1.12",
    "How many times the fleet's mean of recent work a rank may have before soft affinity moves its sessions and the policy kv \
     places elsewhere",
);
pub(super) static BALANCE_HALF_LIFE: Setting = Setting::new(
    "balance_half_life",
    "DURATION",
    "4h",
    "After how long work counts half in what a rank was given lately",
);
pub(super) static RANK_CHOICE: Setting = Setting::new(
    "rank_choice",
    "hash|least-loaded",
    "hash",
    "How a named session gets its rank on the worker chosen for it: by the hash of the session (with soft affinity none: \
     the engine chooses), or the least loaded one",
);
pub(super) static AFFINITY: Setting = Setting::new(
    "affinity",
    "hard|soft|off",
    "hard",
    "How strongly a session holds to its worker and rank: hard never leaves them while they exist, soft leaves them \
     when they are overloaded, off reads no session at all",
);
pub(super) static PIN_TTL: Setting =
    Setting::new("pin_ttl", "DURATION", "1h", "How long a session that is not used stays pinned");
pub(super) static MAX_DERIVED_PINS: Setting = Setting::new(
    "max_derived_pins",
    "COUNT",
    "1048576",
    "Most pins of sessions that nothing names; beyond, such sessions are routed and not pinned. Named ones are never kept out",
);
pub(super) static ACCEPT_TIMEOUT: Setting = Setting::new(
    "accept_timeout",
    "DURATION",
    "2s",
    "How long a worker may take to accept a request before it is tried elsewhere",
);
pub(super) static REQUEST_TIMEOUT: Setting = Setting::new(
    "request_timeout",
    "DURATION",
    "30s",
    "How long a request may wait until a worker accepts it, where it does not set Rankpin-Timeout-Ms",
);
pub(super) static MAX_WAITING: Setting = Setting::new(
    "max_waiting",
    "COUNT",
    "4096",
    "Most requests of one model that wait in this router while no worker has room (max_inflight); beyond, the least \
     important is answered 429 overloaded",
);
pub(super) static FULL_AT_KV_USE: Setting = Setting::new(
    "full_at_kv_use",
    "PERCENT|off",
    "off",
    "A rank that reports so much of its kv_blocks in use counts as full, such as 95%",
);
pub(super) static FULL_AT_QUEUED: Setting = Setting::new(
    "full_at_queued",
    "COUNT|off",
    "off",
    "A rank that reports as many requests accepted and not begun counts as full",
);
pub(super) static PROVISION: Setting = Setting::new(
    "provision",
    "auto|never",
    "auto",
    "Whether missing buckets and streams are made; with never, the absence of a bucket is an error, and without the \
     streams there are no jobs",
);
pub(super) static REPLICAS: Setting = Setting::new(
    "replicas",
    "COUNT",
    "1",
    "Servers that keep the buckets of pins and registrations, 1 to 5, where this router makes them; 3 in a cluster of NATS \
     servers, so that one may be lost",
);
pub(super) static REPLY_PREFIXES: Setting = Setting::new(
    "reply_prefixes",
    "PREFIXES",
    "_INBOX.,_INBOX_",
    "Requests are answered only on reply subjects that begin with one of these; in the file, an array",
);
pub(super) static DRAIN_TIMEOUT: Setting = Setting::new(
    "drain_timeout",
    "DURATION",
    "30s",
    "How long a router that was told to stop (SIGTERM, SIGINT) waits for its requests to end",
);
pub(super) static LISTEN: Setting = Setting::new(
    "listen",
    "ADDRESS|off",
    "127.0.0.1:9464",
    "Where /healthz, /readyz and /metrics are served over HTTP; port 0 is any free port. The default is left out, with a \
     warning, where another process has it",
);
pub(super) static LOG_FORMAT: Setting =
    Setting::new("log_format", "text|json", "text", "How log lines are written to stderr");
pub(super) static UNTRUSTED_FRONTENDS: Setting = Setting::new(
    "untrusted_frontends",
    "true|false",
    "false",
    "Believe Rankpin-Tenant and Rankpin-Priority only on {namespace}.trusted.{model}, where gateways publish",
);

pub(super) static DECIDE_MODE: Setting = Setting::new(
    "decide_mode",
    "true|false",
    "false",
    "Let frontends that may publish to {namespace}.decide.{model} ask with the headers alone where a request goes, and send \
     its body there themselves (gateways: --decide-from)",
);
pub(super) static SESSION_HEADERS: Setting = Setting {
    key: "session.headers",
    value: "NAMES",
    default: None,
    also: &[],
    help: "Further headers that name a session where none of the protocol's does, the first that is there counts; in \
           the file, an array in the table [session]",
};
pub(super) static SESSION_BODY_FIELDS: Setting = Setting {
    key: "session.body_fields",
    value: "FIELDS",
    default: None,
    also: &[],
    help: "Fields of the body that name a session where no header does, the first that is there counts, of \
           prompt_cache_key, metadata.user_id, conversation and session_id; in the file, an array in the table [session]",
};

pub(super) static GROUP_SUBAGENTS: Setting = Setting::new(
    "group_subagents",
    "true|false",
    "false",
    "Place sessions that name one parent (Rankpin-Parent-Session-Id, or the header of a known client) on one worker and \
     rank, where there is room",
);

pub(super) static MAX_JOBS: Setting = Setting::new(
    "max_jobs",
    "COUNT",
    "256",
    "Most durable jobs that this router holds at a time, running or waiting for room at a worker; 0 takes none",
);
pub(super) static JOBS_REPLICAS: Setting = Setting::new(
    "jobs.replicas",
    "COUNT",
    "1",
    "Servers that keep the streams of jobs, 1 to 5, where this router makes them",
);
pub(super) static JOBS_STORAGE: Setting = Setting::new(
    "jobs.storage",
    "file|memory",
    "file",
    "Where the streams of jobs are kept, where this router makes them; in memory, jobs don't survive the server",
);
pub(super) static JOBS_MAX_MESSAGES: Setting = Setting::new(
    "jobs.max_messages",
    "COUNT",
    "0",
    "Most jobs that may wait, where this router makes the stream; more are refused when they are submitted. 0 is \
     without a limit",
);
pub(super) static JOBS_MAX_BYTES: Setting =
    Setting::new("jobs.max_bytes", "COUNT", "0", "The same in bytes; 0 is without a limit");
pub(super) static JOBS_RESULTS_MAX_AGE: Setting = Setting::new(
    "jobs.results_max_age",
    "DURATION",
    "24h",
    "How long results of jobs are kept, where this router makes the stream; a job that is submitted again within that \
     time under its id is not run again",
);
pub(super) static JOBS_DUPLICATE_WINDOW: Setting = Setting::new(
    "jobs.duplicate_window",
    "DURATION",
    "1h",
    "How long the stream of jobs, where this router makes it, remembers message ids and takes the same one once",
);

/// All settings that may stand in the file, in the order of the help.
pub static SETTINGS: [&Setting; 48] = [
    &NATS_URL,
    &CONTEXT,
    &CREDS,
    &NKEY,
    &USER,
    &PASSWORD,
    &TOKEN,
    &TLS_CA,
    &TLS_CERT,
    &TLS_KEY,
    &NAMESPACE,
    &LEVEL,
    &POOL_POLICY,
    &POLICY,
    &RANK_CHOICE,
    &KV_PREFILL_WEIGHT,
    &KV_LOAD_WEIGHT,
    &KV_TEMPERATURE,
    &AFFINITY,
    &BALANCE_LIMIT,
    &BALANCE_HALF_LIFE,
    &SESSION_HEADERS,
    &SESSION_BODY_FIELDS,
    &GROUP_SUBAGENTS,
    &partition::PARTITIONS,
    &partition::PARTITION,
    &PIN_TTL,
    &MAX_DERIVED_PINS,
    &ACCEPT_TIMEOUT,
    &REQUEST_TIMEOUT,
    &MAX_WAITING,
    &FULL_AT_KV_USE,
    &FULL_AT_QUEUED,
    &MAX_JOBS,
    &JOBS_REPLICAS,
    &JOBS_STORAGE,
    &JOBS_MAX_MESSAGES,
    &JOBS_MAX_BYTES,
    &JOBS_RESULTS_MAX_AGE,
    &JOBS_DUPLICATE_WINDOW,
    &PROVISION,
    &REPLICAS,
    &REPLY_PREFIXES,
    &DRAIN_TIMEOUT,
    &LISTEN,
    &LOG_FORMAT,
    &UNTRUSTED_FRONTENDS,
    &DECIDE_MODE,
];

/// Where a value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag, with its dashes.
    Flag(String),
    /// An environment variable.
    Variable(String),
    /// A line of the file, from 1.
    File {
        /// The file.
        path: String,
        /// The line.
        line: usize,
    },
    /// Nowhere: it is the default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::File { path, line } => write!(f, "{path}, line {line}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value as it was written.
#[derive(Clone, PartialEq, Eq)]
pub struct Given {
    /// The setting's key.
    pub key: &'static str,
    /// The text.
    pub text: String,
    /// Where it stands.
    pub origin: Origin,
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:?} ({})", self.key, self.shown(), self.origin)
    }
}

impl Given {
    /// The text as it may be shown: no login in it.
    pub fn shown(&self) -> String {
        match self.key {
            "nats_url" if self.text.contains('@') => Urls::new(&*self.text).to_string(),
            "password" | "token" => "(secret)".into(),
            _ => self.text.clone(),
        }
    }

    pub(super) fn refuse(&self, allowed: String) -> ConfigError {
        ConfigError::Value { origin: self.origin.clone(), key: self.key, text: self.shown(), allowed }
    }

    pub(super) fn no_effect(&self, reason: &str) -> ConfigError {
        ConfigError::NoEffect { origin: self.origin.clone(), key: self.key, reason: reason.to_owned() }
    }
}

/// Where values come from, the strongest first.
pub(super) struct Sources<'a> {
    flags: &'a Flags,
    environment: &'a dyn Fn(&str) -> Option<String>,
    file: ConfigFile,
}

impl<'a> Sources<'a> {
    /// Flags and environment, and the file that they name.
    pub(super) fn open(
        flags: &'a Flags,
        environment: &'a dyn Fn(&str) -> Option<String>,
        shape: Shape,
    ) -> Result<Self, ConfigError> {
        let mut sources = Self { flags, environment, file: ConfigFile::default() };
        if let Some(path) = sources.find(&CONFIG) {
            sources.file = ConfigFile::read(&path.text, shape)?;
        }
        Ok(sources)
    }

    /// The value that counts, if one is given. A blank variable is none: that is how compose files unset one.
    pub(super) fn find(&self, setting: &Setting) -> Option<Given> {
        let given = |text, origin| Given { key: setting.key, text, origin };
        if let Some(text) = self.flags.get(setting.key) {
            return Some(given(text.clone(), Origin::Flag(format!("--{}", setting.flag()))));
        }
        let set = |name: &String| (self.environment)(name).filter(|text| !text.trim().is_empty());
        if let Some((name, text)) = setting.variables().find_map(|name| set(&name).map(|text| (name, text))) {
            return Some(given(text, Origin::Variable(name)));
        }
        self.file.find(setting.key)
    }

    /// The value that counts, of a setting that has a default.
    pub(super) fn get(&self, setting: &Setting) -> Given {
        self.find(setting).unwrap_or_else(|| Given {
            key: setting.key,
            text: setting.default.expect("only settings with a default are read so").to_owned(),
            origin: Origin::Default,
        })
    }

    /// The `[[worker]]` tables of the file.
    pub(super) fn workers(&self) -> &[Table<WorkerEntry>] {
        self.file.workers()
    }

    /// The `[[pool]]` tables of the file.
    pub(super) fn pools(&self) -> &[Table<PoolEntry>] {
        self.file.pools()
    }

    /// The `[[alias]]` tables of the file.
    pub(super) fn aliases(&self) -> &[Table<AliasEntry>] {
        self.file.aliases()
    }
}
