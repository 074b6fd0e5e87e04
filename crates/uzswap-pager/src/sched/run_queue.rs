//! Whether threads of this machine wait for a processor.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The kernel's count of runnable threads.
#[derive(Debug)]
pub(crate) struct RunQueue {
    file: Option<File>,
    processors: u32,
}

impl RunQueue {
    /// Of a machine of which this process may use so many processors.
    pub(crate) fn new(processors: u32) -> RunQueue {
        RunQueue { file: File::open("/proc/loadavg").ok(), processors }
    }

    /// Whether more threads are runnable, without the calling one and so many that run where nobody
    /// else would, than may run at once. They are taken to be where the kernel does not say.
    pub(crate) fn is_contended(&self, giving_way: u32) -> bool {
        let mut text = [0; 128];
        let read = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let runnable = read.and_then(|bytes| runnable(&text[..bytes]));
        runnable.is_none_or(|runnable| runnable > self.processors + 1 + giving_way)
    }
}

/// Runnable threads, by the kernel's text: `0.51 1.03 2.45 3/109 29862`.
fn runnable(text: &[u8]) -> Option<u32> {
    let counts = std::str::from_utf8(text).ok()?.split(' ').nth(3)?;
    counts.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calling_thread_is_runnable() {
        assert_eq!(runnable(b"0.51 1.03 2.45 3/109 29862\n"), Some(3));
        assert_eq!(runnable(b""), None);
        assert_eq!(runnable(b"0.51 1.03 2.45 x/109 29862\n"), None);
        let mut queue = RunQueue::new(1 << 30);
        assert!(!queue.is_contended(1));
        queue.file = None;
        assert!(queue.is_contended(1));
    }
}
