//! How many partitions a namespace has, as the description of its bucket of pins says (protocol section 8.1).

use crate::core::partition::MAX_PARTITIONS;

/// What stands before the number.
const WORDS: &str = "rankpin partitions=";

/// What the bucket of pins says of so many partitions; nothing of one.
pub fn describe(count: u16) -> String {
    if count == 1 { String::new() } else { format!("{WORDS}{count}") }
}

/// How many there are, by the description of the bucket of pins. `None` where it says a number that can't be.
pub fn told(description: &str) -> Option<u16> {
    match description.strip_prefix(WORDS) {
        Some(count) => count.parse().ok().filter(|count| (2..=MAX_PARTITIONS).contains(count)),
        None => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for count in [1, 2, 64, MAX_PARTITIONS] {
            assert_eq!(told(&describe(count)), Some(count));
        }
        assert_eq!(told("sessions of the blue cluster"), Some(1));
        for bad in ["rankpin partitions=", "rankpin partitions=0", "rankpin partitions=1", "rankpin partitions=257"] {
            assert_eq!(told(bad), None, "{bad}");
        }
    }
}
