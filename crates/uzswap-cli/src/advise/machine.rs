//! The state of the machine that advice depends on: memory, swap areas, zram and zswap.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Memory, swap, zram and zswap of a machine. A field is 0 or empty where the kernel has no such
/// file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SwapState {
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// Memory that programs can get without swapping, in bytes.
    pub available_bytes: u64,
    /// The swap areas that are on.
    pub areas: Vec<SwapArea>,
    /// zram, where the kernel has a device or the module is loaded.
    pub zram: Option<ZramState>,
    /// zswap, where the kernel has it.
    pub zswap: Option<ZswapState>,
    /// Pages that were swapped in and out since the machine started.
    pub swapped_pages: u64,
}

/// A swap area.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwapArea {
    /// Its device or file.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes of it that are in use.
    pub used_bytes: u64,
}

impl SwapArea {
    /// Whether it is a zram device.
    pub fn is_zram(&self) -> bool {
        self.path.starts_with("/dev/zram")
    }
}

/// The first zram device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ZramState {
    /// Its size in uncompressed bytes; 0 where it is not set up.
    pub disksize_bytes: u64,
    /// The compressors that it can use; empty where the kernel does not list them.
    pub compressors: Vec<String>,
    /// Whether it can recompress cold pages by a second compressor.
    pub has_recompression: bool,
}

/// The settings of zswap.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ZswapState {
    /// Whether it is on.
    pub is_enabled: bool,
    /// Its compressor.
    pub compressor: String,
    /// The most of the memory that its pool may take.
    pub max_pool_percent: u64,
    /// Whether the kernel has a shrinker for it.
    pub has_shrinker: bool,
    /// The allocator, on kernels that have a choice of them (before 6.18).
    pub zpool: Option<String>,
}

impl SwapState {
    /// Of this machine.
    pub fn of_this_machine() -> SwapState {
        SwapState::read(Path::new("/"))
    }

    /// Of the files of /proc and /sys below `root`.
    pub fn read(root: &Path) -> SwapState {
        let file = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let memory = file("proc/meminfo");
        let vmstat = file("proc/vmstat");
        SwapState {
            memory_bytes: value(&memory, "MemTotal:") << 10,
            available_bytes: value(&memory, "MemAvailable:") << 10,
            areas: areas(&file("proc/swaps")),
            zram: ZramState::read(root),
            zswap: ZswapState::read(root),
            swapped_pages: value(&vmstat, "pswpin") + value(&vmstat, "pswpout"),
        }
    }

    /// Whether a swap area other than zram is on.
    pub fn has_disk_swap(&self) -> bool {
        self.areas.iter().any(|area| !area.is_zram())
    }

    /// Whether a zram device is a swap area.
    pub fn swaps_to_zram(&self) -> bool {
        self.areas.iter().any(SwapArea::is_zram)
    }
}

/// The number after a name.
fn value(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().map(str::split_whitespace);
    let number = lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()));
    number.flatten().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The lines of /proc/swaps after its head. Sizes are in KiB; a blank in a name is `\040`.
fn areas(text: &str) -> Vec<SwapArea> {
    let area = |line: &str| {
        let mut words = line.split_whitespace();
        let (path, _kind) = (words.next()?, words.next()?);
        let mut bytes = || Some(words.next()?.parse::<u64>().ok()? << 10);
        let path = path.replace("\\040", " ");
        Some(SwapArea { path, bytes: bytes()?, used_bytes: bytes()? })
    };
    text.lines().skip(1).filter_map(area).collect()
}

impl ZramState {
    fn read(root: &Path) -> Option<ZramState> {
        let device = root.join("sys/block/zram0");
        let file = |name: &str| fs::read_to_string(device.join(name)).unwrap_or_default();
        if !device.exists() {
            // The module alone: nothing is known of its compressors.
            return root.join("sys/class/zram-control").exists().then(ZramState::default);
        }
        // `lzo [lzo-rle] lz4 zstd`: the chosen one is in brackets.
        let compressors = file("comp_algorithm");
        let compressors = compressors.split_whitespace();
        Some(ZramState {
            disksize_bytes: file("disksize").trim().parse().unwrap_or(0),
            compressors: compressors.map(|name| name.trim_matches(['[', ']']).to_owned()).collect(),
            has_recompression: device.join("recomp_algorithm").exists(),
        })
    }
}

impl ZswapState {
    fn read(root: &Path) -> Option<ZswapState> {
        let folder = root.join("sys/module/zswap/parameters");
        let file = |name: &str| {
            let text = fs::read_to_string(folder.join(name)).ok();
            text.map(|text| text.trim().to_owned())
        };
        folder.exists().then(|| ZswapState {
            is_enabled: file("enabled").is_some_and(|text| text == "Y" || text == "1"),
            compressor: file("compressor").unwrap_or_default(),
            max_pool_percent: file("max_pool_percent").and_then(|it| it.parse().ok()).unwrap_or(0),
            has_shrinker: file("shrinker_enabled").is_some(),
            zpool: file("zpool"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn machine(files: &[(&str, &str)]) -> SwapState {
        let root = TempDir::new().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        SwapState::read(root.path())
    }

    #[test]
    fn files_of_old_and_new_kernels_are_read() {
        let state = machine(&[
            ("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    512 kB\n"),
            (
                "proc/swaps",
                "Filename Type Size Used Priority\n/dev/zram0 partition 8 4 100\n\
                 /a\\040b file 16 0 -2\n",
            ),
            ("proc/vmstat", "nr_free_pages 7\npswpin 3\npswpout 4\n"),
            ("sys/block/zram0/comp_algorithm", "lzo-rle lzo lz4 [zstd] \n"),
            ("sys/block/zram0/disksize", "8192\n"),
            ("sys/block/zram0/recomp_algorithm", "\n"),
            ("sys/module/zswap/parameters/enabled", "Y\n"),
            ("sys/module/zswap/parameters/compressor", "lzo\n"),
            ("sys/module/zswap/parameters/max_pool_percent", "20\n"),
            ("sys/module/zswap/parameters/zpool", "zbud\n"),
        ]);
        assert_eq!((state.memory_bytes, state.available_bytes), (1 << 20, 1 << 19));
        assert_eq!(state.swapped_pages, 7);
        assert!(state.swaps_to_zram() && state.has_disk_swap());
        assert_eq!(state.areas[1].path, "/a b");
        let zram = state.zram.unwrap();
        assert_eq!(zram.compressors, ["lzo-rle", "lzo", "lz4", "zstd"]);
        assert!(zram.has_recompression && zram.disksize_bytes == 8192);
        let zswap = state.zswap.unwrap();
        assert!(zswap.is_enabled && !zswap.has_shrinker && zswap.max_pool_percent == 20);
        assert_eq!(zswap.zpool.as_deref(), Some("zbud"));
    }

    #[test]
    fn a_kernel_without_any_of_it_has_none() {
        let state = machine(&[("proc/swaps", "Filename Type Size Used Priority\n")]);
        assert_eq!(state, SwapState::default());
        let state = machine(&[("sys/class/zram-control/hot_add", "")]);
        assert_eq!(state.zram, Some(ZramState::default()));
    }
}
