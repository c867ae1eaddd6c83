//! CPU time of a process.

use std::time::Duration;

/// Clock ticks a second in which Linux counts CPU time for programs (USER_HZ): 100 on every architecture in use.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time that a process has used, in user and kernel mode. `None` where the system does not tell (it does on
/// Linux) or the process is gone.
pub fn used(process: u32) -> Option<Duration> {
    parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<Duration> {
    // The second field is the program's name in brackets, which may hold spaces and brackets itself.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    // `utime` and `stime` are the 14th and 15th field, and the name was the second.
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + kernel) * 1000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "42 (a) (b c) S 1 42 42 0 -1 4194560 9 0 0 0 150 25 0 0 20 0 9 0 1 1 1";
        assert_eq!(parse(stat), Some(Duration::from_millis(1750)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn our_own_is_told() {
        assert!(used(std::process::id()).is_some());
        assert!(used(u32::MAX).is_none());
    }
}
