//! Which server a rank is on, and what is known of each server at the moment.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::figures::RankFigures;
use super::http::BaseUrl;
use crate::core::id::{DpRank, RankRange};
use crate::worker::Refusal;

/// How long a server whose engine has said that it is dead is not believed to be well.
const DISTRUST: Duration = Duration::from_secs(10);

/// How a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Up,
    /// It does not answer. It takes no more requests; those that it has may go on.
    Silent,
    /// It is gone, and with it all that it worked on.
    Dead,
}

#[derive(Debug, Clone, Copy)]
struct State {
    health: Health,
    /// How often it has died.
    deaths: u64,
}

/// One server.
#[derive(Debug)]
pub struct Endpoint {
    /// Where it is.
    pub base: BaseUrl,
    state: watch::Sender<State>,
    suspected: Notify,
    distrusted: Mutex<Option<Instant>>,
    /// Requests of ours, by local rank.
    held: Vec<AtomicU32>,
    /// Requests of ours that named no rank.
    unranked: AtomicU32,
    /// What it last said of its ranks, and what we held at that moment.
    sample: Mutex<Vec<Sampled>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sampled {
    figures: RankFigures,
    held: u32,
}

/// All servers of one bridge: the declared ranks in order, as many on each.
#[derive(Debug)]
pub struct Targets {
    ranks: RankRange,
    per_server: u32,
    endpoints: Vec<Endpoint>,
    changed: watch::Sender<()>,
    warned: AtomicBool,
}

/// Where one request goes; counted until it is dropped.
#[derive(Debug)]
pub struct Target<'t> {
    /// The server.
    pub endpoint: &'t Endpoint,
    /// The rank as that server counts, where it has several and one is wanted.
    pub local: Option<u32>,
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        self.endpoint.counter(self.local).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Targets {
    /// The servers of these ranks. The error says why the ranks can't be spread over them.
    pub fn new(ranks: RankRange, urls: &[BaseUrl]) -> Result<Self, String> {
        let (servers, size) = (u32::try_from(urls.len()).unwrap_or(u32::MAX), ranks.size());
        if servers == 0 || !size.is_multiple_of(servers) {
            return Err(format!("{size} ranks can't be spread evenly over {servers} URLs"));
        }
        let per_server = size / servers;
        let endpoints = urls.iter().map(|base| Endpoint::new(base.clone(), per_server)).collect();
        Ok(Self { ranks, per_server, endpoints, changed: watch::Sender::new(()), warned: AtomicBool::new(false) })
    }

    /// Ranks on each server.
    pub fn per_server(&self) -> u32 {
        self.per_server
    }

    /// The servers, in the order of their ranks.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The first rank of a server, by its place.
    pub fn rank_at(&self, server: usize, local: u32) -> DpRank {
        self.ranks.at(server as u64 * u64::from(self.per_server) + u64::from(local))
    }

    /// Where a request goes: the server of its rank or, where it names none, the one with the fewest requests.
    pub fn pick(&self, rank: Option<DpRank>) -> Result<Target<'_>, Refusal> {
        let (endpoint, local) = match rank {
            Some(rank) => {
                let index = self.ranks.index_of(rank).ok_or_else(|| {
                    Refusal::not_found("rank_out_of_range", format!("this worker has no rank {rank}"))
                })?;
                let per_server = self.per_server as usize;
                let local = u32::try_from(index % per_server).unwrap_or_default();
                (&self.endpoints[index / per_server], (per_server > 1).then_some(local))
            }
            None => {
                let up = self.endpoints.iter().filter(|endpoint| endpoint.health() == Health::Up);
                let least = up.min_by_key(|endpoint| endpoint.in_flight());
                (least.unwrap_or(&self.endpoints[0]), None)
            }
        };
        if endpoint.health() != Health::Up {
            let words = format!("the engine at {} does not work at the moment", endpoint.base);
            return Err(Refusal::unavailable("engine_down", words));
        }
        endpoint.counter(local).fetch_add(1, Ordering::Relaxed);
        Ok(Target { endpoint, local })
    }

    /// Whether any server works.
    pub fn is_up(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.health() == Health::Up)
    }

    /// Tells of changes of any server's health.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// What is known of a server's health now.
    pub fn set_health(&self, endpoint: &Endpoint, health: Health) {
        if endpoint.set_health(health) {
            self.changed.send_replace(());
        }
    }

    /// Whether something that is said once has to be said.
    pub fn warns_first(&self) -> bool {
        !self.warned.swap(true, Ordering::Relaxed)
    }

    /// What a rank's server said of it, and how much of that is not ours.
    pub fn figures(&self, index: usize) -> Option<(RankFigures, u32)> {
        let per_server = self.per_server as usize;
        let sample = self.endpoints.get(index / per_server)?.sample.lock().expect("no code panics while it holds this");
        let Sampled { figures, held } = *sample.get(index % per_server)?;
        Some((figures, figures.total().saturating_sub(held)))
    }
}

impl Endpoint {
    fn new(base: BaseUrl, ranks: u32) -> Self {
        Self {
            base,
            state: watch::Sender::new(State { health: Health::Dead, deaths: 0 }),
            suspected: Notify::new(),
            distrusted: Mutex::new(None),
            held: (0..ranks).map(|_| AtomicU32::new(0)).collect(),
            unranked: AtomicU32::new(0),
            sample: Mutex::new(Vec::new()),
        }
    }

    /// How it is.
    pub fn health(&self) -> Health {
        self.state.borrow().health
    }

