//! The swap area: its device or file, its header, and the calls that turn it on.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::mount::{MountFlags, mount};
use rustix::rand::{GetRandomFlags, getrandom};

use super::change::Change;
use super::journal::{Changes, Journal};
use super::kernel_files::{read_setting, write_setting};
use super::swap_header::{PAGE, hexadecimal, write_header};
use super::{KernelEngine, KernelSwapError};
use uzswap_sys::files::{allocate, check_file_size};
use uzswap_sys::swap::{
    HIGHEST_PRIORITY, LOOP_NUMBER_END, loop_add, loop_attach, loop_remove, swap_on,
};

/// Pages of a swap area: mkswap(8) asks for ten at least; the header has a number of 32 bits, and
/// the kernel takes less than that.
const PAGES_MIN: u64 = 10;
const PAGES_MAX: u64 = 1 << 31;

/// Loop devices of ours have numbers from here on: losetup(8) takes the lowest that is free.
const LOOP_NUMBER_MIN: u32 = 1 << 11;

/// Tries to find the number of a loop device that nobody has.
const TRIES: usize = 20;

/// The swap device under the pool: pages go there that the pool refuses or writes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapBacking {
    /// A loop device over a sparse file on a tmpfs, both of our own. The content of the file takes
    /// memory. Needs Linux 6.4, which has a tmpfs that does not swap.
    Loop,
    /// A file that is made in this folder, on a disk.
    File(PathBuf),
    /// A zram device of our own.
    Zram,
}

impl fmt::Display for SwapBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapBacking::Loop => f.write_str("loop"),
            SwapBacking::File(folder) => write!(f, "file:{}", folder.display()),
            SwapBacking::Zram => f.write_str("zram"),
        }
    }
}

impl FromStr for SwapBacking {
    type Err = uzswap::named_enum::UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "loop" => Ok(SwapBacking::Loop),
            "zram" => Ok(SwapBacking::Zram),
            _ => match text.strip_prefix("file:").filter(|folder| !folder.is_empty()) {
                Some(folder) => Ok(SwapBacking::File(folder.into())),
                None => Err(uzswap::named_enum::UnknownName {
                    what: "backing of swap",
                    name: text.to_owned(),
                    known: "loop, zram, file:FOLDER".to_owned(),
                }),
            },
        }
    }
}

/// The compressors that zram has, in the order in which it lists them.
pub(super) fn zram_compressors(journal: &Journal) -> Result<Vec<String>, KernelSwapError> {
    let mut changes = Changes::new(journal);
    let folder = new_zram(&mut changes, 0)?.1;
    compressors_in(&folder.join("comp_algorithm"))
}

/// `lzo [lzo-rle] lz4`: the chosen one is in brackets.
fn compressors_in(setting: &Path) -> Result<Vec<String>, KernelSwapError> {
    let names =
        read_setting(setting).map_err(|error| KernelSwapError::on("read", setting, error))?;
    Ok(names.split_whitespace().map(|word| word.trim_matches(['[', ']']).to_owned()).collect())
}

/// Number and folder of a new zram device, of which nothing is set.
fn new_zram(changes: &mut Changes, bytes: u64) -> Result<(u32, PathBuf), KernelSwapError> {
    if !Path::new("/sys/class/zram-control/hot_add").exists() {
        let advice = "modprobe zram, or use a kernel with CONFIG_ZRAM";
        return Err(KernelSwapError::NoEngine { engine: KernelEngine::Zram, advice });
    }
    let (ids, number) = changes.journal.make_zram(bytes)?;
    changes.made.extend(ids);
    Ok((number, PathBuf::from(format!("/sys/block/zram{number}"))))
}

/// A swap area that is not on yet.
#[derive(Debug)]
pub(super) struct Area {
    /// Its device or file.
    pub(super) path: PathBuf,
    /// The zram device that it is on.
    pub(super) zram: Option<u32>,
    /// The file behind its loop device.
    pub(super) tmpfs_file: Option<PathBuf>,
}

/// Checks a size, in bytes, which is rounded down to pages.
pub(super) fn check_size(bytes: u64) -> Result<u64, KernelSwapError> {
    let pages = bytes / PAGE;
    if (PAGES_MIN..=PAGES_MAX).contains(&pages) {
        Ok(pages * PAGE)
    } else {
        Err(KernelSwapError::Size(bytes))
    }
}

/// A zram device of this size, in bytes, with its own compressor where none is given.
pub(super) fn make_zram(
    changes: &mut Changes,
    bytes: u64,
    compressor: Option<&str>,
) -> Result<Area, KernelSwapError> {
    let (number, folder) = new_zram(changes, bytes)?;
    if let Some(name) = compressor {
        let setting = folder.join("comp_algorithm");
        let known = compressors_in(&setting)?;
        if !known.iter().any(|known| known == name) {
            let name = name.to_owned();
            let engine = KernelEngine::Zram;
            return Err(KernelSwapError::UnknownCompressor { engine, name, known });
        }
        write_setting(&setting, name)
            .map_err(|error| KernelSwapError::on("set the compressor in", &setting, error))?;
    }
    let size = folder.join("disksize");
    write_setting(&size, &bytes.to_string()).map_err(|error| {
        KernelSwapError::kernel(format!("write {bytes} to {}", size.display()), error)
            .advise("use a smaller swap area: its table takes less memory")
    })?;
    let path = PathBuf::from(format!("/dev/zram{number}"));
    Ok(Area { path, zram: Some(number), tmpfs_file: None })
}

