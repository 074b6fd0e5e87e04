//! Pages of the torture: each names its owner, and can be generated again from that.

use uzswap::page::{Page, WORDS_PER_PAGE, fill_with_word, words};
use uzswap::random::mix;

/// What a page is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One word, repeated, that tells whose it is.
    Word,
    /// Zeros, which tell nothing.
    Zero,
    /// It shrinks to some hundred bytes.
    Sparse,
    /// To a third or so.
    Text,
    /// To a half.
    Half,
    /// By little.
    Dense,
    /// Not at all.
    Noise,
}

const KINDS: [Kind; 8] = [
    Kind::Word,
    Kind::Zero,
    Kind::Sparse,
    Kind::Text,
    Kind::Half,
    Kind::Dense,
    Kind::Noise,
    Kind::Text,
];
const KIND_BITS: u32 = KINDS.len().ilog2();

/// Owner of a page: the key's number, its writer and the count of writes, with the kind in its low
/// bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Identity {
    pub(super) key: u16,
    pub(super) writer: u8,
    /// Below 2^40.
    pub(super) version: u64,
}

const MARK: u64 = 0x7573_7761_7054_4f52;

impl Identity {
    pub(super) fn new(key: usize, writer: u8, count: u64, kind: usize) -> Identity {
        Identity {
            key: key as u16, // fewer keys than that
            writer,
            version: count << KIND_BITS | (kind % KINDS.len()) as u64,
        }
    }

    pub(super) fn kind(self) -> Kind {
        KINDS[self.version as usize % KINDS.len()]
    }

    /// How often its writer had written before.
    pub(super) fn count(self) -> u64 {
        self.version >> KIND_BITS
    }

    fn bits(self) -> u64 {
        u64::from(self.key) << 48 | u64::from(self.writer) << 40 | self.version
    }

    fn from_bits(bits: u64) -> Identity {
        Identity {
            key: (bits >> 48) as u16,
            writer: (bits >> 40) as u8,
            version: bits & ((1 << 40) - 1),
        }
    }

    /// Makes the page.
    pub(super) fn fill(self, page: &mut Page) {
        let bits = self.bits();
        let noisy_words = match self.kind() {
            Kind::Word => return fill_with_word(page, bits),
            Kind::Zero => return page.fill(0),
            Kind::Sparse => 16 + (mix(bits) % 32) as usize,
            Kind::Text => 64 + (mix(bits) % 128) as usize,
            Kind::Half => 200 + (mix(bits) % 128) as usize,
            Kind::Dense => 400 + (mix(bits) % 80) as usize,
            Kind::Noise => WORDS_PER_PAGE,
        };
        let (chunks, _) = page.as_chunks_mut::<8>();
        let pattern = mix(bits ^ MARK).to_le_bytes();
        for (number, chunk) in chunks.iter_mut().enumerate() {
            *chunk = match number < noisy_words {
                true => mix(bits.wrapping_mul(513) ^ number as u64).to_le_bytes(),
                false => pattern,
            };
        }
        chunks[0] = MARK.to_le_bytes();
        chunks[1] = bits.to_le_bytes();
    }

    /// Who a page says it is.
    pub(super) fn of(page: &Page) -> Option<Identity> {
        let words = words(page);
        let word = |at: usize| u64::from_le_bytes(words[at]);
        match word(0) == MARK {
            true => Some(Identity::from_bits(word(1))),
            false => {
                words.iter().all(|word| *word == words[0]).then(|| Identity::from_bits(word(0)))
            }
        }
    }

    /// Describes how a page differs from this one.
    pub(super) fn check(self, page: &Page) -> Result<(), String> {
        let mut expected = [0; uzswap::page::PAGE_SIZE];
        self.fill(&mut expected);
        if &expected == page {
            return Ok(());
        }
        let differing = expected.iter().zip(page).filter(|(a, b)| a != b).count();
        let found = match Identity::of(page) {
            Some(found) => format!("says it is {found}"),
            None => "does not say whose it is".to_owned(),
        };
        Err(format!("expected {self}; {differing} bytes differ, and the page {found}"))
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (writer, count) = (self.writer, self.count());
        write!(f, "page {count} ({:?}) of writer {writer} for key {}", self.kind(), self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_whose_it_is() {
        let mut page = [0; uzswap::page::PAGE_SIZE];
        for kind in 0..KINDS.len() {
            let identity = Identity::new(700, 3, 99, kind);
            identity.fill(&mut page);
            identity.check(&page).unwrap();
            if identity.kind() != Kind::Zero {
                assert_eq!(Identity::of(&page), Some(identity));
            }
            page[4000] ^= 1;
            identity.check(&page).unwrap_err();
        }
    }
}
