//! The `uzswap` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    uzswap_cli::cli::main()
}
