//! Goal: the store loses, mixes up and leaks nothing in a world in which everything fails, and
//! reports the reason of each refusal. The torture that shows this also finds planted bugs.
//! Method: seeded histories on doubles of the store's parts, by one thread and by several; planted
//! bugs; the command.
//! Blind to: a kernel that gives no memory (see `out_of_memory`), crashes.
//! Longer: UZSWAP_TORTURE_SECONDS, for the histories of one thread and those of several (15).

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use uzswap_testing::json_schema::{check, document};
use uzswap_torture::{Fault, FaultSet, PlantedBug, Torture};

/// How long each of the two large tests runs new histories.
fn time() -> Duration {
    let seconds = std::env::var("UZSWAP_TORTURE_SECONDS");
    Duration::from_secs(seconds.map_or(15, |seconds| seconds.parse().unwrap()))
}

/// Answers of the store, and faults, in some seeds together.
#[derive(Default)]
struct Seen {
    operations: u64,
    answers: BTreeMap<&'static str, u64>,
    fired: [u64; Fault::ALL.len()],
}

/// Runs seeds from `first` on, `least` of them and more until the time is over.
fn torture(torture: Torture, first: u64, least: u64) -> Seen {
    let (start, time) = (Instant::now(), time());
    let mut seen = Seen::default();
    for seed in (first..).take_while(|seed| seed - first < least || start.elapsed() < time) {
        let outcome = torture.run(seed);
        if let Some(failure) = outcome.failure {
            panic!("{}\n{}\nreplay: {}", failure.what, failure.steps.join("\n"), failure.replay);
        }
        seen.operations += outcome.operations;
        for (answer, count) in outcome.tally {
            *seen.answers.entry(answer).or_default() += count;
        }
        seen.fired.iter_mut().zip(outcome.fired).for_each(|(sum, count)| *sum += count);
    }
    println!("{} operations; {:?}", seen.operations, seen.answers);
    seen
}

const ANSWERS: [&str; 49] = [
    "compacted",
    "discarded",
    "discarded: nothing",
    "invalidated",
    "invalidated: a range",
    "invalidated: nothing",
    "load: corrupt in the backing",
    "load: corrupt in the pool",
    "load: not read",
    "load: nothing",
    "loaded",
    "not restored: another compressor",
    "not restored: does not fit",
    "not restored: file not read",
    "not restored: no index",
    "recompressed",
    "recompressed: nothing",
    "refused: by the backing too",
    "refused: compressed too large",
    "refused: compressor failed",
    "refused: key too large",
    "refused: no index",
    "refused: no pages",
    "refused: no tables",
    "refused: pool is full",
    "refused: pool was full",
    "refused: tenant limit",
    "refused: too large for the pool",
    "restored",
    "restored elsewhere",
    "restored: pages left out",
    "shrinker's turn",
    "shrunk",
    "shrunk: failed",
    "shrunk: nothing",
    "snapshot: a page corrupt",
    "snapshot: a page not read",
    "snapshot: damaged, refused",
    "snapshot: not read back",
    "snapshot: not written",
    "snapshot: pages left out",
    "snapshot: read back",
    "stored: as is",
    "stored: compressed",
    "stored: same-filled",
    "stored: written through",
    "taken",
    "tenant changed",
    "tenant replaced",
];

/// Answers that several threads must get too, of those that more than one thread can get.
const ANSWERS_TO_MANY: [&str; 5] = [
    "refused: no such tenant",
    "restored",
    "restored elsewhere",
    "snapshot: read back",
    "tenant replaced",
];

#[test]
fn one_thread_gets_the_right_answer_to_everything() {
    let seen = torture(Torture { operations: 10_000, ..Torture::default() }, 1, 60);
    for answer in ANSWERS {
        assert!(seen.answers.contains_key(answer), "never: {answer}");
    }
    for (fault, count) in Fault::ALL.into_iter().zip(seen.fired) {
        assert!(count > 0, "never: {fault}");
    }
}

