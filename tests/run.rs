//! Goal: programs run as they would under `uzswap run`, whatever they do to their memory.
//! Method: the real binary, end to end; an adversarial program, which is this one again.
#![allow(unsafe_code, reason = "the adversary does what the standard library has no way to")]

mod adversary;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--adversary") => adversary::run(&arguments[1..]),
        Some("--scenario") => adversary::scenarios::run(&arguments[1]),
        _ => {}
    }
    let trials: Vec<Trial> = vec![];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
