//! The kernel's engine: zswap or zram with a swap area, and the statistics of its pool.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::device::{
    Area, SwapBacking, check_size, make_file, make_loop, make_zram, turn_on, zram_compressors,
};
use super::journal::{Changes, Journal};
use super::kernel_files::{Figures, number_of, read_setting, swap_areas};
use super::swap_header::PAGE;
use super::{KernelSwapError, Restored};
use uzswap::named_enum::named;

const ZSWAP: &str = "/sys/module/zswap/parameters";
const ZSWAP_DEBUGFS: &str = "/sys/kernel/debug/zswap";

/// Compressors of the kernel, the best one for a pool first.
///
/// lz4 takes the least time. lzo-rle and lzo take little more for the same pages, and as much pool.
/// zstd and deflate are denser, and several times as slow. 842 needs special hardware.
pub const COMPRESSORS: [&str; 6] = ["lz4", "lzo-rle", "lzo", "zstd", "deflate", "842"];

/// The one allocator since Linux 6.18, and the default since 6.3.
const ZSMALLOC: &str = "zsmalloc";

/// Bytes of zram for each page of its device, used or not: `struct zram_table_entry` of
/// drivers/block/zram/zram_drv.h. A handle and flags, 8 bytes each, in Linux 4.14 to 7.1. Before
/// 7.0, `CONFIG_ZRAM_TRACK_ENTRY_ACTIME` adds 8.
const ZRAM_ENTRY_BYTES: u64 = 16;

/// Bytes of zswap for each stored page: `struct zswap_entry` of mm/zswap.c in Linux 6.12 to 6.18.
/// Swap entry 8, length and flag 8, pool 8, handle 8, cgroup 8, list 16. The tree that leads to it
/// takes 9 more at least (an xarray node of 576 bytes for 64 pages), which is not counted.
const ZSWAP_ENTRY_BYTES: u64 = 56;

/// Bytes that zsmalloc has for each object beside it: the cell that its handle names
/// (`ZS_HANDLE_SIZE` of mm/zsmalloc.c).
const HANDLE_BYTES: u64 = 8;

/// Bytes in the blocks that stat(2) counts.
const STAT_BLOCK: u64 = 512;

/// The kernel's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelEngine {
    /// A pool before a swap area.
    Zswap,
    /// A swap area that is a pool.
    Zram,
}

named!(KernelEngine, "engine of the kernel", Zswap => "zswap", Zram => "zram");

/// What is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSwapOptions {
    /// The engine.
    pub engine: KernelEngine,
    /// Its compressor, by the kernel's name: `lzo`, `lz4`, `zstd`.
    pub compressor: String,
    /// The allocator of zswap, where the kernel has a choice: `zsmalloc`, `zbud`, `z3fold`.
    pub zpool: Option<String>,
    /// What is behind zswap. Zram is its own swap area, whatever this says.
    pub backing: SwapBacking,
    /// Size of the swap area, in bytes, which is the most that can be swapped. zram takes 16 bytes
    /// of memory a page of it.
    pub size_bytes: u64,
}

/// What the engine has in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct KernelPool {
    /// Host pages of the allocator, in bytes.
    pub pool_bytes: u64,
    /// Pages in the pool, before compression.
    pub stored_pages: u64,
    /// The kernel's tables that are known: zram's table, the entries of zswap, handles of zsmalloc;
    /// in bytes.
    pub metadata_bytes: u64,
    /// Memory that the backing of zswap takes, in bytes.
    pub backing_memory_bytes: u64,
    /// Pages that the pool refused since it was set up; `None` where the kernel does not tell.
    pub refused_pages: Option<u64>,
    /// Pages that were written from the pool to its backing since it was set up; `None` where the
    /// kernel does not tell.
    pub written_back_pages: Option<u64>,
}

impl KernelPool {
    /// Memory that all of it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.pool_bytes + self.metadata_bytes + self.backing_memory_bytes
    }
}