/// A loop device over a sparse file of this size, in bytes, on a tmpfs.
pub(super) fn make_loop(changes: &mut Changes, bytes: u64) -> Result<Area, KernelSwapError> {
    let folder = changes.journal.folder().join(changes.journal.unique_name());
    changes.make(Change::Folder { path: folder.clone() }, || {
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(|error| KernelSwapError::on("make", &folder, error))
    })?;
    changes.make(Change::Mount { folder: folder.clone() }, || {
        // Were the tmpfs to swap, it would swap to itself.
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("uzswap", &folder, "tmpfs", flags, c"mode=0700,size=100%,noswap").map_err(|error| {
            KernelSwapError::on("mount a tmpfs at", &folder, error)
                .advise("option noswap needs Linux 6.4; use a file on a disk, or zram, as backing")
        })
    })?;
    let path = folder.join("swap");
    let cannot = |action: &str, error| KernelSwapError::on(action, &path, error);
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(|error| cannot("make", error))?; // goes with the tmpfs
    check_file_size(bytes)
        .and_then(|()| file.set_len(bytes))
        .map_err(|error| cannot("give a size to", error))?;
    let (device, opened) = make_loop_device(changes, &path)?;
    loop_attach(&opened, &file)
        .map_err(|error| KernelSwapError::on("attach a file to", &device, error))?;
    Ok(Area { path: device, zram: None, tmpfs_file: Some(path) })
}

/// A loop device of a number that nobody has, and that is known before it is made.
fn make_loop_device(
    changes: &mut Changes,
    backing: &Path,
) -> Result<(PathBuf, File), KernelSwapError> {
    let cannot = |error| {
        KernelSwapError::kernel("create a loop device", error)
            .advise("modprobe loop, or use another backing")
    };
    let control = File::open("/dev/loop-control").map_err(cannot)?;
    // Each takes the numbers of its partitions, too.
    let partitions = read_setting(Path::new("/sys/module/loop/parameters/max_part"));
    let partitions: u32 = partitions.ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let end = LOOP_NUMBER_END >> (u32::BITS - partitions.leading_zeros());
    let range = end.saturating_sub(LOOP_NUMBER_MIN).max(1);
    for _ in 0..TRIES {
        let mut random = [0; 4];
        getrandom(&mut random, GetRandomFlags::empty()).map_err(|error| cannot(error.into()))?;
        let number = LOOP_NUMBER_MIN + u32::from_ne_bytes(random) % range;
        let change = Change::Loop { number, backing: backing.to_owned() };
        let device = PathBuf::from(format!("/dev/loop{number}"));
        let made = changes.make(change, || {
            loop_add(&control, number).map_err(cannot)?;
            File::options().read(true).write(true).open(&device).map_err(|error| {
                let _ = loop_remove(&control, number);
                KernelSwapError::on("open", &device, error).advise("mount a devtmpfs at /dev")
            })
        });
        match made {
            Err(KernelSwapError::Kernel { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((device, made?)),
        }
    }
    Err(cannot(io::ErrorKind::AlreadyExists.into()))
}

/// A file of this size, in bytes, in a folder.
pub(super) fn make_file(
    changes: &mut Changes,
    folder: &Path,
    bytes: u64,
) -> Result<Area, KernelSwapError> {
    let folder = fs::canonicalize(folder)
        .map_err(|error| KernelSwapError::on("find the folder", folder, error))?;
    let path = folder.join(format!("uzswap-{}", changes.journal.unique_name()));
    let cannot = |error| {
        KernelSwapError::kernel(
            format!("create a swap file of {bytes} bytes, {}", path.display()),
            error,
        )
        .advise("use a folder on ext4 or xfs with enough free space")
    };
    changes.make(Change::File { path: path.clone() }, || {
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
        file.map(drop).map_err(cannot)
    })?;
    let file = File::options().write(true).open(&path).map_err(cannot)?;
    check_file_size(bytes).and_then(|()| allocate(&file, bytes)).map_err(cannot)?;
    Ok(Area { path, zram: None, tmpfs_file: None })
}

/// Turns an area of so many bytes on, before all others.
pub(super) fn turn_on(
    changes: &mut Changes,
    area: &Area,
    bytes: u64,
) -> Result<(), KernelSwapError> {
    let path = &area.path;
    let mut uuid = [0; 16];
    getrandom(&mut uuid, GetRandomFlags::empty())
        .map_err(|error| KernelSwapError::kernel("read random bytes", error))?;
    write_header(path, bytes / PAGE, uuid)
        .map_err(|error| KernelSwapError::on("write a swap header to", path, error))?;
    let change = Change::SwapArea { path: path.clone(), uuid: hexadecimal(&uuid) };
    // A loop device frees memory of its file on discards.
    let discard = area.tmpfs_file.is_some();
    changes.make(change, || {
        swap_on(path, HIGHEST_PRIORITY, discard).map_err(|error| {
            KernelSwapError::on("turn on swap area", path, error)
                .advise("EINVAL: the file system does not support swap files; use another backing")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backings_have_names() {
        for text in ["loop", "zram", "file:/var/tmp"] {
            assert_eq!(text.parse::<SwapBacking>().unwrap().to_string(), text);
        }
        for text in ["", "file", "file:", "disk"] {
            assert!(text.parse::<SwapBacking>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_pages() {
        assert_eq!(check_size(10 * PAGE + 5).unwrap(), 10 * PAGE);
        assert!(check_size(10 * PAGE - 1).is_err());
        assert!(check_size(u64::MAX).is_err());
    }
}
