//! Goal: programs that are particular about their threads or about other libraries start under
//! `uzswap run`, do the same as without, and are managed where they can be.
//! Method: small programs, compiled here; kinds that this machine cannot compile or run are counted
//! as ignored, with the reason.
//! Blind to: sanitizers of clang; loaders other than glibc's and musl's.

#[allow(dead_code, reason = "what is not used here is in other tests")]
mod process_tree;
use uzswap_testing::outputs::text;
use uzswap_testing::trials;

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};

use tempfile::TempDir;

fn main() -> ExitCode {
    let missing = trials::no_run(env!("CARGO_BIN_EXE_uzswap"));
    let mut all = Vec::new();
    let mut add = |name: &str, missing: Option<String>, test: fn()| {
        all.push(trials::trial(name, missing, test));
    };
    let gcc = missing.clone().or_else(|| cannot_compile("gcc", &[]));
    let with = |sanitizer| gcc.clone().or_else(|| cannot_compile("gcc", &[sanitizer]));
    add("address_sanitizer", with("-fsanitize=address"), address_sanitizer);
    add("thread_sanitizer", with("-fsanitize=thread"), thread_sanitizer);
    add("leak_sanitizer", with("-fsanitize=leak"), leak_sanitizer);
    add("a_filter_of_one_thread", gcc.clone(), || filtered("alone", "own 1, other 0\n"));
    add("a_filter_of_all_threads", gcc.clone(), || filtered("all", "own 1, other 1\n"));
    add("a_filter_of_all_threads_then_exec", gcc.clone(), filtered_exec);
    add("a_filter_of_all_threads_and_no_helper", gcc.clone(), filtered_without_helper);
    add("its_memory_as_a_file", gcc.clone(), memory_as_file);
    let musl = gcc.clone().or_else(|| cannot_compile("musl-gcc", &[]));
    add("musl_starts_glibc_and_the_reverse", musl, both_libraries);
    add("a_program_is_managed_before_its_main", missing.clone(), managed_at_once);
    add("limits_of_memory", missing.clone(), limits_of_memory);
    add("limits_of_the_stack", missing.clone(), limits_of_the_stack);
    add("a_fork_and_semaphore_adjustments", gcc.or_else(no_kcmp), adjustments);
    let perl = Command::new("perl").arg("-e1").status();
    let no_perl = perl.is_err().then(|| "perl is not installed".to_owned());
    add("an_alarm_that_is_set_before", missing.clone().or(no_perl), alarm);
    add("programs_of_32_bits", missing.or_else(no_programs_of_32_bits), programs_of_32_bits);
    trials::run(all)
}

/// Of `uzswap run`; one that hangs is ended, and fails with 137.
fn run_in(limit: &str, options: &[&str], program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "100", env!("CARGO_BIN_EXE_uzswap"), "run", "--limit", limit]);
    command.args(options).args(["--", program]).args(arguments);
    command
}

/// Each of 60 short programs finds the memory of its own helper among its mappings, with the
/// processors busy.
fn managed_at_once() {
    let script = "p=; for i in 0 1 2 3; do (while :; do :; done) & p=\"$p $!\"; done; i=0
                  while [ $i -lt 60 ]; do grep -c uzswap-control /proc/self/maps; i=$((i+1)); done
                  kill $p";
    let stdout = "1\n".repeat(60);
    expect(&mut run_in("64M", &[], "sh", &["-c", script]), 0, &stdout, &[]);
}

/// A program of tests/programs, compiled.
struct Compiled {
    folder: TempDir,
    program: PathBuf,
}

impl Compiled {
    fn new(compiler: &str, name: &str, options: &[&str]) -> Compiled {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(name);
        let source = format!("{}/tests/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
        compile(compiler, Path::new(&source), &program, options).unwrap();
        Compiled { folder, program }
    }

    fn path(&self) -> &str {
        self.program.to_str().unwrap()
    }
}

fn compile(compiler: &str, source: &Path, to: &Path, options: &[&str]) -> Result<(), String> {
    let mut command = Command::new(compiler);
    command.args(["-w", "-O1", "-g", "-pthread"]).args(options).arg("-o").arg(to).arg(source);
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(text(&output.stderr)),
        Err(error) => Err(error.to_string()),
    }
}

fn cannot_compile(compiler: &str, options: &[&str]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let [source, program] = ["a.c", "a"].map(|name| folder.path().join(name));
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let error = compile(compiler, &source, &program, options).err()?;
    Some(format!("{compiler} {}: {}", options.join(" "), error.trim().replace('\n', " ")))
}

/// Runs it, and expects this exit code, and words on standard error.
fn expect(command: &mut Command, code: i32, stdout: &str, words: &[&str]) -> String {
    let Output { status, stdout: out, stderr } = command.output().unwrap();
    let (out, stderr) = (text(&out), text(&stderr));
    let found = status.code().or(status.signal().map(|signal| 128 + signal));
    assert_eq!(found, Some(code), "{out}\n{stderr}");
    assert_eq!(out, stdout, "{stderr}");
    words.iter().for_each(|word| assert!(stderr.contains(word), "no {word} in: {stderr}"));
    stderr
}