    /// Returns when the server has died since this was called. Dropping the future loses nothing.
    pub fn death(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut state = self.state.subscribe();
        let before = state.borrow().deaths;
        async move {
            if state.wait_for(|state| state.deaths != before).await.is_err() {
                // The server is no longer looked after: the bridge ends, and ends the request itself.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Something went wrong with a request: its health is looked at now.
    pub fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Returns when somebody suspects it.
    pub async fn suspected(&self) {
        self.suspected.notified().await;
    }

    /// Its engine has said itself that it is dead: a server that calls itself healthy is not believed for a while.
    pub fn distrust(&self) {
        *self.distrusted.lock().expect("no code panics while it holds this") = Some(Instant::now() + DISTRUST);
        self.suspect();
    }

    /// Whether it is not to be believed that it is well.
    pub fn is_distrusted(&self) -> bool {
        let mut until = self.distrusted.lock().expect("no code panics while it holds this");
        *until = until.filter(|until| Instant::now() < *until);
        until.is_some()
    }

    /// It was gone: what stands there now is another one.
    pub fn trust(&self) {
        *self.distrusted.lock().expect("no code panics while it holds this") = None;
    }

    /// Keeps what it says of its ranks.
    pub fn keep(&self, figures: Vec<RankFigures>) {
        let held = self.held.iter().map(|held| held.load(Ordering::Relaxed));
        let sampled = figures.into_iter().zip(held).map(|(figures, held)| Sampled { figures, held }).collect();
        *self.sample.lock().expect("no code panics while it holds this") = sampled;
    }

    fn set_health(&self, health: Health) -> bool {
        if health != Health::Up {
            self.sample.lock().expect("no code panics while it holds this").clear();
        }
        self.state.send_if_modified(|state| {
            let died = health == Health::Dead && state.health != Health::Dead;
            state.deaths += u64::from(died);
            std::mem::replace(&mut state.health, health) != health
        })
    }

    fn in_flight(&self) -> u32 {
        self.held.iter().chain([&self.unranked]).map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn counter(&self, local: Option<u32>) -> &AtomicU32 {
        // A server with one rank is never told it; its requests are all of that rank.
        let index = match local {
            Some(local) => Some(local as usize),
            None => (self.held.len() == 1).then_some(0),
        };
        index.and_then(|index| self.held.get(index)).unwrap_or(&self.unranked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(start: u32, size: u32, servers: usize) -> Result<Targets, String> {
        let urls: Vec<BaseUrl> =
            (0..servers).map(|i| BaseUrl::parse(&format!("http://e:{}", 8000 + i)).expect("valid")).collect();
        let targets = Targets::new(RankRange::new(start, size).expect("valid"), &urls)?;
        targets.endpoints().iter().for_each(|endpoint| targets.set_health(endpoint, Health::Up));
        Ok(targets)
    }

    #[test]
    fn a_global_rank_is_one_of_a_server() {
        for (start, size, servers, rank, at) in [
            (0, 2, 1, 1, ("http://e:8000", Some(1))),
            (4, 4, 1, 6, ("http://e:8000", Some(2))),
            (4, 4, 2, 6, ("http://e:8001", Some(0))),
            (4, 4, 2, 5, ("http://e:8000", Some(1))),
            (4, 4, 4, 7, ("http://e:8003", None)),
            (9, 1, 1, 9, ("http://e:8000", None)),
        ] {
            let targets = targets(start, size, servers).expect("they fit");
            let target = targets.pick(Some(DpRank(rank))).expect("declared");
            assert_eq!((target.endpoint.base.to_string().as_str(), target.local), at);
            let server = targets.endpoints().iter().position(|endpoint| std::ptr::eq(endpoint, target.endpoint));
            assert_eq!(targets.rank_at(server.expect("one of them"), target.local.unwrap_or(0)), DpRank(rank));
        }
        assert!(targets(0, 3, 2).is_err() && targets(0, 1, 2).is_err());
        assert!(targets(4, 2, 1).expect("they fit").pick(Some(DpRank(3))).is_err());
    }

    #[test]
    fn requests_without_a_rank_go_where_there_are_fewest() {
        let targets = targets(0, 2, 2).expect("they fit");
        let first = targets.pick(None).expect("up");
        let second = targets.pick(None).expect("up");
        assert_ne!(first.endpoint.base, second.endpoint.base);
        assert_eq!((first.local, second.local), (None, None));
        targets.set_health(first.endpoint, Health::Silent);
        drop(first);
        assert_eq!(targets.pick(None).expect("one is up").endpoint.base, second.endpoint.base);
        targets.set_health(second.endpoint, Health::Dead);
        assert!(targets.pick(None).is_err() && !targets.is_up());
    }

    #[tokio::test]
    async fn a_death_is_seen_even_where_the_server_is_back_at_once() {
        let targets = targets(0, 1, 1).expect("they fit");
        let endpoint = &targets.endpoints()[0];
        let death = endpoint.death();
        targets.set_health(endpoint, Health::Silent);
        targets.set_health(endpoint, Health::Dead);
        targets.set_health(endpoint, Health::Up);
        death.await;
    }

    #[test]
    fn what_an_engine_has_beside_ours_is_told() {
        let targets = targets(0, 2, 1).expect("they fit");
        let ours = targets.pick(Some(DpRank(1))).expect("up");
        let figures = |running, waiting| RankFigures { running, waiting, kv_used: 0.5 };
        ours.endpoint.keep(vec![figures(2, 0), figures(3, 1)]);
        assert_eq!(targets.figures(0), Some((figures(2, 0), 2)));
        assert_eq!(targets.figures(1), Some((figures(3, 1), 3)));
        targets.set_health(ours.endpoint, Health::Silent);
        assert_eq!(targets.figures(1), None, "figures of a server that does not answer are old");
    }
}
