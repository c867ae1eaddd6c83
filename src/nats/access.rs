//! Where and as whom to connect, as people say it: flags, variables, a configuration file, or a context of the `nats`
//! command line. What is said outright goes before what the context says.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::link::LinkOptions;
use super::login::{Login, Secret};
use super::tls::Tls;

/// Where a server is looked for where nothing is said.
pub const DEFAULT_URL: &str = "nats://127.0.0.1:4222";
/// Longest file of a seed or a context that is read, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// What is said; nothing of it is read or checked yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// URLs with commas between.
    pub urls: Option<Urls>,
    /// Name of a context, or the path of its file.
    pub context: Option<String>,
    /// Credentials file.
    pub creds: Option<PathBuf>,
    /// File with the seed of an nkey.
    pub nkey: Option<PathBuf>,
    /// User.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Secret>,
    /// Token.
    pub token: Option<Secret>,
    /// PEM file of the authorities that are believed.
    pub tls_ca: Option<PathBuf>,
    /// PEM file of the client's certificate.
    pub tls_cert: Option<PathBuf>,
    /// PEM file of its key.
    pub tls_key: Option<PathBuf>,
    /// Prefix of the inboxes, without the final dot.
    pub inbox_prefix: Option<String>,
}

/// URLs as they were written. A login may stand in them, so that they are never shown whole.
#[derive(Clone, PartialEq, Eq)]
pub struct Urls(String);

impl Urls {
    /// As written, with commas between.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for whoever connects.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether a login stands in any of them.
    pub fn has_login(&self) -> bool {
        self.0.split(',').any(|url| url.contains('@'))
    }
}

impl fmt::Display for Urls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<String> = self.0.split(',').map(|url| url.trim().to_owned()).collect();
        f.write_str(&super::login::shown(&urls))
    }
}

impl fmt::Debug for Urls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// Why it is not known where or as whom to connect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Two logins.
    #[error("{0} and {1} are both given, by flags or environment variables: which login counts? leave one of them out")]
    TwoLogins(&'static str, &'static str),
    /// Half of a pair.
    #[error("{0} is given without {1}; give both")]
    Half(&'static str, &'static str),
    /// A file can't be read.
    #[error("cannot read the {what} {path}: {problem}")]
    File {
        /// What it should be.
        what: &'static str,
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// There is no such context.
    #[error("there is no NATS context {name:?} in {dir}{known}; `nats context add` makes one")]
    NoContext {
        /// The name.
        name: String,
        /// Where it was looked for.
        dir: String,
        /// Those that there are, in words.
        known: String,
    },
    /// A context needs what is not there.
    #[error("the NATS context {path} sets {key}, which rankpin does not have; use a context without it")]
    Unsupported {
        /// The file.
        path: String,
        /// The key.
        key: &'static str,
    },
}

impl Access {
    /// Servers at these URLs, and nothing else.
    pub fn at(urls: &str) -> Self {
        Self { urls: Some(Urls::new(urls)), ..Self::default() }
    }

    /// How to connect, with the context and the files that are named read.
    pub fn link(&self, name: &str) -> Result<LinkOptions, AccessError> {
        let logins = self.logins();
        if let [first, second, ..] = logins[..] {
            return Err(AccessError::TwoLogins(first, second));
        }
        if self.password.is_some() && self.user.is_none() {
            return Err(AccessError::Half("password", "user"));
        }
        let context = self.context.as_deref().map(load).transpose()?.unwrap_or_default();
        let own = !logins.is_empty() || self.urls.as_ref().is_some_and(Urls::has_login);
        let login: Context = if own { self.clone().into() } else { context.clone() };
        let urls = self.urls.clone().or(context.urls).unwrap_or_else(|| Urls::new(DEFAULT_URL));
        let mut options = LinkOptions::new(urls.reveal(), name);
        options.creds = login.creds;
        options.login = match (login.nkey, login.user, login.token) {
            (Some(path), ..) => Some(Login::Nkey(read_seed(&path)?)),
            (None, Some(user), _) => Some(Login::User(user, login.password.unwrap_or_else(|| Secret::new("")))),
            (None, None, Some(token)) => Some(Login::Token(token)),
            (None, None, None) => None,
        };
        let (cert, key) = (self.tls_cert.clone().or(context.tls_cert), self.tls_key.clone().or(context.tls_key));
        options.tls = Tls {
            ca: self.tls_ca.clone().or(context.tls_ca),
            identity: match (cert, key) {
                (Some(cert), Some(key)) => Some((cert, key)),
                (None, None) => None,
                (Some(_), None) => return Err(AccessError::Half("tls_cert", "tls_key")),
                (None, Some(_)) => return Err(AccessError::Half("tls_key", "tls_cert")),
            },
            first: context.tls_first,
        };
        if let Some(prefix) = self.inbox_prefix.clone().or(context.inbox_prefix) {
            options.inbox_prefix = prefix.trim_end_matches('.').to_owned();
        }
        Ok(options)
    }

