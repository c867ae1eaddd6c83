//! The configuration of a gateway, from the same sources by the same rules as a router's.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::file::Shape;
use super::setting::{self, Sources};
use super::{
    ConfigError, DAY, DRAIN_TIMEOUT, Flags, Given, REQUEST_TIMEOUT, Setting, access, choice, duration, jobs, namespace,
};
use crate::core::id::Namespace;
use crate::nats::Access;
use crate::telemetry::logging::LogFormat;

/// Smallest and largest body that may be allowed, in bytes.
pub const MAX_BODY: (u64, u64) = (1 << 10, 1 << 30);
/// Smallest and largest file of a batch that may be allowed, in bytes.
pub const MAX_FILE: (u64, u64) = (1 << 10, 4 << 30);
/// Shortest and longest silence that may be allowed before and within an answer.
pub const SILENCE: (Duration, Duration) = (Duration::from_millis(100), DAY);
/// Shortest and longest time that bodies and files may be kept.
pub const KEPT: (Duration, Duration) = (Duration::from_secs(60), DAY.saturating_mul(365));
/// Most requests at a time that may be allowed.
pub const MAX_REQUESTS: u64 = 1 << 17;
/// Most further headers and origins that may be named.
pub const MAX_NAMES: usize = 64;

/// Everything that a gateway is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Where and as whom it connects to NATS.
    pub access: Access,
    /// The namespace of the routers.
    pub namespace: Namespace,
    /// Where HTTP is served.
    pub listen: SocketAddr,
    /// Certificate chain and private key, in PEM; plain HTTP without.
    pub tls: Option<TlsFiles>,
    /// File of API keys; without it, nobody needs one.
    pub api_keys: Option<PathBuf>,
    /// Which pages of other origins may read answers.
    pub cors: Cors,
    /// Largest body, in bytes.
    pub max_body: usize,
    /// What becomes of bodies that a NATS message can't hold.
    pub large_bodies: LargeBodies,
    /// Bodies from this size on, in bytes, are sent straight to their ranks where routers say which; `None` sends none so.
    pub decide_from: Option<usize>,
    /// Most requests at a time.
    pub max_requests: usize,
    /// How long a request may wait for a worker; `None` leaves it to the routers.
    pub request_timeout: Option<Duration>,
    /// Longest silence before the first token, or the whole of an answer that is not streamed.
    pub answer_timeout: Duration,
    /// Longest silence within a streamed answer.
    pub idle_timeout: Duration,
    /// Further headers of clients that are carried to the workers, in lower case.
    pub forward_headers: Vec<String>,
    /// Whether clients may say where their requests go and how urgent they are.
    pub client_hints: ClientHints,
    /// Whether answers say where they come from.
    pub placement_headers: PlacementHeaders,
    /// Files and batches.
    pub batches: Batches,
    /// How many servers keep what this gateway makes.
    pub replicas: usize,
    /// How long a stopping gateway waits for its requests to end.
    pub drain_timeout: Duration,
    /// How log lines are written.
    pub log_format: LogFormat,
}

/// Certificate chain and private key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, the server's own certificate first.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Which pages of other origins may read answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cors {
    /// None.
    Off,
    /// Those of any origin.
    Any,
    /// Those of these origins.
    Origins(Vec<String>),
}

/// What becomes of bodies that a NATS message can't hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LargeBodies {
    /// They travel through the object store.
    ObjectStore {
        /// How long they may lie there.
        max_age: Duration,
    },
    /// They are refused.
    Refused,
}

/// Whether clients may say where their requests go and how urgent they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientHints {
    /// What they say is dropped.
    Dropped,
    /// What they say is carried to the routers.
    Carried,
}

/// Whether answers say where they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementHeaders {
    /// They do.
    Shown,
    /// They don't.
    Hidden,
}

/// Files and batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batches {
    /// There are none.
    Off,
    /// They are served.
    On {
        /// Largest file, in bytes.
        max_file: u64,
        /// How long files and batches are kept.
        max_age: Duration,
    },
}

