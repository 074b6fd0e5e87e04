//! Pages of processes for a caller that does not keep them, and which pages they touch.

use std::io;

use super::process::{self, processes_by_memory, read_any};
use super::sink::PageSink;
use super::{CaptureError, touches as windows};
use crate::corpus::page_set::{PageRange, PageSetError};
use crate::corpus::sample::SamplePlan;
use crate::corpus::working_set::Window;
use uzswap::page::Page;
use uzswap_sys::signals::SignalsHeld;

/// Shows pages to a function.
struct Shown<F> {
    show: F,
    pages: u64,
    of_pages: Option<u64>,
}

impl<F: FnMut(&PageRange, &[Page])> PageSink for Shown<F> {
    fn push(&mut self, range: PageRange, pages: &[Page]) -> Result<(), PageSetError> {
        self.pages += pages.len() as u64;
        (self.show)(&range, pages);
        Ok(())
    }

    fn set_sample(&mut self, of_pages: u64, _seed: u64) {
        self.of_pages = Some(of_pages);
    }

    fn page_count(&self) -> u64 {
        self.pages
    }
}

/// What was read of some processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Visited {
    /// Pages that were shown.
    pub pages: u64,
    /// Resident anonymous pages of the processes, of which these are a sample.
    pub of_pages: u64,
    /// Notes for a reader of the figures: pages that are missing or were skipped.
    pub notes: Vec<String>,
}

/// Shows the resident anonymous pages of processes, or a sample of them, to a function. The field
/// `pages` of a range that is shown has no meaning. Processes that end or may not be read are left
/// out; the notes tell.
///
/// # Errors
///
/// [`CaptureError::Interrupted`], [`CaptureError::Process`].
pub fn visit(
    pids: &[i32],
    plan: SamplePlan,
    show: impl FnMut(&PageRange, &[Page]),
) -> Result<Visited, CaptureError> {
    let signals = SignalsHeld::new();
    let mut shown = Shown { show, pages: 0, of_pages: None };
    let mut notes = Vec::new();
    read_any(pids, plan, &mut shown, &signals, &mut notes)?;
    let of_pages = shown.of_pages.unwrap_or(shown.pages);
    Ok(Visited { pages: shown.pages, of_pages, notes })
}

/// The processes of the machine that this user may read, the largest first, and how many others
/// have memory.
pub fn processes_of_system() -> (Vec<i32>, u64) {
    let all = processes_by_memory();
    let readable = all.iter().filter(|it| it.is_readable).map(|it| it.pid).collect::<Vec<i32>>();
    let rest = all.len() - readable.len();
    (readable, rest as u64)
}

/// A process, and those below it where it `has_tree`.
///
/// # Errors
///
/// [`CaptureError`]: there is no such process, or it has no memory of its own.
pub fn processes_of_tree(pid: i32, has_tree: bool) -> Result<Vec<i32>, CaptureError> {
    process::check(pid)?;
    Ok(process::processes(pid, has_tree, &mut Vec::new()))
}

/// Begins a time of touches of a process: clears the accessed bits of its pages.
///
/// The kernel's reclaim reads the same bits: pages look colder to it until the process touches them
/// again. So do they to another program that counts touches.
///
/// # Errors
///
/// The kernel's: the process has ended, or is not this user's; it has no such file.
pub fn clear_touches(pid: i32) -> io::Result<()> {
    windows::clear(pid)
}

/// The pages of a process that were touched since [`clear_touches`], and those that are resident.
/// The length of the window is 0. A huge page counts whole.
///
/// # Errors
///
/// The kernel's: the process has ended, or is not this user's.
pub fn touches(pid: i32) -> io::Result<Window> {
    let mut window = Window::default();
    windows::look(pid, &mut window, &mut Vec::new())?;
    Ok(window)
}
