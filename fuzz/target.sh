#!/bin/sh
# Fuzzes one target for so many seconds, and prints a line of it; for run.sh, which has built it.
#
#   fuzz/target.sh SECONDS TARGET
set -eu
here=$(cd "$(dirname "$0")" && pwd)
seconds=$1 target=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
mkdir -p "$here/corpus/$target"
# One allocation of 64 MiB is more than any parser needs of such inputs.
if cargo fuzz run "$target" "$here/corpus/$target" "$here/seeds/$target" -- \
    -max_total_time="$seconds" -max_len=16384 -timeout=20 -malloc_limit_mb=64 \
    -rss_limit_mb=2048 -print_final_stats=1 > "$log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    edges=$(grep -o 'cov: [0-9]*' "$log" | tail -n 1)
    echo "$target: $runs inputs, $edges"
else
    echo "$target: FAILED"
    tail -n 60 "$log"
    exit 1
fi