static LISTEN: Setting = Setting::new(
    "listen",
    "ADDRESS",
    "127.0.0.1:8080",
    "Where the APIs, /healthz, /readyz and /metrics are served over HTTP; port 0 is any free port",
);
static HTTPS_CERT: Setting =
    Setting::optional("https_cert", "FILE", "Certificate chain in PEM: HTTPS is served in place of HTTP");
static HTTPS_KEY: Setting = Setting::optional("https_key", "FILE", "Private key of the certificate, in PEM");
static API_KEYS: Setting = Setting::optional(
    "api_keys",
    "FILE",
    "File of API keys, a line each: sha256:{64 hex digits of the key's SHA-256}, a space, the tenant whose key it is. \
     Without it nobody needs a key",
);
static CORS_ORIGINS: Setting = Setting::optional(
    "cors_origins",
    "ORIGINS",
    "Web pages of these origins may read answers, such as https://chat.example; * is any; in the file, an array",
);
static MAX_BODY_SIZE: Setting =
    Setting::new("max_body", "SIZE", "64MB", "Largest body of a request, such as 512KB or 64MB (of 1,024 KB)");
static LARGE_BODIES: Setting = Setting::new(
    "large_bodies",
    "object-store|refuse",
    "object-store",
    "What becomes of bodies that a NATS message can't hold (max_payload less 8 KiB): they travel through the object store \
     {namespace}_bodies, or are refused with 413",
);
static BODIES_MAX_AGE: Setting = Setting::new(
    "bodies_max_age",
    "DURATION",
    "1h",
    "How long such a body may lie in the object store, where this gateway makes it; it is deleted once the request has ended",
);
static DECIDE_FROM: Setting = Setting::new(
    "decide_from",
    "SIZE|off",
    "off",
    "Bodies from this size on, such as 64KB, are sent straight to their ranks, where routers (--decide-mode) say which: the \
     body passes the server once. This gateway's user has to be allowed to (nats-permissions --deciding-gateway)",
);
static MAX_REQUESTS_AT_A_TIME: Setting =
    Setting::new("max_requests", "COUNT", "16384", "Most requests under way at a time; more are answered 503");
static WAIT: Setting = Setting::optional(
    "request_timeout",
    "DURATION",
    "How long a request may wait for a worker (Rankpin-Timeout-Ms); without it, as long as the routers let it",
);
static ANSWER_TIMEOUT: Setting = Setting::new(
    "answer_timeout",
    "DURATION",
    "10m",
    "Longest silence before the first token of a streamed answer, or before the whole of another; comes on top of the time \
     that the request may wait for a worker",
);
static IDLE_TIMEOUT: Setting =
    Setting::new("idle_timeout", "DURATION", "1m", "Longest silence within a streamed answer");
static FORWARD_HEADERS: Setting = Setting::optional(
    "forward_headers",
    "NAMES",
    "Further headers of clients that are carried to the workers; credentials too, where they are named; in the file, an array",
);
static CLIENT_HINTS: Setting = Setting::new(
    "client_hints",
    "true|false",
    "false",
    "Let clients choose worker, rank, pool, priority, timeout and deadline by the headers of the protocol",
);
static PLACEMENT_HEADERS: Setting = Setting::new(
    "placement_headers",
    "true|false",
    "true",
    "Say in answers where they come from: x-rankpin-worker, x-rankpin-dp-rank, x-rankpin-decision",
);
static BATCHES: Setting = Setting::new(
    "batches",
    "on|off",
    "on",
    "Serve /v1/files and /v1/batches, over durable jobs and the object store {namespace}_files",
);
static MAX_FILE_SIZE: Setting = Setting::new("max_file", "SIZE", "200MB", "Largest file of a batch");
static FILES_MAX_AGE: Setting = Setting::new(
    "files_max_age",
    "DURATION",
    "30d",
    "How long files and batches are kept, where this gateway makes their buckets",
);

static REPLICAS: Setting = Setting::new(
    "replicas",
    "COUNT",
    "1",
    "Servers that keep the object stores and the bucket of batches, 1 to 5, where this gateway makes them",
);