    /// The logins that are given, by name.
    pub fn logins(&self) -> Vec<&'static str> {
        let given = [
            ("creds", self.creds.is_some()),
            ("nkey", self.nkey.is_some()),
            ("user", self.user.is_some()),
            ("token", self.token.is_some()),
        ];
        given.into_iter().filter_map(|(name, given)| given.then_some(name)).collect()
    }

    /// The same as environment variables, for a process that is started to connect the same way.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let secret = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.reveal().to_owned());
        let all = [
            ("NATS_URL", self.urls.as_ref().map(|urls| urls.reveal().to_owned())),
            ("NATS_CONTEXT", self.context.clone()),
            ("NATS_CREDS", path(&self.creds)),
            ("NATS_NKEY", path(&self.nkey)),
            ("NATS_USER", self.user.clone()),
            ("NATS_PASSWORD", secret(&self.password)),
            ("NATS_TOKEN", secret(&self.token)),
            ("NATS_CA", path(&self.tls_ca)),
            ("NATS_CERT", path(&self.tls_cert)),
            ("NATS_KEY", path(&self.tls_key)),
            ("RANKPIN_INBOX_PREFIX", self.inbox_prefix.clone()),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

fn read(what: &'static str, path: &Path) -> Result<String, AccessError> {
    let failed = |problem: String| AccessError::File { what, path: path.display().to_string(), problem };
    let size = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?.len();
    if size > MAX_FILE_BYTES {
        return Err(failed(format!("it is {size} bytes long, {MAX_FILE_BYTES} are read")));
    }
    std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))
}

/// The seed in a file of the `nk` tool, or of credentials.
fn read_seed(path: &Path) -> Result<Secret, AccessError> {
    let text = read("nkey file", path)?;
    let seed = text.lines().map(str::trim).find(|line| line.starts_with("SU"));
    let valid = seed.filter(|seed| nkeys::KeyPair::from_seed(seed).is_ok());
    valid.map(Secret::new).ok_or_else(|| AccessError::File {
        what: "nkey file",
        path: path.display().to_string(),
        problem: "there is no seed of a user in it (a line that begins with SU)".into(),
    })
}

/// What a context says, as far as it counts here.
#[derive(Debug, Clone, Default)]
struct Context {
    urls: Option<Urls>,
    creds: Option<PathBuf>,
    nkey: Option<PathBuf>,
    user: Option<String>,
    password: Option<Secret>,
    token: Option<Secret>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_first: bool,
    inbox_prefix: Option<String>,
}

impl From<Access> for Context {
    fn from(access: Access) -> Self {
        let Access { creds, nkey, user, password, token, .. } = access;
        Self { creds, nkey, user, password, token, ..Self::default() }
    }
}

/// A file of the `nats` command line.
#[derive(Deserialize)]
struct ContextFile {
    #[serde(default)]
    url: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    token: String,
    #[serde(default)]
    creds: String,
    #[serde(default)]
    nkey: String,
    #[serde(default)]
    ca: String,
    #[serde(default)]
    cert: String,
    #[serde(default)]
    key: String,
    #[serde(default)]
    tls_first: bool,
    #[serde(default)]
    inbox_prefix: String,
    #[serde(default)]
    nsc: String,
    #[serde(default)]
    socks_proxy: String,
    #[serde(default)]
    jetstream_domain: String,
    #[serde(default)]
    jetstream_api_prefix: String,
    #[serde(default)]
    user_jwt: String,
}

fn load(name: &str) -> Result<Context, AccessError> {
    let path = find(name)?;
    let shown = path.display().to_string();
    let failed = |problem: String| AccessError::File { what: "NATS context", path: shown.clone(), problem };
    // The words of the parser repeat values, of which some are secret: only where it stumbled is told.
    let file: ContextFile = serde_json::from_str(&read("NATS context", &path)?)
        .map_err(|e| failed(format!("it is no context, see line {} column {}", e.line(), e.column())))?;
    let unsupported = [
        ("nsc", &file.nsc),
        ("socks_proxy", &file.socks_proxy),
        ("jetstream_domain", &file.jetstream_domain),
        ("jetstream_api_prefix", &file.jetstream_api_prefix),
        ("user_jwt", &file.user_jwt),
    ];
    if let Some((key, _)) = unsupported.into_iter().find(|(_, value)| !value.is_empty()) {
        return Err(AccessError::Unsupported { path: shown, key });
    }
    let text = |text: String| (!text.is_empty()).then_some(text);
    let file_at = |path: String| text(path).map(|path| at_home(&path));
    Ok(Context {
        urls: text(file.url).map(Urls::new),
        creds: file_at(file.creds),
        nkey: file_at(file.nkey),
        user: text(file.user),
        password: text(file.password).map(Secret::new),
        token: text(file.token).map(Secret::new),
        tls_ca: file_at(file.ca),
        tls_cert: file_at(file.cert),
        tls_key: file_at(file.key),
        tls_first: file.tls_first,
        inbox_prefix: text(file.inbox_prefix),
    })
}

