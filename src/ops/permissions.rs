//! Least-privilege users for everybody in a deployment, as a configuration of the NATS server: one account, in which each
//! role may do what it has to and nothing else.
//!
//! Two rules carry it. Every client has an inbox prefix of its own, `_INBOX.{user}`, and may subscribe to that alone, so
//! that nobody reads the replies of others, while whoever answers may publish to `_INBOX.>`. And requests can be
//! subscribed to in the routers' queue group alone, which a user can't join to listen in without taking requests away.

mod matching;

use std::fmt::Write as _;

pub use matching::{Lacking, Permissions, lacking};

use crate::core::id::{Namespace, WorkerId};
use crate::core::partition::every;
use crate::wire::service;
use crate::wire::subject::{ANY_QUEUE, JOBS_CONSUMER, QUEUE, Subjects};

/// Who a user is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Sends requests.
    Frontend,
    /// Sends requests whose tenant and priority are believed, lists models, keeps large bodies, files and batches.
    Gateway,
    /// A gateway that sends large bodies to ranks itself: trusted as routers are.
    DecidingGateway,
    /// Submits durable jobs, and reads results.
    Batch,
    /// Takes requests and places them.
    Router,
    /// Hosts an engine, under this name; without one, under any.
    Worker(Option<WorkerId>),
    /// Looks, moves pins, drains workers, makes buckets and streams.
    Operator,
}

impl Role {
    /// As it is told.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Frontend => "frontend",
            Self::Gateway => "gateway",
            Self::DecidingGateway => "deciding-gateway",
            Self::Batch => "batch",
            Self::Router => "router",
            Self::Worker(_) => "worker",
            Self::Operator => "operator",
        }
    }
}

/// A user of the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// What it is.
    pub role: Role,
}

impl User {
    /// Its inbox prefix, without the final dot: what `--inbox-prefix` is given. That of routers is fixed.
    pub fn inbox(&self, namespace: &Namespace) -> String {
        match self.role {
            Role::Router => Subjects::new(namespace.clone()).router_inbox_prefix(),
            Role::Frontend | Role::Gateway | Role::DecidingGateway | Role::Batch | Role::Worker(_) | Role::Operator => {
                format!("_INBOX.{}", self.name)
            }
        }
    }

    /// The variable that holds its password.
    pub fn variable(&self) -> String {
        let name: String =
            self.name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
        format!("RANKPIN_NATS_{name}_PASSWORD")
    }
}

/// What a user may publish and subscribe to; everything else is denied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allowed {
    /// Subjects to publish to.
    pub publish: Vec<String>,
    /// Subjects to subscribe to, with a queue group behind a space where only that is allowed.
    pub subscribe: Vec<String>,
}

/// What a user of this role needs, in a namespace of so many partitions.
pub fn needs(namespace: &Namespace, partitions: u16, user: &User) -> Allowed {
    let names = Names { ns: namespace.to_string(), subjects: Subjects::new(namespace.clone()), partitions };
    let mut allowed = match &user.role {
        Role::Frontend => names.frontend(),
        Role::Gateway => names.gateway(),
        Role::DecidingGateway => names.deciding_gateway(),
        Role::Batch => names.batch(),
        Role::Router => names.router(),
        Role::Worker(worker) => names.worker(worker.as_ref().map_or("*", WorkerId::as_str)),
        Role::Operator => names.operator(),
    };
    let inbox = format!("{}.>", user.inbox(namespace));
    // A round trip on one's own inbox is how a client knows that its subscriptions stand.
    allowed.publish.push(inbox.clone());
    // What it may do itself, and nothing of others: `rankpin doctor` compares that with what its role needs. The server answers
    // wherever the asker says, whether that one may publish there or not; so nobody has it who is not trusted beyond requests.
    if user.role != Role::Frontend {
        allowed.publish.push("$SYS.REQ.USER.INFO".into());
    }
    allowed.subscribe.push(inbox);
    allowed.publish.sort();
    allowed.publish.dedup();
    allowed.subscribe.sort();
    allowed
}

struct Names {
    ns: String,
    subjects: Subjects,
    partitions: u16,
}

impl Names {
    fn frontend(&self) -> Allowed {
        let ns = &self.ns;
        let publish = vec![format!("{ns}.request"), format!("{ns}.request.>"), format!("{ns}.cancel.*")];
        Allowed { publish, subscribe: Vec::new() }
    }

    fn gateway(&self) -> Allowed {
        let (ns, [_, results, _]) = (&self.ns, self.streams());
        let mut allowed = self.frontend();
        allowed.publish.extend([
            format!("{ns}.trusted.>"),
            // Models are what workers are registered for, and the aliases that routers tell.
            format!("{}.{}.{}", service::PREFIX, service::Verb::Info.word(), service::NAME),
            // A batch is jobs; one that is cancelled has that for its result.
            format!("{ns}.job.>"),
            format!("{ns}.result.*"),
            format!("$JS.API.STREAM.MSG.GET.{results}"),
        ]);
        let (workers, batches) = (self.subjects.workers_bucket(), self.subjects.batches_bucket());
        allowed.publish.push(format!("$KV.{batches}.*"));
        for bucket in [workers, batches] {
            allowed.publish.extend(watching(&format!("KV_{bucket}")));
        }
        for store in [self.subjects.bodies_bucket(), self.subjects.files_bucket()] {
            allowed.publish.extend(reading_objects(&store));
            allowed.publish.extend([format!("$O.{store}.>"), format!("$JS.API.STREAM.PURGE.OBJ_{store}")]);
        }
        allowed
    }

