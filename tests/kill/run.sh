#!/bin/sh
# Kills a process 1000 times, or as often as is said, while it takes snapshots and writes pages back,
# and checks each time that the snapshot has the last complete state: tests/kill/run.sh [KILLS]
set -eu
cd "$(dirname "$0")/../.."
UZSWAP_KILLS="${1:-1000}" exec cargo test --test snapshot_kill -- --exact \
    killed_at_any_moment_the_last_state_is_there --nocapture
