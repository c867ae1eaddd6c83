//! How fast requests leave a queue: what tells a frontend after how long another try is worth it.

use std::time::{Duration, Instant};

/// How far back departures count: after this long one counts a third.
const WINDOW_S: f64 = 10.0;
/// Longest time that a frontend is told to wait; longer ones are guesses.
pub const MAX_RETRY_AFTER_S: u32 = 60;

/// Departures of one queue. Its clock stands while nobody waits: an empty queue says nothing of how fast it drains.
#[derive(Debug, Default)]
pub struct Drain {
    /// Departures, each the less the longer ago it was.
    departures: f64,
    /// When they were last counted, on this queue's own clock, in seconds.
    counted: f64,
    /// What its clock shows, as of `since`.
    elapsed: f64,
    /// Since when somebody waits.
    since: Option<Instant>,
}

impl Drain {
    /// Somebody waits, from now on.
    pub fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Nobody waits any more.
    pub fn pause(&mut self, now: Instant) {
        self.elapsed = self.clock(now);
        self.since = None;
    }

    /// Somebody got a place.
    pub fn depart(&mut self, now: Instant) {
        let clock = self.clock(now);
        self.departures = self.departures_at(clock) + 1.0;
        self.counted = clock;
    }

    /// Whole seconds until as many have left, from 1 to [`MAX_RETRY_AFTER_S`]. While nobody has left, the next one
    /// counts as about to.
    pub fn seconds_for(&self, ahead: usize, now: Instant) -> u32 {
        let clock = self.clock(now);
        // Of departures that came evenly, this part of the window's has been seen by now.
        let seen = WINDOW_S * (1.0 - (-clock / WINDOW_S).exp());
        let rate = self.departures_at(clock).max(1.0) / seen.max(f64::EPSILON);
        #[expect(clippy::cast_precision_loss, reason = "queues hold fewer than 2^53")]
        let seconds = (ahead as f64 / rate).ceil().clamp(1.0, f64::from(MAX_RETRY_AFTER_S));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was just clamped")]
        {
            seconds as u32
        }
    }

    fn clock(&self, now: Instant) -> f64 {
        let running = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.elapsed + running.as_secs_f64()
    }

    fn departures_at(&self, clock: f64) -> f64 {
        self.departures * ((self.counted - clock) / WINDOW_S).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::start;

    /// A queue that somebody leaves at even intervals, for as long.
    fn drained(every: Duration, times: u32) -> (Drain, Instant) {
        let mut now = start();
        let mut drain = Drain::default();
        drain.begin(now);
        for _ in 0..times {
            now += every;
            drain.depart(now);
        }
        (drain, now)
    }

    #[test]
    fn the_wait_is_what_the_queue_drains_at() {
        for (every_ms, times, ahead, expected) in
            [(100, 300, 100, 10..=11), (1000, 30, 20, 19..=21), (2000, 3, 5, 8..=11), (20, 50, 1000, 19..=21)]
        {
            let (drain, now) = drained(Duration::from_millis(every_ms), times);
            let told = drain.seconds_for(ahead, now);
            assert!(expected.contains(&told), "{ahead} ahead, one every {every_ms} ms: {told}");
        }
    }

    #[test]
    fn it_is_never_nothing_and_never_for_ever() {
        let (drain, now) = drained(Duration::from_millis(1), 1000);
        assert_eq!(drain.seconds_for(1, now), 1);
        assert_eq!(drain.seconds_for(0, now), 1);
        let (drain, now) = drained(Duration::from_secs(5), 5);
        assert_eq!(drain.seconds_for(4096, now), MAX_RETRY_AFTER_S);
        assert_eq!(Drain::default().seconds_for(1, now), 1);
    }

    #[test]
    fn while_nobody_leaves_the_wait_grows() {
        let now = start();
        let mut drain = Drain::default();
        drain.begin(now);
        let told = |seconds: u64| drain.seconds_for(2, now + Duration::from_secs(seconds));
        assert_eq!(told(0), 1);
        assert!(told(3) > told(1) && told(8) > told(3), "{} {} {}", told(1), told(3), told(8));
    }

    #[test]
    fn its_clock_stands_while_nobody_waits() {
        let (mut drain, now) = drained(Duration::from_millis(100), 300);
        let before = drain.seconds_for(50, now);
        drain.pause(now);
        let later = now + Duration::from_secs(3600);
        drain.begin(later);
        assert_eq!(drain.seconds_for(50, later), before);
    }
}
