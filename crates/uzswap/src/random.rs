//! The one source of made-up numbers: the published splitmix64 (Steele, Lea and Flood, 2014).

/// Step of the state: 2^64 divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// One output of splitmix64: spreads a counter over all 64-bit words.
pub fn mix(counter: u64) -> u64 {
    let mut x = counter.wrapping_add(GAMMA);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A stream of splitmix64: the same words for the same seed on every machine.
#[derive(Debug, Clone)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The stream that starts at `seed`.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64 { state: seed }
    }

    /// The next word.
    pub fn next_word(&mut self) -> u64 {
        let word = mix(self.state);
        self.state = self.state.wrapping_add(GAMMA);
        word
    }
}
