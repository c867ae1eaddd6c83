//! Start, readiness, drain.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::hot::HotThread;
use super::jobs::Jobs;
use super::live::MAX_LIVE_BYTES;
use super::partitions::provide_pins;
use super::pinning::PinStores;
use super::state::Router;
use super::{http, inbox, intake, jobs, kv, mirror, passing, service, ticks};
use crate::config::{Level, Listen, RouterConfig};
use crate::core::id::{Namespace, WorkerId};
use crate::core::mode::{AffinityMode, Provision};
use crate::core::partition::Partition;
use crate::nats::bucket::{Bucket, BucketInfo, Look};
use crate::nats::feed::{Feed, pulled_at};
use crate::nats::lane::MAX_UNSENT;
use crate::nats::writes::Writes;
use crate::nats::{AccessError, ConnectError, JetStream, Lane, Lines, Link, LinkOptions, Message, Payload};
use crate::wire::header;
use crate::wire::subject::Subjects;

/// Age at which the server drops a registration (protocol section 7).
pub(super) const REGISTRATION_MAX_AGE: Duration = Duration::from_secs(30);
/// How long the mirrors may take to fill before the log says that they still do.
const FILL_NOTICE: Duration = Duration::from_secs(5);
/// How often a draining router looks whether it is done.
const DRAIN_STEP: Duration = Duration::from_millis(20);
/// How long requests that are told of the shutdown may take to answer their frontends.
const SHUT_DOWN_GRACE: Duration = Duration::from_secs(2);
/// A revision that no key has: a write that expects it stores nothing.
const UNREACHABLE_SEQUENCE: u64 = 1 << 62;
/// Where a bucket keeps values for ever, the mirror does for this long.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Why a router does not run.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// No connection, or missing permissions.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It is not clear where or as whom to connect.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The server has no JetStream.
    #[error(
        "the NATS server at {urls} has no JetStream ({problem}): start it with -js, or enable JetStream for this account"
    )]
    NoJetStream {
        /// Where.
        urls: String,
        /// What the client says.
        problem: String,
    },
    /// The namespace has another number of partitions.
    #[error(
        "namespace {namespace} is made for --partitions {found}, as its bucket {bucket} says, and this router is configured for {wanted}: it would pin sessions where no other looks; start it with --partitions {found}, or in another namespace"
    )]
    OtherPartitions {
        /// The namespace.
        namespace: Namespace,
        /// The bucket that says so.
        bucket: String,
        /// What it says; as text, since it may be none that can be.
        found: String,
        /// What is configured.
        wanted: u16,
    },
    /// A bucket is missing and may not be made.
    #[error(
        "the key-value bucket {bucket} is missing, and provision is never: make it (nats kv add {bucket} --history=1 --ttl={ttl} --replicas={replicas}{described}), or start with --provision auto"
    )]
    MissingBucket {
        /// Its name.
        bucket: String,
        /// The age that its values should have.
        ttl: String,
        /// How many servers should keep it.
        replicas: usize,
        /// The option that describes it, where it has to be described.
        described: String,
    },
    /// A bucket can't be read or made.
    #[error("the key-value bucket {bucket} can't be {verb}: {problem}")]
    Bucket {
        /// Its name.
        bucket: String,
        /// What was tried.
        verb: &'static str,
        /// What the server says.
        problem: String,
    },
    /// A stream or its consumer can't be read or made.
    #[error("{what} can't be read or made: {problem}")]
    Stream {
        /// Its name.
        what: String,
        /// What the server says.
        problem: String,
    },
    /// The system gives no thread.
    #[error("the system gives no thread for the connections to NATS: {0}")]
    Thread(std::io::Error),
    /// The HTTP address can't be listened on.
    #[error("cannot listen on {address}: {problem}; choose another with --listen, or --listen off")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system says.
        problem: std::io::Error,
    },
}

/// Runs a router until `stop`, then drains it: what it holds is finished, what it can't finish is answered.
pub async fn run(config: RouterConfig, stop: impl Future<Output = ()>) -> Result<(), RouterError> {
    let mut stop = std::pin::pin!(stop);
    // Cancel-safe: a router that is told to stop while it starts holds nothing yet.
    let running = tokio::select! {
        started = start(config) => started?,
        () = &mut stop => return Ok(()),
    };
    stop.await;
    running.drain().await;
    Ok(())
}

struct Running {
    router: Arc<Router>,
    tasks: JoinSet<()>,
    _hot: HotThread,
}

