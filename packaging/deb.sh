#!/bin/sh
# Builds the package for Debian: the binary, pages of the manual, completions, texts, the library for
# C. Prints its path.
#
#   packaging/deb.sh           needs cargo-deb (cargo install cargo-deb)
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release -p uzswap-cli
cargo build --quiet --release -p uzswap-c --lib
rm -rf "$target/manual"
"$target/release/uzswap" man "$target/manual"
"$target/release/uzswap" completions bash > "$target/manual/uzswap.bash"
"$target/release/uzswap" completions zsh > "$target/manual/_uzswap"
"$target/release/uzswap" completions fish > "$target/manual/uzswap.fish"
rm -rf "$target/c"
case $target in /*) built=$target ;; *) built=$PWD/$target ;; esac
DESTDIR=$built/c crates/uzswap-c/install.sh /usr "$built/release"
exec cargo deb --quiet -p uzswap-cli --no-build
