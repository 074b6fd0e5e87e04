//! How the supervisor identifies the process of a forked child: a secret that it alone can read.
//!
//! ```text
//!  parent: the page of identity is registered, before anything else of it is; never touched
//!    | fork: the kernel gives the child that page empty (MADV_WIPEONFORK), and registered
//!  child: the helper reads it --- fault ---> supervisor: fills it with a secret of that child
//!    helper <--------------------------------
//!    Hello, with the secret ---------------> the supervisor knows which userfaultfd is the child's
//! ```

use std::ops::Range;

use super::{AddressSpace, PAGE};
use crate::program::procfs::ProcessFiles;
use uzswap::page::PAGE_SIZE;

/// The page and the secret that identify a process.
#[derive(Debug, Default)]
pub(super) struct Identity {
    /// Address of the page of identity; the child of a fork has that of its parent.
    page: Option<u64>,
    is_registered: bool,
    /// The content of that page; none once the process is known.
    secret: Option<[u8; 16]>,
}

impl Identity {
    /// That of a forked child.
    pub(super) fn of_child(parent: &Identity, secret: [u8; 16]) -> Identity {
        Identity { secret: Some(secret), ..*parent }
    }
}

impl AddressSpace {
    /// Its page of identity is at this address, where that is not 0.
    pub(crate) fn identify_by(&mut self, address: u64) {
        let page = Some(address).filter(|&address| address != 0);
        self.identity.is_registered &= page == self.identity.page;
        self.identity.page = page;
        // The helper's own page, of what it knows of forks, is just below.
        page.into_iter()
            .for_each(|at| self.unevictable.add_library(at.saturating_sub(PAGE)..at + PAGE));
    }

    /// Registers the page, which comes before any other memory: a child of which something is
    /// registered has its page registered, too.
    pub(super) fn register_identity(&mut self) {
        if let Identity { page: Some(page), is_registered: false, .. } = self.identity {
            self.identity.is_registered =
                self.uffd.register(page..page + PAGE, true, false).is_ok();
        }
    }

    /// Its process is known: nobody else comes with its secret.
    pub(super) fn forget_secret(&mut self) {
        self.identity.secret = None;
    }

    /// Whether its process comes with this secret.
    pub(crate) fn has_secret(&self, words: [u64; 2]) -> bool {
        let [low, high] = words.map(u64::to_ne_bytes);
        self.identity.secret.is_some_and(|secret| secret[..8] == low && secret[8..] == high)
    }

    /// Whether the memory of a process shows the secret: it is the process of this space.
    pub(super) fn shows_secret(&self, files: &ProcessFiles) -> bool {
        let (Some(page), Some(secret)) = (self.identity.page, self.identity.secret) else {
            return false;
        };
        let mut read = [0; 16];
        files.memory.read(page, &mut read).is_ok() && read == secret
    }

    pub(super) fn identity_page(&self) -> Option<Range<u64>> {
        self.identity.page.map(|page| page..page + PAGE)
    }

    /// Whether a touch of this address asks for the secret.
    pub(crate) fn asks_identity(&self, address: u64) -> bool {
        self.identity_page().is_some_and(|page| page.contains(&address))
    }

    /// Fills the page, with zeros once the process is known. The caller must wake who faulted.
    pub(crate) fn tell_identity(&self) -> Range<u64> {
        let page = self.identity.page.unwrap_or(0);
        let mut content = [0; PAGE_SIZE];
        content[..16].copy_from_slice(&self.identity.secret.unwrap_or_default());
        // Refused while mappings change: the kernel reports the fault again.
        let _ = self.uffd.copy(page, &content, false, false);
        page..page + PAGE
    }
}