async fn start(config: RouterConfig) -> Result<Running, RouterError> {
    let subjects = Subjects::new(config.namespace.clone());
    let listener = listen(config.listen).await?;
    let link = config.access.link("rankpin router")?;
    let options = |role: &str| link_options(&link, &subjects, role);
    let hot = HotThread::start().map_err(RouterError::Thread)?;
    let intake = hot.run(Lane::open(options("intake"))).await?;
    let dispatch = hot.run(Lane::open(options("dispatch"))).await?;
    // Bodies are not copied, and are bounded as those of live requests; the rest is small.
    dispatch.let_wait(MAX_LIVE_BYTES + MAX_UNSENT);
    let store = Link::open(options("store")).await?;
    let workers = Bucket::new(store.clone(), &subjects.workers_bucket());
    if config.pools.level == Level::Worker {
        provide(&workers, REGISTRATION_MAX_AGE, "", &config).await?;
    }
    let pins = provide_pins(&store, &subjects, &config).await?;
    let own = uuid::Uuid::now_v7().simple().to_string();
    let inbox_subject = format!("{}.{own}.", subjects.router_inbox_prefix());
    // At the global level a job would have to be acknowledged by another pool's word: it is submitted to a pool.
    let jobs = match (config.pools.level, config.jobs.max) {
        (Level::Global, _) | (Level::Worker, 0) => None,
        (Level::Worker, _) => {
            let lane = Lane::open(options("jobs")).await?;
            Some(Jobs::new(lane, JetStream::new(store), &inbox_subject))
        }
    };
    let writes = Writes::new(dispatch.clone(), inbox::of_writes(&inbox_subject));
    let stores = PinStores::new(pins.iter().map(|(bucket, _)| bucket.clone()), writes);
    let (mail, feeds, feed_of_workers) = feeds(&dispatch, pins.len(), &own, &inbox_subject);
    let router = Arc::new(Router::new(config, [intake, dispatch], stores, jobs, inbox_subject, mail));
    let mut tasks = JoinSet::new();
    if let Some(listener) = listener {
        tasks.spawn(http::serve(Arc::clone(&router), listener));
    }
    tasks.spawn_on(drive(Arc::clone(&router)), hot.handle());
    inbox::subscribe(&router).await?;
    check_permissions(&router).await?;
    intake::subscribe_control(&router).await?;
    service::subscribe(&router).await?;
    if router.config.affinity != AffinityMode::Off {
        follow_pins(&router, pins.into_iter().zip(feeds), &mut tasks, &hot);
    }
    if !router.is_global() {
        let readers = mirror::Workers::default();
        tasks.spawn_on(mirror::follow(Arc::clone(&router), workers, feed_of_workers, readers), hot.handle());
    }
    fill(&router).await?;
    tasks.spawn(ticks::tick(Arc::clone(&router)));
    if router.weighs_caches() {
        tasks.spawn(kv::share(Arc::clone(&router)));
    }
    jobs::start(&router, &mut tasks).await;
    tasks.spawn_on(passing::watch(Arc::clone(&router)), hot.handle());
    intake::subscribe_requests(&router).await?;
    router.taking.store(true, Ordering::Relaxed);
    // The macro keeps what its arguments borrow until it is done: two locks in it would wait for each other.
    let (pins, workers) = {
        let state = router.state();
        (state.mirrors.pins(), state.fleet.iter().count())
    };
    tracing::info!(namespace = %router.config.namespace, pins, workers, "router is ready");
    Ok(Running { router, tasks, _hot: hot })
}

/// What buckets are mirrored by: the ends that get the connection's messages, by number; those that read the changes of the
/// buckets of pins, in the order of their partitions; and that of the workers' bucket.
fn feeds(lane: &Lane, partitions: usize, own: &str, inbox: &str) -> (Vec<mpsc::Sender<Message>>, Vec<Feed>, Feed) {
    let feed = |number: u64| {
        let (inbox, name) = (format!("{inbox}feed{number}."), format!("{own}-{number}"));
        Feed::new(lane.clone(), inbox::FIRST_FEED + number, inbox, name)
    };
    let partitions = partitions as u64;
    let (mut mail, pins): (Vec<_>, Vec<_>) = (0..partitions).map(feed).unzip();
    let (sender, workers) = feed(partitions);
    mail.push(sender);
    (mail, pins, workers)
}

