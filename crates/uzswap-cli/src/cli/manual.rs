//! Shell completions and manual pages, generated from the command line's own description and the
//! examples here.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use uzswap::files::{Contents, open_output};

use super::{Cli, Failure, print};

/// Lines for the shell, and what each does.
type Examples = &'static [(&'static str, &'static str)];

/// Examples for each command, by the words that call it.
const EXAMPLES: [(&str, Examples); 21] = [
    (
        "uzswap",
        &[
            ("uzswap compare", "Compare the allocators on a built-in workload."),
            ("uzswap compare --limit 60% -- make -j2", "Compare them on a build, in less memory."),
            ("uzswap run --limit 512M -- python3 job.py", "Run a program in less memory."),
        ],
    ),
    (
        "uzswap compare",
        &[
            (
                "uzswap compare -- python3 job.py",
                "Replay the pages that a program has at its peak.",
            ),
            (
                "uzswap compare --limit 60% --runs 5 --engine uzswap,kernel -- make -j2",
                "Run a build under a limit, on both engines, five rounds.",
            ),
            ("uzswap compare --pid 4711 --compressor lz4,zstd --json", "Print JSON for a process."),
            (
                "uzswap compare --corpus job.pages --baseline old.json",
                "Show the changes since an earlier comparison.",
            ),
        ],
    ),
    (
        "uzswap advise",
        &[
            ("uzswap advise -- python3 job.py", "Print settings for a program."),
            ("uzswap advise --system --json", "Print settings for this machine, as JSON."),
        ],
    ),
    (
        "uzswap run",
        &[
            ("uzswap run --limit 512M -- python3 job.py", "Keep a program within 512 MiB."),
            (
                "uzswap run --limit 2G --backing /var/tmp/cold -- make -j2",
                "Write the coldest pages to a file when the pool is full.",
            ),
        ],
    ),
    (
        "uzswap top",
        &[
            ("uzswap top", "Watch all runs of this user."),
            ("uzswap top 4711 --count 1 --json", "Print one sample of one run."),
        ],
    ),
    (
        "uzswap capture",
        &[
            ("uzswap capture -o pages --pid 4711", "Capture a running process."),
            ("uzswap capture -o pages --at 2s -- python3 job.py", "Capture a program after 2 s."),
        ],
    ),
    (
        "uzswap sample",
        &[("uzswap sample --system --out tables", "Sample all processes, each minute.")],
    ),
    (
        "uzswap fleet",
        &[(
            "uzswap fleet replay tables --params threshold-percentile=90,98,warm-up=0s,10m",
            "Find the best setting for the machines whose samples are in a folder.",
        )],
    ),
    (
        "uzswap fleet replay",
        &[("uzswap fleet replay tables --out replays.parquet", "Keep a row of each machine.")],
    ),
    (
        "uzswap fleet simulate",
        &[(
            "uzswap fleet simulate tables --machines 1000 --seed 7 --out simulated",
            "Make a thousand machines of those that were sampled.",
        )],
    ),
    (
        "uzswap classes",
        &[(
            "uzswap classes --chain-size 4 --chain-rule used-percent",
            "Print the size classes of kernels up to 6.2.",
        )],
    ),
    ("uzswap stat", &[("uzswap stat --verify store.uzs", "Check each page of a snapshot.")]),
    ("uzswap bench", &[("uzswap bench index", "Compare the indexes.")]),
    ("uzswap bench index", &[("uzswap bench index --json", "Print the figures as JSON.")]),
    ("uzswap bench map", &[("uzswap bench map", "Compare the ways to map an object.")]),
    ("uzswap bench same-filled", &[("uzswap bench same-filled", "Compare the checks.")]),
    ("uzswap bench swapload", &[("uzswap bench swapload", "Repeat the study of 2019.")]),
    (
        "uzswap doctor",
        &[
            ("uzswap doctor", "Print the conditions of `uzswap run`, and a command for each."),
            ("uzswap doctor --restore", "Undo the changes of a measurement that was killed."),
        ],
    ),
    (
        "uzswap workload",
        &[(
            "uzswap workload json-tree --size 256M --hold",
            "Build a heap and keep it until standard input ends.",
        )],
    ),
    (
        "uzswap completions",
        &[(
            "uzswap completions bash > /etc/bash_completion.d/uzswap",
            "Install the completions for bash.",
        )],
    ),
    (
        "uzswap man",
        &[("uzswap man /usr/local/share/man/man1", "Install the manual for all users.")],
    ),
];

