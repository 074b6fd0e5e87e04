//! Goal: programs in C and C++ work with what `install.sh` installs, as a user has it.
//! Method: installs into a temporary prefix, and compiles against it with pkg-config: the example,
//! and the program of the how-to page. The example also runs under sanitizers and valgrind. Tests
//! that need a program that is not installed here are counted as ignored, with the reason.
//! Blind to: wrong pointers that the library cannot check.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::OnceLock;

use tempfile::TempDir;
use uzswap_testing::trials::{self, trial, why_fails};

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The result of `install.sh`, once a test needs it.
static INSTALLED: OnceLock<Installed> = OnceLock::new();

struct Installed {
    folder: TempDir,
    /// In the folder; with a space, as some users have it.
    prefix: PathBuf,
}

/// How a program is compiled.
struct Build {
    compiler: &'static [&'static str],
    /// Of the shared library, or of the static one.
    is_static: bool,
}

const C: Build = Build { compiler: &["cc", "-std=c11"], is_static: false };
const STATIC: Build = Build { is_static: true, ..C };
const CXX: Build = Build { compiler: &["g++", "-std=c++17", "-x", "c++"], is_static: false };
const SANITIZED: Build = Build {
    compiler: &["cc", "-std=c11", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"],
    is_static: false,
};
const THREAD_SANITIZED: Build =
    Build { compiler: &["cc", "-std=c11", "-g", "-fsanitize=thread"], is_static: false };
const DEBUG: Build = Build { compiler: &["cc", "-std=c11", "-g"], is_static: false };

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn example() -> PathBuf {
    folder().join("examples/threads.c")
}

/// Runs a command that must succeed.
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{told}", output.status);
    output
}

fn text(output: Output) -> String {
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Installed {
    /// Installs the libraries that cargo built for this test.
    fn new() -> Installed {
        let folder = TempDir::new().unwrap();
        let prefix = folder.path().join("a prefix");
        let test = std::env::current_exe().unwrap();
        // With the umask of a careful administrator.
        let mut install = Command::new("sh");
        install.args(["-c", "umask 077; \"$@\"", "sh"]).arg(self::folder().join("install.sh"));
        succeed(install.arg(&prefix).arg(test.parent().unwrap()));
        Installed { folder, prefix }
    }

    fn get() -> &'static Installed {
        INSTALLED.get_or_init(Installed::new)
    }

    fn library(&self, name: &str) -> PathBuf {
        self.prefix.join("lib").join(name)
    }

    /// The words of an answer, of which spaces have a backslash before them.
    fn pkg_config(&self, question: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.library("pkgconfig"));
        let answer = text(succeed(command.args(question).arg("uzswap")));
        let answer = answer.replace("\\ ", "\0");
        answer.split(' ').map(|word| word.replace('\0', " ")).collect()
    }

    /// Compiles a program; its path.
    fn compile(&self, build: &Build, source: &Path, to: &Path) -> PathBuf {
        let program = to.join("program");
        let [compiler, flags @ ..] = build.compiler else { panic!("no compiler") };
        let mut command = Command::new(compiler);
        command.args(WARNINGS).args(["-O1", "-pthread"]).args(flags).arg(source);
        // The language of a source is not that of a library.
        command.args(["-x", "none", "-o"]).arg(&program);
        if build.is_static {
            command.args(self.pkg_config(&["--cflags"]));
            command.arg(self.library("libuzswap.a"));
            let all = self.pkg_config(&["--static", "--libs"]);
            command.args(all.iter().filter(|flag| *flag != "-luzswap"));
        } else {
            command.args(self.pkg_config(&["--cflags", "--libs"]));
        }
        succeed(&mut command);
        program
    }

    /// A command that finds the shared library.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.library(""));
        command
    }
}

/// Compiles the example, and runs it: by itself, or as an argument of another program.
fn run_example(build: &Build, around: &[&str]) {
    let folder = TempDir::new().unwrap();
    let program = Installed::get().compile(build, &example(), folder.path());
    let mut command = match around {
        [] => Installed::get().command(&program),
        [first, rest @ ..] => {
            let mut command = Installed::get().command(Path::new(first));
            command.args(rest).arg(&program);
            command
        }
    };
    let printed = text(succeed(command.arg(folder.path())));
    assert_eq!(printed, format!("uzswap {}: all pages were right", env!("CARGO_PKG_VERSION")));
    let left = fs::read_dir(&folder).unwrap().count();
    assert_eq!(left, 1, "the program alone is left");
}

