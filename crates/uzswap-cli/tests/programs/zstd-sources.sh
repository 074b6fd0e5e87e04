#!/bin/sh
# Prints the folder with the C sources of libzstd, which Cargo has unpacked for zstd-sys.
set -eu
root=$(cd "$(dirname "$0")/../../../.." && pwd)
# What other platforms need was not unpacked.
told=$("${CARGO:-cargo}" metadata --format-version 1 --offline --locked \
    --filter-platform "$(uname -m)-unknown-linux-gnu" --manifest-path "$root/Cargo.toml")
echo "$told" | grep -o '"manifest_path":"[^"]*/zstd-sys-[^"]*/Cargo.toml"' |
    sed 's|^"manifest_path":"\(.*\)Cargo.toml"$|\1zstd/lib|'
