#!/bin/sh
# tests/kill/run.sh [KILLS]
#
# Kills a process KILLS times (1000) while it takes snapshots and writes pages back. The test checks
# each time that the snapshot has the last complete state.
set -eu
cd "$(dirname "$0")/../.."
UZSWAP_KILLS="${1:-1000}" exec cargo test --test snapshot_kill -- --exact \
    killed_at_any_moment_the_last_state_is_there --nocapture
