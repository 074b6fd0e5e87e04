//! The command line: a file or a folder for each subcommand.
//!
//! ```text
//!  flags     args, limit_args, live, report_args, corpus, sample_size, size, window
//!  commands  compare, run, advise, bench, top, capture, workload, classes, stat, doctor, manual
//!            fleet                       where its feature is on
//!            kernel_swap, use_memory     hidden ones, for studies
//!  output    json, progress, program
//! ```

mod advise;
mod args;
mod bench;
mod capture;
mod classes;
mod compare;
mod corpus;
mod doctor;
mod filter;
#[cfg(feature = "fleet")]
mod fleet;
mod json;
mod kernel_swap;
mod limit_args;
mod live;
mod manual;
mod program;
mod progress;
mod report_args;
mod run;
mod sample_size;
mod size;
mod stat;
mod top;
mod use_memory;
mod window;
mod workload;

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Error;
use clap::{CommandFactory, Parser, Subcommand};

use crate::measure::experiment;
use crate::measure::study::{index, swapload};
use progress::answer;
use uzswap_sys::escape::escaped;
use uzswap_sys::inherited::raise_stack;
use uzswap_sys::signals::report_size_limit_as_error;
use uzswap_sys::stderr::{self, log};

pub use bench::parse_seconds;
pub use corpus::bar;
pub use json::JsonOutput;

/// The version, the commit and the target.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("UZSWAP_COMMIT"),
    ", ",
    env!("UZSWAP_TARGET"),
    ")"
);

/// zswap in user space: compressed pages, and which allocator and compressor suit them.
#[derive(Debug, Parser)]
#[command(name = "uzswap", version = VERSION, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare allocators and compressors on pages of a file, a process or a command
    Compare(Box<compare::Compare>),
    /// Say which settings of run, zram and zswap suit a program or this machine
    Advise(Box<advise::Advise>),
    /// Run a program in less memory
    Run(run::Run),
    /// List the running `uzswap run` processes, refreshed every second
    Top(top::Top),
    /// Write the pages of a process, a command or a file to a page set
    Capture(capture::Capture),
    #[cfg(feature = "fleet")]
    /// Sample processes over time into tables, for a fleet of machines
    Sample(fleet::sample::Sample),
    #[cfg(feature = "fleet")]
    /// Choose settings for all machines whose samples are in a folder
    Fleet(fleet::Fleet),
    /// Print the size classes of zsmalloc or zblock, and their waste
    Classes(classes::Classes),
    /// Print the contents of a snapshot of a store
    Stat(stat::Stat),
    /// Benchmark single parts: index, swapload, map, same-filled
    Bench(bench::Bench),
    /// Check whether this machine allows `uzswap run`, and print fixes
    Doctor(doctor::Doctor),
    /// Build a heap of realistic data, to capture or to compare
    Workload(workload::Workload),
    /// Print completions for a shell
    Completions(manual::Completions),
    /// Write the manual pages
    Man(manual::Manual),
}

/// Commands that other commands start. Help, completions and suggestions do not show them.
#[derive(Debug, Parser)]
#[command(name = "uzswap")]
struct InnerCli {
    #[command(subcommand)]
    command: InnerCommand,
}

#[derive(Debug, Subcommand)]
enum InnerCommand {
    #[command(name = experiment::CHILD_COMMAND)]
    CompareRun,
    InCgroup(kernel_swap::InCgroup),
    #[command(name = index::RUN_COMMAND)]
    IndexRun,
    KernelRun(kernel_swap::KernelRun),
    ProbeLatency(kernel_swap::ProbeLatency),
    #[command(name = uzswap_kernel_swap::WATCHER_COMMAND)]
    RestoreWhenEnded(kernel_swap::RestoreWhenEnded),
    #[command(name = swapload::RUN_COMMAND)]
    SwaploadRun,
    UseMemory(use_memory::UseMemory),
}

impl InnerCommand {
    /// Whether the command line calls one of them.
    fn is_called() -> bool {
        let first = std::env::args_os().nth(1);
        let is_first =
            |command: &clap::Command| first.as_deref() == Some(command.get_name().as_ref());
        InnerCli::command().get_subcommands().any(is_first)
    }

    fn run(self) -> Result<ExitCode, Failure> {
        match self {
            InnerCommand::InCgroup(command) => return Ok(command.run()),
            InnerCommand::CompareRun => answer("compare", experiment::child),
            InnerCommand::IndexRun => answer("bench index", index::child),
            InnerCommand::KernelRun(command) => command.run(),
            InnerCommand::ProbeLatency(command) => command.run(),
            InnerCommand::RestoreWhenEnded(command) => command.run(),
            InnerCommand::SwaploadRun => answer("bench swapload", swapload::child),
            InnerCommand::UseMemory(command) => command.run(),
        }
        .map(|()| ExitCode::SUCCESS)
    }
}

impl Command {
    fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Command::Run(command) => return Ok(command.run()),
            Command::Compare(command) => command.run(),
            Command::Advise(command) => command.run(),
            Command::Capture(command) => command.run(),
            #[cfg(feature = "fleet")]
            Command::Sample(command) => command.run(),
            #[cfg(feature = "fleet")]
            Command::Fleet(command) => command.run(),
            Command::Top(command) => command.run(),
            Command::Classes(command) => command.run(),
            Command::Stat(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Doctor(command) => command.run(),
            Command::Workload(command) => command.run(),
            Command::Completions(command) => command.run(),
            Command::Man(command) => command.run(),
        }
        .map(|()| ExitCode::SUCCESS)
    }
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

/// Prints a command's result on standard output, with control characters escaped.
fn print(text: &str) -> Result<(), Failure> {
    write_out(escaped(text).as_bytes()).map(drop)
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

/// Parses the command line. clap prints help and errors with the arguments as given. If an argument
/// has control characters, the error is printed here, escaped and without colors.
fn parse<C: Parser>() -> Result<C, ExitCode> {
    let is_plain = |argument: &OsString| {
        let argument = argument.to_string_lossy();
        matches!(escaped(&argument), Cow::Borrowed(_))
    };
    C::try_parse().map_err(|error| {
        if !error.use_stderr() || std::env::args_os().all(|argument| is_plain(&argument)) {
            error.exit();
        }
        stderr::write(&error.render().to_string());
        ExitCode::from(2)
    })
}

/// The parser of the command line takes most of it, up to 200 KiB without optimisation.
const STACK_BYTES: u64 = 1 << 20;

/// The binary `uzswap`.
#[must_use]
pub fn main() -> ExitCode {
    if let Err(bytes) = raise_stack(STACK_BYTES) {
        log(&format!(
            "a hard limit allows a stack of {} KiB, and {} KiB are needed; raise it (ulimit -Hs)",
            bytes >> 10,
            STACK_BYTES >> 10,
        ));
        return ExitCode::from(3);
    }
    match InnerCommand::is_called() {
        true => run(|cli: InnerCli| cli.command.run()),
        false => run(|cli: Cli| cli.command.run()),
    }
}

/// Parses the command line, runs the command, reports what went wrong.
pub fn run<C: Parser>(command: impl FnOnce(C) -> Result<ExitCode, Failure>) -> ExitCode {
    report_size_limit_as_error();
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    command(arguments).unwrap_or_else(|failure| {
        // The whole chain of causes, outermost first, on one line.
        log(&format!("{:#}", failure.error()));
        ExitCode::from(failure.code())
    })
}