static INBOX_PREFIX: Setting = Setting::optional(
    "inbox_prefix",
    "PREFIX",
    "Prefix of this gateway's inboxes, where its user may not subscribe to all (without it, _INBOX)",
);

/// All settings of a gateway that may stand in the file, in the order of the help.
pub static SETTINGS: [&Setting; 34] = [
    &setting::NATS_URL,
    &setting::CONTEXT,
    &setting::CREDS,
    &setting::NKEY,
    &setting::USER,
    &setting::PASSWORD,
    &setting::TOKEN,
    &setting::TLS_CA,
    &setting::TLS_CERT,
    &setting::TLS_KEY,
    &INBOX_PREFIX,
    &setting::NAMESPACE,
    &LISTEN,
    &HTTPS_CERT,
    &HTTPS_KEY,
    &API_KEYS,
    &CORS_ORIGINS,
    &FORWARD_HEADERS,
    &CLIENT_HINTS,
    &PLACEMENT_HEADERS,
    &MAX_BODY_SIZE,
    &LARGE_BODIES,
    &BODIES_MAX_AGE,
    &DECIDE_FROM,
    &MAX_REQUESTS_AT_A_TIME,
    &WAIT,
    &ANSWER_TIMEOUT,
    &IDLE_TIMEOUT,
    &BATCHES,
    &MAX_FILE_SIZE,
    &FILES_MAX_AGE,
    &REPLICAS,
    &setting::DRAIN_TIMEOUT,
    &setting::LOG_FORMAT,
];

static OF_GATEWAY: Shape = Shape { settings: &SETTINGS, lists: &[] };

/// The configuration from flags, environment (asked by name) and the file that one of these names, in this
/// precedence; defaults for the rest.
pub fn resolve(flags: &Flags, environment: &dyn Fn(&str) -> Option<String>) -> Result<GatewayConfig, ConfigError> {
    let sources = Sources::open(flags, environment, OF_GATEWAY)?;
    let config = GatewayConfig {
        access: Access { inbox_prefix: sources.find(&INBOX_PREFIX).map(|given| given.text), ..access::read(&sources)? },
        namespace: namespace(&sources.get(&setting::NAMESPACE))?,
        listen: listen(&sources.get(&LISTEN))?,
        tls: tls(&sources)?,
        api_keys: sources.find(&API_KEYS).map(|given| given.text.into()),
        cors: sources.find(&CORS_ORIGINS).map_or(Ok(Cors::Off), |given| cors(&given))?,
        max_body: usize::try_from(size(&sources.get(&MAX_BODY_SIZE), MAX_BODY)?).unwrap_or(usize::MAX),
        large_bodies: large_bodies(&sources)?,
        decide_from: decide_from(&sources.get(&DECIDE_FROM))?,
        max_requests: max_requests(&sources.get(&MAX_REQUESTS_AT_A_TIME))?,
        request_timeout: sources.find(&WAIT).map(|given| duration(&given, REQUEST_TIMEOUT)).transpose()?,
        answer_timeout: duration(&sources.get(&ANSWER_TIMEOUT), SILENCE)?,
        idle_timeout: duration(&sources.get(&IDLE_TIMEOUT), SILENCE)?,
        forward_headers: sources.find(&FORWARD_HEADERS).map_or(Ok(Vec::new()), |given| header_names(&given))?,
        client_hints: choice(&sources.get(&CLIENT_HINTS), &HINTS)?,
        placement_headers: choice(&sources.get(&PLACEMENT_HEADERS), &SHOWN)?,
        batches: batches(&sources)?,
        replicas: jobs::replicas(&sources.get(&REPLICAS))?,
        drain_timeout: duration(&sources.get(&setting::DRAIN_TIMEOUT), DRAIN_TIMEOUT)?,
        log_format: choice(&sources.get(&setting::LOG_FORMAT), &LogFormat::NAMED)?,
    };
    access::refuse_what_has_no_effect(&sources, &config.access)?;
    let makes_nothing = (config.large_bodies, config.batches) == (LargeBodies::Refused, Batches::Off);
    if let (true, Some(given)) = (makes_nothing, sources.find(&REPLICAS)) {
        return Err(given.no_effect("with large_bodies refuse and batches off nothing is kept; leave it out"));
    }
    Ok(config)
}