/// The kernel's swap as it was asked for. Dropping it puts the machine back.
#[derive(Debug)]
pub struct KernelSwap {
    changes: Changes,
    reader: PoolReader,
    area: PathBuf,
    others: Vec<PathBuf>,
}

impl KernelSwap {
    /// Makes a swap area, sets the engine up, and turns the area on with the highest priority.
    /// Other swap areas stay on, and get pages once this one is full.
    ///
    /// # Errors
    ///
    /// [`KernelSwapError`]; nothing is changed then.
    pub(super) fn set_up(
        options: &KernelSwapOptions,
        journal: &Journal,
    ) -> Result<KernelSwap, KernelSwapError> {
        let bytes = check_size(options.size_bytes)?;
        let others =
            swap_areas().map_err(|error| KernelSwapError::kernel("read /proc/swaps", error))?;
        let mut changes = Changes::new(journal);
        let (area, reader) = match options.engine {
            KernelEngine::Zram => set_up_zram(&mut changes, options, bytes)?,
            KernelEngine::Zswap => set_up_zswap(&mut changes, options, bytes)?,
        };
        turn_on(&mut changes, &area, bytes)?;
        Ok(KernelSwap { changes, reader, area: area.path, others })
    }

    /// What is in the pool now.
    ///
    /// # Errors
    ///
    /// Of reading the kernel's files.
    pub(super) fn pool(&self) -> io::Result<KernelPool> {
        self.reader.read()
    }

    /// Reads the same in another thread.
    pub(super) fn reader(&self) -> PoolReader {
        self.reader.clone()
    }

    /// The device or file that is the swap area.
    pub fn area(&self) -> &Path {
        &self.area
    }

    /// Swap areas that were on before, and stay so.
    pub fn other_areas(&self) -> &[PathBuf] {
        &self.others
    }

    /// Puts the machine back. End the programs before: their pages in swap come back into memory.
    ///
    /// # Errors
    ///
    /// [`KernelSwapError::NotUndone`]; what is left stays in the journal.
    pub(super) fn tear_down(mut self) -> Result<Restored, KernelSwapError> {
        self.changes.undo().checked()
    }
}

fn set_up_zram(
    changes: &mut Changes,
    options: &KernelSwapOptions,
    bytes: u64,
) -> Result<(Area, PoolReader), KernelSwapError> {
    if let Some(name) = options.zpool.as_deref().filter(|&name| name != ZSMALLOC) {
        let parameter = "/sys/block/zramN/".to_owned();
        return Err(KernelSwapError::NoZpool { name: name.to_owned(), parameter });
    }
    let area = make_zram(changes, bytes, Some(&options.compressor))?;
    // zswap would take the pages before they come here.
    let enabled = Path::new(ZSWAP).join("enabled");
    if enabled.exists() {
        changes.set(&enabled, "N")?;
    }
    let number = area.zram.expect("it is one");
    let pool = ZramPool::open(number, bytes)
        .map_err(|error| KernelSwapError::on("read the figures of", &area.path, error))?;
    Ok((area, PoolReader(Arc::new(Source::Zram(pool)))))
}

