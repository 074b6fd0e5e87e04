//! The command `uzswap`, and the laboratory behind it.
//!
//! ```text
//!  command line      cli       flags, exit codes, printing
//!      |
//!  pages             corpus    page sets, samples, workloads, captures of real processes
//!      |
//!  figures           measure   replays, live studies, studies of parts; statistics
//!      |             sampler   processes over time, for the tables of a fleet; a feature
//!      |
//!  document          report    the documents of `compare`; text, JSON and CSV of them
//!      |
//!  settings          advise    for a program in less memory, for the kernel's swap
//!      |
//!  page              html      a document as one page with pictures
//! ```
//!
//! Each room names those above it in this picture alone, but not `cli`, which names all.
//!
//! This library is there for the binary, its tests and benchmarks, and `uzswap-torture`. It
//! promises nothing to others.

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod advise;
pub mod cli;
pub mod corpus;
pub mod html;
mod human_size;
pub mod measure;
pub mod report;
#[cfg(feature = "fleet")]
pub mod sampler;