/// The program runs and finds a bug, also where a shell starts it with options of its own.
fn address_sanitizer() {
    let program = Compiled::new("gcc", "sanitized", &["-fsanitize=address"]);
    let run = |arguments: &[&str]| run_in("1G", &[], program.path(), arguments);
    expect(&mut run(&["none"]), 0, "failed 0\n", &[]);
    let freed = ["heap-use-after-free"];
    expect(&mut run(&["freed"]), 1, "failed 0\n", &freed);
    expect(run(&["freed"]).env("ASAN_OPTIONS", "exitcode=42"), 42, "failed 0\n", &freed);
    expect(&mut run(&["leaked"]), 1, "failed 0\n", &["1234 byte(s) leaked"]);
    let command = format!("ASAN_OPTIONS=exitcode=43 {} freed", program.path());
    expect(&mut run_in("1G", &[], "sh", &["-c", &command]), 43, "failed 0\n", &freed);
}

fn thread_sanitizer() {
    let program = Compiled::new("gcc", "sanitized", &["-fsanitize=thread"]);
    let run = |bug| run_in("1G", &[], program.path(), &[bug]);
    expect(&mut run("none"), 0, "failed 0\n", &[]);
    expect(&mut run("race"), 66, "failed 0\n", &["data race"]);
}

fn leak_sanitizer() {
    let program = Compiled::new("gcc", "sanitized", &["-fsanitize=leak"]);
    let run = |bug| run_in("1G", &[], program.path(), &[bug]);
    expect(&mut run("none"), 0, "failed 0\n", &[]);
    expect(&mut run("leaked"), 23, "failed 0\n", &["1234 byte(s) leaked"]);
}

/// A program that is larger than the limit sets its filter, and is managed after that.
fn filtered(threads: &str, said: &str) {
    let program = Compiled::new("gcc", "filtered", &[]);
    let stats = program.folder.path().join("stats");
    let options = ["--stats", stats.to_str().unwrap()];
    let arguments = [threads, "60", "exit"];
    let stderr = expect(&mut run_in("36M", &options, program.path(), &arguments), 7, said, &[]);
    assert!(!stderr.contains("is unmanaged"), "{stderr}");
    let told: serde_json::Value = serde_json::from_slice(&fs::read(stats).unwrap()).unwrap();
    // The program reads all of its memory four times, and a third does not fit.
    let stored = told["store"]["zswpout"].as_u64().unwrap();
    assert!(stored > 60 * 256, "{told}");
}

/// A program reads and writes evicted pages of its own through /proc/self/mem.
fn memory_as_file() {
    let program = Compiled::new("gcc", "own_memory", &[]);
    let said = "0 failed, 0 wrong\n";
    expect(&mut run_in("24M", &[], program.path(), &["40", "2400"]), 0, said, &[]);
}

/// Nothing stays behind where such a program becomes another one.
fn filtered_exec() {
    let program = Compiled::new("gcc", "filtered", &[]);
    let said = "own 1, other 1\nanother\n";
    expect(&mut run_in("36M", &[], program.path(), &["all", "60", "exec"]), 0, said, &[]);
}

/// A program ends if its helper, a process, is killed: pages would be missing.
fn filtered_without_helper() {
    let program = Compiled::new("gcc", "filtered", &[]);
    let said = "own 1, other 1\n";
    let mut run = run_in("36M", &[], program.path(), &["all", "60", "wait"]);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run: Child = run.spawn().unwrap();
    let mut out = vec![0; said.len()];
    run.stdout.as_mut().unwrap().read_exact(&mut out).unwrap();
    assert_eq!(text(&out), said);
    let below = process_tree::all_below(run.id());
    let helper = below.into_iter().find(|pid| process_tree::name(*pid) == "uzswap-helper");
    let helper = helper.expect("a helper that is a process").to_string();
    assert!(Command::new("kill").args(["-KILL", &helper]).status().unwrap().success());
    // The program would read the end of its input, and end by itself, if this were closed now.
    let input = run.stdin.take();
    let output = run.wait_with_output().unwrap();
    drop(input);
    let found = output.status.code().or(output.status.signal().map(|signal| 128 + signal));
    assert_eq!(found, Some(128 + 9), "{}", text(&output.stderr));
}

/// Why two processes cannot be compared here.
fn no_kcmp() -> Option<String> {
    let alone = Command::new(Compiled::new("gcc", "undo", &[]).path()).output().unwrap();
    (!alone.status.success()).then(|| text(&alone.stdout).trim().to_owned())
}

/// The kernel compares a process and its child as it does without a helper.
fn adjustments() {
    let program = Compiled::new("gcc", "undo", &[]);
    let alone = Command::new(program.path()).output().unwrap();
    let said = text(&alone.stdout);
    expect(&mut run_in("64M", &[], program.path(), &[]), 0, &said, &[]);
}