fn set_up_zswap(
    changes: &mut Changes,
    options: &KernelSwapOptions,
    bytes: u64,
) -> Result<(Area, PoolReader), KernelSwapError> {
    let parameter = |name: &str| Path::new(ZSWAP).join(name);
    if !parameter("enabled").exists() {
        let advice = "use a kernel with CONFIG_ZSWAP";
        return Err(KernelSwapError::NoEngine { engine: KernelEngine::Zswap, advice });
    }
    check_zswap_compressor(&options.compressor)?;
    let zpool = options.zpool.as_deref();
    let has_zpool = parameter("zpool").exists();
    if let Some(name) = zpool.filter(|&name| !has_zpool && name != ZSMALLOC) {
        let parameter = parameter("zpool").display().to_string();
        return Err(KernelSwapError::NoZpool { name: name.to_owned(), parameter });
    }
    let area = match &options.backing {
        SwapBacking::Loop => make_loop(changes, bytes)?,
        SwapBacking::File(folder) => make_file(changes, folder, bytes)?,
        SwapBacking::Zram => make_zram(changes, bytes, None)?,
    };
    let cannot_read = |error| KernelSwapError::kernel("read the statistics of zswap", error);
    let source = ZswapPool::open(&area, bytes).map_err(cannot_read)?;
    changes.set(&parameter("compressor"), &options.compressor)?;
    if has_zpool {
        changes.set(&parameter("zpool"), zpool.unwrap_or(ZSMALLOC))?;
    }
    // The cgroup holds the limit; pages written back from the pool would be measured as
    // something else.
    changes.set(&parameter("max_pool_percent"), "100")?;
    if parameter("shrinker_enabled").exists() {
        changes.set(&parameter("shrinker_enabled"), "N")?;
    }
    changes.set(&parameter("enabled"), "Y")?;
    // A kernel that has just made its first pool may have taken another compressor.
    let compressor = read_setting(&parameter("compressor")).map_err(cannot_read)?;
    if compressor != options.compressor {
        return Err(unknown_zswap_compressor(&options.compressor));
    }
    Ok((area, PoolReader(Arc::new(Source::Zswap(source)))))
}

/// Compressors of the kernel's crypto API.
fn crypto_compressors() -> Vec<String> {
    compressors_in(&fs::read_to_string("/proc/crypto").unwrap_or_default())
}

fn compressors_in(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for block in text.split("\n\n") {
        let field = |name: &str| {
            block.lines().find_map(|line| {
                let (field, value) = line.split_once(':')?;
                (field.trim() == name).then(|| value.trim())
            })
        };
        let is_compressor = matches!(field("type"), Some("compression" | "scomp" | "acomp"));
        names.extend(field("name").filter(|_| is_compressor).map(str::to_owned));
    }
    names.sort();
    names.dedup();
    names
}

fn unknown_zswap_compressor(name: &str) -> KernelSwapError {
    KernelSwapError::UnknownCompressor {
        engine: KernelEngine::Zswap,
        name: name.to_owned(),
        known: crypto_compressors(),
    }
}

/// The first of [`COMPRESSORS`] that an engine has; `None` if it has none of them.
///
/// # Errors
///
/// [`KernelSwapError`], if a zram device cannot be made to ask.
pub fn best_compressor(
    engine: KernelEngine,
    journal: &Journal,
) -> Result<Option<&'static str>, KernelSwapError> {
    let mut names = COMPRESSORS.into_iter();
    Ok(match engine {
        KernelEngine::Zswap => names.find(|name| check_zswap_compressor(name).is_ok()),
        KernelEngine::Zram => {
            let known = zram_compressors(journal)?;
            names.find(|name| known.iter().any(|other| other == name))
        }
    })
}