/// Mirrors the buckets of the partitions that are served, where their changes come in.
fn follow_pins(
    router: &Arc<Router>,
    pins: impl Iterator<Item = ((Bucket, BucketInfo), Feed)>,
    tasks: &mut JoinSet<()>,
    hot: &HotThread,
) {
    for (partition, ((bucket, info), feed)) in router.config.partitions.every().zip(pins) {
        let max_age = if info.max_age.is_zero() { FOR_EVER } else { info.max_age };
        router.state().mirrors.of_mut(partition).set_ttl(max_age);
        if router.config.partitions.serves(partition) {
            let mirrored = mirror::follow(Arc::clone(router), bucket, feed, mirror::Pins(partition));
            tasks.spawn_on(mirrored, hot.handle());
        }
    }
}

/// Both connections of the hot path in one task: a request is taken, placed and sent without a change of tasks, and
/// whatever was read at once is answered at once.
async fn drive(router: Arc<Router>) {
    tokio::join!(
        router.intake.drive(|message| router.outlive(|| intake::take(&router, message))),
        router.dispatch.drive(|message| router.outlive(|| inbox::take(&router, message))),
    );
}

async fn listen(listen: Listen) -> Result<Option<TcpListener>, RouterError> {
    let (address, needed) = match listen {
        Listen::Off => return Ok(None),
        Listen::At(address) => (address, true),
        Listen::IfFree(address) => (address, false),
    };
    match TcpListener::bind(address).await {
        Ok(listener) => {
            // Port 0 is any free port, so the log says which.
            let address = listener.local_addr().unwrap_or(address);
            tracing::info!(%address, "health and metrics are served over HTTP");
            Ok(Some(listener))
        }
        Err(problem) if needed => Err(RouterError::Listen { address, problem }),
        Err(problem) => {
            tracing::warn!(%address, %problem, "health and metrics are not served: give this router an address with --listen");
            Ok(None)
        }
    }
}

fn link_options(link: &LinkOptions, subjects: &Subjects, role: &str) -> LinkOptions {
    LinkOptions { name: format!("rankpin router {role}"), inbox_prefix: subjects.router_inbox_prefix(), ..link.clone() }
}

/// How often a bucket is looked for or made at start, and the pause between: a cluster that was just started, or elects a
/// leader, answers after some seconds.
const TRIES: u32 = 5;
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Makes a bucket that is missing, where that is wanted. One that is there is never changed.
pub(super) async fn provide(
    bucket: &Bucket,
    max_age: Duration,
    description: &str,
    config: &RouterConfig,
) -> Result<BucketInfo, RouterError> {
    let failed = |verb, problem| RouterError::Bucket { bucket: bucket.name().to_owned(), verb, problem };
    let (mut made, mut tries) = (false, 0);
    loop {
        tries += 1;
        match bucket.look().await {
            Look::There(info) => {
                tell_differences(bucket, &info, max_age, config.replicas);
                return Ok(info);
            }
            Look::Missing if config.provision == Provision::Never => {
                let ttl = humantime::format_duration(max_age).to_string();
                let (bucket, replicas) = (bucket.name().to_owned(), config.replicas);
                let described = match description {
                    "" => String::new(),
                    text => format!(" --description={text:?}"),
                };
                return Err(RouterError::MissingBucket { bucket, ttl, replicas, described });
            }
            Look::Missing if made => return Err(failed("made", "it is not there after it was made".into())),
            Look::Missing => {
                let making = bucket.create_on(config.replicas, 1, max_age, description).await;
                made = making.is_ok();
                if let Err(error) = making {
                    bucket.link().check_permissions()?;
                    // Another router may have made it at the same moment.
                    if tries >= TRIES && !matches!(bucket.look().await, Look::There(_)) {
                        return Err(failed("made", error.0));
                    }
                    tokio::time::sleep(TRY_AGAIN_AFTER).await;
                }
            }
            Look::NoJetStream(problem) => {
                return Err(RouterError::NoJetStream { urls: bucket.link().servers(), problem });
            }
            Look::Silent(problem) => {
                bucket.link().check_permissions()?;
                if tries >= TRIES {
                    return Err(failed("read", problem));
                }
                tokio::time::sleep(TRY_AGAIN_AFTER).await;
            }
        }
    }
}

fn tell_differences(bucket: &Bucket, info: &BucketInfo, max_age: Duration, replicas: usize) {
    if info.max_age != max_age {
        let (found, wanted) = (humantime::format_duration(info.max_age), humantime::format_duration(max_age));
        tracing::warn!(bucket = bucket.name(), %found, %wanted, "the bucket's values live for another time than is configured; it is left as it is");
    }
    if info.replicas != replicas {
        tracing::warn!(
            bucket = bucket.name(),
            found = info.replicas,
            wanted = replicas,
            "the bucket is kept by another number of servers than is configured; it is left as it is"
        );
    }
    if info.history != 1 {
        tracing::warn!(
            bucket = bucket.name(),
            found = info.history,
            wanted = 1,
            "the bucket keeps another history than is wanted; it is left as it is"
        );
    }
}

