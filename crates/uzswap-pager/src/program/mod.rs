//! The ways to a program: its files in /proc, its helper.

pub(crate) mod helper;
pub(crate) mod peer;
pub(crate) mod polled;
pub(crate) mod proc_text;
pub(crate) mod procfs;
pub(crate) mod vmas;
