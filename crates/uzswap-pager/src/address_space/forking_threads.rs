//! Which children come from forks by the C library: their stacks tell.
//!
//! A child of such a fork waits for the supervisor before it gives advice of its own; a child of a
//! direct fork does not. The event of a fork names no thread, and several threads may fork at once.
//! But a child begins on the stack of the thread that forked.

use uzswap_preload::protocol::{FORKING_MAX, SAME_STACK_BYTES};

/// Threads that fork by the C library: an address on the stack of each; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ForkingThreads(pub(super) [u64; FORKING_MAX]);

impl ForkingThreads {
    pub(super) fn are_any(self) -> bool {
        self != ForkingThreads::default()
    }

    /// Whether a child with this stack pointer, if it is known, begins on the stack of one of them.
    pub(super) fn have_forked(self, child: Option<u64>) -> bool {
        let is_near = |child: u64| move |&thread: &u64| thread.abs_diff(child) < SAME_STACK_BYTES;
        child.is_some_and(|child| child != 0 && self.0.iter().any(is_near(child)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_begins_on_the_stack_of_the_thread_that_forked() {
        const STACKS: [u64; 2] = [0x7f00_0000_e000, 0x7f00_0001_3000];
        let mut threads = ForkingThreads::default();
        assert!(!threads.are_any() && !threads.have_forked(Some(0)) && !threads.have_forked(None));
        threads.0[3] = STACKS[0];
        assert!(threads.are_any() && threads.have_forked(Some(STACKS[0] + 400)));
        assert!(threads.have_forked(Some(STACKS[0] - 4095)));
        for other in [Some(STACKS[1]), Some(STACKS[0] + 4096), None] {
            assert!(!threads.have_forked(other), "{other:x?}");
        }
        threads.0[0] = STACKS[1];
        assert!(STACKS.iter().all(|&stack| threads.have_forked(Some(stack))));
    }
}