const HINTS: [(&str, ClientHints); 2] = [("false", ClientHints::Dropped), ("true", ClientHints::Carried)];
const SHOWN: [(&str, PlacementHeaders); 2] = [("true", PlacementHeaders::Shown), ("false", PlacementHeaders::Hidden)];
const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];
const THROUGH_STORE: [(&str, bool); 2] = [("object-store", true), ("refuse", false)];

fn listen(given: &Given) -> Result<SocketAddr, ConfigError> {
    let allowed = || "allowed is an IP address with a port, such as 0.0.0.0:8080 or [::1]:8080".to_owned();
    given.text.parse().map_err(|_| given.refuse(allowed()))
}

fn tls(sources: &Sources<'_>) -> Result<Option<TlsFiles>, ConfigError> {
    match (sources.find(&HTTPS_CERT), sources.find(&HTTPS_KEY)) {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert: cert.text.into(), key: key.text.into() })),
        (Some(alone), None) => Err(alone.no_effect("without https_key there is no HTTPS; give both or none")),
        (None, Some(alone)) => Err(alone.no_effect("without https_cert there is no HTTPS; give both or none")),
        (None, None) => Ok(None),
    }
}

fn decide_from(given: &Given) -> Result<Option<usize>, ConfigError> {
    match given.text.as_str() {
        "off" => Ok(None),
        _ => Ok(Some(usize::try_from(size(given, MAX_BODY)?).unwrap_or(usize::MAX))),
    }
}

fn large_bodies(sources: &Sources<'_>) -> Result<LargeBodies, ConfigError> {
    let max_age = duration(&sources.get(&BODIES_MAX_AGE), KEPT)?;
    if choice(&sources.get(&LARGE_BODIES), &THROUGH_STORE)? {
        return Ok(LargeBodies::ObjectStore { max_age });
    }
    match sources.find(&BODIES_MAX_AGE) {
        Some(given) => Err(given.no_effect("large_bodies is refuse; leave one of the two out")),
        None => Ok(LargeBodies::Refused),
    }
}

fn batches(sources: &Sources<'_>) -> Result<Batches, ConfigError> {
    let (max_file, max_age) = (size(&sources.get(&MAX_FILE_SIZE), MAX_FILE)?, sources.get(&FILES_MAX_AGE));
    let max_age = duration(&max_age, KEPT)?;
    if choice(&sources.get(&BATCHES), &SWITCH)? {
        return Ok(Batches::On { max_file, max_age });
    }
    match [&MAX_FILE_SIZE, &FILES_MAX_AGE].into_iter().find_map(|setting| sources.find(setting)) {
        Some(given) => Err(given.no_effect("batches is off; leave one of the two out")),
        None => Ok(Batches::Off),
    }
}

fn max_requests(given: &Given) -> Result<usize, ConfigError> {
    let parsed = given.text.parse::<u64>().ok().filter(|number| (1..=MAX_REQUESTS).contains(number));
    let parsed = parsed.and_then(|number| usize::try_from(number).ok());
    parsed.ok_or_else(|| given.refuse(format!("allowed is a whole number from 1 to {MAX_REQUESTS}")))
}

/// A size with its unit: B, KB, MB or GB, of 1,024 of the one before.
fn size(given: &Given, (least, most): (u64, u64)) -> Result<u64, ConfigError> {
    let text = given.text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let unit = match text[digits..].trim() {
        "B" => Some(0),
        "KB" | "KiB" => Some(10),
        "MB" | "MiB" => Some(20),
        "GB" | "GiB" => Some(30),
        _ => None,
    };
    let number = text[..digits].parse::<u64>().ok();
    let bytes = unit.zip(number).and_then(|(unit, number)| number.checked_mul(1 << unit));
    bytes.filter(|bytes| (least..=most).contains(bytes)).ok_or_else(|| {
        let allowed = "allowed is a size with its unit (B, KB, MB, GB, of 1,024 each)";
        given.refuse(format!("{allowed} from {} KB to {} MB, such as 64MB", least >> 10, most >> 20))
    })
}

