#!/bin/sh
# Plants one bug after the other in a copy of the sources, and sees that torture finds it. A patch
# with a line `found by: --test NAME` is for that test instead.
#
#   tests/planted/run.sh [NAME...]     all of them; about a minute each, to build
#
# Prints a line for each: how many seeds and operations it took, or which tests, and what was found.
# Exits with 1 if one was not found.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=${PLANTED_DIR:-$(mktemp -d)}
seeds=${PLANTED_SEEDS:-60}
ops=${PLANTED_OPS:-5000}
missed=0

# Runs the tests that a patch names, with more options of cargo, for so many seconds at most.
run_tests() {
    limit=$1
    shift
    (cd "$work/tree" && CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$work/target" \
        timeout "$limit" cargo test --no-fail-fast $tests "$@")
}

mkdir -p "$work"
[ $# -gt 0 ] || set -- $(cd "$here" && ls *.patch | sed 's/\.patch$//')
for name; do
    rm -rf "$work/tree"
    mkdir "$work/tree"
    (cd "$root" && tar cf - Cargo.toml Cargo.lock README.md crates) |
        tar xf - -C "$work/tree"
    patch -s -p1 -d "$work/tree" < "$here/$name.patch"
    tests=$(sed -n 's/^found by: //p' "$here/$name.patch")
    if [ -n "$tests" ]; then
        run_tests 1800 --no-run > "$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 3; }
        code=0
        out=$(run_tests 600 2>&1) || code=$?
        found=$(echo "$out" | sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' | head -n 3 | paste -s -d ' ')
        [ "$code" != 124 ] || found="it does not end"
        if [ -n "$found" ]; then
            echo "$name: $tests: $found"
        else
            echo "$name: $tests: NOT FOUND"
            missed=1
        fi
        continue
    fi
    (cd "$work/tree" && CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$work/target" \
        cargo build -q -p uzswap-torture 2> "$work/build.log") || { cat "$work/build.log" >&2; exit 3; }
    found=
    for threads in 1 4; do
        [ -z "$found" ] || break
        code=0
        out=$(timeout 600 "$work/target/debug/uzswap-torture" --seeds "$seeds" --ops "$ops" \
            --threads "$threads" 2>&1) || code=$?
        case $code in
            0) continue ;;
            1) ;;
            124) out="FAILED it does not end" ;;
            *) echo "$out" >&2; exit 3 ;;
        esac
        found=$(echo "$out" | sed -n 's/^FAILED //p' | cut -c1-150)
        done=$(echo "$out" | sed -n 's/^\([0-9]* operations, [0-9]* seeds\).*/\1/p')
        echo "$name: $done, $threads thread(s): $found"
    done
    [ -n "$found" ] || { echo "$name: NOT FOUND"; missed=1; }
done
exit $missed
