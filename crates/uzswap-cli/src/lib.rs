//! The command `uzswap`, and the laboratory behind it.
//!
//! ```text
//!  command line      cli       flags, exit codes, printing
//!      |
//!  pages             corpus    page sets, samples, workloads, captures of real processes
//!      |
//!  figures           measure   replays, live studies, studies of parts; statistics
//!      |
//!  document          report    one model of each document; text, JSON and CSV of it
//!      |
//!  settings          advise    how to run a program in less memory
//!      |
//!  page              html      a document as one page with pictures
//! ```
//!
//! Each room names those above it in this picture alone, but for `cli`, which names all.
//!
//! This library is there for the binary, its tests and `uzswap-torture`; it promises nothing to
//! others.

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod advise;
pub mod cli;
pub mod corpus;
pub mod html;
mod human_size;
pub mod measure;
pub mod report;
