//! The contents that a recorder has written recently, by their hash.

/// Places of the table, in sets of [`WAYS`]: with 24 bytes each, 24 MiB, and 4 GiB of pages.
const PLACES: usize = 1 << 20;

const WAYS: usize = 1 << 2;

/// Numbers of contents, by the 128-bit XXH3 of each. A full set forgets what was longest not asked
/// for: that content is written again when it comes again.
#[derive(Debug)]
pub(super) struct DedupCache {
    sets: Vec<[Place; WAYS]>,
}

/// The hash in two parts, and the number and 1; 0 where there is none. Zeros, so that the kernel
/// gives memory only for what is used.
type Place = [u64; 3];

impl DedupCache {
    pub(super) fn new() -> DedupCache {
        DedupCache::with_places(PLACES)
    }

    /// With a power of two of places.
    fn with_places(places: usize) -> DedupCache {
        DedupCache { sets: vec![[[0; 3]; WAYS]; places / WAYS] }
    }

    /// The number of the content with this hash; `next` where it is not known, which it has then.
    pub(super) fn number_or_insert(&mut self, hash: u128, next: u64) -> u64 {
        let (high, low) = ((hash >> 64) as u64, hash as u64);
        let at = low as usize & (self.sets.len() - 1);
        let set = &mut self.sets[at];
        let known = set.iter().position(|place| place[2] != 0 && place[..2] == [high, low]);
        set[..=known.unwrap_or(WAYS - 1)].rotate_right(1);
        if known.is_none() {
            set[0] = [high, low, next + 1];
        }
        set[0][2] - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn the_last_of_each_set_are_known() {
        let mut seen = DedupCache::with_places(64);
        let mut twin: Vec<Vec<(u128, u64)>> = vec![Vec::new(); 16];
        let mut words = SplitMix64::new(3);
        let (mut next, mut known) = (0, 0);
        for _ in 0..20_000 {
            let choice = u128::from(words.next_word()) % 90;
            let hash = (choice << 64) | (choice * 7); // some differ in one half alone
            let set = &mut twin[(hash as usize) % 16];
            let expected = match set.iter().position(|other| other.0 == hash) {
                Some(place) => {
                    known += 1;
                    let found = set.remove(place);
                    set.push(found);
                    found.1
                }
                None => {
                    set.push((hash, next));
                    if set.len() > WAYS {
                        set.remove(0);
                    }
                    next += 1;
                    next - 1
                }
            };
            assert_eq!(
                seen.number_or_insert(hash, next - u64::from(expected + 1 == next)),
                expected
            );
        }
        assert!(known > 1000 && next > 1000, "{known} {next}");
    }
}
