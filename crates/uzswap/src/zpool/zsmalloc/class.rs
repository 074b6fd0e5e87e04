//! The size classes: their number, the size of their slots, the length of their chains.
//!
//! A class is a slot size and the number of host pages that a zspage of it chains. There is one
//! class every 16 bytes from 32 to 4096; neighbours that come to the same pages and slots a zspage
//! are merged into the larger. Constants and rules are those of the kernel's zsmalloc for 4 KiB
//! pages and 64-bit words.

use super::mapping::ObjectMapping;
use crate::named_enum::named;
use crate::options::setters;
use crate::page::PAGE_SIZE;

/// Bytes of the word in front of an object that names its handle.
pub const HANDLE_BYTES: usize = size_of::<u64>(); // 8

/// Slot size of the smallest class.
const SLOT_BYTES_MIN: usize = 32;

/// Distance of neighbouring class sizes.
const CLASS_STEP: usize = PAGE_SIZE >> 8; // 16

/// Class indexes before merging.
pub const CLASS_INDEXES: usize = (PAGE_SIZE - SLOT_BYTES_MIN).div_ceil(CLASS_STEP) + 1; // 255

/// Shortest and longest chain limit, as `CONFIG_ZSMALLOC_CHAIN_SIZE` bounds it.
pub const CHAIN_SIZE_MIN: usize = 4;
/// See [`CHAIN_SIZE_MIN`].
pub const CHAIN_SIZE_MAX: usize = 16;

/// How a class chooses the number of pages that its zspages chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainRule {
    /// The largest whole percentage of used bytes, the shortest chain on a tie: kernels up to 6.2.
    UsedPercent,
    /// The fewest unused bytes, the shortest chain on a tie; one page for powers of two: from 6.3.
    LeastWaste,
}

named!(ChainRule, "chain rule", UsedPercent => "used-percent", LeastWaste => "least-waste");

impl ChainRule {
    /// Host pages a zspage of `slot_bytes` slots chains, at most `chain_size`.
    pub fn pages(self, slot_bytes: usize, chain_size: usize) -> usize {
        let waste = |pages: usize| (pages * PAGE_SIZE) % slot_bytes;
        let chains = 1..=chain_size;
        // min_by_key gives the first of equals.
        match self {
            ChainRule::UsedPercent => chains.min_by_key(|&pages| {
                let bytes = pages * PAGE_SIZE;
                100 - (bytes - waste(pages)) * 100 / bytes
            }),
            ChainRule::LeastWaste if slot_bytes.is_power_of_two() => Some(1),
            ChainRule::LeastWaste => chains.min_by_key(|&pages| waste(pages)),
        }
        .expect("a chain has at least a page")
    }
}

/// Where a pool keeps the word that leads from an object back to its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandleHeader {
    /// In the first 8 bytes of the slot, as the kernel does.
    InObject,
    /// In a table of 4 bytes a slot beside the pages: not what the kernel does, and denser.
    Beside,
}

named!(HandleHeader, "handle header", InObject => "in-object", Beside => "beside");

/// Options of a zsmalloc pool.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct ZsmallocOptions {
    /// The most host pages a zspage may chain: [`CHAIN_SIZE_MIN`] to [`CHAIN_SIZE_MAX`].
    pub chain_size: usize,
    /// How a class chooses its chain within that.
    pub chain_rule: ChainRule,
    /// Where an object's handle is kept.
    pub handle_header: HandleHeader,
    /// How an object in two host pages is reached.
    pub mapping: ObjectMapping,
}

setters!(
    ZsmallocOptions,
    chain_size: usize,
    chain_rule: ChainRule,
    handle_header: HandleHeader,
    mapping: ObjectMapping,
);

impl Default for ZsmallocOptions {
    /// Kernel 6.3 and later: chains of up to 8 by least waste; zspages are contiguous.
    fn default() -> Self {
        ZsmallocOptions {
            chain_size: 8,
            chain_rule: ChainRule::LeastWaste,
            handle_header: HandleHeader::InObject,
            mapping: ObjectMapping::Contiguous,
        }
    }
}

/// One size class of zsmalloc, or one type of zblock, whose blocks are the zspages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeClass {
    /// Its index, 0 to 254: the largest of those merged into it.
    pub index: usize,
    /// Slot size in bytes, handle header included: 32 to 4096.
    pub slot_bytes: usize,
    /// Host pages a zspage chains: 1 to the chain size.
    pub pages: usize,
    /// Slots in a zspage: 1 to 256.
    pub slots: usize,
}

