//! Programs need more than the limit, and that cannot be helped: one of them is ended, as a memory
//! cgroup does, be it managed or not.

use std::sync::Arc;

use crate::account::Figures;
use crate::messages::log;
use crate::monitor::process_tree;
use crate::policy::oom;
use crate::program::peer::Peer;
use crate::program::procfs::{locked_bytes, size_of, thread_and_program_of};
use crate::{PAGE_SIZE, Pager, lock, mib, report};

/// A program that may be ended, and one of its threads that has its memory.
struct Candidate {
    bytes: u64,
    peer: Arc<Peer>,
    thread: u32,
}

impl Pager {
    /// Ends the largest program. The supervisor ends none where an unmanaged program has freed
    /// enough since it was found, as by its own end. Its children count.
    pub(crate) fn end_largest(&self, why: &str) {
        let limit = self.account.limit_bytes();
        let room = oom::none_bytes(limit);
        if self.recount_unmanaged() >= room {
            self.scan_tree();
            if self.sample() <= limit - room {
                return;
            }
        }
        let candidates = self.largest_managed().into_iter().chain(self.take_largest_unmanaged());
        if let Some(largest) = candidates.max_by_key(|it| it.bytes) {
            self.end_for_memory(largest, why);
        }
    }

    /// Ends the largest unmanaged program, if unmanaged programs alone pass the limit: nothing else
    /// helps.
    pub(crate) fn end_unmanaged_over_limit(&self) {
        if !self.are_unmanaged_over() {
            return;
        }
        self.scan_tree();
        if !self.are_unmanaged_over() {
            return;
        }
        if let Some(largest) = self.take_largest_unmanaged() {
            let thread = largest.thread;
            self.end_for_memory(largest, "unmanaged programs alone pass --limit");
            // Its end frees the memory a while later. Until then, no other program must end.
            process_tree::await_end(thread);
            self.scan_tree();
        }
    }

    fn are_unmanaged_over(&self) -> bool {
        self.account.unmanaged().bytes() > self.account.limit_bytes()
    }

    /// Takes off what unmanaged programs have freed since they were found; returns the bytes.
    fn recount_unmanaged(&self) -> u64 {
        self.account.unmanaged().take_off_freed(|pid| {
            let (thread, _) = thread_and_program_of(pid)?;
            Some(size_of(thread)?.anonymous * PAGE_SIZE as u64)
        })
    }

    fn largest_managed(&self) -> Option<Candidate> {
        let spaces = self.spaces();
        let by_size = spaces.iter().filter_map(|space| {
            let space = lock(space);
            // Mostly, its group shares the stored pages.
            let members = u64::from(space.charge.members());
            let stored = space.table.stored_pages() * PAGE_SIZE as u64 / members;
            let bytes = space.resident_bytes() + stored;
            Some(Candidate {
                bytes,
                peer: space.process.peer().cloned()?,
                thread: space.process.thread()?,
            })
        });
        by_size.max_by_key(|it| it.bytes)
    }

    fn take_largest_unmanaged(&self) -> Option<Candidate> {
        let largest = self.tree.take_largest();
        let alive = largest.filter(|it| it.peer.is_alive())?;
        Some(Candidate { bytes: alive.bytes, peer: Arc::new(alive.peer), thread: alive.thread })
    }

    /// Ends a program with a message.
    fn end_for_memory(&self, Candidate { peer, thread, .. }: Candidate, why: &str) {
        let Figures { limit, used, resident, unmanaged, evictable, .. } = self.account.figures();
        let pool = self.store.usage().used;
        let uncounted =
            self.account.uncounted().get().text(|bytes| format!("{:.1} MiB", mib(bytes)));
        let uncounted = uncounted.map_or(String::new(), |text| format!("; not counted: {text}"));
        let tables = process_tree::page_table_bytes(self);
        self.account.note_page_tables(tables);
        let beside = match report::are_page_tables_large(tables, limit) {
            true => format!(
                " The kernel's page tables of the programs are {:.1} MiB, beside the limit: the \
                 programs touch few pages of each 2 MiB.",
                mib(tables)
            ),
            false => String::new(),
        };
        let file = if self.store.has_file() { "" } else { " or a --backing file" };
        let locked = self
            .spaces()
            .iter()
            .filter_map(|space| lock(space).process.thread())
            .map(locked_bytes)
            .sum();
        let locked = match locked {
            0 => String::new(),
            bytes => format!(" (mlock: {:.1} MiB of mappings are locked)", mib(bytes)),
        };
        log(&format!(
            "out of memory: {1:.1} MiB in use of {0:.1} ({2:.1} resident, of which {7:.1} cannot \
             be evicted{locked}, {3:.1} pool, {4:.1} metadata, {5:.1} unmanaged \
             programs{uncounted}), and {why}; process {6} was ended. Use a larger \
             --limit{file}.{beside}",
            mib(limit),
            (mib(used) * 10.0).ceil() / 10.0, // more than the limit, by however little
            mib(resident),
            mib(pool),
            mib(used.saturating_sub(resident + pool + unmanaged)),
            mib(unmanaged),
            peer.pid(),
            mib(resident.saturating_sub(evictable)),
        ));
        self.meter.killed();
        process_tree::end_with_memory(self, &peer, thread);
        // Until the next scan of the tree, no other program must end for the same bytes.
        self.account.unmanaged().forget(&[peer.pid()]);
    }
}
