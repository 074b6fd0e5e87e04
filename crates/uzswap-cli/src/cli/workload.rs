//! `uzswap workload`: builds one of the built-in heaps.

use std::io::{self, Read, Write};

use anyhow::Context;

use super::Failure;
use super::size::{check_available, parse_size};
use crate::corpus::workload::Workload as Kind;
use crate::human_size::human_size;

/// What `uzswap workload` is asked for.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Workload {
    /// Kind of heap: mixed, string-map, json-tree, numeric, text, pointers, images
    name: Kind,
    /// Seed of the random numbers; the same seed builds the same heap
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Approximate size; units of 1024
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = parse_size)]
    size: usize,
    /// Print `ready` and keep the heap until standard input ends
    #[arg(long)]
    hold: bool,
}

impl Workload {
    pub(super) fn run(self) -> Result<(), Failure> {
        check_available(self.size)?;
        let heap = self.name.build(self.seed, self.size);
        let size = human_size(self.size as u64);
        print_line(&format!("{} {size} seed {}: {}", self.name, self.seed, heap.summary()))?;
        if self.hold {
            print_line("ready")?;
            let mut ignored = [0; 256];
            let mut input = io::stdin().lock();
            while input.read(&mut ignored).is_ok_and(|bytes| bytes > 0) {}
        }
        drop(heap);
        Ok(())
    }
}

/// A line that whoever waits for it sees at once.
fn print_line(line: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .context("cannot write to standard output")
        .map_err(Failure::Check)
}
