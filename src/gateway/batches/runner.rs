//! What is done for a batch: its file is looked at, each of its lines submitted as a job, their results waited for and
//! written. One gateway at a time does it, by a lease; whatever it has begun, another can go on with, since jobs are named
//! by their lines and taken once.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::super::files::Files;
use super::lines::{Checker, Line, Lines};
use super::output;
use super::record::{Lease, Record, Records, Status, now_ms, now_s};
use crate::client::Request;
use crate::client::jobs::{JobError, Jobs};
use crate::core::id::{RequestId, Tenant};
use crate::nats::JetStreamError;
use crate::nats::bucket::CasError;
use crate::nats::objects::ObjectsError;
use crate::wire::header;

/// How often the batches are looked through for one that nobody works on.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// How long a gateway has a batch for itself without saying so again.
const LEASE: Duration = Duration::from_secs(20);
/// How often it says so.
const RENEW_EVERY: Duration = Duration::from_secs(4);
/// Most batches that one gateway works on.
const MAX_AT_A_TIME: usize = 16;
/// Requests to NATS of one batch that are under way at a time.
const IN_FLIGHT: usize = 32;
/// Jobs that are asked for in one round.
const ROUND: usize = 256;
/// Shortest and longest pause between two rounds in which nothing was new.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Most races for a record that are run again.
const MAX_RACES: u32 = 16;

/// Why the work on a batch stops before its end.
#[derive(Debug)]
pub enum Stopped {
    /// Another gateway has it.
    Taken,
    /// It can't go on at the moment: it is tried again once the lease is over.
    Later(String),
    /// It never will.
    Never(&'static str, String),
}

impl From<ObjectsError> for Stopped {
    fn from(error: ObjectsError) -> Self {
        match error {
            ObjectsError::Missing => Self::Never("missing_file", "the batch's file is not there any more".into()),
            ObjectsError::Unreachable { .. } => Self::Later(error.to_string()),
        }
    }
}

impl From<JobError> for Stopped {
    fn from(error: JobError) -> Self {
        match &error {
            JobError::Server(JetStreamError::NoStream(_) | JetStreamError::NoJetStream) => {
                Self::Never("no_jobs", format!("the routers take no jobs: {error}"))
            }
            JobError::Server(_) | JobError::NoModel | JobError::TooLarge { .. } | JobError::Body(_) => {
                Self::Later(error.to_string())
            }
        }
    }
}

/// A request of a batch, once it was submitted.
#[derive(Debug)]
pub struct Entry {
    /// What the client calls it.
    pub custom_id: String,
    /// Its job.
    pub job: RequestId,
    /// Whether its body lies in the object store.
    pub stored: bool,
    /// Status, code word and message, where it could not even be submitted.
    pub refused: Option<(u16, &'static str, String)>,
}

/// Works on batches for as long as it is polled.
#[derive(Debug)]
pub struct Runner {
    /// Id of this process.
    pub own: String,
    /// The batches.
    pub records: Records,
    /// Their files.
    pub files: Files,
    /// The jobs that they become.
    pub jobs: Jobs,
    /// Told when there is a new batch here.
    pub wake: Notify,
    /// Those that this gateway works on.
    pub running: Mutex<HashSet<String>>,
}

/// A batch that this gateway works on.
struct Held {
    record: Record,
    revision: u64,
    renewed: Instant,
}

/// Whether a batch's time is up.
fn is_late(record: &Record) -> bool {
    record.expires_at <= now_s()
}

impl Runner {
    /// Looks for batches that nobody works on, and works on them.
    pub async fn run(self: Arc<Self>) {
        let mut work = JoinSet::new();
        loop {
            // Every arm may be dropped: what is looked for is looked for again.
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.wake.notified() => {}
                Some(_) = work.join_next() => continue,
            }
            let batches = match self.records.all().await {
                Ok(batches) => batches,
                Err(error) => {
                    warn!(%error, "batches can't be read, trying on");
                    continue;
                }
            };
            for (record, revision) in batches {
                if work.len() >= MAX_AT_A_TIME {
                    break;
                }
                if let Some(held) = self.take(record, revision).await {
                    work.spawn(Arc::clone(&self).work_on(held));
                }
            }
        }
    }

    /// Takes a batch that is not done and that nobody has.
    async fn take(&self, mut record: Record, revision: u64) -> Option<Held> {
        let is_free = record.lease.as_ref().is_none_or(|lease| lease.until_ms < now_ms());
        if record.status.is_final() || !is_free || self.running().contains(&record.id) {
            return None;
        }
        record.lease = Some(self.lease());
        // Whoever is first has it.
        let revision = self.records.put(&record, revision).await.ok()?;
        self.running().insert(record.id.clone());
        Some(Held { record, revision, renewed: Instant::now() })
    }

