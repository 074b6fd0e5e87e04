//! The order in which combinations take turns.

/// The combinations of one round, by number. Every second round is the one before it, backwards;
/// the two after it start with the next combination. So no combination is always early, and none
/// always follows the same other.
pub(super) fn order_of_round(combinations: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..combinations).collect();
    if combinations > 0 {
        order.rotate_left(round / 2 % combinations);
    }
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_takes_its_turn_once_a_round_at_changing_places() {
        for combinations in 1..=7 {
            let rounds: Vec<Vec<usize>> =
                (0..combinations * 2).map(|round| order_of_round(combinations, round)).collect();
            for order in &rounds {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..combinations).collect::<Vec<usize>>());
            }
            if combinations > 2 {
                assert!(rounds.windows(2).all(|pair| pair[0] != pair[1]), "{rounds:?}");
            }
            let firsts: Vec<usize> = rounds.iter().map(|order| order[0]).collect();
            let first_turns = |it| firsts.iter().filter(|&&first| first == it).count();
            assert!((0..combinations).all(|it| first_turns(it) > 0), "{firsts:?}");
        }
        assert!(order_of_round(0, 3).is_empty());
    }
}
