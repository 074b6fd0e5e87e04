//! Whether a fast compressor is to take pages first, and a dense one those that rest.
//!
//! A recompressed page costs as much as with the dense one alone, and a store and a load of the
//! fast one beside it. A page that comes back before costs a store and a load of the fast one, and
//! nothing else. So the share of the pages that come back early decides.

/// Percent of memory below which recompression is not worth a change.
const SAVING_MIN: f64 = 3.0;

/// Percent of the pages above which it does not happen that so many come back early. The dense one
/// alone costs hardly more then, or less.
const EARLY_MAX: f64 = 90.0;

/// Measurements of one compressor.
#[derive(Debug, Clone, Copy)]
pub struct Timed<'a> {
    /// Its name.
    pub compressor: &'a str,
    /// Memory for the pages, in bytes, of all or of one: the same for each compressor.
    pub bytes: f64,
    /// The median store, in microseconds.
    pub store_us: f64,
    /// The median load, in microseconds.
    pub load_us: f64,
}

impl Timed<'_> {
    /// The compressor without its filter: a filter makes no second compressor of it.
    fn unfiltered(&self) -> &str {
        self.compressor.split_once('~').map_or(self.compressor, |(name, _)| name)
    }

    fn us_per_page(&self) -> f64 {
        self.store_us + self.load_us
    }
}

/// The answer for the cheapest and the densest of some compressors, in words. `None` where fewer
/// than two compress. `returned` is the percentage of pages that came back, where that was seen.
pub fn answer(all: &[Timed<'_>], returned: Option<f64>) -> Option<String> {
    let some = || all.iter().filter(|one| one.compressor != "none" && one.bytes.is_finite());
    let fast = some().min_by(|a, b| a.us_per_page().total_cmp(&b.us_per_page()))?;
    let others = || some().filter(|other| other.unfiltered() != fast.unfiltered());
    let dense = others().min_by(|a, b| a.bytes.total_cmp(&b.bytes))?;
    let saved = (1.0 - dense.bytes / fast.bytes.max(1e-9)) * 100.0;
    let pair = format!("{} recompressed by {}", fast.compressor, dense.compressor);
    if saved < SAVING_MIN {
        let memory = match saved {
            0.0.. => format!("saves {saved:.1}% of"),
            _ => format!("takes {:.1}% more than", -saved),
        };
        let (fast, dense) = (fast.compressor, dense.compressor);
        return Some(format!("{pair} is of no use here: {dense} {memory} the memory of {fast}."));
    }
    let (extra, dearer) = (fast.us_per_page(), dense.us_per_page() - fast.us_per_page());
    let share = extra / (extra + dearer).max(1e-9) * 100.0;
    if share > EARLY_MAX {
        let alone = dense.compressor;
        return Some(format!(
            "{pair} is of no use here: {alone} alone saves {saved:.1}% for {dearer:.1} us a page."
        ));
    }
    let than_alone = format!("takes less time than {} alone", dense.compressor);
    if let Some(returned) = returned.filter(|&returned| returned < share) {
        return Some(format!(
            "{pair} is of no use here: {returned:.0}% of the pages came back, and it {than_alone} \
             above {share:.0}%."
        ));
    }
    let seen = returned.map_or(String::new(), |it| format!("; {it:.0}% came back sooner or later"));
    Some(format!(
        "{pair} is of use for pages that rest: it saves {saved:.1}% of their memory, for {:.1} us \
         a page once. It {than_alone} if more than {share:.0}% of the pages come back \
         before{seen}.",
        fast.load_us + dense.store_us
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(compressor: &str, bytes: f64, store_us: f64, load_us: f64) -> Timed<'_> {
        Timed { compressor, bytes, store_us, load_us }
    }

    #[test]
    fn pages_that_come_back_early_decide() {
        let all = [
            timed("none", 4096.0, 0.1, 0.1),
            timed("zstd", 1000.0, 12.0, 4.0),
            timed("lzo", 1900.0, 4.0, 2.0),
            timed("lz4", 2000.0, 3.0, 1.0),
        ];
        // 4 us more for each page that rests, 12 us less for each that does not: 4 of 16.
        assert_eq!(
            answer(&all, None).unwrap(),
            "lz4 recompressed by zstd is of use for pages that rest: it saves 50.0% of their \
             memory, for 13.0 us a page once. It takes less time than zstd alone if more than 25% \
             of the pages come back before."
        );
        let seen = answer(&all, Some(80.0)).unwrap();
        assert!(seen.ends_with("come back before; 80% came back sooner or later."), "{seen}");
        assert_eq!(
            answer(&all, Some(24.0)).unwrap(),
            "lz4 recompressed by zstd is of no use here: 24% of the pages came back, and it takes \
             less time than zstd alone above 25%."
        );
    }

    #[test]
    fn a_dense_compressor_that_saves_nothing_is_of_no_use() {
        let lz4 = timed("lz4", 2000.0, 3.0, 1.0);
        let with = |bytes| answer(&[lz4, timed("zstd", bytes, 12.0, 4.0)], None).unwrap();
        assert!(with(1980.0).ends_with("here: zstd saves 1.0% of the memory of lz4."));
        assert!(with(2020.0).ends_with("here: zstd takes 1.0% more than the memory of lz4."));
        // It costs hardly more.
        let alone = answer(&[lz4, timed("zstd", 1000.0, 3.0, 1.2)], None).unwrap();
        assert!(alone.ends_with("here: zstd alone saves 50.0% for 0.2 us a page."), "{alone}");
        assert_eq!(answer(&[lz4], None), None);
        assert_eq!(answer(&[lz4, lz4, timed("none", 4096.0, 0.1, 0.1)], None), None);
        assert_eq!(answer(&[], None), None);
        // A filter makes no second compressor.
        let filtered = timed("lz4~auto", 1000.0, 4.0, 1.0);
        assert_eq!(answer(&[lz4, filtered], None), None);
        let all = [lz4, filtered, timed("zstd~auto", 900.0, 12.0, 4.0)];
        assert!(answer(&all, None).unwrap().starts_with("lz4 recompressed by zstd~auto is of use"));
        // Nothing was stored.
        assert_eq!(answer(&[lz4, timed("zstd", f64::INFINITY, 0.0, 0.0)], None), None);
    }
}
