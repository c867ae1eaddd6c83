//! Which messages of a reply stream reach the caller (protocol section 6.1): a pure state machine, so that every
//! order in which messages may come can be tried.

/// What tells one reply message from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// `Rankpin-Attempt`; a relayed answer of a plain NATS service may have none.
    pub attempt: Option<u32>,
    /// `Rankpin-Seq`.
    pub seq: u64,
    /// `Rankpin-Final`.
    pub last: bool,
}

/// What to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one: give it out.
    Deliver,
    /// It belongs to an attempt that was given up, or comes after the end: nobody needs it.
    Drop,
}

/// The stream can't be made whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// A message is missing.
    #[error("the reply stream has a gap: message {expected} is missing, {found} came")]
    Gap {
        /// The number that should have come.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// A message came twice.
    #[error("the reply stream repeats itself: message {found} came again, {expected} is next")]
    Repeated {
        /// The number that should have come.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// A later attempt answers after an earlier one has delivered: its answer can't be joined to what was given out.
    #[error("attempt {found} answers after attempt {delivered} has delivered part of its own answer")]
    Superseded {
        /// The attempt whose messages were given out.
        delivered: u32,
        /// The attempt that came.
        found: u32,
    },
}

/// Progress of one reply stream.
#[derive(Debug, Clone, Default)]
pub struct Sequence {
    /// The highest attempt seen; 0 before the first message.
    attempt: u32,
    /// The number that comes next in that attempt.
    next: u64,
    over: bool,
}

impl Sequence {
    /// A stream of which nothing has come.
    pub fn new() -> Self {
        Self::default()
    }

    /// Judges the next message as it comes in. After an error, and after the last message, everything is dropped.
    pub fn judge(&mut self, mark: Mark) -> Result<Verdict, SequenceError> {
        if self.over {
            return Ok(Verdict::Drop);
        }
        // A message without an attempt belongs to whichever is the current one.
        let attempt = mark.attempt.unwrap_or(self.attempt);
        if attempt < self.attempt {
            return Ok(Verdict::Drop);
        }
        let verdict = self.advance(attempt, mark.seq);
        self.over = mark.last || verdict.is_err();
        verdict.map(|()| Verdict::Deliver)
    }

    /// Whether a message of this attempt is one of an attempt that was given up.
    pub fn is_stale(&self, attempt: Option<u32>) -> bool {
        attempt.is_some_and(|attempt| attempt < self.attempt)
    }

    fn advance(&mut self, attempt: u32, found: u64) -> Result<(), SequenceError> {
        if attempt > self.attempt {
            if self.next > 0 {
                return Err(SequenceError::Superseded { delivered: self.attempt, found: attempt });
            }
            self.attempt = attempt;
        }
        let expected = self.next;
        match found.cmp(&expected) {
            std::cmp::Ordering::Equal => {
                self.next += 1;
                Ok(())
            }
            std::cmp::Ordering::Greater => Err(SequenceError::Gap { expected, found }),
            std::cmp::Ordering::Less => Err(SequenceError::Repeated { expected, found }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mark(attempt: u32, seq: u64, last: bool) -> Mark {
        Mark { attempt: Some(attempt), seq, last }
    }

    #[test]
    fn in_order() {
        let mut sequence = Sequence::new();
        for seq in 0..3 {
            assert_eq!(sequence.judge(mark(1, seq, seq == 2)), Ok(Verdict::Deliver));
        }
        assert_eq!(sequence.judge(mark(1, 3, true)), Ok(Verdict::Drop), "after the end");
    }

    #[test]
    fn gaps_and_repeats_are_errors() {
        let mut sequence = Sequence::new();
        assert_eq!(sequence.judge(mark(1, 1, false)), Err(SequenceError::Gap { expected: 0, found: 1 }));
        let mut sequence = Sequence::new();
        sequence.judge(mark(1, 0, false)).expect("the first");
        assert_eq!(sequence.judge(mark(1, 0, false)), Err(SequenceError::Repeated { expected: 1, found: 0 }));
        assert_eq!(sequence.judge(mark(1, 1, true)), Ok(Verdict::Drop), "after an error");
    }

    #[test]
    fn a_higher_attempt_replaces_a_silent_lower_one() {
        let mut sequence = Sequence::new();
        assert_eq!(sequence.judge(mark(2, 0, false)), Ok(Verdict::Deliver));
        assert_eq!(sequence.judge(mark(1, 0, true)), Ok(Verdict::Drop));
        assert!(sequence.is_stale(Some(1)) && !sequence.is_stale(Some(2)) && !sequence.is_stale(None));
        assert_eq!(sequence.judge(mark(2, 1, true)), Ok(Verdict::Deliver));
    }

    #[test]
    fn a_higher_attempt_never_continues_what_a_lower_one_gave_out() {
        let mut sequence = Sequence::new();
        sequence.judge(mark(1, 0, false)).expect("the first");
        assert_eq!(sequence.judge(mark(2, 1, true)), Err(SequenceError::Superseded { delivered: 1, found: 2 }));
    }

    #[test]
    fn a_relayed_answer_has_no_attempt() {
        let mut sequence = Sequence::new();
        assert_eq!(sequence.judge(Mark { attempt: None, seq: 0, last: true }), Ok(Verdict::Deliver));
    }

    /// Lengths of the answers of up to four attempts, and messages (attempt, seq) drawn from them in any order, any
    /// number of times, some never.
    fn traffic() -> impl Strategy<Value = (Vec<u64>, Vec<(u32, u64)>)> {
        proptest::collection::vec(1..5_u64, 1..4).prop_flat_map(|lengths| {
            let whole: Vec<(u32, u64)> =
                (1..).zip(&lengths).flat_map(|(attempt, n)| (0..*n).map(move |seq| (attempt, seq))).collect();
            let disturbed = prop_oneof![
                // In order with losses, as a network does it.
                proptest::sample::subsequence(whole.clone(), 0..=whole.len()),
                // Any order.
                Just(whole.clone()).prop_shuffle(),
                // Any order, with repeats and losses.
                proptest::collection::vec(proptest::sample::select(whole), 0..20),
            ];
            (Just(lengths), disturbed)
        })
    }

    proptest! {
        /// Whatever comes in whatever order: what is given out is the beginning of one attempt's answer, and a
        /// stream that ends without an error has given out all of it.
        #[test]
        fn never_silently_wrong((lengths, messages) in traffic()) {
            let mut sequence = Sequence::new();
            let mut given: Vec<(u32, u64)> = Vec::new();
            let mut ended = false;
            let mut failed = false;
            let mut highest = 0;
            for (attempt, seq) in messages {
                let last = seq + 1 == lengths[attempt as usize - 1];
                match sequence.judge(mark(attempt, seq, last)) {
                    Ok(Verdict::Deliver) => {
                        prop_assert!(!ended && !failed, "nothing comes after the end");
                        prop_assert!(attempt >= highest, "an attempt that was given up stays so");
                        given.push((attempt, seq));
                        ended = last;
                    }
                    Ok(Verdict::Drop) => prop_assert!(ended || failed || attempt < highest),
                    Err(_) => {
                        prop_assert!(!failed, "an error comes once");
                        failed = true;
                    }
                }
                highest = highest.max(attempt);
            }
            prop_assert!(!(ended && failed));
            let of = given.first().map_or(0, |first| first.0);
            let expected: Vec<_> = (0..given.len() as u64).map(|seq| (of, seq)).collect();
            prop_assert_eq!(&given, &expected, "one attempt, in order, from the start");
            if ended {
                prop_assert_eq!(given.len() as u64, lengths[of as usize - 1], "all of it");
            }
        }
    }
}
