//! Accesses for which threads wait, as the kernel reports them.

use super::PAGE;

/// The kind of access for which a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    /// To write to a page that may be another process's as well.
    FirstWrite,
}

impl Access {
    /// By the flags of a fault: a write, and a write to a protected page.
    pub(super) fn of(write: bool, wp: bool) -> Access {
        match (wp, write) {
            (true, _) => Access::FirstWrite,
            (false, true) => Access::Write,
            (false, false) => Access::Read,
        }
    }
}

/// A fault as the kernel reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Touch {
    /// As the kernel numbers it: see `Process::reported_thread`.
    pub(super) thread: u32,
    pub(super) address: u64,
    pub(super) access: Access,
    /// Poisonings of its space when it was read.
    pub(super) poisonings: u64,
}

impl Touch {
    pub(super) fn page(&self) -> u64 {
        self.address / PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_to_a_protected_page_is_a_first_write() {
        let all = [(false, false), (true, false), (true, true), (false, true)];
        let expected = [Access::Read, Access::Write, Access::FirstWrite, Access::FirstWrite];
        assert_eq!(all.map(|(write, wp)| Access::of(write, wp)), expected);
    }
}