fn find(name: &str) -> Result<PathBuf, AccessError> {
    if name.contains('/') {
        return Ok(at_home(name));
    }
    let base = std::env::var_os("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = base.unwrap_or_else(|| at_home("~/.config")).join("nats").join("context");
    let path = dir.join(format!("{name}.json"));
    if path.is_file() {
        return Ok(path);
    }
    let mut known: Vec<String> = std::fs::read_dir(&dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".json")?.to_owned()))
        .collect();
    known.sort();
    let known = if known.is_empty() { String::new() } else { format!(" (there are {})", known.join(", ")) };
    Err(AccessError::NoContext { name: name.to_owned(), dir: dir.display().to_string(), known })
}

fn at_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => path.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(text: &str) -> (tempfile::TempDir, Access) {
        let dir = tempfile::tempdir().expect("a temp directory can be made");
        let path = dir.path().join("c.json");
        std::fs::write(&path, text).expect("a temp directory takes files");
        let access = Access { context: Some(path.display().to_string()), ..Access::default() };
        (dir, access)
    }

    #[test]
    fn what_is_said_goes_before_the_context() {
        let (_dir, access) = context(
            r#"{"description":"x","url":"nats://c:4222","user":"u","password":"p4ss","ca":"/ca","inbox_prefix":"_INBOX.u","color_scheme":""}"#,
        );
        let link = access.link("t").expect("valid");
        assert_eq!(link.urls, ["nats://c:4222"]);
        assert_eq!(link.login, Some(Login::User("u".into(), Secret::new("p4ss"))));
        assert_eq!((link.tls.ca, link.inbox_prefix), (Some("/ca".into()), "_INBOX.u".to_owned()));
        let said = Access { urls: Some(Urls::new("nats://d")), token: Some(Secret::new("t")), ..access.clone() };
        let link = said.link("t").expect("valid");
        assert_eq!((link.urls, link.login), (vec!["nats://d".to_owned()], Some(Login::Token(Secret::new("t")))));
        let in_url = Access { urls: Some(Urls::new("nats://x:y@d")), ..access };
        assert_eq!(in_url.link("t").expect("valid").login, None, "the URL's own login counts");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let error = |access: Access| access.link("t").expect_err("refused").to_string();
        let user = Access { user: Some("u".into()), ..Access::default() };
        assert!(error(Access { creds: Some("c".into()), ..user.clone() }).starts_with("creds and user are both given"));
        let password = Some(Secret::new("p4ss"));
        assert!(error(Access { password, ..Access::default() }).contains("password is given without user"));
        assert!(error(Access { tls_cert: Some("c".into()), ..user }).contains("tls_cert is given without tls_key"));
        let (dir, gone) = context("{}");
        drop(dir);
        assert!(error(gone).contains("cannot read"));
        let (_dir, nsc) = context(r#"{"nsc":"nsc://a/b/c"}"#);
        assert!(error(nsc).contains("sets nsc"));
        let (_dir, broken) = context(r#"{"password":["p4ss"]}"#);
        let broken = error(broken);
        assert!(broken.contains("line 1") && !broken.contains("p4ss"), "{broken}");
    }

    #[test]
    fn a_seed_is_found_in_its_file() {
        let key = nkeys::KeyPair::new_from_raw(nkeys::KeyPairType::User, [7; 32]).expect("a key");
        let seed = key.seed().expect("it has one");
        let dir = tempfile::tempdir().expect("a temp directory can be made");
        let path = dir.path().join("user.nk");
        std::fs::write(&path, format!("\n{seed}\n")).expect("a temp directory takes files");
        assert_eq!(read_seed(&path), Ok(Secret::new(seed)));
        std::fs::write(&path, "SUx").expect("a temp directory takes files");
        assert!(read_seed(&path).is_err());
    }

    #[test]
    fn nothing_shows_a_login() {
        let access = Access {
            urls: Some(Urls::new("nats://u:p4ss@a,nats://b")),
            password: Some(Secret::new("p4ss")),
            token: Some(Secret::new("p4ss")),
            ..Access::default()
        };
        let link = Access { urls: access.urls.clone(), ..Access::default() }.link("t").expect("valid");
        let shown = format!("{access:?} {} {link:?}", access.urls.as_ref().expect("given"));
        assert!(!shown.contains("p4ss"), "{shown}");
        assert!(shown.contains("nats://a"), "{shown}");
    }
}
