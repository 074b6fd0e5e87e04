//! The command line: one file a subcommand.

mod bench;
mod capture;
mod classes;
mod compare;
mod corpus;
mod doctor;
mod kernel_swap;
mod limits;
mod live;
mod run;
mod size;
mod stat;
mod top;
mod torture;
mod use_memory;
mod workload;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Error;
use clap::{Parser, Subcommand};
use serde::Serialize;

use uzswap_sys::signals::size_limit_is_an_error;
use uzswap_sys::stderr::tell;

/// zswap in user space: compressed pages, and which allocator and compressor suit them.
#[derive(Debug, Parser)]
#[command(name = "uzswap", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare allocators and compressors on pages of a file, a process or a command
    Compare(Box<compare::Compare>),
    #[command(name = crate::lab::experiment::CHILD_COMMAND, hide = true)]
    CompareRun(compare::CompareRun),
    #[command(hide = true)]
    InCgroup(kernel_swap::InCgroup),
    #[command(hide = true)]
    KernelRun(kernel_swap::KernelRun),
    #[command(hide = true)]
    ProbeLatency(kernel_swap::ProbeLatency),
    #[command(name = crate::kernel_swap::WATCHER_COMMAND, hide = true)]
    RestoreWhenEnded(kernel_swap::RestoreWhenEnded),
    /// Run a program in less memory
    Run(run::Run),
    /// Show what runs under `uzswap run`, again and again
    Top(top::Top),
    /// Write the pages of a process, a command or a file to a page set
    Capture(capture::Capture),
    /// Print the size classes of zsmalloc and their waste
    Classes(classes::Classes),
    /// Print what is in a snapshot of a store
    Stat(stat::Stat),
    /// Measure the parts one by one: index, swapload, map, same-filled
    Bench(bench::Bench),
    /// Run the store where everything fails, and check every answer
    Torture(torture::TortureArgs),
    /// Print what this machine allows `uzswap run`, and how to allow more
    Doctor(doctor::Doctor),
    #[command(hide = true)]
    UseMemory(use_memory::UseMemory),
    /// Build a heap of realistic data, for captures where nothing else is at hand
    Workload(workload::Workload),
}

/// Why a command did not do its work; the exit code says which.
#[derive(Debug)]
pub enum Failure {
    /// The work was done and a check failed, or its result could not be written: exit code 1.
    Check(Error),
    /// The command line or an input file is wrong: exit code 2.
    Usage(Error),
    /// The machine does not allow it (permission, memory, disk, kernel): exit code 3.
    Machine(Error),
}

impl Failure {
    /// Of an error that knows whether the machine is at fault, and not the input.
    fn of(is_machine: bool, error: impl Into<Error>) -> Failure {
        if is_machine { Failure::Machine(error.into()) } else { Failure::Usage(error.into()) }
    }

    fn code(&self) -> u8 {
        match self {
            Failure::Check(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Machine(_) => 3,
        }
    }

    fn error(&self) -> &Error {
        let (Failure::Check(error) | Failure::Usage(error) | Failure::Machine(error)) = self;
        error
    }
}

/// Prints a command's result on standard output.
fn print(text: &str) -> Result<(), Failure> {
    write_out(text.as_bytes()).map(drop)
}

/// Writes all of it to standard output; `false` where its reader has seen enough (a closed pipe).
fn write_out(bytes: &[u8]) -> Result<bool, Failure> {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            Err(Failure::Check(Error::new(error).context("cannot write to standard output")))
        }
    }
}

/// Prints a command's result as one JSON document.
fn print_json(result: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(result).expect("strings and numbers");
    print(&(text + "\n"))
}

/// Parses the command line, runs the command, reports what went wrong.
#[must_use]
pub fn main() -> ExitCode {
    size_limit_is_an_error();
    // clap prints its own errors and exits with 2 on them.
    let result = match Cli::parse().command {
        Command::Compare(command) => command.run(),
        Command::CompareRun(command) => command.run(),
        Command::Capture(command) => command.run(),
        Command::InCgroup(command) => return command.run(),
        Command::KernelRun(command) => command.run(),
        Command::ProbeLatency(command) => command.run(),
        Command::RestoreWhenEnded(command) => command.run(),
        Command::Run(command) => return command.run(),
        Command::Top(command) => command.run(),
        Command::Classes(command) => command.run(),
        Command::Stat(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Torture(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::UseMemory(command) => command.run(),
        Command::Workload(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The whole chain of causes, outermost first, on one line.
            tell(&format!("{:#}", failure.error()));
            ExitCode::from(failure.code())
        }
    }
}
