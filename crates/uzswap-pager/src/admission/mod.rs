//! Who may connect: a process by the word of the kernel, and its descent.

pub(crate) mod lineage;
