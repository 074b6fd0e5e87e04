#!/bin/sh
# Fuzzes each target for so many seconds, guided by coverage; what it finds, it keeps.
#
#   fuzz/run.sh SECONDS [TARGET...]    all targets, as many at a time as there are processors
#
# Begins with fuzz/seeds, which `cargo test --test fuzz_seeds` checks, and with what earlier runs
# came to in fuzz/corpus. An input that fails is in fuzz/artifacts: give it a name in fuzz/seeds.
# Exits with 1 if a target failed; where there is no cargo-fuzz, says so and exits with 0.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:?"usage: fuzz/run.sh SECONDS [TARGET...]"}
shift
if ! cargo fuzz --version > /dev/null 2>&1; then
    echo "skipped: no cargo-fuzz here; cargo install cargo-fuzz"
    exit 0
fi
[ $# -gt 0 ] || set -- $(cd "$here/fuzz_targets" && ls *.rs | sed 's/\.rs$//')
# In memory, where the machine has such a folder: targets write files.
TMPDIR=$(mktemp -d -p /dev/shm 2> /dev/null || mktemp -d)
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 130' INT TERM
export TMPDIR
# The options of coverage and of the address sanitizer are not stable ones.
export RUSTC_BOOTSTRAP=1
cd "$here/.."
cargo fuzz build
printf '%s\n' "$@" | xargs -n 1 -P "$(nproc)" "$here/target.sh" "$seconds" || exit 1
