//! The audit of an address space: whether its parts agree. Run by tests, and at the end of a run in
//! debug builds.

use super::AddressSpace;
use crate::page_table::Place;
use uzswap::AuditError;

impl AddressSpace {
    /// Slots that its entries name; a slot once for each entry.
    #[cfg(debug_assertions)]
    pub(crate) fn named_slots(&self) -> Vec<u32> {
        let mut slots = self.layout.released().to_vec();
        self.table.for_each(&mut |_, entry| {
            if let Place::Stored(slot) = entry.place {
                slots.push(slot);
            }
        });
        slots
    }

    /// Checks that
    ///
    /// - each staged page has its page of staging, and no other page of staging has an owner;
    /// - the table counts its staged and stored pages right;
    /// - memory of the library stays where it is.
    ///
    /// # Errors
    ///
    /// The first of these that does not hold, with process and page.
    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        let mut found = [0_u64; 2];
        self.table.for_each(&mut |_, entry| match entry.place {
            Place::Staged(_) => found[0] += 1,
            Place::Stored(_) => found[1] += 1,
            Place::Program => {}
        });
        let counted = [self.table.staged_pages(), self.table.stored_pages()];
        if found != counted {
            return self.wrong(&format!("{found:?} pages staged, stored; counted: {counted:?}"));
        }
        let (mut staged, mut astray) = (0, None);
        self.table.for_each(&mut |page, entry| {
            if let Place::Staged(at) = entry.place {
                staged += 1;
                let owner = self.staging.owner(at);
                astray = astray.or((owner != Some(page)).then_some((page, at, owner)));
            }
        });
        if let Some((page, at, owner)) = astray {
            let text = format!("page {page:#x} is staged at {at}, which has the owner {owner:x?}");
            return self.wrong(&text);
        }
        let owners = self.staging.owned();
        if owners != staged {
            return self.wrong(&format!("{staged} pages are staged, {owners} have a place there"));
        }
        if self.commands.last_helper().is_some() && !self.unevictable.keeps_library() {
            return self.wrong("memory of the library may be evicted");
        }
        Ok(())
    }

    fn wrong(&self, text: &str) -> Result<(), AuditError> {
        Err(format!("process {}: {text}", self.process.pid().unwrap_or(0)).into())
    }
}
