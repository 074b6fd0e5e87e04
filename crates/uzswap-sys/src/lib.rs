//! Safe wrappers of kernel interfaces and C libraries, for the packages of uzswap.
//!
//! The unsafe code of the project is here, but for the library that goes into programs
//! (`uzswap-preload`) and the pointers that C gives (`uzswap-c`). A type that has a resource frees
//! it when dropped. All methods are safe, and no raw pointer leaves this package. This package
//! calls the kernel and C, and names no other package of the project.
//!
//! ```text
//!  memory of this process   pages, window, zeroed, blocks      host pages, tables, aligned blocks
//!  memory of another one    userfaultfd                        its faults, and its missing pages
//!                           maps, pagemap, process_memory      its mappings, entries, contents
//!  processes                spawn, ptrace, wait                starts a program, and follows it
//!                           process, peer, cpus, inherited     facts about one, and its settings
//!                           signals, interrupt, death_guard    signals, and the end of this one
//!                           foreign                            closes descriptors of strangers
//!  files                    files, held_folder, mounts, uring  a backing file, a run's folder
//!  the kernel's swap        swap                               areas, loop devices
//!  computation              lz4, simd, shuffle, rb_node,       C, vectors, links,
//!                           cycles                             a clock
//!  terminal                 stderr, escape                     messages
//! ```

#![allow(unsafe_code, reason = "this package is where the project keeps its unsafe code")]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod blocks;
pub mod cpus;
pub mod cycles;
pub mod death_guard;
pub mod escape;
pub mod files;
pub mod foreign;
pub mod held_folder;
pub mod inherited;
pub mod interrupt;
pub mod lz4;
pub mod maps;
pub mod mounts;
pub mod pagemap;
pub mod pages;
pub mod peer;
pub mod process;
pub mod process_memory;
pub mod ptrace;
pub mod rb_node;
pub mod shuffle;
pub mod signals;
pub mod simd;
pub mod spawn;
pub mod stderr;
pub mod swap;
#[cfg(feature = "io-uring")]
pub mod uring;
#[cfg(not(feature = "io-uring"))]
#[path = "no_uring.rs"]
pub mod uring;
pub mod userfaultfd;
pub mod wait;
pub mod window;
pub mod zeroed;