impl SizeClass {
    /// Bytes at the end of a zspage that no slot covers.
    pub fn tail_waste_bytes(&self) -> usize {
        self.pages * PAGE_SIZE - self.slots * self.slot_bytes
    }

    /// One object in one page: the object is the page, its handle is kept beside it.
    pub fn is_huge(&self) -> bool {
        self.pages == 1 && self.slots == 1
    }
}

/// The size classes of a pool and the way from an object's length to its class.
#[derive(Debug, Clone)]
pub struct ClassTable {
    options: ZsmallocOptions,
    /// Distinct classes, smallest first.
    classes: Vec<SizeClass>,
    /// Class index to place in `classes`.
    places: [u8; CLASS_INDEXES],
}

impl ClassTable {
    /// The table of these options.
    ///
    /// # Panics
    ///
    /// If the chain size is out of its range.
    pub fn new(options: ZsmallocOptions) -> ClassTable {
        assert!(
            (CHAIN_SIZE_MIN..=CHAIN_SIZE_MAX).contains(&options.chain_size),
            "chain size {} is not in {CHAIN_SIZE_MIN} to {CHAIN_SIZE_MAX}",
            options.chain_size
        );
        let mut classes: Vec<SizeClass> = Vec::new();
        let mut places = [0; CLASS_INDEXES];
        // Largest first: a class joins its larger neighbour where both come to the same zspage.
        for index in (0..CLASS_INDEXES).rev() {
            let slot_bytes = (SLOT_BYTES_MIN + index * CLASS_STEP).min(PAGE_SIZE);
            let pages = options.chain_rule.pages(slot_bytes, options.chain_size);
            let slots = pages * PAGE_SIZE / slot_bytes;
            if classes.last().is_none_or(|larger| (larger.pages, larger.slots) != (pages, slots)) {
                classes.push(SizeClass { index, slot_bytes, pages, slots });
            }
            places[index] = classes.len() as u8 - 1; // at most 255 classes
        }
        classes.reverse();
        classes.shrink_to_fit();
        for place in &mut places {
            *place = classes.len() as u8 - 1 - *place;
        }
        ClassTable { options, classes, places }
    }

    /// The options it was made from.
    pub fn options(&self) -> ZsmallocOptions {
        self.options
    }

    /// Distinct classes, smallest first.
    pub fn classes(&self) -> &[SizeClass] {
        &self.classes
    }

    /// Place in [`ClassTable::classes`] of the class of an object of `bytes` (1 to 4096).
    ///
    /// The header is added for every object, even for one that gets a page of its own and has no
    /// header there: kernels do so, and the class borders depend on it.
    #[inline]
    pub fn place_of(&self, bytes: usize) -> usize {
        let header = match self.options.handle_header {
            HandleHeader::InObject => HANDLE_BYTES,
            HandleHeader::Beside => 0,
        };
        let index = (bytes + header).saturating_sub(SLOT_BYTES_MIN).div_ceil(CLASS_STEP);
        usize::from(self.places[index.min(CLASS_INDEXES - 1)])
    }

    /// The class of an object of `bytes` (1 to 4096).
    pub fn class_of(&self, bytes: usize) -> &SizeClass {
        &self.classes[self.place_of(bytes)]
    }

    /// From this object length on, an object takes a whole page (`zs_huge_class_size`).
    pub fn huge_bytes(&self) -> usize {
        (1..=PAGE_SIZE).find(|&bytes| self.class_of(bytes).is_huge()).expect("4096 is huge")
    }
}

/// Fullness groups: empty, 1 to 10 for each started tenth, full (the form of kernels from 6.4).
pub const FULLNESS_GROUPS: usize = 12;

/// The group of a zspage with `used` of `slots` slots in use.
pub fn fullness_group(used: usize, slots: usize) -> usize {
    match used {
        0 => 0,
        _ if used == slots => FULLNESS_GROUPS - 1,
        _ => used * 100 / slots / 10 + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_tells_the_options_that_it_was_made_from() {
        let other = ZsmallocOptions::default()
            .chain_size(CHAIN_SIZE_MIN)
            .handle_header(HandleHeader::Beside)
            .mapping(ObjectMapping::Copy);
        for options in [ZsmallocOptions::default(), other] {
            assert_eq!(ClassTable::new(options).options(), options);
        }
    }
}
