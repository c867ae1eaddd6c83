use proptest::prelude::*;

use super::*;

/// A prompt of marks of ten tokens each.
fn prompt(keys: &[u64]) -> Prompt {
    let mark = |(place, key): (usize, &u64)| Mark { key: *key, upto: 10 * (u32::try_from(place).expect("few") + 1) };
    Prompt::new(keys.iter().enumerate().map(mark).collect(), 0)
}

fn held(index: &Index, keys: &[u64], ranks: &[RankNumber]) -> Vec<u32> {
    let held = index.expected(&prompt(keys), None);
    ranks.iter().map(|rank| held.at(*rank)).collect()
}

#[test]
fn what_a_rank_holds_is_the_longest_prefix_it_was_sent() {
    let mut index = Index::default();
    let ranks = [(); 3].map(|()| index.add(None));
    index.learn(ranks[0], &prompt(&[1, 2, 3, 4]));
    index.learn(ranks[1], &prompt(&[1, 2, 13]));
    assert_eq!(held(&index, &[1, 2, 3, 5], &ranks), [30, 20, 0]);
    assert_eq!(held(&index, &[1, 2, 13, 14], &ranks), [20, 30, 0]);
    assert_eq!(held(&index, &[9], &ranks), [0, 0, 0]);
    let (expected, known) = index.learn(ranks[0], &prompt(&[1, 2, 3, 4, 5]));
    assert_eq!((expected.tokens, expected.held, known), (50, 40, 4));
}

#[test]
fn a_rank_gives_up_what_its_cache_would_from_the_end() {
    let mut index = Index::default();
    let rank = index.add(Some(40));
    index.learn(rank, &prompt(&[1, 2, 3]));
    index.learn(rank, &prompt(&[11, 12]));
    assert_eq!(index.tokens_at(rank), 40);
    assert_eq!(held(&index, &[1, 2, 3], &[rank]), [20]);
    index.learn(rank, &prompt(&[1]));
    index.learn(rank, &prompt(&[21, 22]));
    assert_eq!(held(&index, &[1, 2, 3], &[rank]), [10], "1 was used again, 2 was not");
    assert_eq!(held(&index, &[11, 12], &[rank]), [10]);
    index.learn(rank, &prompt(&[31, 32, 33, 34, 35]));
    assert_eq!(held(&index, &[31, 32, 33, 34, 35], &[rank]), [40], "of one too large the beginning");
    assert_eq!(index.len(), 4);
}

#[test]
fn a_rank_that_is_gone_or_cleared_holds_nothing_and_leaves_nothing() {
    let mut index = Index::default();
    let (a, b) = (index.add(None), index.add(None));
    for rank in [a, b] {
        index.learn(rank, &prompt(&[1, 2]));
    }
    index.clear(a);
    assert_eq!(held(&index, &[1, 2], &[a, b]), [0, 20]);
    index.remove(b);
    assert!(index.is_empty() && index.by_key.is_empty());
    let again = index.add(None);
    assert_eq!((again, held(&index, &[1, 2], &[again])), (b, vec![0]));
}

#[test]
fn a_shortfall_takes_everything_as_old_along() {
    let mut index = Index::default();
    let rank = index.add(None);
    index.learn(rank, &prompt(&[1, 2]));
    index.learn(rank, &prompt(&[11, 12]));
    index.learn(rank, &prompt(&[21, 22]));
    let (expected, _) = index.learn(rank, &prompt(&[11, 12, 13]));
    index.correct(rank, expected.used_at);
    assert_eq!(held(&index, &[1, 2], &[rank]), [0]);
    assert_eq!(held(&index, &[21, 22], &[rank]), [20], "it was used later");
    assert_eq!(held(&index, &[11, 12, 13], &[rank]), [30], "it was just prefilled");
}

#[test]
fn a_tail_from_another_router_renews_what_it_stands_on() {
    let mut index = Index::default();
    let rank = index.add(Some(50));
    index.learn(rank, &prompt(&[1, 2]));
    index.learn(rank, &prompt(&[11, 12]));
    let whole = prompt(&[1, 2, 3, 4]);
    index.learn_tail(rank, Some(whole.marks[1]), &whole.marks[2..]);
    assert_eq!(held(&index, &[1, 2, 3, 4], &[rank]), [40]);
    assert_eq!(held(&index, &[11, 12], &[rank]), [10], "room was made by what was older");
    let unknown = prompt(&[31, 32, 33]);
    index.learn_tail(rank, Some(unknown.marks[1]), &unknown.marks[2..]);
    assert_eq!(held(&index, &[31, 32, 33], &[rank]), [30], "the sender knows what it stands on");
}

#[test]
fn events_say_what_a_session_has_left() {
    let mut index = Index::default();
    let rank = index.add(None);
    let known = |index: &Index, keys: &[u64]| index.expected(&prompt(keys), Some(7)).at(rank);
    index.stored(rank, 7, 25);
    assert_eq!(known(&index, &[1, 2, 3]), 25, "nothing else is known of it");
    index.learn(rank, &prompt(&[1, 2, 3]));
    index.note_session(rank, 7, 3);
    assert_eq!(known(&index, &[1, 2, 3, 4]), 30);
    index.removed(rank, 7, 6);
    assert_eq!(known(&index, &[1, 2, 3, 4]), 30, "less than its last part");
    index.removed(rank, 7, 6);
    assert_eq!(known(&index, &[1, 2, 3, 4]), 20);
    index.removed(rank, 7, 20);
    assert_eq!(known(&index, &[1, 2, 3, 4]), 10, "nothing is left of what it said, and this was shared");
    index.clear(rank);
    assert_eq!(known(&index, &[1, 2, 3, 4]), 0);
}

proptest! {
    /// The same as ranks that each hold a list of prefixes, searched from one end to the other.
    #[test]
    fn it_is_what_plain_lists_would_be(
        sent in proptest::collection::vec((0..3usize, 0..3u64, 1..6usize), 1..80),
        capacity in 1..12usize,
    ) {
        let mut index = Index::default();
        let ranks = [(); 3].map(|()| index.add(Some(capacity as u64 * 10)));
        let mut lists: [Vec<u64>; 3] = Default::default();
        for (rank, kind, length) in sent {
            // Of three conversations with a common beginning.
            let keys: Vec<u64> = (0..length as u64).map(|n| if n < 2 { 1 + n } else { 100 * (kind + 1) + n }).collect();
            let wanted: Vec<u32> = lists
                .iter()
                .map(|list| 10 * u32::try_from(keys.iter().take_while(|key| list.contains(key)).count()).expect("few"))
                .collect();
            prop_assert_eq!(held(&index, &keys, &ranks), wanted);
            index.learn(ranks[rank], &prompt(&keys));
            let list = &mut lists[rank];
            for key in keys[..keys.len().min(capacity)].iter().rev() {
                list.retain(|other| other != key);
                list.push(*key);
            }
            let too_many = list.len().saturating_sub(capacity);
            list.drain(..too_many);
            prop_assert_eq!(index.tokens_at(ranks[rank]), list.len() as u64 * 10);
        }
    }
}
