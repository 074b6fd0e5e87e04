//! Goal: the built-in workloads are the same bytes on any machine and in any build.
//! Method: compares SHA-256 sums with those of another day, in processes of different environments.

use std::process::Command;

use serde_json::Value;
use uzswap_cli::corpus::capture::capture_workload;
use uzswap_cli::corpus::workload::Workload;

/// Of each workload of 8 MiB with seed 1: debug and release builds on x86-64 gave these. A change
/// of a workload is a change of every figure that was measured with it.
const SUMS: [(Workload, &str); 7] = [
    (Workload::Mixed, "b7e887ee1c083e55c3214f2d5fa4b724b5a70a055afee79c3ef531dda775983c"),
    (Workload::StringMap, "2352024cc016f828d7d36230fb19f071483938cdbc2ac8eb0a73b37691103c6a"),
    (Workload::JsonTree, "4e1bbd71f263e0766a6ae881e11bbcc456e0c2fe389ec1d5cdfdbcfee8571cf9"),
    (Workload::Numeric, "f3843fa167a57333f74e5a4341978982ddf8518d4d5f807d7fe5360602b80a3a"),
    (Workload::Text, "75d23b8a259563de884d81cce5daa151778b3717a12035d4b0f54fdeb376ab0c"),
    (Workload::Pointers, "ce82bb9cff6a8f684d79d5cb86ed4eb8a407d0ce44d5486b898069233619608c"),
    (Workload::Images, "674691006d7783a4877ed12987ff0a2d4de9b858073b8cffbe5ffb95a6402c6f"),
];

#[test]
fn each_workload_has_its_sum() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    for (workload, sum) in SUMS {
        let about = capture_workload(workload, 1, 8 << 20, &path).unwrap();
        assert_eq!(about.sha256, sum, "{workload}");
    }
}

/// Address spaces differ from process to process, and the environment is part of each.
#[test]
fn processes_of_different_environments_build_the_same_pages() {
    for (name, value) in [("MALLOC_PERTURB_", "85"), ("UZSWAP_TEST_FILLER", "a longer environment")]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_uzswap"))
            .args(["compare", "--size", "8M", "--runs", "1", "--zpool", "zbud", "--json"])
            .env(name, value)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["corpus"]["sha256"], SUMS[0].1);
    }
}