    async fn work_on(self: Arc<Self>, mut held: Held) {
        let id = held.record.id.clone();
        info!(batch = id, status = ?held.record.status, "working on a batch");
        match Box::pin(self.process(&mut held)).await {
            Ok(()) => info!(batch = id, status = ?held.record.status, "a batch is done"),
            Err(Stopped::Taken) => info!(batch = id, "another gateway has taken a batch over"),
            Err(Stopped::Later(problem)) => warn!(batch = id, problem, "a batch can't go on at the moment, trying on"),
            Err(Stopped::Never(code, message)) => {
                warn!(batch = id, message, "a batch has failed");
                let failed = self.update(&mut held, |record| {
                    let error = super::record::LineError { code: code.into(), message: message.clone(), line: None };
                    record.errors.push(error);
                    record.enter(Status::Failed);
                });
                if failed.await.is_err() {
                    warn!(batch = id, "that a batch has failed could not be kept, trying on");
                }
            }
        }
        self.running().remove(&id);
    }

    async fn process(&self, held: &mut Held) -> Result<(), Stopped> {
        if held.record.status == Status::Validating {
            let mut checker = self.checker(held);
            let total = self.count(held, &mut checker).await?;
            if total == 0 && checker.errors.is_empty() {
                checker.note("empty_file", "the file holds no requests".into(), None);
            }
            let errors = checker.errors;
            self.update(held, |record| {
                record.request_counts.total = total;
                match (errors.is_empty(), record.status) {
                    (false, _) => {
                        record.errors.clone_from(&errors);
                        record.enter(Status::Failed);
                    }
                    (true, Status::Validating) => record.enter(Status::InProgress),
                    // It was cancelled meanwhile.
                    (true, _) => {}
                }
            })
            .await?;
        }
        if held.record.status.is_final() {
            return Ok(());
        }
        let entries = self.submit(held).await?;
        // One whose time is up may have jobs that its last gateway did not come to cancel.
        if held.record.status != Status::Finalizing || held.record.out_of_time {
            self.wait(held, &entries).await?;
            self.update(held, |record| {
                if record.status == Status::InProgress {
                    record.enter(Status::Finalizing);
                }
            })
            .await?;
        }
        let written = Box::pin(output::write(&self.jobs, &self.files, &held.record, &entries)).await?;
        self.update(held, |record| {
            record.output_file_id.clone_from(&written.output);
            record.error_file_id.clone_from(&written.errors);
            record.enter(match record.status {
                _ if record.out_of_time => Status::Expired,
                Status::Cancelling => Status::Cancelled,
                _ => Status::Completed,
            });
        })
        .await?;
        self.forget_bodies(&entries).await;
        Ok(())
    }

    /// Deletes what nobody needs any more. What is left goes by itself.
    async fn forget_bodies(&self, entries: &[Entry]) {
        let stored: Vec<&Entry> = entries.iter().filter(|entry| entry.stored).collect();
        for group in stored.chunks(IN_FLIGHT) {
            join_all(group.iter().map(|entry| self.jobs.forget_body(&entry.job))).await;
        }
    }

    fn checker(&self, held: &Held) -> Checker {
        Checker::new(&held.record.id, &held.record.endpoint)
    }

    /// Looks at every line of the file. Returns how many requests there are.
    async fn count(&self, held: &mut Held, checker: &mut Checker) -> Result<u64, Stopped> {
        let mut lines = Lines::of(self.files.open(&held.record.input_file_id).await?);
        let mut total = 0;
        while let Some((number, line)) = lines.next().await? {
            total += u64::from(checker.check(number, &line).is_some());
            self.renew(held).await?;
        }
        Ok(total)
    }

    /// Submits every request; one that was submitted before is known by its id.
    async fn submit(&self, held: &mut Held) -> Result<Vec<Entry>, Stopped> {
        let submits = held.record.status == Status::InProgress && !is_late(&held.record);
        let mut checker = self.checker(held);
        let mut lines = Lines::of(self.files.open(&held.record.input_file_id).await?);
        let (mut entries, mut group, mut ended) = (Vec::new(), Vec::with_capacity(IN_FLIGHT), false);
        while !ended {
            match lines.next().await? {
                Some((number, line)) => group.extend(checker.check(number, &line)),
                None => ended = true,
            }
            if group.len() == IN_FLIGHT || ended {
                let goes = submits && held.record.status == Status::InProgress && !is_late(&held.record);
                let sent: Vec<_> = group.drain(..).map(|line| self.submit_one(&held.record, line, goes)).collect();
                for entry in join_all(sent).await {
                    entries.push(entry?);
                }
                self.renew(held).await?;
            }
        }
        let (total, told) = (entries.len() as u64, held.record.request_counts.total);
        if told == 0 {
            // It was cancelled before its file was looked at.
            held.record.request_counts.total = total;
        } else if total != told {
            return Err(Stopped::Never("changed_file", format!("the file holds {total} requests now, it held {told}")));
        }
        Ok(entries)
    }

