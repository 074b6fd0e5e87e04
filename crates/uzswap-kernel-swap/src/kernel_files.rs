//! Reads and writes files of /proc and /sys: settings, lists, statistics.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Room for a file of figures.
const TEXT_MAX: usize = 16 << 10;

/// How long a device may stay in use by others that look at it, as udev does.
const BUSY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// A setting's text, without white space around it.
pub(super) fn read_setting(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

/// Writes a setting in a single write(2). The file must be there.
pub(super) fn write_setting(path: &Path, text: &str) -> io::Result<()> {
    File::options().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

/// A path as /proc/swaps, /proc/mounts and sysfs escape it: white space and backslashes in octal.
pub(super) fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes))
}

/// The swap areas that are on: /proc/swaps.
pub(super) fn swap_areas() -> io::Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/swaps")?;
    let first_words = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    Ok(first_words.map(unescaped).collect())
}

/// Where file systems are mounted: /proc/self/mountinfo.
pub(super) fn mount_points() -> io::Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(text.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped).collect())
}

/// Numbers of the block devices that are called `prefix` and a number.
pub(super) fn block_devices(prefix: &str) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        numbers
            .extend(name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The sequence number of a disk, which no other disk has had since the machine started; `None`
/// where there is no such disk, or before Linux 5.15.
pub(super) fn disk_sequence(disk: &str) -> Option<u64> {
    read_setting(&Path::new("/sys/block").join(disk).join("diskseq")).ok()?.parse().ok()
}

/// The highest sequence number of all disks; 0 where the kernel has none.
pub(super) fn last_disk_sequence() -> io::Result<u64> {
    let mut last = 0;
    for entry in fs::read_dir("/sys/block")? {
        last = last.max(entry?.file_name().to_str().and_then(disk_sequence).unwrap_or(0));
    }
    Ok(last)
}

/// A file of figures that is read again and again.
#[derive(Debug)]
pub(super) struct Figures {
    file: File,
    path: PathBuf,
}

impl Figures {
    pub(super) fn open(path: &Path) -> io::Result<Figures> {
        Ok(Figures { file: File::open(path)?, path: path.to_owned() })
    }

    /// Its text now.
    pub(super) fn text(&self) -> io::Result<String> {
        let mut room = vec![0; TEXT_MAX];
        let mut got = 0;
        while got < room.len() {
            match self.file.read_at(&mut room[got..], got as u64)? {
                0 => break,
                more => got += more,
            }
        }
        room.truncate(got);
        String::from_utf8(room).map_err(|_| self.strange())
    }

    /// Its text as one number.
    pub(super) fn number(&self) -> io::Result<u64> {
        self.text()?.trim().parse().map_err(|_| self.strange())
    }

    /// Its text as numbers.
    pub(super) fn columns(&self) -> io::Result<Vec<u64>> {
        let text = self.text()?;
        text.split_ascii_whitespace().map(|word| word.parse().map_err(|_| self.strange())).collect()
    }

    /// An error: it is not as the kernel writes it.
    pub(super) fn strange(&self) -> io::Error {
        let text = format!("unexpected content of {}", self.path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    }
}

/// The number after a name, at the start of a line: `anon 4096`, `Zswap:   12 kB`.
pub(super) fn number_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

/// Tries until it is not in use any more, for some seconds.
pub(super) fn while_busy(mut action: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let since = Instant::now();
    loop {
        match action() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && since.elapsed() < BUSY => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_unescaped() {
        for (text, path) in [
            ("/dev/zram1", "/dev/zram1"),
            (r"/a\040b\134", r"/a b\"),
            (r"\0", r"\0"),
            (r"/x\09y", r"/x\09y"),
        ] {
            assert_eq!(unescaped(text), Path::new(path), "{text}");
        }
    }

    #[test]
    fn figures_are_found_by_their_name() {
        let text = "rss 5\ntotal_rss 4096\nZswap:        12 kB\nbroken\n";
        assert_eq!(number_of(text, "rss"), Some(5));
        assert_eq!(number_of(text, "total_rss"), Some(4096));
        assert_eq!(number_of(text, "Zswap:"), Some(12));
        assert_eq!(number_of(text, "total"), None);
        assert_eq!(number_of(text, "broken"), None);
    }

    #[test]
    fn a_file_is_read_again() {
        let uptime = Figures::open(Path::new("/proc/self/statm")).unwrap();
        assert_eq!(uptime.columns().unwrap().len(), 7);
        assert_eq!(uptime.columns().unwrap().len(), 7);
        assert!(uptime.number().is_err());
    }
}