#[test]
fn several_threads_get_right_answers_to_everything() {
    let seen = torture(Torture { operations: 5_000, threads: 4, ..Torture::default() }, 1, 40);
    for answer in ANSWERS_TO_MANY {
        assert!(seen.answers.contains_key(answer), "never: {answer}");
    }
    for (fault, count) in Fault::ALL.into_iter().zip(seen.fired) {
        assert!(count > 0, "never: {fault}");
    }
}

#[test]
fn a_seed_has_one_history() {
    let torture = Torture { operations: 3_000, ..Torture::default() };
    for seed in 1000..1008 {
        let (one, two) = (torture.run(seed), torture.run(seed));
        assert_eq!((one.digest, one.tally), (two.digest, two.tally), "seed {seed}");
        assert_eq!((one.counters, one.fired), (two.counters, two.fired), "seed {seed}");
    }
}

#[test]
fn without_faults_nothing_fails() {
    let torture = Torture { operations: 3_000, faults: FaultSet::NONE, ..Torture::default() };
    for seed in 0..12 {
        let outcome = torture.run(seed);
        assert!(outcome.failure.is_none(), "seed {seed}: {:?}", outcome.failure);
        assert_eq!(outcome.fired, [0; Fault::ALL.len()]);
        let failed = outcome.tally.keys().find(|answer| {
            ["corrupt", "not read", "no index", "no tables", "no pages", "compressor failed"]
                .iter()
                .any(|word| answer.contains(word))
        });
        assert_eq!(failed, None, "seed {seed}");
    }
}

/// Each is found in every one of some seeds, or in most.
#[test]
fn every_planted_bug_is_found() {
    for plant in PlantedBug::ALL {
        let torture = Torture { operations: 20_000, plant: Some(plant), ..Torture::default() };
        let found = (1..=6).filter_map(|seed| torture.run(seed).failure).collect::<Vec<_>>();
        assert!(found.len() >= 4, "{plant}: found in {} of 6 seeds", found.len());
        println!("{plant}: {}", found[0].what);
    }
}

fn command(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap-torture"));
    command.args(arguments).stdin(Stdio::null()).output().expect("the command starts")
}

/// The document on standard output, as its schema describes it.
fn report(output: &Output) -> Value {
    let report = document(&output.stdout);
    check(&report, "uzswap-torture/1");
    report
}

#[test]
fn the_command_reports_what_it_did() {
    let arguments = ["--seed", "5", "--seeds", "3", "--ops", "500", "--json"];
    let reports: Vec<Value> = (0..2)
        .map(|_| {
            let output = command(&arguments);
            assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
            report(&output)
        })
        .collect();
    let report = &reports[0];
    assert_eq!(report["digest"], reports[1]["digest"]);
    assert_eq!((&report["seeds"], &report["operations"]), (&3.into(), &1500.into()));
    assert_eq!(report["faults"].as_object().unwrap().len(), Fault::ALL.len());
    assert!(report["answers"]["loaded"].as_u64().unwrap() > 0 && report["failure"].is_null());
    let output = command(&["--seeds", "2", "--ops", "200", "--faults", "none"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("400 operations, 2 seeds from 1"), "{text}");
    for (arguments, code, words) in [
        (["--faults", "torn-write,gremlins"], 2, "unknown fault 'gremlins'"),
        (["--threads", "0"], 2, "0 is not in 1..=64"),
        (["--seeds=1", "--json=/dev/full"], 1, "os error 28"),
    ] {
        let output = command(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && stderr.contains(words), "{stderr}");
    }
}

#[test]
fn a_failure_comes_with_the_command_that_does_it_again() {
    let arguments = ["--seed", "3", "--seeds", "4", "--plant", "lost-entry", "--json"];
    let output = command(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let failure = &report(&output)["failure"];
    assert!(failure["steps"].is_array(), "{failure}");
    let (cargo, replay) = failure["replay"].as_str().unwrap().split_once(" -- ").unwrap();
    assert_eq!(cargo, "cargo run --release -p uzswap-torture");
    let replay: Vec<&str> = replay.split(' ').collect();
    let again = command(&replay);
    assert_eq!(again.status.code(), Some(1), "{replay:?}");
    let text = String::from_utf8(again.stdout).unwrap();
    assert!(text.contains(failure["what"].as_str().unwrap()), "{text}");
}
