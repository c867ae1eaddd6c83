//! What happens by time alone: workers that fall silent, probes, ages of pins.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::state::Router;
use crate::core::fleet::WorkerSlot;
use crate::nats::{Lines, Payload};
use crate::wire::header;

/// How often silence is looked for, and whoever waits is tried again.
const TICK: Duration = Duration::from_millis(200);
/// How often a worker that holds accepted requests is probed (protocol section 6).
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How often routers at the global level hear that what they have sent here is still worked on.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Ages of pins looked at before requests get the state again, so that no pause is noticed when a million end at once.
const MAX_EXPIRED: usize = 1_000;
/// How often that is done in one tick: 100,000 pins a second can end.
const EXPIRIES: usize = 20;

/// Runs for ever.
pub async fn tick(router: Arc<Router>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Instant::now();
    let mut probed = Instant::now();
    let mut told = Instant::now();
    let mut connects = (router.intake.connects(), router.dispatch.connects());
    loop {
        ticks.tick().await;
        let now = Instant::now();
        // A process that was itself frozen, or starved, has heard nobody: that says nothing of the workers.
        if now.duration_since(last) > 5 * TICK {
            router.state().fleet.handle_outage_end(now);
        }
        last = now;
        let stand = (router.intake.connects(), router.dispatch.connects());
        if connects != stand {
            router.happenings.warn("the connection to NATS was lost and stands again");
            router.outage_ended();
            if connects.1 != stand.1 {
                router.state().live.mark_uncertain(now);
            }
            connects = stand;
        }
        router.expire(now);
        if now.duration_since(probed) >= PROBE_EVERY {
            probed = now;
            router.probe();
            if router.is_global() {
                router.state().end_silent(now);
            }
        }
        if now.duration_since(told) >= PROGRESS_EVERY {
            told = now;
            router.tell_progress();
        }
    }
}

impl Router {
    fn expire(&self, now: Instant) {
        for _ in 0..EXPIRIES {
            if !self.state().mirrors.expire(now, MAX_EXPIRED) {
                break;
            }
        }
        let mut state = self.state();
        // While the router itself is cut off, everybody is silent.
        if self.dispatch.is_connected() && self.intake.is_connected() && self.pins.link().is_connected() {
            for (slot, worker) in state.fleet.expire(now) {
                tracing::warn!(%worker, "worker lost: no sign of life for 6 s");
                self.happenings.warn(format!("worker {worker} lost: silent for 6 s"));
                state.live.lose(slot);
            }
        }
        state.forget_queues(now);
        drop(state);
        self.pump(now);
    }

    fn probe(&self) {
        if !self.dispatch.is_connected() {
            return;
        }
        let targets = self.state().fleet.to_probe();
        for (slot, worker) in targets {
            let mut headers = Lines::new();
            headers.push(header::PROBE, "1");
            let inbox = self.probe_inbox(slot);
            self.state().fleet.begin_probe(slot);
            self.send(&self.subjects.worker_cancel(&worker), Some(&inbox), &headers, Payload::EMPTY);
        }
    }

    /// Nobody listened to a probe.
    pub(super) fn probe_refused(&self, slot: WorkerSlot) {
        if self.reconnected_within(PROBE_EVERY * 3) {
            return;
        }
        let mut state = self.state();
        let worker = state.fleet.get(slot).map(|worker| worker.spec.id.clone());
        if state.fleet.handle_refused_probe(slot) {
            if let Some(worker) = worker {
                tracing::warn!(%worker, "worker lost: nobody listens to its probes");
                self.happenings.warn(format!("worker {worker} lost: nobody listens to its probes"));
            }
            state.live.lose(slot);
        }
    }
}
