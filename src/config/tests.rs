use std::time::Duration;

use super::setting::SETTINGS;
use super::*;
use crate::core::id::Model;
use crate::core::mode::StreamStorage;
use crate::core::pool::Pools;
use crate::core::session::configured::{BodyField, Subagents};

mod tables;

/// Resolves flags, variables and the text of a file.
fn with(flags: &[(&'static str, &str)], variables: &[(&str, &str)], file: &str) -> Result<RouterConfig, String> {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let path = dir.path().join("rankpin.toml");
    std::fs::write(&path, file).expect("a temp directory takes files");
    let mut flags: Flags = flags.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
    flags.insert("config", path.to_str().expect("UTF-8").to_owned());
    let environment =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
    let shown = format!("{}/", dir.path().display());
    resolve(&flags, &environment).map_err(|e| e.to_string().replace(&shown, ""))
}

fn of_file(file: &str) -> Result<RouterConfig, String> {
    with(&[], &[], file)
}

#[test]
fn defaults() {
    let config = resolve(&Flags::new(), &|_| None).expect("the defaults are valid");
    let expected = RouterConfig {
        access: Access::default(),
        namespace: Namespace::new("rankpin").expect("valid"),
        policy: PolicyKind::RoundRobin,
        rank_choice: RankChoice::Hash,
        weighing: Weighing::DEFAULT,
        balance_half_life: Duration::from_secs(4 * 3600),
        affinity: AffinityMode::Hard,
        session: SessionSources::default(),
        partitions: Partitions::undivided(),
        pin_ttl: Duration::from_secs(3600),
        max_derived_pins: 1 << 20,
        accept_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(30),
        max_waiting: 4096,
        full_at: FullAt { kv_percent: None, queued: None },
        jobs: JobsConfig {
            max: 256,
            replicas: 1,
            storage: StreamStorage::File,
            max_messages: None,
            max_bytes: None,
            results_max_age: Duration::from_secs(24 * 3600),
            duplicate_window: Duration::from_secs(3600),
        },
        provision: Provision::Auto,
        replicas: 1,
        reply_prefixes: vec!["_INBOX.".into(), "_INBOX_".into()],
        drain_timeout: Duration::from_secs(30),
        listen: Listen::IfFree(([127, 0, 0, 1], 9464).into()),
        log_format: LogFormat::Text,
        frontends: FrontendTrust::Everywhere,
        decide: DecideMode::Off,
        workers: vec![],
        aliases: Aliases::new(),
        pools: PoolConfig { level: Level::Worker, pools: Pools::default(), targets: vec![] },
    };
    assert_eq!(config, expected);
}

/// Every key with a value that is not the default.
const EVERY_KEY: &str = r#"
    nats_url = "nats://a:4222,nats://b:4222"
    context = "prod"
    creds = "/etc/nats.creds"
    tls_ca = "/etc/ca.pem"
    tls_cert = "/etc/cert.pem"
    tls_key = "/etc/key.pem"
    namespace = "eu-1"
    policy = "kv"
    affinity = "soft"
    rank_choice = "least-loaded"
    kv_prefill_weight = "2.5"
    kv_load_weight = "0.5"
    kv_temperature = 0.1
    balance_limit = "off"
    balance_half_life = "30m"
    partitions = 16
    partition = "0-3,8"
    pin_ttl = "2h 30m"
    max_derived_pins = 1000
    accept_timeout = "250ms"
    request_timeout = "5s"
    max_waiting = 100
    full_at_kv_use = "95%"
    full_at_queued = 4
    max_jobs = 7
    provision = "never"
    replicas = 3
    reply_prefixes = ["_INBOX.", "_INBOX_", "replies."]
    drain_timeout = "0s"
    listen = "[::1]:0"
    log_format = "json"
    untrusted_frontends = true
    group_subagents = true

    [jobs]
    replicas = 3
    storage = "memory"
    max_messages = 1000
    max_bytes = 1048576
    results_max_age = "2days"
    duplicate_window = "2m"

    [session]
    headers = ["X-Chat-Id", "x-conversation"]
    body_fields = ["metadata.user_id", "prompt_cache_key"]
"#;

#[test]
fn every_setting_is_a_key_a_variable_and_a_flag() {
    let from_file = of_file(EVERY_KEY).expect("valid");
    assert_eq!(from_file.policy, PolicyKind::Kv);
    assert_eq!(from_file.weighing, Weighing { prefill: 2.5, load: 0.5, temperature: 0.1, limit: None });
    assert_eq!((from_file.max_waiting, from_file.full_at), (100, FullAt { kv_percent: Some(95), queued: Some(4) }));
    assert_eq!(from_file.pin_ttl, Duration::from_secs(9000));
    assert_eq!(from_file.reply_prefixes, ["_INBOX.", "_INBOX_", "replies."]);
    assert_eq!(from_file.frontends, FrontendTrust::TrustedSubjectOnly);

    let table: toml::Table = EVERY_KEY.parse().expect("TOML");
    let mut texts = Vec::new();
    // Pools are tables of the file, and leave other settings without effect, decide mode excludes the policy kv, and one
    // login the others: tests of their own have them.
    let apart = ["level", "pool_policy", "decide_mode", "nkey", "user", "password", "token"];
    for setting in SETTINGS.iter().filter(|setting| !apart.contains(&setting.key)) {
        let inside = setting.key.split_once('.').map(|(table_name, key)| &table[table_name][key]);
        let text = match inside.unwrap_or_else(|| &table[setting.key]) {
            toml::Value::Array(items) => items.iter().filter_map(|i| i.as_str()).collect::<Vec<_>>().join(","),
            toml::Value::Boolean(flag) => flag.to_string(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            other => other.as_str().expect("the rest are strings").to_owned(),
        };
        assert_ne!(Some(text.as_str()), setting.default, "{}: choose another value for this test", setting.key);
        texts.push((*setting, text));
    }
    let flags: Vec<(&'static str, &str)> = texts.iter().map(|(s, text)| (s.key, text.as_str())).collect();
    assert_eq!(with(&flags, &[], "").expect("valid"), from_file);
    let variables: Vec<(String, &str)> =
        texts.iter().map(|(s, text)| (s.variables().next().expect("its own"), text.as_str())).collect();
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, text)| (name.as_str(), *text)).collect();
    assert_eq!(with(&[], &variables, "").expect("valid"), from_file);
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = "namespace = 'from-file'";
    let namespace = |flags: &[_], variables: &[_]| with(flags, variables, file).expect("valid").namespace.to_string();
    let (flag, variable) = (("namespace", "from-flag"), ("RANKPIN_NAMESPACE", "from-env"));
    assert_eq!(namespace(&[flag], &[variable]), "from-flag");
    assert_eq!(namespace(&[], &[variable]), "from-env");
    assert_eq!(namespace(&[], &[("RANKPIN_NAMESPACE", " ")]), "from-file");

    let file = "nats_url = 'nats://file'\ncreds = 'file'";
    let nats = |variables: &[_]| {
        let config = with(&[], variables, file).expect("valid");
        let urls = config.access.urls.expect("given").reveal().to_owned();
        (urls, config.access.creds.expect("given").display().to_string())
    };
    let (url, creds) = (("NATS_URL", "nats://theirs"), ("NATS_CREDS", "theirs"));
    assert_eq!(nats(&[url, creds]), ("nats://theirs".into(), "theirs".into()));
    let own = [("RANKPIN_NATS_URL", "nats://ours"), ("RANKPIN_CREDS", "ours"), url, creds];
    assert_eq!(nats(&own), ("nats://ours".into(), "ours".into()));
}

#[test]
fn one_login_counts_and_none_is_shown() {
    let config = of_file("user = 'u'\npassword = 'p4ss'").expect("valid");
    assert_eq!(config.access.user.as_deref(), Some("u"));
    assert_eq!(config.access.password.as_ref().expect("given").reveal(), "p4ss");
    assert!(!format!("{config:?}").contains("p4ss"));
    for (file, told) in [
        ("creds = 'c'\nnkey = 'k'", "line 2: nkey can have no effect: creds is given too; leave one of the two out"),
        ("user = 'u'\ntoken = 't'", "line 2: token can have no effect: user is given too"),
        ("password = 'p4ss'", "line 1: password can have no effect: user is missing"),
        ("tls_key = 'k'", "line 1: tls_key can have no effect: tls_cert is missing"),
        ("nats_url = 'nats://u:p4ss@a'\ntoken = 't'", "token can have no effect: nats_url holds a login"),
    ] {
        let error = of_file(file).expect_err(file);
        assert!(error.contains(told) && !error.contains("p4ss"), "{error}");
    }
    let flags: Flags = [("nats_url", "nats://u:p4ss@a,b"), ("password", "p4ss"), ("user", "u")]
        .map(|(key, text)| (key, text.to_owned()))
        .into();
    let shown = format!("{:?}", effective(&flags, &|_| None).expect("texts"));
    assert!(!shown.contains("p4ss") && shown.contains("nats://a,b"), "{shown}");
}

#[test]
fn the_file_may_be_named_by_a_variable_and_must_be_there() {
    let environment = |name: &str| (name == "RANKPIN_CONFIG").then(|| "/nowhere/rankpin.toml".to_owned());
    let error = resolve(&Flags::new(), &environment).expect_err("no such file");
    assert!(error.to_string().starts_with("cannot read the configuration file /nowhere/rankpin.toml: "), "{error}");
}

#[test]
fn values_that_are_not_allowed_are_named_with_place_and_what_is() {
    let duration = |range| format!("allowed is a duration from {range}, written such as 250ms, 2s or 1h");
    for (key, text, allowed) in [
        ("nats_url", " , ", "write the URL of a NATS server, nats://host:4222, several with commas between".to_owned()),
        ("namespace", "EU", "it holds 'E', allowed are a-z 0-9 _ -; allowed are 1 to 32 of a-z 0-9 _ -".to_owned()),
        ("policy", "kv-aware", "allowed are round-robin, random, power-of-two, least-loaded, device-aware-weighted, kv".to_owned()),
        ("affinity", "Hard", "allowed are hard, soft, off".to_owned()),
        ("pin_ttl", "60", duration("1s to 30days")),
        ("pin_ttl", "999ms", duration("1s to 30days")),
        ("max_derived_pins", "-1", "allowed is a whole number from 0 to 4194304".to_owned()),
        ("max_derived_pins", "+7", "allowed is a whole number from 0 to 4194304".to_owned()),
        ("max_derived_pins", "4194305", "allowed is a whole number from 0 to 4194304".to_owned()),
        ("max_jobs", "2049", "allowed is a whole number from 0 to 2048".to_owned()),
        ("jobs.replicas", "0", "allowed is a whole number from 1 to 5".to_owned()),
        ("jobs.storage", "disk", "allowed are file, memory".to_owned()),
        ("jobs.results_max_age", "1s", duration("1m to 30days")),
        ("accept_timeout", "-1s", duration("10ms to 1day")),
        ("request_timeout", "25h", duration("10ms to 1day")),
        ("drain_timeout", "forever", duration("0s to 1day")),
        ("max_waiting", "65537", "allowed is a whole number from 0 to 65536".to_owned()),
        ("full_at_kv_use", "0.9", "allowed are 1% to 100%, and off".to_owned()),
        ("full_at_kv_use", "101%", "allowed are 1% to 100%, and off".to_owned()),
        ("full_at_queued", "0", "allowed is a whole number from 1 to 1000000, and off".to_owned()),
        ("replicas", "6", "allowed is a whole number from 1 to 5".to_owned()),
        ("provision", "yes", "allowed are auto, never".to_owned()),
        (
            "listen",
            "9464",
            "allowed are an IP address with a port, such as 0.0.0.0:9464 or [::1]:9464, and off".to_owned(),
        ),
        ("log_format", "xml", "allowed are text, json".to_owned()),
        ("untrusted_frontends", "1", "allowed are false, true".to_owned()),
        (
            "session.body_fields",
            "session_id,user",
            "\"user\" is none of the fields that can name a session; there are prompt_cache_key, metadata.user_id, \
             conversation, session_id"
                .to_owned(),
        ),
        (
            "session.headers",
            "x-chat-id, X-Request-Id",
            "\"X-Request-Id\" names one request, not a conversation: every turn would be a session of its own, and hop; \
             name a header that stays the same from turn to turn"
                .to_owned(),
        ),
        (
            "session.headers",
            "rankpin-tenant",
            "\"rankpin-tenant\" has a meaning of its own in the protocol, and can name no session".to_owned(),
        ),
    ] {
        is_refused(key, text, &allowed);
    }
}

/// A value is refused wherever it is given, with its place and what is allowed.
fn is_refused(key: &str, text: &str, allowed: &str) {
    let told = |origin: &str| format!("{origin}: {key} is {text:?}; {allowed}");
    let setting = SETTINGS.iter().find(|setting| setting.key == key).expect("known");
    assert_eq!(with(&[(setting.key, text)], &[], ""), Err(told(&format!("--{}", setting.flag()))));
    let name = setting.variables().next().expect("its own");
    assert!(name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'), "{name}");
    if !text.trim().is_empty() {
        let variable = with(&[], &[(&name, text)], "");
        assert_eq!(variable, Err(told(&format!("environment variable {name}"))));
    }
    assert_eq!(of_file(&format!("# one\n\n{key} = {text:?}")), Err(told("rankpin.toml, line 3")));
}

#[test]
fn session_sources_count_in_their_order() {
    let session = of_file(EVERY_KEY).expect("valid").session;
    assert_eq!(session.headers, ["x-chat-id", "x-conversation"]);
    assert_eq!(session.subagents, Subagents::Together);
    assert_eq!(session.body_fields, [BodyField::MetadataUserId, BodyField::PromptCacheKey]);
    assert_eq!(of_file("session.headers = []").expect("a dotted key, and none").session, SessionSources::default());
    let many = (0..17).map(|n| format!("x-{n}")).collect::<Vec<_>>().join(",");
    for (key, text, told) in [
        ("session.headers", "x-a, X-A", "can have no effect: \"X-A\" stands there twice; leave one out"),
        ("session.body_fields", "session_id,session_id", "stands there twice; leave one out"),
        ("session.headers", "Thread-Id", "can have no effect: \"Thread-Id\" is a session source without being"),
        ("session.headers", "x-a,", "\"\" is no header name; "),
        ("session.headers", &many, "at most 16 headers are allowed"),
    ] {
        let error = with(&[(key, text)], &[], "").expect_err(text);
        assert!(error.contains(told), "{error}");
    }
    for (key, text) in
        [("session.headers", "x-chat-id"), ("session.body_fields", "session_id"), ("group_subagents", "true")]
    {
        let error = with(&[("affinity", "off"), (key, text)], &[], "").expect_err("nothing is read");
        assert!(error.contains("can have no effect: with affinity off no session is read"), "{error}");
    }
}

#[test]
fn decide_mode_is_for_routers_that_need_no_bodies() {
    let decide = |flags: &[(&'static str, &str)], file: &str| with(flags, &[], file).map(|config| config.decide);
    assert_eq!(decide(&[("decide_mode", "true")], ""), Ok(DecideMode::On));
    assert_eq!(decide(&[], "decide_mode = true"), Ok(DecideMode::On));
    let kv = decide(&[("decide_mode", "true"), ("policy", "kv")], "").expect_err("it reads every body");
    assert!(kv.starts_with("--decide-mode: decide_mode can have no effect: the policy kv reads every body"), "{kv}");
    let pool = "level = 'global'\ndecide_mode = true\n[[pool]]\nname = 'a'\nnamespace = 'a'";
    let global = decide(&[], pool).expect_err("it knows no ranks");
    assert!(global.contains("decide_mode can have no effect: a router at the global level"), "{global}");
    is_refused("decide_mode", "yes", "allowed are false, true");
}

#[test]
fn reply_prefixes_open_no_door() {
    let refused = |text: &str| with(&[("reply_prefixes", text)], &[], "").expect_err(text);
    for text in ["", "_INBOX.,", "_INBOX.>", "*", "a b"] {
        assert!(refused(text).contains("without wildcards"), "{text}");
    }
    for text in ["$JS.API.", "$KV.rankpin_pins.", "_INBOX.,rankpin.", "rankpin.job.", "rank"] {
        assert!(refused(text).contains("would let a frontend have replies written"), "{text}");
    }
    assert_eq!(
        refused("_INBOX.,_INBOX.a."),
        "--reply-prefixes: reply_prefixes can have no effect: \"_INBOX.a.\" is covered by \"_INBOX.\"; leave it out"
    );
    assert!(refused(&(0..17).map(|i| format!("p{i}-.")).collect::<Vec<_>>().join(",")).contains("at most 16"));
    assert!(with(&[("reply_prefixes", "rankpin."), ("namespace", "other")], &[], "").is_ok());
}

#[test]
fn settings_without_effect_are_refused() {
    assert_eq!(
        with(&[("affinity", "off")], &[("RANKPIN_PIN_TTL", "2h")], ""),
        Err("environment variable RANKPIN_PIN_TTL: pin_ttl can have no effect: with affinity off nothing is pinned; \
             leave one of the two out"
            .into())
    );
    for (affinity, choice, why) in [
        ("soft", "hash", "soft affinity gives no session a rank by its hash"),
        ("off", "least-loaded", "with affinity off no session is read"),
    ] {
        let error = with(&[("affinity", affinity), ("rank_choice", choice)], &[], "").expect_err("no rank is chosen");
        assert!(error.contains(&format!("rank_choice can have no effect: {why}")), "{error}");
    }
    assert!(with(&[("affinity", "off")], &[], "").is_ok());
    let error = with(&[("max_jobs", "0"), ("jobs.replicas", "3")], &[], "").expect_err("there are no jobs");
    assert!(error.contains("jobs.replicas can have no effect: with max_jobs 0 there are no jobs"), "{error}");
    assert_eq!(
        of_file("nats_url = 'nats://u:p@a'\ncreds = 'c'"),
        Err("rankpin.toml, line 2: creds can have no effect: nats_url holds a login; leave one of the two out".into())
    );
}

#[test]
fn files_that_break_the_form_are_refused_with_the_line() {
    for (file, told) in [
        ("\npolicy = ", "line 2: "),
        ("a = 1", "line 1: there is no setting a; there are nats_url, context, creds, "),
        ("\n\npin-ttl = '1h'", "line 3: there is no setting pin-ttl; write pin_ttl"),
        ("config = 'other.toml'", "line 1: there is no setting config; "),
        ("max_derived_pins = 0x10", "line 1: max_derived_pins is of type integer; write max_derived_pins = 1048576"),
        ("max_derived_pins = true", "line 1: max_derived_pins is of type boolean; write max_derived_pins = 1048576"),
        ("balance_limit = true", "line 1: balance_limit is of type boolean; write balance_limit = 1.12"),
        ("pin_ttl = 1.5", "line 1: pin_ttl is of type float; write pin_ttl = \"1h\""),
        ("max_derived_pins = -1", "line 1: max_derived_pins is \"-1\"; allowed is a whole number from 0 to"),
        ("pin_ttl = 60", "line 1: pin_ttl is of type integer; write pin_ttl = \"1h\""),
        ("reply_prefixes = [1]", "line 1: reply_prefixes is of type array; "),
        ("policy = 'random'\npolicy = 'random'", "line 2: duplicate key"),
        ("[router]\npolicy = 'random'", "line 1: there is no setting router; "),
        ("[session]\nheader = ['x-a']", "line 2: there is no setting session.header; there are nats_url, "),
        (
            "[session]\nbody-fields = ['session_id']",
            "line 2: there is no setting session.body-fields; write session.body_",
        ),
        ("session = ['x-a']", "line 1: session is a table; write [session], and in it headers, body_fields"),
        ("[session]\nheaders = [1]", "line 2: session.headers is of type array; "),
        ("[worker]\nid = 'a'", "line 1: worker is no list of tables; write [[worker]]"),
    ] {
        let error = of_file(file).expect_err(file);
        assert!(error.starts_with(&format!("rankpin.toml, {told}")), "{error}");
    }
}

#[test]
fn configured_workers_are_plain_responders() {
    let config = of_file(
        r#"
        [[worker]]
        id = "legacy"
        models = ["m"]
        subject = "svc.legacy"

        [[worker]]
        id = "ranked"
        models = ["m", "a"]
        subject = "svc.ranked.{rank}"
        dp_start = 4
        dp_size = 4
        pool = "eu"
        weight = 2
        max_inflight = 8
        device = "cpu"
        "#,
    )
    .expect("valid");
    let [legacy, ranked] = &config.workers[..] else { panic!("two workers: {:?}", config.workers) };
    assert_eq!(legacy.kind, crate::core::worker::WorkerKind::Plain);
    assert_eq!(legacy.subject.as_deref(), Some("svc.legacy"));
    assert_eq!((legacy.ranks.start().0, legacy.ranks.size(), legacy.weight), (0, 1, 1.0));
    assert_eq!(ranked.models.iter().map(Model::as_str).collect::<Vec<_>>(), ["a", "m"]);
    assert_eq!((ranked.ranks.start().0, ranked.ranks.size()), (4, 4));
    assert_eq!((ranked.pool.as_str(), &*ranked.device), ("eu", "cpu"));
    assert_eq!((ranked.weight, ranked.max_inflight), (2.0, Some(8)));
}

#[test]
fn configured_workers_that_break_a_rule_are_named() {
    let table = |rest: &str| of_file(&format!("\n[[worker]]\n{rest}"));
    let good = "id = 'a'\nmodels = ['m']\nsubject = 's'\n";
    assert!(table(good).is_ok());
    for (rest, told) in [
        (format!("{good}colour = 'red'"), "line 6: [[worker]] colour: unknown field `colour`, expected one of `id`"),
        ("models = ['m']\nsubject = 's'".into(), "line 2: [[worker]]: missing field `id`"),
        (good.replace("'m'", "1"), "line 4: [[worker]] models[0]: invalid type"),
        (format!("{good}dp_size = -1"), "line 6: [[worker]] dp_size: invalid value"),
        (good.replace("'a'", "'a.b'"), "line 2: worker \"a.b\": field id: holds '.'"),
        (good.replace("'m'", ""), "line 2: worker \"a\": field models: holds 0 names"),
        (good.replace("'m'", "'m', 'm'"), "line 2: worker \"a\": field models: names a model twice"),
        (format!("{good}dp_size = 0"), "line 2: worker \"a\": field dp_size: "),
        (format!("{good}weight = 0"), "line 2: worker \"a\": field weight: is 0, it must be above 0"),
        (format!("{good}weight = nan"), "line 2: worker \"a\": field weight: "),
        (format!("{good}max_inflight = 0"), "line 2: worker \"a\": field max_inflight: "),
        (format!("{good}dp_size = 2"), "line 2: worker \"a\": field subject: holds no {rank}"),
        (good.replace("'s'", "'s.{rank}'"), "line 2: worker \"a\": field subject: holds {rank}"),
        (good.replace("'s'", "'s.{dp}'"), "line 2: worker \"a\": field subject: is \"s.{dp}\"; allowed are"),
        (good.replace("'s'", "'s..t'"), "line 2: worker \"a\": field subject: is \"s..t\"; allowed are"),
        (good.replace("'s'", "'s.>'"), "line 2: worker \"a\": field subject: is \"s.>\"; allowed are"),
        (good.replace("'s'", "'$SYS.x'"), "line 2: worker \"a\": field subject: is \"$SYS.x\"; subjects that begin"),
        (
            good.replace("'s'", "'rankpin.request.m'"),
            "line 2: worker \"a\": field subject: is \"rankpin.request.m\"; there",
        ),
        (format!("{good}\n[[worker]]\n{good}"), "line 7: worker \"a\": there is another [[worker]]"),
    ] {
        let error = table(&rest).expect_err(&rest);
        assert!(error.starts_with(&format!("rankpin.toml, {told}")), "{error}\nexpected: {told}");
    }
}

#[test]
fn partitions_are_a_number_and_a_list_of_some() {
    let of = |flags: &[(&'static str, &str)]| with(flags, &[], "");
    assert_eq!(of(&[("partitions", "4")]).expect("valid").partitions, Partitions::all(4));
    let some = of(&[("partitions", "16"), ("partition", "8,0-3")]).expect("valid").partitions;
    assert_eq!((some.to_string().as_str(), some.count()), ("0-3,8", 16));
    for (flags, why) in [
        (&[("partitions", "0")][..], "partitions is \"0\"; allowed is a whole number from 1 to 256"),
        (&[("partitions", "257")], "allowed is a whole number from 1 to 256"),
        (&[("partitions", "4"), ("partition", "4")], "partition is \"4\"; allowed are numbers from 0 to 3"),
        (&[("partition", "0")], "partition can have no effect: there is one partition"),
        (&[("partitions", "4"), ("affinity", "off")], "partitions can have no effect: with affinity off"),
    ] {
        let error = of(flags).expect_err("refused");
        assert!(error.contains(why), "{error}");
    }
}