/// The exit codes of all commands.
const EXIT_CODES: [(&str, &str); 4] = [
    ("0", "The work is done."),
    ("1", "A check failed, or a result could not be written."),
    ("2", "The command line or an input file is wrong."),
    ("3", "The machine does not allow it: permission, memory, disk, kernel."),
];

/// `uzswap run` passes the code of its program on.
const EXIT_CODES_OF_RUN: [(&str, &str); 3] = [
    ("N", "The program's own exit code."),
    ("128+N", "A signal N ended the program."),
    ("2, 3", "As in the other commands, before the program has started."),
];

/// What `uzswap completions` is asked for.
#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "uzswap", &mut script);
        print(&String::from_utf8(script).expect("names of ours"))
    }
}

/// What `uzswap man` is asked for.
#[derive(Debug, clap::Args)]
pub(super) struct Manual {
    /// Directory for the pages, created if missing
    directory: PathBuf,
}

impl Manual {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.write().map_err(Failure::Check)
    }

    fn write(&self) -> Result<(), Error> {
        let directory = &self.directory;
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create the directory {}", directory.display()))?;
        let mut whole = Cli::command().disable_help_subcommand(true);
        whole.build();
        write_pages(&whole, "uzswap", directory)
    }
}

/// Writes the page of a command, and of those below it.
fn write_pages(command: &Command, called: &str, directory: &Path) -> Result<(), Error> {
    let name = called.replace(' ', "-");
    let path = directory.join(format!("{name}.1"));
    let page = page(command, called, &name).context("cannot render a page of the manual")?;
    open_output(&path, Contents::Report)
        .and_then(|mut file| file.write_all(&page))
        .with_context(|| format!("cannot write {}", path.display()))?;
    let below = command.get_subcommands().filter(|command| command.get_name() != "help");
    for command in below {
        write_pages(command, &format!("{called} {}", command.get_name()), directory)?;
    }
    Ok(())
}

/// The page of a command: of its description, examples and exit codes.
fn page(command: &Command, called: &str, name: &str) -> std::io::Result<Vec<u8>> {
    let has_subcommands = command.get_subcommands().any(|below| below.get_name() != "help");
    let has_more = command.get_after_help().or(command.get_after_long_help()).is_some();
    let command = command.clone().bin_name(called).display_name(name);
    let man = Man::new(command).title(name.to_uppercase()).section("1");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_subcommands {
        man.render_subcommands_section(&mut page)?;
    }
    if has_more {
        man.render_extra_section(&mut page)?;
    }
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for (line, does) in examples_of(called) {
        roff.control("TP", []).text([bold(*line)]).text([roman(*does)]);
    }
    roff.control("SH", ["EXIT STATUS"]);
    let of_run: &[_] = if called == "uzswap run" { &EXIT_CODES_OF_RUN } else { &EXIT_CODES };
    for (code, means) in of_run {
        roff.control("TP", []).text([bold(*code)]).text([roman(*means)]);
    }
    roff.to_writer(&mut page)?;
    Ok(page)
}

fn examples_of(called: &str) -> Examples {
    EXAMPLES.iter().find(|(of, _)| *of == called).map_or(&[], |(_, examples)| *examples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// Commands by the words that call them.
    fn all(command: &Command, called: &str) -> Vec<String> {
        let below = command.get_subcommands().filter(|command| command.get_name() != "help");
        let below =
            below.flat_map(|command| all(command, &format!("{called} {}", command.get_name())));
        std::iter::once(called.to_owned()).chain(below).collect()
    }

    #[test]
    fn each_command_has_examples_that_parse() {
        for called in all(&Cli::command(), "uzswap") {
            assert!(!examples_of(&called).is_empty(), "{called} has no example");
        }
        for (line, _) in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            let words = line.split(' ').take_while(|word| *word != ">");
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn a_page_has_all_its_sections() {
        let mut whole = Cli::command();
        whole.build();
        let run = whole.find_subcommand("run").unwrap();
        let page = String::from_utf8(page(run, "uzswap run", "uzswap-run").unwrap()).unwrap();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS"] {
            let heading = format!(".SH \"{section}\"\n");
            let plain = format!(".SH {section}\n");
            assert!(page.contains(&heading) || page.contains(&plain), "no {section} in {page}");
        }
        assert!(page.contains("python3 job.py"));
        assert!(!page.contains("SUBCOMMANDS") && !page.contains("EXTRA"), "an empty section");
    }
}
