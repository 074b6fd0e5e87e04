//! The only unsafe code of the crate: safe faces over the kernel and over C libraries.
//!
//! Every type here owns its resource, frees it when dropped and exposes safe methods only; no raw
//! pointer leaves this folder.

#![allow(unsafe_code, reason = "this folder is where the crate keeps its unsafe code")]

pub mod blocks;
pub mod children;
pub mod cpus;
pub mod cycles;
pub mod files;
pub mod foreign;
pub mod guard;
pub mod interrupt;
pub mod lz4;
pub mod maps;
pub mod mounts;
pub mod pagemap;
pub mod pages;
pub mod peer;
pub mod preload;
pub mod process;
pub mod process_memory;
pub mod ptrace;
pub mod rb_node;
pub mod signals;
pub mod spawn;
pub mod stderr;
pub mod swap;
pub mod uring;
pub mod userfaultfd;
pub mod wide;
pub mod window;
pub mod zeros;