/// All may read what is installed; a folder without the libraries leaves the prefix as it was.
fn install() {
    let Installed { folder, prefix } = Installed::get();
    let modes = |file: &str| fs::metadata(prefix.join(file)).unwrap().permissions().mode() & 0o777;
    for (file, mode) in [
        ("lib/libuzswap.so.0", 0o755),
        ("lib/libuzswap.a", 0o644),
        ("lib/pkgconfig/uzswap.pc", 0o644),
        ("include/uzswap.h", 0o644),
    ] {
        assert_eq!(modes(file), mode, "{file}");
    }
    let (empty, other) = (TempDir::new().unwrap(), folder.path().join("other"));
    let mut install = Command::new(self::folder().join("install.sh"));
    let output = install.arg(&other).arg(empty.path()).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.contains("has no libuzswap_c.so"), "{told}");
    assert!(!other.exists());
}

/// The shared library has its soname, and exports the functions of the header and nothing else.
fn exports() {
    let library = Installed::get().library("libuzswap.so");
    let dynamic = text(succeed(Command::new("readelf").arg("-d").arg(&library)));
    assert!(dynamic.contains("Library soname: [libuzswap.so.0]"), "{dynamic}");
    let mut nm = Command::new("nm");
    let symbols = text(succeed(nm.args(["-D", "--defined-only"]).arg(&library)));
    let exported: Vec<&str> =
        symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let header = fs::read_to_string(Installed::get().prefix.join("include/uzswap.h")).unwrap();
    let code = header.lines().filter(|line| !line.starts_with(['/', ' ', '#']));
    let mut declared: Vec<&str> = code
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .collect();
    declared.sort_unstable();
    assert!(declared.len() > 20, "{declared:?}");
    assert_eq!(exported, declared);
}

/// The first block of a kind in the page, with `part` in it.
fn page_block(kind: &str, part: &str) -> String {
    let page = folder().join("../../docs/how-to/embed-from-c.md");
    let (page, fence) = (fs::read_to_string(page).unwrap(), format!("```{kind}\n"));
    let mut blocks = page.split(&fence).skip(1);
    let block = blocks.find_map(|after| after.split("```").next().filter(|it| it.contains(part)));
    block.unwrap().to_owned()
}

/// The page's own program, and what it prints.
fn how_to() {
    let folder = TempDir::new().unwrap();
    let source = folder.path().join("first.c");
    fs::write(&source, page_block("c", "main")).unwrap();
    let program = Installed::get().compile(&C, &source, folder.path());
    let mut command = Installed::get().command(&program);
    let printed = text(succeed(command.current_dir(&folder)));
    assert_eq!(printed, page_block("text", "").trim());
}

fn why_not(program: &str) -> Option<String> {
    why_fails(Command::new(program).arg("--version")).map(|_| format!("{program} is not installed"))
}

/// Why a program with sanitizers does not work here.
fn why_not_sanitized(build: &Build) -> Option<String> {
    let folder = TempDir::new().unwrap();
    let (source, program) = (folder.path().join("empty.c"), folder.path().join("empty"));
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let [compiler, flags @ ..] = build.compiler else { panic!("no compiler") };
    let mut compile = Command::new(compiler);
    why_fails(compile.args(flags).arg(&source).arg("-o").arg(&program))
        .or_else(|| why_fails(&mut Command::new(&program)))
        .map(|reason| format!("no sanitizers here: {reason}"))
}

fn main() -> ExitCode {
    let cc = || why_not("cc").or_else(|| why_not("pkg-config"));
    let sanitized = |build| cc().or_else(|| why_not_sanitized(build));
    let valgrind = [
        "valgrind",
        "--quiet",
        "--error-exitcode=9",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
    ];
    let outcome = trials::run([
        trial("install", None, install),
        trial("example_of_the_shared_library", cc(), || run_example(&C, &[])),
        trial("example_of_the_static_library", cc(), || run_example(&STATIC, &[])),
        trial("example_as_cxx", cc().or_else(|| why_not("g++")), || run_example(&CXX, &[])),
        trial("example_with_sanitizers", sanitized(&SANITIZED), || run_example(&SANITIZED, &[])),
        trial("example_with_thread_sanitizer", sanitized(&THREAD_SANITIZED), || {
            let line = page_block("sh", "called_from_lib");
            let (_, suppression) = line.split_once('\'').unwrap();
            let file = Installed::get().folder.path().join("uzswap.supp");
            fs::write(&file, suppression.split_once('\'').unwrap().0).unwrap();
            let settings = format!("TSAN_OPTIONS=suppressions={}", file.display());
            run_example(&THREAD_SANITIZED, &["env", &settings]);
        }),
        trial("example_under_valgrind", cc().or_else(|| why_not("valgrind")), move || {
            run_example(&DEBUG, &valgrind);
        }),
        trial("exports", why_not("nm").or_else(|| why_not("readelf")), exports),
        trial("program_of_the_how_to", cc(), how_to),
    ]);
    // A static is not dropped.
    INSTALLED.get().map(|installed| fs::remove_dir_all(&installed.folder));
    outcome
}
