//! Samples of many machines, and what compression would have saved on them.
//!
//! ```text
//!  uzswap sample  -->  table     rows in Parquet files: pages, intervals, runs
//!                      folder    the files of a fleet, each whole or not there
//!                        |
//!                      replay    one machine under one setting of the controller
//!                      saving    bytes that its pages save
//!                        |
//!                      tuning    all machines under all settings, over threads  -->  replays
//!  simulate            machines made of sampled ones, from a seed
//! ```
//!
//! Nothing here reads a process: `uzswap sample` of the package `uzswap-cli` does. A replay takes
//! rows or the bytes of files, and gives a row: [`Machine::from_parquet`], [`replay()`],
//! [`Outcome::row`]. Where other processes replay, [`Fleet`] adds their outcomes.

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod folder;
mod replay;
mod saving;
pub mod simulate;
pub mod table;
mod tuning;

pub use replay::{Machine, Outcome, Parameters, SLO_PPM, replay};
pub use saving::{Lengths, Prices, Saving};
pub use tuning::{Fleet, Tried, Tuned, tune};