/// Publishes what harms nobody to where the router will have to publish: a missing permission shows at start.
async fn check_permissions(router: &Router) -> Result<(), RouterError> {
    let nobody = WorkerId::new("rankpin-permission-check").expect("a valid worker id");
    let mut headers = Lines::new();
    headers.push(header::PROBE, "1");
    for pool in &router.config.pools.targets {
        // Nobody has a request of this id.
        let subject = format!("{}.cancel.{nobody}", pool.namespace);
        router.send(&subject, None, &Lines::new(), Payload::EMPTY);
    }
    if !router.is_global() {
        router.send(&router.subjects.worker_cancel(&nobody), None, &headers, Payload::EMPTY);
    }
    if router.weighs_caches() {
        router.share_nothing();
    }
    if router.config.partitions.is_divided() {
        router.send(&router.subjects.probe_part(Partition::FIRST), None, &headers, Payload::EMPTY);
    }
    for prefix in &router.config.reply_prefixes {
        let dot = if prefix.ends_with('.') { "" } else { "." };
        let subject = format!("{prefix}{dot}rankpin-permission-check");
        router.send(&subject, None, &Lines::new(), Payload::EMPTY);
    }
    // No consumer has this name.
    let pulled = |bucket: &str| router.send(&pulled_at(bucket, nobody.as_str()), None, &Lines::new(), Payload::EMPTY);
    if !router.is_global() {
        pulled(&router.subjects.workers_bucket());
    }
    if router.config.affinity != AffinityMode::Off {
        router.config.partitions.served().for_each(|partition| pulled(router.pins.of(partition).bucket.name()));
    }
    router.dispatch.barrier().await?;
    if router.config.affinity != AffinityMode::Off {
        for partition in router.config.partitions.every() {
            // Whether it is refused for its sequence or not answered at all: the server tells of the permission.
            let bucket = &router.pins.of(partition).bucket;
            let _ = bucket.put_at(nobody.as_str(), bytes::Bytes::new(), UNREACHABLE_SEQUENCE).await;
            router.dispatch.check_permissions()?;
        }
    }
    Ok(())
}

/// Waits until both mirrors have everything. A user that may not watch the buckets would wait for ever.
async fn fill(router: &Arc<Router>) -> Result<(), RouterError> {
    let mut noticed = Instant::now();
    loop {
        {
            let state = router.state();
            if state.fleet_known && state.mirrors.all_known() {
                return Ok(());
            }
        }
        router.pins.link().check_permissions()?;
        router.dispatch.check_permissions()?;
        if noticed.elapsed() >= FILL_NOTICE {
            noticed = Instant::now();
            tracing::info!(pins = router.state().mirrors.pins(), "still reading the buckets");
        }
        tokio::time::sleep(DRAIN_STEP).await;
    }
}

impl Running {
    /// Leaves the queue group without losing a message, and finishes what is held.
    async fn drain(mut self) {
        let router = &self.router;
        tracing::info!(
            in_flight = router.state().live.len(),
            "router stops: it takes no new requests and finishes those it has"
        );
        let until = Instant::now() + router.config.drain_timeout;
        jobs::stop(router);
        let _ = tokio::time::timeout_at(until.into(), intake::leave(router)).await;
        let empty = || {
            let reading = router.reading.load(Ordering::Relaxed);
            reading == 0 && jobs::has_none(router) && router.state().live.len() == 0
        };
        wait_until(until, empty).await;
        let left = router.state().live.len();
        if left > 0 {
            tracing::warn!(left, "the drain timeout has passed; what no worker has accepted is answered shutting_down");
            router.state().live.shut_down();
            wait_until(Instant::now() + SHUT_DOWN_GRACE, || router.state().live.waiting() == 0).await;
        }
        // What was handed to the client has to reach the server before the process ends.
        if let Err(error) = router.dispatch.barrier().await {
            tracing::debug!(%error, "the last messages may not have been sent");
        }
        jobs::settled(router).await;
        self.tasks.shutdown().await;
        // Requests at rest hold the router that holds them.
        let abandoned = router.state().live.abandon();
        drop(abandoned);
        tracing::info!("router has stopped");
    }
}

async fn wait_until(until: Instant, done: impl Fn() -> bool) {
    while !done() && Instant::now() < until {
        tokio::time::sleep(DRAIN_STEP).await;
    }
}
