//! Partitions: the parts that the sessions of a namespace are divided into, each with a bucket of pins of its own.

use std::fmt;

use super::hash::PinKey;

/// Most partitions of a namespace. Each is a stream on the server, and a subscription and a watch in routers that serve it.
pub const MAX_PARTITIONS: u16 = 256;

/// One of the partitions of a namespace, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u16);

impl Partition {
    /// The only one, where a namespace is not divided.
    pub const FIRST: Self = Self(0);

    /// Which of `count` partitions has the sessions of this key.
    pub fn of(key: PinKey, count: u16) -> Self {
        let index = key.first_half() % u64::from(count.max(1));
        Self(u16::try_from(index).expect("it is below a number of 16 bits"))
    }

    /// Reads the number of one of `count`; no sign, no leading zeros.
    pub fn parse(text: &str, count: u16) -> Option<Self> {
        let sound = text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
        text.parse().ok().filter(|index| sound && *index < count).map(Self)
    }

    /// Its number.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How many partitions a namespace has, and which of them a router serves: at least one.
#[derive(Clone, PartialEq, Eq)]
pub struct Partitions {
    served: Box<[bool]>,
}

impl Partitions {
    /// A namespace that is not divided.
    pub fn undivided() -> Self {
        Self::all(1)
    }

    /// All of so many, at least one.
    pub fn all(count: u16) -> Self {
        Self { served: vec![true; count.clamp(1, MAX_PARTITIONS).into()].into() }
    }

    /// Those of `count` that a list names: numbers, and ranges such as `0-15`, with commas between. The error says what
    /// is wrong with it.
    pub fn parse(list: &str, count: u16) -> Result<Self, String> {
        let mut served = vec![false; usize::from(count.clamp(1, MAX_PARTITIONS))];
        for part in list.split(',').map(str::trim) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                Partition::parse(text.trim(), count).ok_or_else(|| {
                    let last = served.len() - 1;
                    format!(
                        "allowed are numbers from 0 to {last} and ranges of them with commas between, such as 0-3,7"
                    )
                })
            };
            let (first, last) = (number(first)?.index(), number(last)?.index());
            if first > last {
                return Err(format!("the range {part} ends before it begins"));
            }
            for one in &mut served[first..=last] {
                if std::mem::replace(one, true) {
                    return Err(format!("{part} names a partition that is named before; leave it out"));
                }
            }
        }
        Ok(Self { served: served.into() })
    }

    /// How many the namespace has.
    pub fn count(&self) -> u16 {
        u16::try_from(self.served.len()).expect("there are at most MAX_PARTITIONS")
    }

    /// Whether the namespace is divided at all.
    pub fn is_divided(&self) -> bool {
        self.served.len() > 1
    }

    /// Whether this one is served.
    pub fn serves(&self, partition: Partition) -> bool {
        self.served.get(partition.index()).copied().unwrap_or(false)
    }

    /// All of the namespace.
    pub fn every(&self) -> impl Iterator<Item = Partition> + use<> {
        every(self.count())
    }

    /// Those that are served.
    pub fn served(&self) -> impl Iterator<Item = Partition> + '_ {
        self.every().filter(|partition| self.serves(*partition))
    }
}

/// All of so many partitions.
pub fn every(count: u16) -> impl Iterator<Item = Partition> {
    (0..count).map(Partition)
}

impl fmt::Display for Partitions {
    /// Those that are served, as [`Partitions::parse`] reads them, in the shortest way.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut begun = None;
        let mut comma = "";
        for (index, next) in (1..).zip(self.served.iter().skip(1).chain([&false])) {
            let last = index - 1;
            match (self.served[last], next) {
                (true, true) => drop(begun.get_or_insert(last)),
                (true, false) => {
                    f.write_str(comma)?;
                    match begun.take() {
                        Some(first) => write!(f, "{first}-{last}")?,
                        None => write!(f, "{last}")?,
                    }
                    comma = ",";
                }
                (false, _) => {}
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} of {}", self.served.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_in_the_shortest_way() {
        for (list, shown) in [
            ("0", "0"),
            ("0-15", "0-15"),
            ("7, 0-3 ,9", "0-3,7,9"),
            ("1,0,2", "0-2"),
            ("3-3,15", "3,15"),
            ("14-15", "14-15"),
        ] {
            let read = Partitions::parse(list, 16).expect("valid");
            assert_eq!((read.to_string().as_str(), read.count()), (shown, 16));
            assert_eq!(Partitions::parse(shown, 16), Ok(read));
        }
        assert_eq!(Partitions::all(64).to_string(), "0-63");
        assert_eq!(Partitions::undivided().to_string(), "0");
    }

    #[test]
    fn lists_that_name_none_or_one_twice_are_refused() {
        for (list, why) in [
            ("", "allowed are numbers from 0 to 15"),
            ("16", "allowed are numbers"),
            ("0-16", "allowed are numbers"),
            ("01", "allowed are numbers"),
            ("+1", "allowed are numbers"),
            ("-1", "allowed are numbers"),
            ("1,", "allowed are numbers"),
            ("3-1", "the range 3-1 ends before it begins"),
            ("0-3,2", "2 names a partition that is named before"),
        ] {
            let problem = Partitions::parse(list, 16).expect_err("refused");
            assert!(problem.contains(why), "{list:?}: {problem}");
        }
    }

    #[test]
    fn the_first_half_of_a_key_says_the_partition() {
        let key = PinKey::parse("0000000000000025ffffffffffffffff").expect("a key");
        let of = |count| Partition::of(key, count).index();
        assert_eq!((of(1), of(2), of(16), of(256)), (0, 1, 5, 37));
        assert!(Partitions::parse("5", 16).expect("valid").serves(Partition::of(key, 16)));
        assert!(!Partitions::parse("4", 16).expect("valid").serves(Partition::of(key, 16)));
    }
}