    fn deciding_gateway(&self) -> Allowed {
        let mut allowed = self.gateway();
        allowed.publish.extend([
            self.subjects.decides(),
            format!("{}.worker.*.rank.*", self.ns),
            format!("{}.worker.*.any", self.ns),
            // Whether it has sent a body.
            format!("{}.>", self.subjects.router_inbox_prefix()),
        ]);
        allowed
    }

    fn batch(&self) -> Allowed {
        let (ns, [jobs, results, dead]) = (&self.ns, self.streams());
        let mut publish = vec![format!("{ns}.job.>"), format!("{ns}.cancel.*"), format!("{ns}.result.*")];
        publish.extend([&jobs, &results, &dead].map(|stream| format!("$JS.API.STREAM.INFO.{stream}")));
        publish.extend([&jobs, &results, &dead].map(|stream| format!("$JS.API.STREAM.MSG.GET.{stream}")));
        publish.extend([
            format!("$JS.API.CONSUMER.INFO.{jobs}.{JOBS_CONSUMER}"),
            format!("$JS.API.STREAM.MSG.DELETE.{dead}"),
            format!("$JS.API.STREAM.PURGE.{results}"),
        ]);
        Allowed { publish, subscribe: Vec::new() }
    }

    fn router(&self) -> Allowed {
        let (ns, [jobs, ..]) = (&self.ns, self.streams());
        let mut publish = vec![
            format!("{ns}.worker.*.rank.*"),
            format!("{ns}.worker.*.any"),
            format!("{ns}.worker.*.cancel"),
            self.subjects.router_kv(),
            // Answers to frontends, and what it asks of itself at the start.
            "_INBOX.>".into(),
            "_INBOX_.>".into(),
            format!("{ns}.job.>"),
            format!("{ns}.result.*"),
            format!("{ns}.dead.>"),
        ];
        publish.extend(self.pins());
        let workers = format!("KV_{}", self.subjects.workers_bucket());
        publish.extend(watching(&workers));
        // A mirror pulls what a watch would be sent.
        let mirrored = self.pins_streams().into_iter().chain([workers]);
        publish.extend(mirrored.map(|stream| format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.>")));
        if self.partitions > 1 {
            publish.push(self.subjects.parts());
        }
        publish.extend(self.streams().map(|stream| format!("$JS.API.STREAM.INFO.{stream}")));
        publish.extend([
            format!("$JS.API.STREAM.MSG.GET.{jobs}"),
            format!("$JS.API.STREAM.MSG.DELETE.{jobs}"),
            format!("$JS.API.CONSUMER.INFO.{jobs}.{JOBS_CONSUMER}"),
            format!("$JS.API.CONSUMER.MSG.NEXT.{jobs}.{JOBS_CONSUMER}"),
            format!("$JS.ACK.{jobs}.{JOBS_CONSUMER}.>"),
        ]);
        let srv = service::PREFIX;
        let mut subscribe: Vec<String> = self
            .subjects
            .intake()
            .into_iter()
            .chain([self.subjects.decides()])
            .chain((self.partitions > 1).then(|| self.subjects.parts()))
            .map(|s| format!("{s} {QUEUE}"))
            .collect();
        subscribe.extend([
            self.subjects.cancels(),
            self.subjects.loads(),
            self.subjects.caches(),
            self.subjects.router_kv(),
            format!("{srv}.*"),
            format!("{srv}.*.{}", service::NAME),
            format!("{srv}.*.{}.*", service::NAME),
        ]);
        Allowed { publish, subscribe }
    }

    fn worker(&self, worker: &str) -> Allowed {
        let (ns, bucket) = (&self.ns, self.subjects.workers_bucket());
        let mut publish = vec![
            format!("$KV.{bucket}.{worker}"),
            // Who holds its name: a second instance can say so. Registrations are no secret among workers.
            format!("$JS.API.STREAM.MSG.GET.KV_{bucket}"),
            format!("{ns}.load.{worker}"),
            format!("{ns}.kv.{worker}.*"),
            format!("{}.>", self.subjects.router_inbox_prefix()),
            "_INBOX.>".into(),
            self.subjects.results(),
        ];
        // What a message can't hold is fetched.
        publish.extend(reading_objects(&self.subjects.bodies_bucket()));
        let own = format!("{ns}.worker.{worker}");
        let subscribe = vec![
            format!("{own}.rank.*"),
            format!("{own}.any {ANY_QUEUE}"),
            format!("{own}.cancel"),
            format!("{own}.drain"),
        ];
        Allowed { publish, subscribe }
    }

    fn operator(&self) -> Allowed {
        let ns = &self.ns;
        let mut allowed = self.batch();
        allowed.publish.extend([
            format!("{ns}.worker.*.drain"),
            format!("{}.>", service::PREFIX),
            "$JS.API.INFO".into(),
        ]);
        allowed.publish.extend(self.pins());
        let workers = format!("KV_{}", self.subjects.workers_bucket());
        allowed.publish.extend(watching(&workers));
        let mut buckets = self.pins_streams();
        buckets.push(workers);
        // Those of gateways; who may make a stream names its subjects, so that gateways may not.
        let [bodies, files] = [self.subjects.bodies_bucket(), self.subjects.files_bucket()];
        let stores =
            [format!("OBJ_{bodies}"), format!("OBJ_{files}"), format!("KV_{}", self.subjects.batches_bucket())];
        allowed.publish.extend(stores.iter().map(|stream| format!("$JS.API.STREAM.INFO.{stream}")));
        for stream in buckets.iter().chain(&stores).chain(&self.streams()) {
            allowed.publish.push(format!("$JS.API.STREAM.CREATE.{stream}"));
        }
        let [jobs, ..] = self.streams();
        allowed.publish.push(format!("$JS.API.CONSUMER.CREATE.{jobs}.{JOBS_CONSUMER}.{}", self.subjects.jobs()));
        allowed.subscribe.push(self.subjects.loads());
        allowed
    }

    /// The streams of the buckets of pins; where there are partitions, first what says how many.
    fn pins_streams(&self) -> Vec<String> {
        let told = format!("KV_{}", self.subjects.pins_bucket());
        if self.partitions == 1 {
            return vec![told];
        }
        let parts = every(self.partitions).map(|partition| format!("KV_{}", self.subjects.pins_bucket_of(partition)));
        [told].into_iter().chain(parts).collect()
    }

    /// What reading and writing pins needs.
    fn pins(&self) -> Vec<String> {
        let streams = self.pins_streams();
        let written = streams.iter().map(|stream| format!("$KV.{}.>", stream.trim_start_matches("KV_")));
        streams.iter().flat_map(|stream| watching(stream)).chain(written).collect()
    }

    fn streams(&self) -> [String; 3] {
        [self.subjects.jobs_stream(), self.subjects.results_stream(), self.subjects.dead_stream()]
    }
}

/// What reading a bucket and watching it needs.
fn watching(stream: &str) -> Vec<String> {
    vec![
        format!("$JS.API.STREAM.INFO.{stream}"),
        format!("$JS.API.STREAM.MSG.GET.{stream}"),
        format!("$JS.API.CONSUMER.CREATE.{stream}"),
        format!("$JS.API.CONSUMER.CREATE.{stream}.>"),
        format!("$JS.API.CONSUMER.DELETE.{stream}.>"),
        format!("$JS.FC.{stream}.>"),
    ]
}

/// What reading objects of a store needs.
fn reading_objects(store: &str) -> Vec<String> {
    let stream = format!("OBJ_{store}");
    let mut subjects = watching(&stream);
    subjects.push(format!("$JS.API.DIRECT.GET.{stream}.>"));
    subjects
}

/// How users prove who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// By passwords that the server takes from its environment.
    Passwords,
    /// By nkeys; the public key of each user, in their order.
    Nkeys(Vec<String>),
}

/// A deployment's users, as a file that a NATS server's configuration includes.
pub fn server_config(namespace: &Namespace, partitions: u16, account: &str, users: &[User], proof: &Proof) -> String {
    let mut text = format!(
        "# Users of the rankpin namespace {namespace}, with no more rights than their roles need.\n\
         # Written by `rankpin nats-permissions`; write it anew rather than changing it.\n"
    );
    if *proof == Proof::Passwords {
        text.push_str("# Passwords come from the server's environment. Let them begin with a letter: $VARIABLES are read as values.\n");
    }
    let _ = writeln!(text, "\naccounts {{\n  {account} {{\n    jetstream: enabled\n    users: [");
    for (index, user) in users.iter().enumerate() {
        let Allowed { publish, subscribe } = needs(namespace, partitions, user);
        let login = match proof {
            Proof::Passwords => format!("user: {}, password: ${}", user.name, user.variable()),
            Proof::Nkeys(keys) => format!("nkey: {}", keys.get(index).map_or("", String::as_str)),
        };
        let list = |subjects: &[String]| {
            subjects.iter().map(|subject| format!("\n            {subject:?}")).collect::<String>()
        };
        let _ = write!(
            text,
            "      # {}: {}; inboxes under {}\n      {{ {login}\n        permissions: {{\n          \
             publish: {{ allow: [{}\n          ] }}\n          subscribe: {{ allow: [{}\n          ] }}\n        }}\n      }}\n",
            user.role.word(),
            user.name,
            user.inbox(namespace),
            list(&publish),
            list(&subscribe),
        );
    }
    text.push_str("    ]\n  }\n}\n");
    text
}
