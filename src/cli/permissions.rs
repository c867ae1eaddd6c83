//! `rankpin nats-permissions`: users of a NATS server with no more rights than they need.

use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use clap::ValueEnum;
use serde_json::json;

use super::output;
use crate::core::id::{NameError, Namespace, WorkerId};
use crate::core::partition::MAX_PARTITIONS;
use crate::nats::login;
use crate::ops::permissions::{Proof, Role, User, needs, server_config};

/// Write the users of a deployment as a NATS server's configuration, with no more rights than each role needs
///
/// One account per deployment. In it: routers take requests, and write pins; workers put their own registration, and
/// answer; frontends send requests, and read their own replies alone; gateways are frontends whose word on tenant and
/// priority is believed, and may be allowed to send large bodies to ranks themselves (decide mode); batch users submit durable jobs; operators look, move pins, drain workers and make what routers
/// need (`rankpin provision`). docs/security.md has the table of who may do what.
///
/// Each client but routers is started with the inbox prefix that the file names beside its user (--inbox-prefix).
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Directory to write rankpin.conf to, and keys/ with --auth nkeys; without it, the file goes to stdout
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// The deployment's namespace
    #[arg(long, env = "RANKPIN_NAMESPACE", value_name = "NAME", default_value = "rankpin", value_parser = Namespace::new)]
    namespace: Namespace,

    /// Into how many partitions its sessions are divided (the routers' partitions)
    #[arg(long, env = "RANKPIN_PARTITIONS", value_name = "COUNT", default_value_t = 1, value_parser = partitions())]
    partitions: u16,

    /// Name of the account, of A-Z a-z 0-9 _ - [default: the namespace in upper case]
    #[arg(long, value_name = "NAME", value_parser = account)]
    account: Option<String>,

    /// A frontend; may be given several times
    #[arg(long, value_name = "USER", default_value = "frontend")]
    frontend: Vec<String>,

    /// A gateway; may be given several times
    #[arg(long, value_name = "USER")]
    gateway: Vec<String>,

    /// A gateway that sends large bodies to ranks itself (--decide-from), trusted as routers are; may be given several times
    #[arg(long, value_name = "USER")]
    deciding_gateway: Vec<String>,

    /// Somebody who submits durable jobs; may be given several times
    #[arg(long, value_name = "USER")]
    batch: Vec<String>,

    /// A worker, by its id, with a user of its own; may be given several times. Without any, one user for all workers
    #[arg(long, value_name = "WORKER", value_parser = WorkerId::new)]
    worker: Vec<WorkerId>,

    /// How users prove who they are: passwords that the server takes from its environment, or nkeys
    #[arg(long, value_enum, value_name = "HOW", default_value = "passwords")]
    auth: Auth,

    /// Print JSON: each user with its inbox prefix and rights, and write nothing
    #[arg(long, conflicts_with = "out")]
    json: bool,
}

fn partitions() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(MAX_PARTITIONS))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Auth {
    /// RANKPIN_NATS_{USER}_PASSWORD in the server's environment.
    Passwords,
    /// A seed for each user in keys/; one that is there is kept.
    Nkeys,
}

const EXAMPLES: &str = "\
Examples:
  rankpin nats-permissions --out deploy/nats
  rankpin nats-permissions --frontend web --frontend chat --gateway gateway --batch nightly --out nats
  rankpin nats-permissions --worker gpu-0 --worker gpu-1 --auth nkeys --out nats
  rankpin nats-permissions --json | jq '.[] | select(.role == \"worker\") | .publish'

In the server's configuration:
  jetstream { store_dir: /data }
  include rankpin.conf";

/// Writes the file.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let users = args.users()?;
    if args.json {
        let told: Vec<_> = users
            .iter()
            .map(|user| {
                let allowed = needs(&args.namespace, args.partitions, user);
                json!({
                    "user": user.name, "role": user.role.word(), "inbox_prefix": user.inbox(&args.namespace),
                    "publish": allowed.publish, "subscribe": allowed.subscribe,
                })
            })
            .collect();
        return output::json(&told);
    }
    let account = args.account.clone().unwrap_or_else(|| args.namespace.as_str().to_ascii_uppercase());
    let proof = match (args.auth, &args.out) {
        (Auth::Passwords, _) => Proof::Passwords,
        (Auth::Nkeys, Some(out)) => Proof::Nkeys(keys(&out.join("keys"), &users)?),
        (Auth::Nkeys, None) => bail!("--auth nkeys needs --out: the seeds are written beside the file"),
    };
    let text = server_config(&args.namespace, args.partitions, &account, &users, &proof);
    let Some(out) = &args.out else { return output::text(&text) };
    std::fs::create_dir_all(out).with_context(|| format!("cannot make the directory {}", out.display()))?;
    let path = out.join("rankpin.conf");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    output::line(&format!("{}: {} users", path.display(), users.len()))
}

/// A name that stands in the server's configuration as it is: of the same characters as a worker's.
fn account(text: &str) -> Result<String, NameError> {
    WorkerId::new(text).map(|name| name.to_string())
}

impl Args {
    fn users(&self) -> anyhow::Result<Vec<User>> {
        let named = |names: &[String], role: Role| {
            names.iter().map(|name| User { name: name.clone(), role: role.clone() }).collect::<Vec<_>>()
        };
        let mut users = named(&["router".to_owned()], Role::Router);
        if self.worker.is_empty() {
            users.push(User { name: "worker".into(), role: Role::Worker(None) });
        }
        let own =
            self.worker.iter().map(|id| User { name: format!("worker-{id}"), role: Role::Worker(Some(id.clone())) });
        users.extend(own);
        users.extend(named(&self.frontend, Role::Frontend));
        users.extend(named(&self.gateway, Role::Gateway));
        users.extend(named(&self.deciding_gateway, Role::DecidingGateway));
        users.extend(named(&self.batch, Role::Batch));
        users.extend(named(&["operator".to_owned()], Role::Operator));
        for (index, user) in users.iter().enumerate() {
            // It is a token of its inboxes' subjects.
            let sound = WorkerId::new(&user.name).is_ok();
            if !sound {
                bail!("the user {:?} can't be: allowed are 1 to 64 of A-Z a-z 0-9 _ -", user.name);
            }
            if users[..index].iter().any(|other| other.name == user.name) {
                bail!("two users are named {:?}; give each another name", user.name);
            }
        }
        Ok(users)
    }
}

/// The public key of each user. A seed that is there is kept, so that the file can be written anew without new keys.
fn keys(dir: &Path, users: &[User]) -> anyhow::Result<Vec<String>> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))
        .with_context(|| format!("cannot keep others out of {}", dir.display()))?;
    users.iter().map(|user| key(&dir.join(format!("{}.nk", user.name)))).collect()
}

fn key(path: &Path) -> anyhow::Result<String> {
    if let Ok(seed) = std::fs::read_to_string(path) {
        return login::public_key(seed.trim()).map_err(|e| anyhow!("{}: {e}", path.display()));
    }
    let (seed, public) = login::new_key();
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.as_mut().map_err(|e| anyhow!("cannot write {}: {e}", path.display()))?;
    writeln!(file, "{}", seed.reveal()).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(public)
}