/// Refuses a name that is none. A module may have one that /proc/crypto does not list yet: its file
/// is looked for.
fn check_zswap_compressor(name: &str) -> Result<(), KernelSwapError> {
    let is_module = || {
        let release = read_setting(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
        let folder = Path::new("/lib/modules").join(release).join("kernel/crypto");
        let file = name.replace('-', "_");
        ["ko", "ko.xz", "ko.zst", "ko.gz"]
            .iter()
            .any(|extension| folder.join(format!("{file}.{extension}")).exists())
    };
    match crypto_compressors().iter().any(|known| known == name) || is_module() {
        true => Ok(()),
        false => Err(unknown_zswap_compressor(name)),
    }
}

/// Reads the figures of a pool; copies read the same one.
#[derive(Debug, Clone)]
pub(super) struct PoolReader(Arc<Source>);

#[derive(Debug)]
enum Source {
    Zram(ZramPool),
    Zswap(ZswapPool),
}

impl PoolReader {
    /// All figures.
    ///
    /// # Errors
    ///
    /// Of reading the kernel's files.
    pub(super) fn read(&self) -> io::Result<KernelPool> {
        match &*self.0 {
            Source::Zram(zram) => {
                let refused_pages = Some(zram.failed_writes()?);
                Ok(KernelPool { refused_pages, ..zram.memory()? })
            }
            Source::Zswap(zswap) => zswap.read(),
        }
    }

    /// The figures in bytes and pages alone: what is cheap to read.
    ///
    /// # Errors
    ///
    /// Of reading the kernel's files.
    pub(super) fn memory(&self) -> io::Result<KernelPool> {
        match &*self.0 {
            Source::Zram(zram) => zram.memory(),
            Source::Zswap(zswap) => zswap.memory(),
        }
    }
}

/// Figures of a zram device: Documentation/admin-guide/blockdev/zram.rst.
#[derive(Debug)]
struct ZramPool {
    mm_stat: Figures,
    io_stat: Figures,
    table_bytes: u64,
}

impl ZramPool {
    fn open(number: u32, bytes: u64) -> io::Result<ZramPool> {
        let folder = PathBuf::from(format!("/sys/block/zram{number}"));
        Ok(ZramPool {
            mm_stat: Figures::open(&folder.join("mm_stat"))?,
            io_stat: Figures::open(&folder.join("io_stat"))?,
            table_bytes: bytes / PAGE * ZRAM_ENTRY_BYTES,
        })
    }

    fn memory(&self) -> io::Result<KernelPool> {
        // orig_data_size, compr_data_size, mem_used_total, mem_limit, mem_used_max, same_pages ...
        let figures = self.mm_stat.columns()?;
        let &[original, _, used, _, _, same, ..] = &figures[..] else {
            return Err(self.mm_stat.strange());
        };
        let stored_pages = original / PAGE;
        Ok(KernelPool {
            pool_bytes: used,
            stored_pages,
            // A same-filled page has no object.
            metadata_bytes: self.table_bytes + stored_pages.saturating_sub(same) * HANDLE_BYTES,
            ..KernelPool::default()
        })
    }

    fn failed_writes(&self) -> io::Result<u64> {
        self.io_stat.columns()?.get(1).copied().ok_or_else(|| self.io_stat.strange())
    }
}

/// Figures of zswap, which has one pool for all swap areas: what others have in it was there
/// before.
#[derive(Debug)]
struct ZswapPool {
    memory: Figures,
    events: Figures,
    before: ZswapFigures,
    backing: ZswapBacking,
}

#[derive(Debug)]
enum ZswapBacking {
    /// It takes no memory.
    Disk,
    TmpfsFile(PathBuf),
    Zram(ZramPool),
}

#[derive(Debug, Default)]
struct ZswapFigures {
    pool_bytes: u64,
    stored_pages: u64,
    written_back: Option<u64>,
    written: Option<u64>,
    refused: Option<u64>,
}

impl ZswapPool {
    fn open(area: &Area, bytes: u64) -> io::Result<ZswapPool> {
        let backing = match (&area.tmpfs_file, area.zram) {
            (Some(file), _) => ZswapBacking::TmpfsFile(file.clone()),
            (None, Some(number)) => ZswapBacking::Zram(ZramPool::open(number, bytes)?),
            (None, None) => ZswapBacking::Disk,
        };
        let mut pool = ZswapPool {
            memory: Figures::open(Path::new("/proc/meminfo"))?,
            events: Figures::open(Path::new("/proc/vmstat"))?,
            before: ZswapFigures::default(),
            backing,
        };
        pool.before = pool.figures(true)?;
        Ok(pool)
    }

    /// By /proc/meminfo, which has `Zswap` and `Zswapped` since Linux 5.19; /proc/vmstat, which has
    /// `zswpwb` since 6.8; and debugfs, where it is mounted.
    fn figures(&self, with_events: bool) -> io::Result<ZswapFigures> {
        let text = self.memory.text()?;
        let kib = |name| number_of(&text, name).map(|kib| kib * 1024);
        let debug = |name: &str| {
            let text = read_setting(&Path::new(ZSWAP_DEBUGFS).join(name)).ok()?;
            text.parse::<u64>().ok()
        };
        let pool_bytes = kib("Zswap:").or_else(|| debug("pool_total_size"));
        let stored_pages =
            kib("Zswapped:").map(|bytes| bytes / PAGE).or_else(|| debug("stored_pages"));
        let mut figures = ZswapFigures {
            // Before its first pool debugfs has nothing.
            pool_bytes: pool_bytes.unwrap_or(0),
            stored_pages: stored_pages.unwrap_or(0),
            ..ZswapFigures::default()
        };
        if with_events {
            let events = self.events.text()?;
            figures.written_back =
                number_of(&events, "zswpwb").or_else(|| debug("written_back_pages"));
            figures.written = number_of(&events, "pswpout");
            let reasons = [
                "reject_compress_poor",
                "reject_compress_fail",
                "reject_alloc_fail",
                "reject_reclaim_fail",
                "reject_kmemcache_fail",
            ];
            figures.refused = reasons.into_iter().filter_map(debug).reduce(|sum, more| sum + more);
        }
        Ok(figures)
    }

    fn memory(&self) -> io::Result<KernelPool> {
        self.as_pool(&self.figures(false)?)
    }

    fn read(&self) -> io::Result<KernelPool> {
        let now = self.figures(true)?;
        let since =
            |before: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(before.unwrap_or(0)));
        let written_back_pages = since(self.before.written_back, now.written_back);
        // Pages written to swap areas that did not come from the pool had been refused there.
        let written = since(self.before.written, now.written);
        let passed_by =
            written.zip(written_back_pages).map(|(all, of_pool)| all.saturating_sub(of_pool));
        let refused_pages = since(self.before.refused, now.refused).or(passed_by);
        Ok(KernelPool { refused_pages, written_back_pages, ..self.as_pool(&now)? })
    }

    fn as_pool(&self, now: &ZswapFigures) -> io::Result<KernelPool> {
        let stored_pages = now.stored_pages.saturating_sub(self.before.stored_pages);
        let (backing_memory_bytes, table_bytes) = match &self.backing {
            ZswapBacking::Disk => (0, 0),
            ZswapBacking::TmpfsFile(path) => (fs::metadata(path)?.blocks() * STAT_BLOCK, 0),
            ZswapBacking::Zram(zram) => {
                let zram = zram.memory()?;
                (zram.pool_bytes, zram.metadata_bytes)
            }
        };
        Ok(KernelPool {
            pool_bytes: now.pool_bytes.saturating_sub(self.before.pool_bytes),
            stored_pages,
            metadata_bytes: stored_pages * (ZSWAP_ENTRY_BYTES + HANDLE_BYTES) + table_bytes,
            backing_memory_bytes,
            ..KernelPool::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressors_are_those_of_that_type() {
        let text = "name         : lzo\ndriver : lzo-scomp\ntype         : scomp\n\n\
                    name : crc32c\ntype : shash\n\n\
                    name : deflate\ntype : acomp\n\nname : lzo\ntype : compression\n";
        assert_eq!(compressors_in(text), ["deflate", "lzo"]);
    }

    #[test]
    fn engines_have_names() {
        assert_eq!("zram".parse::<KernelEngine>().unwrap(), KernelEngine::Zram);
        assert!("swap".parse::<KernelEngine>().is_err());
    }

    #[test]
    fn an_unknown_compressor_is_told_with_those_there_are() {
        let error = check_zswap_compressor("no-such-compressor").unwrap_err().to_string();
        assert!(error.contains("'no-such-compressor'; it has: "), "{error}");
    }
}
