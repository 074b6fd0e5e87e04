//! Goal: programs beside `uzswap run` keep their share of the processors, however much its
//! supervisors have to do.
//! Method: threads that count, one for each processor, beside two runs that thrash, all in one
//! session. They must have four fifths of what they have beside supervisors that may not raise
//! their priority. Both are parts of all processor time of the session, because other load of the
//! machine takes from both.
//! Blind to: programs that wait for events, and what they wait.

use uzswap_testing::trials;

use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::setsid;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set, sched_getaffinity};
use uzswap_sys::process;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--thrash") => return thrash(),
        Some("--beside") => return print_part(arguments[1] == "ordinary", &arguments[2..]),
        _ => {}
    }
    let missing = trials::not_root().or_else(|| trials::no_run(env!("CARGO_BIN_EXE_uzswap")));
    let name = "a_program_beside_runs_that_thrash_keeps_its_share";
    trials::run(vec![trials::trial(name.to_owned(), missing, keeps_its_share)])
}

/// `uzswap run`; one that hangs is ended.
fn run(options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "100", env!("CARGO_BIN_EXE_uzswap"), "run", "--quiet"]);
    command.args(options).arg("--").args(program);
    command
}

fn this_program() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

/// Rounds with each kind of supervisor, in turns: more than the first number only while too little
/// of the share seems to be left. Shares of one kind differ by a tenth from round to round.
const ROUNDS: std::ops::RangeInclusive<usize> = 2..=9;

fn keeps_its_share() {
    let (mut raised, mut ordinary) = (0.0, 0.0);
    for round in 1..=*ROUNDS.end() {
        ordinary += part_beside("ordinary");
        raised += part_beside("usual");
        println!("{:.3} of {:.3}", raised / round as f64, ordinary / round as f64);
        if round >= *ROUNDS.start() && raised >= ordinary * 0.8 {
            return;
        }
    }
    panic!("{:.2} of the share is left", raised / ordinary);
}

/// The part that counting threads have of the processor time of a session with runs.
fn part_beside(kind: &str) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let stats = [0, 1].map(|run| folder.path().join(format!("stats-{run}")));
    let output = Command::new(this_program())
        .args(["--beside", kind])
        .args(&stats)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    for path in stats {
        let told: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert!(told["counts"]["restored_pages"].as_u64().unwrap() > 1000, "{told}");
        let fell_back = told["ordinary_priority_ns"].as_u64().unwrap() > 0;
        assert!(fell_back || kind == "ordinary", "{told}");
    }
    String::from_utf8(output.stdout).unwrap().parse().unwrap()
}

/// Prints that part, of a session of this process. Supervisors write their statistics to `stats`.
fn print_part(is_ordinary: bool, stats: &[String]) -> ExitCode {
    setsid().unwrap();
    // Other sessions of a busy machine are to take little of this one. With -20 a thread of the
    // kernel waited for seconds with a lock that a page needs (anon_vma), and all stood still.
    let _ = fs::write("/proc/self/autogroup", "-5");
    if is_ordinary {
        // Children of this thread have no more than this set.
        remove_capability_from_bounding_set(CapabilitySet::SYS_NICE).unwrap();
    }
    let program = this_program();
    let is_over = AtomicBool::new(false);
    let ended_well = thread::scope(|scope| {
        for _ in 0..sched_getaffinity(None).unwrap().count() {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let runs: Vec<_> = stats
            .iter()
            .map(|stats| {
                let options = ["--limit", "48M", "--stats", stats];
                run(&options, &[&program, "--thrash"]).spawn().unwrap()
            })
            .collect();
        let ended = runs.into_iter().map(|mut run| run.wait());
        let ended: Vec<bool> = ended.map(|ended| ended.is_ok_and(|it| it.success())).collect();
        is_over.store(true, Ordering::Relaxed); // before anything fails: the threads would go on
        ended.into_iter().all(|is_well| is_well)
    });
    if !ended_well {
        return ExitCode::FAILURE;
    }
    let own = process::cpu_time();
    let own = (own.user + own.sys).as_secs_f64();
    let children = process::cpu_time_of_children();
    let all = own + (children.user + children.sys).as_secs_f64();
    print!("{}", own / all);
    ExitCode::SUCCESS
}

/// Reads pages at random in two threads: 96 MiB, which shrink to two fifths.
fn thrash() -> ExitCode {
    const SECONDS: u64 = 5;
    const PAGES: usize = 24 << 10;
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *state >> 33
    };
    let mut pages = vec![[0_u64; 512]; PAGES];
    let mut state = 7;
    for page in &mut pages {
        page[..200].fill_with(|| next(&mut state) << 31 | next(&mut state));
        page[511] = page[0];
    }
    let read = |mut state: u64| {
        while Instant::now() < end {
            let page = &pages[next(&mut state) as usize % PAGES];
            assert_eq!(page[0], page[511]);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| read(1));
        scope.spawn(|| read(2));
    });
    ExitCode::SUCCESS
}