    async fn submit_one(&self, record: &Record, line: Line, goes: bool) -> Result<Entry, Stopped> {
        let mut entry = Entry { custom_id: line.custom_id, job: line.job.clone(), stored: false, refused: None };
        let mut request = Request::new(line.model, line.body)
            .request_id(line.job)
            .content_type("application/json")
            .header(header::PATH, &record.endpoint);
        if let Ok(tenant) = Tenant::new(&record.tenant) {
            request = request.tenant(&tenant);
        }
        entry.stored = self.jobs.stores_body_of(&request);
        if goes {
            match self.jobs.submit(&request).await {
                Ok(_) => {}
                Err(error @ JobError::TooLarge { .. }) => {
                    entry.refused = Some((413, "payload_too_large", error.to_string()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(entry)
    }

    /// Waits until every request has its result, or until the batch is cancelled or its time is up.
    async fn wait(&self, held: &mut Held, entries: &[Entry]) -> Result<(), Stopped> {
        let mut open: BTreeSet<usize> = (0..entries.len()).filter(|at| entries[*at].refused.is_none()).collect();
        let (mut completed, mut failed) = (0, (entries.len() - open.len()) as u64);
        let (mut from, mut pause) = (0, PAUSE.0);
        while !open.is_empty() {
            if held.record.status == Status::InProgress && is_late(&held.record) {
                self.update(held, |record| {
                    record.out_of_time = true;
                    record.enter(Status::Finalizing);
                })
                .await?;
            }
            if held.record.status != Status::InProgress {
                self.cancel(held, entries, &open).await?;
            }
            let round: Vec<usize> = open.range(from..).take(ROUND).copied().collect();
            from = round.last().map_or(0, |last| last + 1);
            let mut news = false;
            for group in round.chunks(IN_FLIGHT) {
                let asked: Vec<_> = group.iter().map(|at| self.jobs.result(&entries[*at].job)).collect();
                for (at, result) in group.iter().zip(join_all(asked).await) {
                    let Some(result) = result? else { continue };
                    news = open.remove(at);
                    *(if result.failure.is_none() { &mut completed } else { &mut failed }) += 1;
                }
            }
            held.record.request_counts.completed = completed;
            held.record.request_counts.failed = failed;
            self.renew(held).await?;
            pause = if news { PAUSE.0 } else { (pause * 2).min(PAUSE.1) };
            if !news && from == 0 {
                tokio::time::sleep(pause).await;
            }
        }
        self.update(held, |record| {
            record.request_counts.completed = completed;
            record.request_counts.failed = failed;
        })
        .await
    }

    /// Cancels what has no result yet: then that it was cancelled is its result.
    async fn cancel(&self, held: &mut Held, entries: &[Entry], open: &BTreeSet<usize>) -> Result<(), Stopped> {
        let open: Vec<usize> = open.iter().copied().collect();
        for group in open.chunks(IN_FLIGHT) {
            let told: Vec<_> = group.iter().map(|at| self.jobs.cancel(&entries[*at].job)).collect();
            for cancelled in join_all(told).await {
                cancelled?;
            }
            self.renew(held).await?;
        }
        Ok(())
    }

    /// Keeps the lease, and notices what others have said of the batch.
    async fn renew(&self, held: &mut Held) -> Result<(), Stopped> {
        if held.renewed.elapsed() < RENEW_EVERY {
            return Ok(());
        }
        let counts = held.record.request_counts;
        self.update(held, |record| record.request_counts = counts).await
    }

    /// Changes the record. Where somebody else has changed it meanwhile, theirs is changed.
    async fn update(&self, held: &mut Held, change: impl Fn(&mut Record)) -> Result<(), Stopped> {
        for _ in 0..MAX_RACES {
            let mut record = held.record.clone();
            change(&mut record);
            record.lease = if record.status.is_final() { None } else { Some(self.lease()) };
            match self.records.put(&record, held.revision).await {
                Ok(revision) => {
                    *held = Held { record, revision, renewed: Instant::now() };
                    return Ok(());
                }
                Err(CasError::Unreachable(problem) | CasError::Refused(problem)) => {
                    return Err(Stopped::Later(problem));
                }
                Err(CasError::Lost) => {}
            }
            let found = self.records.get(&held.record.id).await.map_err(|error| Stopped::Later(error.to_string()))?;
            let (record, revision) = found.ok_or(Stopped::Taken)?;
            if record.lease.as_ref().is_none_or(|lease| lease.by != self.own) {
                return Err(Stopped::Taken);
            }
            *held = Held { record, revision, renewed: held.renewed };
        }
        Err(Stopped::Later("the record is changed all the time".into()))
    }

    fn lease(&self) -> Lease {
        let until = now_ms().saturating_add(u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX));
        Lease { by: self.own.clone(), until_ms: until }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.running.lock().expect("no code panics while it holds this lock")
    }
}