fn names(given: &Given) -> Result<Vec<String>, ConfigError> {
    let names: Vec<String> =
        given.text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    if names.len() > MAX_NAMES {
        return Err(given.refuse(format!("at most {MAX_NAMES} are allowed")));
    }
    Ok(names)
}

fn header_names(given: &Given) -> Result<Vec<String>, ConfigError> {
    let names: Vec<String> = names(given)?.iter().map(|name| name.to_ascii_lowercase()).collect();
    for name in &names {
        let is_token = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
        // Those are the gateway's own word, on which routers rely.
        if !is_token || name.starts_with("rankpin-") || name.starts_with("nats-") {
            let allowed = "allowed are names of HTTP headers that don't begin with rankpin- or nats-";
            return Err(given.refuse(format!("{name:?} is not allowed; {allowed}")));
        }
    }
    Ok(names)
}

fn cors(given: &Given) -> Result<Cors, ConfigError> {
    let origins = names(given)?;
    if origins.iter().any(|origin| origin == "*") {
        return match origins.len() {
            1 => Ok(Cors::Any),
            _ => Err(given.no_effect("* is any origin; leave the others out")),
        };
    }
    for origin in &origins {
        let host = origin.split_once("://").map(|(_, host)| host);
        if host.is_none_or(|host| host.is_empty() || host.contains(['/', ' ', '*'])) {
            let allowed = "allowed are origins such as https://chat.example:8443 without a path, and * for any";
            return Err(given.refuse(format!("{origin:?} is none; {allowed}")));
        }
    }
    Ok(if origins.is_empty() { Cors::Off } else { Cors::Origins(origins) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(flags: &[(&'static str, &str)]) -> Result<GatewayConfig, String> {
        let flags: Flags = flags.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
        resolve(&flags, &|_| None).map_err(|e| e.to_string())
    }

    /// Every key with a value that is not the default.
    const EVERY_KEY: &str = r#"
        nats_url = "nats://a:4222,nats://b:4222"
        context = "prod"
        creds = "/etc/nats.creds"
        tls_ca = "/etc/ca.pem"
        tls_cert = "/etc/client.pem"
        tls_key = "/etc/client.key"
        inbox_prefix = "_INBOX.gateway"
        namespace = "eu-1"
        listen = "0.0.0.0:443"
        https_cert = "/etc/cert.pem"
        https_key = "/etc/key.pem"
        api_keys = "/etc/keys"
        cors_origins = ["https://a.example", "http://b.example:8080"]
        forward_headers = ["X-Tier", "authorization"]
        client_hints = true
        placement_headers = false
        max_body = "8MB"
        large_bodies = "object-store"
        bodies_max_age = "10m"
        decide_from = "64KB"
        max_requests = 100
        request_timeout = "5s"
        answer_timeout = "2m"
        idle_timeout = "30s"
        batches = "on"
        max_file = "1GB"
        files_max_age = "7d"
        replicas = 3
        drain_timeout = "1m"
        log_format = "json"
    "#;

    #[test]
    fn every_key_of_the_file_is_read() {
        let dir = tempfile::tempdir().expect("a temp directory can be made");
        let path = dir.path().join("gateway.toml");
        std::fs::write(&path, EVERY_KEY).expect("a temp directory takes files");
        let table: toml::Table = EVERY_KEY.parse().expect("TOML");
        // Of the logins only one may be given.
        let others = ["nkey", "user", "password", "token"];
        let missing = |setting: &&&Setting| !table.contains_key(setting.key) && !others.contains(&setting.key);
        assert_eq!(SETTINGS.iter().find(missing).map(|setting| setting.key), None, "a setting is missing in EVERY_KEY");
        let config = with(&[("config", path.to_str().expect("UTF-8"))]).expect("valid");
        let expected = GatewayConfig {
            access: Access {
                context: Some("prod".into()),
                creds: Some("/etc/nats.creds".into()),
                tls_ca: Some("/etc/ca.pem".into()),
                tls_cert: Some("/etc/client.pem".into()),
                tls_key: Some("/etc/client.key".into()),
                inbox_prefix: Some("_INBOX.gateway".into()),
                ..Access::at("nats://a:4222,nats://b:4222")
            },
            namespace: Namespace::new("eu-1").expect("valid"),
            listen: ([0, 0, 0, 0], 443).into(),
            tls: Some(TlsFiles { cert: "/etc/cert.pem".into(), key: "/etc/key.pem".into() }),
            api_keys: Some("/etc/keys".into()),
            cors: Cors::Origins(vec!["https://a.example".into(), "http://b.example:8080".into()]),
            max_body: 8 << 20,
            large_bodies: LargeBodies::ObjectStore { max_age: Duration::from_secs(600) },
            decide_from: Some(64 << 10),
            max_requests: 100,
            request_timeout: Some(Duration::from_secs(5)),
            answer_timeout: Duration::from_secs(120),
            idle_timeout: Duration::from_secs(30),
            forward_headers: vec!["x-tier".into(), "authorization".into()],
            client_hints: ClientHints::Carried,
            placement_headers: PlacementHeaders::Hidden,
            batches: Batches::On { max_file: 1 << 30, max_age: DAY * 7 },
            replicas: 3,
            drain_timeout: Duration::from_secs(60),
            log_format: LogFormat::Json,
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn defaults() {
        let config = with(&[]).expect("the defaults are valid");
        assert_eq!((config.listen, config.max_body), (([127, 0, 0, 1], 8080).into(), 64 << 20));
        assert_eq!((config.cors, config.api_keys, config.tls), (Cors::Off, None, None));
        assert_eq!((config.client_hints, config.decide_from), (ClientHints::Dropped, None));
        assert_eq!(config.placement_headers, PlacementHeaders::Shown);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (flags, told) in [
            (&[("listen", "8080")][..], "--listen: listen is \"8080\"; allowed is an IP address"),
            (&[("max_body", "64")], "max_body is \"64\"; allowed is a size with its unit"),
            (&[("max_body", "2GB")], "from 1 KB to 1024 MB"),
            (&[("max_requests", "0")], "from 1 to 131072"),
            (&[("forward_headers", "Rankpin-Tenant")], "\"rankpin-tenant\" is not allowed"),
            (&[("forward_headers", "a b")], "\"a b\" is not allowed"),
            (&[("cors_origins", "example.com")], "\"example.com\" is none"),
            (&[("cors_origins", "*,https://a")], "leave the others out"),
            (&[("https_cert", "c")], "--https-cert: https_cert can have no effect"),
            (&[("https_key", "k")], "--https-key: https_key can have no effect"),
            (&[("tls_key", "k")], "--tls-key: tls_key can have no effect"),
            (&[("large_bodies", "refuse"), ("bodies_max_age", "1h")], "bodies_max_age can have no effect"),
            (&[("batches", "off"), ("max_file", "1MB")], "max_file can have no effect"),
            (&[("large_bodies", "refuse"), ("batches", "off"), ("replicas", "3")], "replicas can have no effect"),
            (&[("nats_url", "nats://u:p@h"), ("creds", "f")], "creds can have no effect"),
        ] {
            let error = with(flags).expect_err(told);
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_router_key_in_a_gateways_file_is_an_error() {
        let dir = tempfile::tempdir().expect("a temp directory can be made");
        let path = dir.path().join("gateway.toml");
        for (text, told) in
            [("pin_ttl = \"1h\"", "there is no setting pin_ttl"), ("[[worker]]\nid = \"w\"", "no setting worker")]
        {
            std::fs::write(&path, text).expect("a temp directory takes files");
            let error = with(&[("config", path.to_str().expect("UTF-8"))]).expect_err(text);
            assert!(error.contains(told), "{error}");
        }
    }
}