fn both_libraries() {
    let [glibc, musl] = ["gcc", "musl-gcc"].map(|it| Compiled::new(it, "started", &[]));
    let (glibc, musl) = (glibc.path(), musl.path());
    let said = |programs: [&str; 2]| programs.map(|it| format!("{it} is managed\n")).concat();
    for [first, second] in [[glibc, musl], [musl, glibc]] {
        expect(&mut run_in("1G", &[], first, &[second]), 0, &said([first, second]), &[]);
    }
}

/// The program alone has a soft limit of memory. The supervisor refuses a hard one that is too
/// small for itself, before it starts anything, unless it may raise it.
fn limits_of_memory() {
    let run = format!("exec {} run --limit 64M -- sh", env!("CARGO_BIN_EXE_uzswap"));
    // The command itself is mapped before it can raise anything.
    for (option, name, kib) in [("-v", "address space", 100_000), ("-d", "data segment", 8000)] {
        let limited = |kind: &str, script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("ulimit {kind} {option} {kib}; {run} -c '{script}'")]);
            shell
        };
        let script = format!("ulimit {option}; sleep 0.5");
        // Where the program has no room for a helper, it runs on by itself.
        let why = match option {
            "-d" => "limits (ulimit -v, -d) leave no 16 MiB of addresses for the helper",
            _ => "",
        };
        let told = expect(&mut limited("-S", &script), 0, &format!("{kib}\n"), &[why]);
        assert_eq!(told.contains("is unmanaged"), !why.is_empty(), "{told}");
        let output = limited("", "echo ran").output().unwrap();
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        match output.status.code() {
            Some(0) => assert_eq!(out, "ran\n"),
            code => {
                assert_eq!((code, &*out), (Some(3), ""), "{errors}");
                assert!(errors.contains(&format!("{name}: {kib} KiB; run needs")), "{errors}");
            }
        }
    }
}

/// A small soft limit of the stack is the program's; a small hard one is refused.
fn limits_of_the_stack() {
    let run = format!("{} run --limit 64M -- sh -c 'ulimit -s'", env!("CARGO_BIN_EXE_uzswap"));
    let limited = |option: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit {option} 100; exec {run}")]);
        shell
    };
    expect(&mut limited("-Ss"), 0, "100\n", &["faults"]);
    expect(&mut limited("-s"), 3, "", &["allows a stack of 100 KiB, and 1024 KiB are needed"]);
}

/// A timer that exec keeps is the program's.
fn alarm() {
    let uzswap = env!("CARGO_BIN_EXE_uzswap");
    let run = |script: &str| {
        let mut perl = Command::new("perl");
        perl.args(["-e", "alarm 1; exec @ARGV", uzswap, "run", "--limit", "64M", "--"]);
        perl.args(["perl", "-e", script]);
        perl
    };
    expect(&mut run("sleep 50"), 128 + 14, "", &["peak"]);
    expect(&mut run("alarm 0; sleep 2; print 'has waited'"), 0, "has waited", &[]);
}

/// The loader of programs of 32 bits: this one, or that of UZSWAP_LOADER_32.
fn loader_of_32() -> String {
    std::env::var("UZSWAP_LOADER_32").unwrap_or("/lib/ld-linux.so.2".to_owned())
}

/// A program of 32 bits that has a loader and ends with 7.
fn assemble_32(folder: &Path) -> Result<PathBuf, String> {
    let [source, object, program] = ["a.s", "a.o", "a"].map(|name| folder.join(name));
    let text_of_program = ".globl _start\n_start: mov $1, %eax\nmov $7, %ebx\nint $0x80\n";
    fs::write(&source, text_of_program).unwrap();
    let loader = loader_of_32();
    let mut assemble = Command::new("as");
    assemble.arg("--32").arg("-o").arg(&object).arg(source);
    let mut link = Command::new("ld");
    link.args(["-m", "elf_i386", "-pie", "-dynamic-linker", &loader, "-o"]);
    link.arg(&program).arg(object);
    for command in [&mut assemble, &mut link] {
        let output = command.output().map_err(|error| format!("as, ld: {error}"))?;
        if !output.status.success() {
            return Err(text(&output.stderr).trim().replace('\n', " "));
        }
    }
    match Command::new(&program).status() {
        Ok(status) if status.code() == Some(7) => Ok(program),
        Ok(status) => Err(format!("a program of 32 bits: {status}")),
        Err(error) => Err(format!("{loader}: {error}")),
    }
}

fn no_programs_of_32_bits() -> Option<String> {
    assemble_32(tempfile::tempdir().unwrap().path()).err()
}

/// Their loader says nothing, also where a shell starts them.
fn programs_of_32_bits() {
    let folder = tempfile::tempdir().unwrap();
    let program = assemble_32(folder.path()).unwrap();
    let program = program.to_str().unwrap();
    let shell = ["-c", program];
    for (program, arguments) in [(program, &[][..]), ("sh", &shell)] {
        let mut run = run_in("1G", &["--quiet"], program, arguments);
        assert_eq!(expect(&mut run, 7, "", &[]), "");
    }
}
